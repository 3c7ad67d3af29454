"""jax2tf converts JAX functions to TensorFlow functions made of ordinary TensorFlow ops.

Public names are imported on first access (PEP 562), so `jax2tf --help` and the servers load neither
TensorFlow nor JAX.
"""

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
  from jax2tf._jax_compat.pretending import pretend_devices
  from jax2tf.api import (
    DisabledSafetyCheck,
    PolyShape,
    convert,
    dtype_of_val,
    eval_polymorphic_shape,
    split_to_logical_devices,
  )
  from jax2tf.context import RuleContext
  from jax2tf.drop_in import install
  from jax2tf.errors import LoweringError
  from jax2tf.expansions.meshes import one_device
  from jax2tf.messages import ArgumentError, ArgumentTypeError
  from jax2tf.refs import Ref, variable_of
  from jax2tf.registry import lowers
  from jax2tf.tf_calls import call_tf, functional
  from jax2tf.tf_calls.modules import tf_module

__version__ = "0.1.0.dev0"

__all__ = [
  "ArgumentError",
  "ArgumentTypeError",
  "DisabledSafetyCheck",
  "LoweringError",
  "PolyShape",
  "Ref",
  "RuleContext",
  "call_tf",
  "convert",
  "dtype_of_val",
  "eval_polymorphic_shape",
  "functional",
  "install",
  "lowers",
  "one_device",
  "pretend_devices",
  "split_to_logical_devices",
  "tf_module",
  "variable_of",
]

_API = "jax2tf.api"
# The modules that define the other names.
_HOMES = {
  "ArgumentError": "jax2tf.messages",
  "ArgumentTypeError": "jax2tf.messages",
  "LoweringError": "jax2tf.errors",
  "Ref": "jax2tf.refs",
  "variable_of": "jax2tf.refs",
  "RuleContext": "jax2tf.context",
  "call_tf": "jax2tf.tf_calls",
  "functional": "jax2tf.tf_calls",
  "install": "jax2tf.drop_in",
  "lowers": "jax2tf.registry",
  "one_device": "jax2tf.expansions.meshes",
  "pretend_devices": "jax2tf._jax_compat.pretending",
  "tf_module": "jax2tf.tf_calls.modules",
}

if not TYPE_CHECKING:  # else a type checker would accept any name

  def __getattr__(name: str) -> Any:
    """A public name or a module of this package."""
    if name in __all__:
      importlib.import_module(_API)  # registers the package's lowering rules before the user's
      value = globals()[name] = getattr(importlib.import_module(_HOMES.get(name, _API)), name)
      return value
    if not name.startswith("__") and importlib.util.find_spec(f"{__name__}.{name}"):
      return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
  return sorted({*globals(), *__all__})
