"""All uses of JAX's private API for symbolic dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax._src.export import shape_poly as _shape_poly
from jax.export import is_symbolic_dim

PolyShape = _shape_poly.PolyShape
shape_assertion_p = _shape_poly.shape_assertion_p
dim_as_value_p = _shape_poly.dim_as_value_p
dimension_size_p = _shape_poly.dimension_size_p


def solved_by_jax(
  avals: Sequence[Any], in_tree: Any
) -> tuple[dict[str, Any], Any, Sequence[tuple[str, int, int]]]:
  """({variable: expression over dimension sizes}, constraints, [(size name, argument index,
  axis)]).

  Raises:
    ValueError: JAX's own, for a variable that cannot be solved.
  """
  return _shape_poly.solve_dim_vars(tuple(avals), in_tree)


def size_name(in_tree: Any, argument: int, axis: int | None) -> str:
  """JAX's name for a size of an argument, `args[0].shape[1]`; for the argument without an axis."""
  return _shape_poly.pretty_print_dimension_descriptor(in_tree, argument, axis)


def variable(name: str, scope: Any) -> Any:
  """The symbolic dimension that is one variable of any name, such as that of a size."""
  return _shape_poly._DimExpr._from_var(name, scope)


class Constraints(_shape_poly.ShapeConstraints):
  """JAX's constraints on sizes, to which others can be added."""

  def require(self, comparator: str, left: Any, right: Any, words: Sequence[Any]) -> None:
    """`left == right`, or `left >= right`; `words` are texts and the values between them."""
    equal, at_least = _shape_poly.Comparator.EQ, _shape_poly.Comparator.GEQ
    self.add_constraint(equal if comparator == "==" else at_least, left, right, list(words))


def explicit_constraints(scope: Any) -> list[tuple[str, Any, str]]:
  """("==" or ">=", difference that is compared with 0, the user's text) of each constraint of a
  scope."""
  return [
    ("==" if c.cmp == _shape_poly.Comparator.EQ else ">=", c.diff, c.debug_str)
    for c in scope._explicit_constraints
  ]


def check_same_scope(scope: Any, dim: Any, when: str) -> None:
  """Raises JAX's ValueError for a symbolic dimension of another scope."""
  scope._check_same_scope(dim, when)


def dimension_bounds(dim: Any) -> tuple[float, float]:
  """The least and greatest value of a symbolic dimension that JAX can prove from the constraints of
  its scope."""
  return _shape_poly._bounds_decision(dim, _shape_poly.BoundsPrecision.BEST)


def evaluate_dimension(dim: Any, sizes: dict[str, Any]) -> Any:
  """The value of a symbolic dimension; `sizes` maps its variables to ints or to JAX tracers."""
  return _shape_poly.ShapeEvaluator(sizes).evaluate(dim)


def check_constraints(constraints: Any, sizes: dict[str, Any]) -> None:
  """Raises JAX's ValueError for a constraint that known `sizes` break; emits an assertion for the
  others."""
  constraints.shape_assertions(_shape_poly.ShapeEvaluator(sizes))


def dimension_variables(dim: Any) -> frozenset[str]:
  """The names of the dimension variables in a symbolic dimension."""
  return frozenset(dim._get_vars()) if is_symbolic_dim(dim) else frozenset()
