"""Symbolic shapes of results: fits formulas to the shapes that TensorFlow infers at several
sizes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax import export
from jax.export import is_symbolic_dim

from jax2tf._jax_compat import shape_poly

Shape = tuple[int | None, ...]
# Small and large, odd and even, so that a bound such as min(b, 100) fits no formula.
_SIZES = (3, 257, 10, 4099, 7, 64, 1021, 16, 35, 513)
_DIVISORS = range(2, 17)


def symbolic_shapes(
  shapes_in: Sequence[Sequence[Any]], infer: Callable[[list[Shape]], list[Shape]]
) -> list[tuple[Any, ...] | None]:
  """The shapes of the results for symbolic shapes of the arguments; None for one that fits no
  formula.

  Args:
    shapes_in: of the arguments.
    infer: static shapes of the arguments -> those of the results, None where TensorFlow knows no
      size.
  """
  dims = [d for shape in shapes_in for d in shape if is_symbolic_dim(d)]
  names = sorted(frozenset().union(*map(shape_poly.dimension_variables, dims)))
  variables = [export.symbolic_shape(name, scope=dims[0].scope)[0] for name in names]
  count = min(len(_SIZES), 4 + len(names) * (len(names) + 1) // 2)
  sizes = [
    [_SIZES[(s * (2 * i + 1) + 3 * i) % len(_SIZES)] for i in range(len(names))]
    for s in range(count)
  ]
  samples = []
  for sample in sizes:
    values = dict(zip(names, sample, strict=True))
    samples.append(infer([_at(shape, values) for shape in shapes_in]))
  results: list[tuple[Any, ...] | None] = []
  for shapes in zip(*samples, strict=True):
    fitted = [_fit(axis, sizes, variables) for axis in zip(*shapes, strict=True)]
    results.append(None if any(d is None for d in fitted) else tuple(fitted))
  return results


# Multiples of small numbers, because of conditions such as mod(b, 8) == 0; small and large ones,
# because of bounds.
_TRIED = (4, 24, 240)


def contradiction(
  shapes_in: Sequence[Sequence[Any]],
  declared: Sequence[Sequence[Any]],
  infer: Callable[[list[Shape]], list[Shape]],
) -> tuple[int, str, Shape] | None:
  """(position of a result that has another shape than is declared at all sizes tried, such sizes,
  its shape); None without one.

  Args:
    shapes_in: of the arguments; without symbolic dimensions nothing is tried.
    declared: of the results.
    infer: as for `symbolic_shapes`.
  """
  names = sorted(
    frozenset().union(*(shape_poly.dimension_variables(d) for shape in shapes_in for d in shape))
  )
  mismatch = None
  for size in _TRIED if names else ():
    values = {name: size * (i + 1) for i, name in enumerate(names)}
    sizes = [_at(shape, values) for shape in shapes_in]
    try:
      shapes = infer(sizes)
    except Exception:  # the function does not take such sizes
      continue
    others = [i for i, shape in enumerate(shapes) if _differs(shape, _at(declared[i], values))]
    if not others:
      return None
    mismatch = mismatch or (
      others[0],
      ", ".join(f"{name} = {n}" for name, n in values.items()),
      shapes[others[0]],
    )
  return mismatch


def _at(shape: Sequence[Any], values: dict[str, int]) -> Shape:
  return tuple(int(shape_poly.evaluate_dimension(d, values)) for d in shape)


def _differs(shape: Shape, expected: Shape) -> bool:
  return any(n is not None and n != m for n, m in zip(shape, expected, strict=True))


def _fit(observed: Sequence[Any], sizes: Sequence[Sequence[int]], variables: Sequence[Any]) -> Any:
  """The formula with the values `observed` at the `sizes`, or None: multiples of variables and of
  products of two, summed, or (b + k) // q."""
  if any(n is None for n in observed):
    return None
  if len(set(observed)) == 1:
    return observed[0]
  pairs = list(itertools.combinations(range(len(variables)), 2))
  terms = np.array([[1, *s, *(s[i] * s[j] for i, j in pairs)] for s in sizes], np.int64)
  solution = np.rint(
    np.linalg.lstsq(terms.astype(np.float64), np.array(observed, np.float64), rcond=None)[0]
  ).astype(np.int64)
  if len(sizes) > terms.shape[1] and np.array_equal(terms @ solution, observed):
    symbols = [1, *variables, *(variables[i] * variables[j] for i, j in pairs)]
    return sum(
      int(factor) * symbol for factor, symbol in zip(solution, symbols, strict=True) if factor
    )
  for i, q in itertools.product(range(len(variables)), _DIVISORS):
    # q * n <= size + k < q * n + q, at all sizes
    low = max(q * n - s[i] for n, s in zip(observed, sizes, strict=True))
    high = min(q * n + q - 1 - s[i] for n, s in zip(observed, sizes, strict=True))
    if low == high:
      return (variables[i] + low) // q
  return None
