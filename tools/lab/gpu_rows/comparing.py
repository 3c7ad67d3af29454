"""Times of calls on a GPU, and how far values are from JAX's on the CPU."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_CALLS = 10  # one after another, before the host waits


def milliseconds(call: Callable[[], Any], wait: Callable[[Any], Any], seconds: float) -> float:
  """The median time of a call among calls that follow each other at once.

  Args:
    call: starts the work.
    wait: takes its result and returns when the work is done.
    seconds: of the measurement, at least three rounds.
  """
  wait(call())
  times: list[float] = []
  end = time.perf_counter() + seconds
  while len(times) < 3 or time.perf_counter() < end:
    start = time.perf_counter()
    for _ in range(_CALLS):
      result = call()
    wait(result)
    times.append(1e3 * (time.perf_counter() - start) / _CALLS)
  return statistics.median(times)


def error(results: Sequence[Any], expected: Sequence[Any], *, together: bool = False) -> float:
  """The largest difference, relative to the largest element.

  Args:
    results: arrays, in the order of `expected`.
    expected: JAX's, on the CPU. Integers and booleans count the share of elements that differ.
    together: whether the largest element is that of all arrays: some gradients are 0 up to
      rounding.

  Returns:
    inf where one has a NaN that the other has not, or another dtype.
  """
  arrays = [np.asarray(y) for y in expected]
  scales = [_largest(y) for y in arrays]
  if together:
    scales = [max(scales, default=0.0)] * len(scales)
  pairs = zip(map(np.asarray, results), arrays, scales, strict=True)
  return max((_difference(x, y, scale) for x, y, scale in pairs), default=0.0)


def _difference(x: np.ndarray, y: np.ndarray, scale: float) -> float:
  if y.dtype == jax.dtypes.float0 or not y.size:
    return 0.0
  if x.dtype != y.dtype or x.shape != y.shape:
    return float("inf")
  if not jnp.issubdtype(y.dtype, np.inexact):
    return float(np.mean(x != y))
  wide_x, wide_y = (a.astype(np.complex128) for a in (x, y))
  if not np.array_equal(np.isnan(wide_x), np.isnan(wide_y)):
    return float("inf")
  return float(np.nanmax(np.abs(wide_x - wide_y), initial=0.0)) / (scale or 1.0)


def _largest(y: np.ndarray) -> float:
  if not jnp.issubdtype(y.dtype, np.inexact):
    return 0.0
  return float(np.nanmax(np.abs(y.astype(np.complex128)), initial=0.0))
