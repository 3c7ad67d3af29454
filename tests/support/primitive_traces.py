"""The parameters that JAX's primitives bind, seen in traces: of JAX's own harnesses, of the rows of
tests/lowering, and of `TRACES`."""

from __future__ import annotations

import collections
import importlib
import pathlib
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax._src import compute_on as jax_compute_on
from jax._src import pjit, xla_metadata
from jax._src.export import shape_poly as jax_shape_poly
from jax._src.lax import lax as jax_lax
from jax._src.lax import windowed_reductions as jax_windows
from jax._src.random import prng
from jax._src.state import primitives as state_primitives
from jax.experimental import checkify, io_callback
from jax.experimental.layout import Layout, with_layout_constraint
from jax.extend.core import Primitive

from jax2tf._jax_compat import shape_poly
from jax2tf.jaxprs import walk
from tests.support.conformance.harnesses import load

X = np.arange(6, dtype=np.float32).reshape(2, 3)
GENERATORS = ("threefry2x32", "philox2x32", "philox4x32", "threefry4x32")
# JAX's primitives, by object: ours may have the same names.
PRIMITIVES = {
  value
  for name, module in list(sys.modules.items())
  if name.partition(".")[0] in ("jax", "jaxlib")
  for value in list(vars(module).values())
  if isinstance(value, Primitive)
}


def _collective(x: Any) -> Any:
  return lax.psum(x, "i") - lax.pmax(x, "i") + lax.pmin(x, "i")


def _checked(x: Any) -> Any:
  checkify.check(x.sum() > 0, "negative")
  return x


def _called_back(x: Any) -> Any:
  jax.debug.print("{x}", x=x)
  jax.debug.callback(lambda x: None, x)
  io_callback(lambda x: None, None, x)
  return jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def _symbolic(x: Any) -> Any:
  sizes = {"b": jax_shape_poly.dimension_size_p.bind(x, dimension=0)}
  for _, dim, _ in shape_poly.explicit_constraints(x.shape[0].scope):
    jax_shape_poly.shape_assertion(
      shape_poly.evaluate_dimension(dim, sizes) >= 0, sizes["b"], error_message="wrong {0}"
    )
  return x * x.shape[0]


@jax.custom_vjp
def _with_optimized_remat(x: Any) -> Any:
  return jnp.sin(x)


_with_optimized_remat.defvjp(
  lambda x: (jnp.sin(x), x), lambda x, ct: (ct * jnp.cos(x),), optimize_remat=True
)


def _on_the_host(x: Any) -> Any:
  there = getattr(jax_compute_on, "compute_on2", jax_compute_on.compute_on)
  return there(jnp.sin, compute_type="device_host", out_memory_spaces=jax.memory.Space.Device)(x)


def _with_metadata(x: Any) -> Any:
  x = xla_metadata.set_xla_metadata(x, a=1)
  return (
    xla_metadata.xla_metadata_call(jnp.sin, a=1)(x)
    if hasattr(xla_metadata, "xla_metadata_call")
    else x
  )


def _mesh(kind: Any = jax.sharding.AxisType.Auto) -> Any:
  return jax.make_mesh((1,), ("a",), axis_types=(kind,))


def _resharded() -> tuple[Callable[..., Any], tuple[Any, ...]]:
  explicit = _mesh(jax.sharding.AxisType.Explicit)
  split, whole = (
    jax.sharding.NamedSharding(explicit, jax.sharding.PartitionSpec(*axes)) for axes in [("a",), ()]
  )
  return lambda x: jax.sharding.reshard(x, split), (jax.device_put(X, whole),)


def _words(name: str) -> Any:
  return jax.random.key_data(jax.random.key(0, impl=name))


