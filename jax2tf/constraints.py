"""Constraints on dimension variables: whether any sizes meet all of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax import export

from jax2tf._jax_compat import shape_poly
from jax2tf.dimension_solver import root_in
from jax2tf.messages import ArgumentError

# The most combinations of sizes to try for one that meets all constraints.
_MOST_TRIED = 2_000


def refuse_contradictions(scope: export.SymbolicScope) -> None:
  """Raises ValueError if no sizes meet the constraints: by JAX's bounds, or because none of a
  finite number of combinations does."""
  constraints = shape_poly.explicit_constraints(scope)
  if constraints and _are_contradictory(constraints, scope):
    texts = [text for _, _, text in constraints if text]
    raise ArgumentError(
      "polymorphic_constraints",
      texts,
      problem="they contradict each other: no dimension sizes >= 1 satisfy all of them",
      advice="drop or change one",
    )


def _are_contradictory(
  constraints: Sequence[tuple[Any, Any, str]], scope: export.SymbolicScope
) -> bool:
  names = sorted(
    frozenset[str]().union(
      *(shape_poly.dimension_variables(difference) for _, difference, _ in constraints)
    )
  )
  try:
    bounds = dict(
      zip(
        names,
        (shape_poly.dimension_bounds(*export.symbolic_shape(name, scope=scope)) for name in names),
        strict=True,
      )
    )
  except ValueError:  # JAX's own, "Unsatisfiable constraint"
    return True
  # In a scope of their own, where a*b - c is not 0 at once because of a*b == c.
  renamed = {
    name: export.symbolic_shape(name, scope=plain)[0]
    for plain in [export.SymbolicScope()]
    for name in names
  }
  conditions = [
    (comparator, shape_poly.evaluate_dimension(difference, renamed))
    for comparator, difference, _ in constraints
  ]
  # A variable that an equality defines, such as c in a*b == c, is computed; the others are
  # enumerated.
  defined: dict[str, Any] = {}
  for comparator, difference in conditions:
    variables = shape_poly.dimension_variables(difference)
    if comparator == "==" and not variables & defined.keys():
      defined |= next(
        ({v: value} for v in sorted(variables) if (value := root_in(difference, v)) is not None), {}
      )
  free = [name for name in names if name not in defined]
  most_tried = [int(min(bounds[name][1], bounds[name][0] + _MOST_TRIED)) for name in free]
  ranges = [
    range(int(bounds[name][0]), most + 1) for name, most in zip(free, most_tried, strict=True)
  ]
  for sizes in itertools.islice(itertools.product(*ranges), _MOST_TRIED):
    if _all_hold(conditions, dict(zip(free, sizes, strict=True)), defined):
      return False
  # else it is not proved
  return math.prod(map(len, ranges)) <= _MOST_TRIED and all(
    bounds[name][1] <= _MOST_TRIED for name in free
  )


def _all_hold(
  conditions: Sequence[tuple[str, Any]], sizes: dict[str, int], defined: dict[str, Any]
) -> bool:
  try:
    with np.errstate(divide="raise"):
      for name, value in reversed(defined.items()):  # an earlier definition may use a later one
        sizes[name] = int(shape_poly.evaluate_dimension(value, sizes))
      values = [
        (comparator, shape_poly.evaluate_dimension(difference, sizes))
        for comparator, difference in conditions
      ]
  except (ZeroDivisionError, FloatingPointError):  # mod(a, b - 1) at b = 1
    return False
  return min(sizes.values()) >= 1 and all(
    value == 0 if comparator == "==" else value >= 0 for comparator, value in values
  )
