"""Every touch of `jax._src` and every branch on the JAX version; nothing else may have one.

The rest of the project reads as if there were one JAX. Where a public name exists it is used at the
place of need, not here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax._src import config as _config
from jax._src import core as _core
from jax._src.export import shape_poly as _shape_poly
from jax.extend.core import ClosedJaxpr, Primitive
from jax.extend.core import primitives as _primitives

trace_context = _config.trace_context
is_symbolic_dim = _shape_poly.is_symbolic_dim
PolyShape = _shape_poly.PolyShape
ShapedArray = _core.ShapedArray


def optional_primitive(name: str, *modules: Any) -> Primitive | None:
  """The primitive `name` of `jax.extend.core.primitives` or of `modules`; None where this JAX has none."""
  return next((p for m in (_primitives, *modules) if (p := getattr(m, name, None)) is not None), None)


def as_closed(jaxpr: Any) -> ClosedJaxpr:
  """An inner jaxpr param as a closed one; call primitives hold it open or closed, depending on the version."""
  return jaxpr if isinstance(jaxpr, ClosedJaxpr) else ClosedJaxpr(jaxpr, ())


def physical_aval(aval: Any) -> Any:
  """key<fry>[3] -> u32[3,2]; every other aval is its own physical one."""
  return _core.physical_aval(aval)


def static_arguments(jitted: Any) -> tuple[tuple[int, ...], tuple[str, ...]]:
  """(static_argnums, static_argnames) of a `jax.jit`-ed function; empty for any other callable."""
  info = getattr(jitted, "_jit_info", None)
  return (tuple(info.static_argnums), tuple(info.static_argnames)) if info is not None else ((), ())


def solve_dimension_variables(avals: Sequence[Any], in_tree: Any) -> tuple[dict[str, Any], Any, Sequence[tuple[str, int, int]]]:
  """({variable: expression over dimension sizes}, constraints, [(size name, argument index, axis)])."""
  return _shape_poly.solve_dim_vars(tuple(avals), in_tree)


def evaluate_dimension(dim: Any, sizes: dict[str, Any]) -> Any:
  """The value of a symbolic dimension; `sizes` maps its variables to ints or to JAX tracers."""
  return _shape_poly.ShapeEvaluator(sizes).evaluate(dim)


def check_constraints(constraints: Any, sizes: dict[str, Any]) -> None:
  """Raises JAX's ValueError for a constraint that known `sizes` break; emits an assertion for the others."""
  constraints.shape_assertions(_shape_poly.ShapeEvaluator(sizes))


def dimension_variables(dim: Any) -> frozenset[str]:
  """The names of the dimension variables in a symbolic dimension."""
  return frozenset(dim._get_vars())


def inside_trace() -> bool:
  """True inside any JAX transformation or trace."""
  return not _core.trace_state_clean()


def scan_split(params: dict[str, Any]) -> tuple[int, int]:
  """(num_consts, num_carry) of a scan equation."""
  if "num_carry" in params:  # JAX < 0.12
    return params["num_consts"], params["num_carry"]
  consts, carry, _ = params["ft_in"].unpack()  # JAX 0.12 keeps (consts, carry, xs) as one tree
  return len(consts), len(carry)


shape_assertion_p = _shape_poly.shape_assertion_p
dim_as_value_p = _shape_poly.dim_as_value_p
dimension_size_p = _shape_poly.dimension_size_p