def _placed(x: Any) -> Any:
  sharding = jax.sharding.NamedSharding(_mesh(), jax.sharding.PartitionSpec("a"))
  x = lax.with_sharding_constraint(x, sharding)
  x = with_layout_constraint(x, Layout(major_to_minor=(0, 1)))
  if hasattr(pjit, "relayout"):
    x = pjit.relayout(x, Layout(major_to_minor=(0, 1)))
  if hasattr(state_primitives, "with_memory_space_constraint_p"):
    x = state_primitives.with_memory_space_constraint_p.bind(
      x, memory_space=jax.memory.Space.Device
    )
  return x


def _selected(x: Any) -> Any:
  unpadded = ((0, 0), (0, 0))
  return jax_windows._select_and_scatter(
    x, lax.ge, (1, 3), (1, 3), unpadded, x[:, :1], np.float32(0), lax.add
  )


TRACES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
  "check": (_checked, (X,)),
  "callbacks": (_called_back, (X,)),
  "collectives of a batch": (jax.vmap(_collective, axis_name="i"), (X,)),
  "composite": (lax.composite(lambda x: x * 2, name="my.double"), (X,)),
  "compute on": (_on_the_host, (X,)),
  "empty scalar": (lambda: jax_lax.empty2(np.float32, memory_space=jax.memory.Space.Device), ()),
  "kept": (lambda x: (jax_lax.dce_sink(x), jax_lax.tie_p.bind(x, x)), (X,)),
  "resharded": _resharded(),
  "layouts": (_placed, (X,)),
  "metadata": (_with_metadata, (X,)),
  "broadcast": (lambda x: state_primitives.broadcast_to(x, (4, 2, 3)), (X,)),
  "generators": (
    lambda: [prng.prngs[name].random_bits(_words(name), 32, (3,)) for name in GENERATORS],
    (),
  ),
  "remat": (jax.grad(lambda x: jnp.sum(jax.checkpoint(_with_optimized_remat)(x))), (X,)),
  "optimized remat": (jax.grad(lambda x: jnp.sum(_with_optimized_remat(x))), (X,)),
  "random bits": (lambda a, b: lax.rng_uniform(a, b, (3,)), (np.float32(0), np.float32(1))),
  "selected and scattered": (_selected, (X,)),
  "scaled dot": (
    lambda x, y, a, b: lax.scaled_dot(x, y, lhs_scale=a, rhs_scale=b),
    tuple(jnp.ones(s, jnp.float8_e4m3fn) for s in [(2, 64), (64, 2)])
    + tuple(jnp.ones(s, jnp.float8_e8m0fnu) for s in [(2, 2), (2, 2)]),
  ),
}


def bound() -> dict[Primitive, set[frozenset[str]]]:
  """{primitive: the sets of names of parameters that it binds}, in what this JAX traces."""
  found: dict[Primitive, set[frozenset[str]]] = collections.defaultdict(set)
  for jaxpr in _jaxprs():
    for eqn in walk(jaxpr):
      found[eqn.primitive].add(frozenset(eqn.params))
  return found


def _jaxprs() -> Iterator[Any]:
  with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    for fun, args in TRACES.values():
      yield jax.make_jaxpr(fun)(*args)
    (spec,) = jax.export.symbolic_args_specs((X,), "b, 3", constraints=["b >= 2"])
    yield jax.make_jaxpr(_symbolic)(spec)
    groups = collections.defaultdict(list)
    for _, harness in sorted(load().items()):
      groups[harness.group_name].append(harness)
    for harnesses in groups.values():
      for harness in (harnesses[0], harnesses[-1]):
        yield jax.make_jaxpr(harness.dyn_fun)(*harness.dyn_args_maker(np.random.RandomState(0)))
    for file in sorted(
      (pathlib.Path(__file__).resolve().parents[1] / "lowering").glob("test_*.py")
    ):
      module = importlib.import_module(f"tests.lowering.{file.stem}")
      for case in getattr(module, "CASES", ()):  # some files have tests only
        with jax.enable_x64(case.x64):
          yield jax.make_jaxpr(case.fun)(*case.args)
