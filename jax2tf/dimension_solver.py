"""Dimension variables from argument sizes, also where an expression has a product of variables.

JAX's own solver takes constant factors only. Ours goes through the sizes in any order in which each
new expression has one unknown variable, linear in it, so that `(a, a*b)` determines `b`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax.export import is_symbolic_dim
from jax.extend.core import InconclusiveDimensionOperation

from jax2tf._jax_compat import shape_poly

# ({variable: expression over dimension sizes}, constraints on the sizes, [(name of a size, argument
# index, axis)]).
Solution = tuple[dict[str, Any], Any, Sequence[tuple[str, int, int]]]


def solve_dimension_variables(avals: Sequence[Any], in_tree: Any) -> Solution:
  """The dimension variables in the shapes of the avals, by JAX's solver if it succeeds.

  Raises:
    ValueError: JAX's own, for a variable that cannot be solved.
  """
  try:
    return shape_poly.solved_by_jax(avals, in_tree)
  except ValueError as error:
    solution = _Products(avals, in_tree, refusal=str(error).partition(". ")[0]).solved()
    if solution is None:
      raise
    return solution


class _Products:
  """Solves expressions that are linear in each variable once the previous ones are known.

  Attributes:
    sizes: (name, argument index, axis) of each symbolic size.
    solution: {variable: expression over the names of sizes}, as far as it is known.
    constraints: what the sizes must meet for the solution to be one.
  """

  def __init__(self, avals: Sequence[Any], in_tree: Any, refusal: str):
    """`refusal` is the error of JAX's solver, which the error for sizes that do not fit ends
    with."""
    symbolic = [
      (i, axis, dim)
      for i, aval in enumerate(avals)
      for axis, dim in enumerate(aval.shape)
      if is_symbolic_dim(dim)
    ]
    self.sizes = [(shape_poly.size_name(in_tree, i, axis), i, axis) for i, axis, _ in symbolic]
    self.solution: dict[str, Any] = {}
    self.constraints = shape_poly.Constraints()
    self._equations = [
      (dim, name) for (_, _, dim), (name, _, _) in zip(symbolic, self.sizes, strict=True)
    ]
    self._scope = symbolic[0][2].scope
    specs = ", ".join(
      f"{shape_poly.size_name(in_tree, i, None)}.shape = {avals[i].shape}"
      for i in dict.fromkeys(i for i, _, _ in symbolic)
    )
    jax_formats_it = refusal.replace("{", "{{").replace("}", "}}")
    self._outro = (
      f". Using the following polymorphic shapes specifications: {specs}. JAX's own solver: "
      f"{jax_formats_it}."
    )

  def solved(self) -> Solution | None:
    """The solution; None if no order of the sizes gives one."""
    while self._equations:
      solvable = [i for i, (dim, _) in enumerate(self._equations) if self._is_solvable(dim)]
      if not solvable:
        return None
      dim, name = self._equations.pop(solvable[0])
      unknown = self._unknown(dim)
      if unknown:
        self._solve(dim, name, *unknown)
      else:
        self._require_equal(dim, name)
    self._require_the_constraints_of_the_scope()
    return self.solution, self.constraints, self.sizes

  def _unknown(self, dim: Any) -> frozenset[str]:
    return shape_poly.dimension_variables(dim) - self.solution.keys()

  def _is_solvable(self, dim: Any) -> bool:
    unknown = self._unknown(dim)
    return not unknown or (len(unknown) == 1 and _linear_in(dim, *unknown) is not None)

  def _value(self, dim: Any) -> Any:
    return shape_poly.evaluate_dimension(dim, self.solution)

  def _require_equal(self, dim: Any, name: str) -> None:
    """The size of this name is `dim`, whose variables are known."""
    size, value = shape_poly.variable(name, self._scope), self._value(dim)
    words = [f"Found inconsistency between dimension size {name} (= ", size, ") and the "]
    self._require("==", size, value, *words, f"specification '{dim}' (= ", value, ")")

  def _solve(self, dim: Any, name: str, variable: str) -> None:
    """The size of this name is `dim`, which has one unknown variable."""
    size = shape_poly.variable(name, self._scope)
    factor, rest = (self._value(part) for part in _linear_in(dim, variable) or ())
    value, remainder = divmod(size - rest, factor)
    divided = ["Division had remainder ", remainder, f" when computing the value of '{variable}'"]
    self._require("==", remainder, 0, *divided)
    self._require(">=", value, 1, f"Expected value >= 1 for dimension variable '{variable}'")
    self.solution[variable] = value

  def _require(self, comparator: str, left: Any, right: Any, *words: Any) -> None:
    first, *others = words
    intro = "Input shapes do not match the polymorphic shapes specification. "
    self.constraints.require(comparator, left, right, [intro + first, *others, self._outro])

  def _require_the_constraints_of_the_scope(self) -> None:
    for comparator, difference, text in shape_poly.explicit_constraints(self._scope):
      value = self._value(difference)
      relation = "equal" if comparator == "==" else "greater or equal"
      words = [
        f"Input shapes do not match the symbolic shape constraint {text}. Expected '{difference}' "
        f"to be {relation} to 0, but found ",
        value,
        self._outro,
      ]
      self.constraints.require(comparator, value, 0, words)


def _linear_in(dim: Any, variable: str) -> tuple[Any, Any] | None:
  """(factor, rest), free of the variable, with dim = factor * variable + rest and factor > 0; or
  None."""
  names = shape_poly.dimension_variables(dim)
  symbols = {name: shape_poly.variable(name, dim.scope) for name in names}
  try:
    rest = shape_poly.evaluate_dimension(dim, symbols | {variable: 0})
    factor = shape_poly.evaluate_dimension(dim, symbols | {variable: 1}) - rest
  except (ZeroDivisionError, InconclusiveDimensionOperation):
    return None
  least_factor = factor if isinstance(factor, int) else shape_poly.dimension_bounds(factor)[0]
  is_linear = least_factor > 0 and factor * symbols[variable] + rest == dim
  return (factor, rest) if is_linear else None


def root_in(dim: Any, variable: str) -> Any:
  """The integer value of the variable for which dim = 0; None if there is none."""
  for side in (dim, -dim):
    parts = _linear_in(side, variable)
    if parts is None:
      continue
    factor, rest = parts
    if isinstance(factor, int) and factor == 1:
      return -rest
  return None
