"""All uses of JAX's private API for symbolic dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax._src.export import shape_poly as _shape_poly
from jax.export import is_symbolic_dim
from jax.extend.core import InconclusiveDimensionOperation

PolyShape = _shape_poly.PolyShape
shape_assertion_p = _shape_poly.shape_assertion_p
dim_as_value_p = _shape_poly.dim_as_value_p
dimension_size_p = _shape_poly.dimension_size_p


def solve_dimension_variables(
  avals: Sequence[Any], in_tree: Any
) -> tuple[dict[str, Any], Any, Sequence[tuple[str, int, int]]]:
  """({variable: expression over dimension sizes}, constraints, [(size name, argument index,
  axis)]).

  Uses JAX's solver if it succeeds. That supports constant factors only; ours also supports known
  factors, so `(a, a*b)` determines b.

  Raises:
    ValueError: JAX's own, for a variable that cannot be solved.
  """
  try:
    return _shape_poly.solve_dim_vars(tuple(avals), in_tree)
  except ValueError as error:
    if (found := _solve_products(avals, in_tree, str(error).partition(". ")[0])) is None:
      raise
    return found


def _solve_products(
  avals: Sequence[Any], in_tree: Any, refusal: str
) -> tuple[dict[str, Any], Any, Sequence[tuple[str, int, int]]] | None:
  """As `solve_dimension_variables`, for expressions linear in each variable once the previous ones
  are known; otherwise None.

  If sizes do not fit, the error also contains `refusal`, the error that JAX's solver raises for all
  sizes.
  """
  describe = _shape_poly.pretty_print_dimension_descriptor
  places = [
    (i, axis, d)
    for i, aval in enumerate(avals)
    for axis, d in enumerate(aval.shape)
    if is_symbolic_dim(d)
  ]
  sizes = [(describe(in_tree, i, axis), i, axis) for i, axis, _ in places]
  scope = places[0][2].scope
  refusal = refusal.replace("{", "{{").replace("}", "}}")  # JAX formats the message
  symbolic = [i for i, aval in enumerate(avals) if any(map(is_symbolic_dim, aval.shape))]
  specs = ", ".join(f"{describe(in_tree, i, None)}.shape = {avals[i].shape}" for i in symbolic)
  intro, outro = (
    "Input shapes do not match the ",
    f". Using the following polymorphic shapes specifications: {specs}. JAX's own solver: "
    f"{refusal}.",
  )
  solution: dict[str, Any] = {}
  constraints = _shape_poly.ShapeConstraints()
  equal, at_least = _shape_poly.Comparator.EQ, _shape_poly.Comparator.GEQ

  def variable(name: str) -> Any:
    return _shape_poly._DimExpr._from_var(name, scope)

  def solvable(d: Any) -> bool:
    unknown = dimension_variables(d) - solution.keys()
    return not unknown or (len(unknown) == 1 and _linear_in(d, *unknown) is not None)

  equations = [(d, name) for (_, _, d), (name, _, _) in zip(places, sizes, strict=True)]
  while equations:
    place = next((i for i, (d, _) in enumerate(equations) if solvable(d)), None)
    if place is None:
      return None
    d, name = equations.pop(place)
    size, unknown = variable(name), dimension_variables(d) - solution.keys()
    if not unknown:
      value = evaluate_dimension(d, solution)
      words = [
        f"{intro}polymorphic shapes specification. Found inconsistency between dimension size "
        f"{name} (= ",
        size,
        ") and the ",
      ]
      constraints.add_constraint(
        equal, size, value, [*words, f"specification '{d}' (= ", value, f"){outro}"]
      )
      continue
    (v,) = unknown
    factor, rest = (evaluate_dimension(part, solution) for part in _linear_in(d, v) or ())
    value, remainder = divmod(size - rest, factor)
    words = [
      f"{intro}polymorphic shapes specification. Division had remainder ",
      remainder,
      f" when computing the value of '{v}'{outro}",
    ]
    constraints.add_constraint(equal, remainder, 0, words)
    words = [
      f"{intro}polymorphic shapes specification. Expected value >= 1 for dimension variable "
      f"'{v}'{outro}"
    ]
    constraints.add_constraint(at_least, value, 1, words)
    solution[v] = value
  for comparator, difference, text in explicit_constraints(scope):
    value = evaluate_dimension(difference, solution)
    relation = "equal" if comparator == "==" else "greater or equal"
    words = [
      f"{intro}symbolic shape constraint {text}. Expected '{difference}' to be {relation} to 0, "
      "but found ",
      value,
      outro,
    ]
    constraints.add_constraint(equal if comparator == "==" else at_least, value, 0, words)
  return solution, constraints, sizes


def _linear_in(dim: Any, v: str) -> tuple[Any, Any] | None:
  """(factor, rest), free of the variable `v`, with dim = factor * v + rest and factor > 0; or
  None."""
  others = {
    name: _shape_poly._DimExpr._from_var(name, dim.scope) for name in dimension_variables(dim)
  }
  try:
    rest = evaluate_dimension(dim, others | {v: 0})
    factor = evaluate_dimension(dim, others | {v: 1}) - rest
  except (ZeroDivisionError, InconclusiveDimensionOperation):
    return None
  positive = factor > 0 if isinstance(factor, int) else dimension_bounds(factor)[0] > 0
  return (factor, rest) if positive and factor * others[v] + rest == dim else None


def root_in(dim: Any, v: str) -> Any:
  """The integer value of the variable `v` for which dim = 0; None if there is none."""
  for side in (dim, -dim):
    if (parts := _linear_in(side, v)) is not None and isinstance(parts[0], int) and parts[0] == 1:
      return -parts[1]
  return None


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
