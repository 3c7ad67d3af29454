"""JAX's own rounding: how far the results of a function are from those of the same equations in
float64.

A right model differs from JAX by as much, because its runtime rounds elsewhere. The functions of
most models stay within fixed tolerances. Long sums, deep networks and differences of large terms do
not: for those `answers` measures the rounding, after a difference was found.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .float64 import Wide

# How much larger the rounding of a runtime may be than JAX's. A runtime may add n terms one by one,
# and XLA adds sums of some terms: the ratio of their errors grows as sqrt(n). Measured: 5 for a
# running sum of 65,536 terms, 2.4 for products of 3,072, 1.5 for a GPT-2.
_LEAST_RATIO = 8.0
_RATIO_OF_TERMS = 0.25  # times sqrt(n)
_UNKNOWN_TERMS = 1024  # of a function without a jaxpr, such as a SavedModel
# the most that is allowed for rounding, so that an element that is off by 2 % of the largest is
# found
SHARE_OF_LARGEST = 0.01
# The same for results that depend on a rounding; see `steps`. Measured: networks of int8 weights
# and activations in ONNX Runtime differ by up to 0.65 of what JAX does from itself, and by 1.5 % of
# the largest element.
_RATIO_OF_STEPS = 1.0
_SHARE_OF_STEPS = 0.1
_SAMPLES = 3


@dataclass(frozen=True)
class Rounding:
  """The rounding of one result.

  Attributes:
    distances: float64[...], the largest distance of each element from its value in float64, over a
      few samples.
    terms: the number of terms of the longest sum.
    has_steps: whether the result depends on a rounding to integers, so that the last bit may decide
      on a whole step.
  """

  distances: np.ndarray
  terms: int
  has_steps: bool = False

  def times(self, factor: float) -> Rounding:
    """That of a dtype whose precision is `factor` times as coarse."""
    return replace(self, distances=factor * self.distances)

  def allowed(self, expected: np.ndarray) -> np.ndarray:
    """float64[...]: what a right model may differ by, for each element of the finite magnitudes
    `expected`, float64[...].

    Of N elements with random errors the largest error is about sqrt(2 log N) times the usual one.
    """
    usual = math.sqrt(float(np.mean(np.square(self.distances)))) if self.distances.size else 0.0
    largest_of_all = math.sqrt(2 * math.log(max(self.distances.size, 2)))
    ratio = max(_LEAST_RATIO, _RATIO_OF_TERMS * math.sqrt(self.terms))
    largest = float(expected.max(initial=0.0))
    distances = self.distances + largest_of_all * usual
    allowed = np.minimum(ratio * distances, SHARE_OF_LARGEST * largest)
    if not self.has_steps:
      return allowed
    return np.maximum(allowed, np.minimum(_RATIO_OF_STEPS * distances, _SHARE_OF_STEPS * largest))


class Measure:
  """Measures the rounding of a function of arrays. It traces and compiles the function once for
  each combination of shapes."""

  def __init__(self, function: Callable[..., Any]):
    self._function = function
    self._traced: dict[Any, Wide | None] = {}

  def of(self, *args: Any) -> tuple[Any, int]:
    """(a tree like the result of the function with a float64 array of distances for each array, the
    terms of the longest sum)."""
    distances, terms, _ = self.with_steps(*args)
    return distances, terms

  def with_steps(self, *args: Any) -> tuple[Any, int, Any]:
    """What `of` returns, and a tree with an array of bool for each array: whether it depends on a
    rounding to integers."""
    wide = self._wide(args)
    rng = np.random.default_rng(0)
    moved = [_moved(args, rng) for _ in range(_SAMPLES - 1)]
    first = self._function(*args)
    evaluations = [jax.tree.leaves(x) for x in (first, *(self._function(*each) for each in moved))]
    # there is nothing wider
    double = any(
      getattr(x, "dtype", None) in (np.dtype(np.float64), np.dtype(np.complex128))
      for x in evaluations[0]
    )
    try:
      exact = [wide(*each) for each in (args, *moved)] if wide and not double else []
    except Exception:  # XLA does not compile each op for float64; each failure has its own error
      exact = []
    # Without them, how far inputs that differ in the last place move the results.
    pairs = (
      [*zip(evaluations, exact, strict=True)]
      if exact
      else [(evaluations[0], each) for each in evaluations[1:]]
    )
    pairs += self._pairs_of_steps(wide, evaluations, (args, *moved))
    distances = [[_distance(x, y) for x, y in zip(*pair, strict=True)] for pair in pairs]
    largest = [functools.reduce(np.maximum, each) for each in zip(*distances, strict=True)]
    flags = wide.steps if wide else [False] * len(largest)
    steps = [np.broadcast_to(x, one.shape) for x, one in zip(flags, largest, strict=True)]
    tree = jax.tree.structure(first)
    terms = wide.terms if wide else _UNKNOWN_TERMS
    return jax.tree.unflatten(tree, largest), terms, jax.tree.unflatten(tree, steps)

  def _pairs_of_steps(
    self, wide: Wide | None, evaluations: Sequence[Any], inputs: Sequence[Any]
  ) -> Iterator[tuple[Any, Any]]:
    """Pairs of results whose distance counts too where a result depends on a rounding: inputs, or
    operands of the rounding, that differ in the last places."""
    if wide is None or not any(wide.steps):
      return
    yield from ((evaluations[0], each) for each in evaluations[1:])
    try:
      yield from [(each, wide.moved(*args)) for each, args in zip(evaluations, inputs, strict=True)]
    except Exception:  # as above
      return

  def _wide(self, args: Sequence[Any]) -> Wide | None:
    key = tuple((np.shape(x), str(getattr(x, "dtype", type(x)))) for x in jax.tree.leaves(args))
    if key not in self._traced:
      try:
        self._traced[key] = Wide.of(self._function, *args)
      except jax.errors.JAXTypeError:  # a function in TensorFlow or NumPy
        self._traced[key] = None
    return self._traced[key]


def _moved(args: Any, rng: np.random.Generator) -> Any:
  """The arguments with the floating point arrays moved by up to one unit in the last place."""

  def moved(x: Any) -> Any:
    if not (hasattr(x, "dtype") and jnp.issubdtype(x.dtype, np.floating)):
      return x
    array = np.asarray(x)
    wide = array.astype(np.float64)
    factors = 1 + rng.uniform(-1, 1, array.shape) * float(jnp.finfo(array.dtype).eps)
    with np.errstate(invalid="ignore", over="ignore"):
      close = (wide * factors).astype(array.dtype)
    return jnp.asarray(close) if isinstance(x, jax.Array) else close

  return jax.tree.map(moved, args)


def _distance(x: Any, y: Any) -> np.ndarray:
  """float64[...]; 0 for values that are not finite, and for results that are not numbers with a
  rounding."""
  if not (hasattr(x, "dtype") and jnp.issubdtype(x.dtype, np.inexact)):
    return np.zeros(np.shape(x))
  kind = np.complex128 if jnp.issubdtype(x.dtype, np.complexfloating) else np.float64
  with np.errstate(invalid="ignore"):
    distance = np.abs(np.asarray(x).astype(kind) - np.asarray(y).astype(kind))
  return np.where(np.isfinite(distance), distance, 0.0)
