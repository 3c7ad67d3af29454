"""The primitives that are refused on purpose, by name, are primitives of JAX."""

from __future__ import annotations

import importlib
import sys

import jax
from jax.extend.core import Primitive

import jax2tf.conversion  # noqa: F401  (registers the rules)
from jax2tf import registry

# The modules with refused primitives that `import jax` leaves out.
LATER = (
  "jax.experimental.jax2tf",
  "jax.experimental.mosaic.gpu",
  "jax.experimental.multihost_utils",
  "jax.experimental.pallas",
  "jax.experimental.pallas.tpu",
)
# Primitives that other versions of JAX have -> the version.
OTHER_JAX = {
  **dict.fromkeys(["core_map", "pbroadcast_done", "pbroadcast_start", "psum_start"], (0, 10)),
  **dict.fromkeys(["reduced_vary_cast_p", "vary_unreduced_cast_p"], (0, 10)),
  **dict.fromkeys(["unreduced_psum_start", "unreduced_reduce_scatter_start"], (0, 10)),
  **dict.fromkeys(["pbroadcast_dynamic", "unreduced_pmax", "unreduced_pmin"], (0, 12)),
  **dict.fromkeys(["reduced_vary_cast", "vary_unreduced_cast"], (0, 12)),
}
OF_LIBRARIES = {"triton_kernel_call"}  # of jax_triton


def test_every_refused_primitive_is_one_of_jax() -> None:
  for module in LATER:
    importlib.import_module(module)
  found = {
    value.name: value
    for name, module in list(sys.modules.items())
    if name.partition(".")[0] == "jax"
    for value in list(vars(module).values())
    if isinstance(value, Primitive)
  }
  of_others = {n for n, version in OTHER_JAX.items() if version != jax.version.__version_info__[:2]}
  assert registry.UNSUPPORTED.keys() - found.keys() == of_others | OF_LIBRARIES
  assert OTHER_JAX.keys() <= registry.UNSUPPORTED.keys()
  for name in registry.UNSUPPORTED.keys() & found.keys():
    assert registry.refusal(found[name]) == registry.UNSUPPORTED[name]
