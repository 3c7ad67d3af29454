"""Draws the values of inputs, ordinary and hostile, and checks those that the caller gives."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax2tf.messages import Argument, ArgumentError

from ..bundle.notation import Spec

Examples = Mapping[str, Any]  # {input: array, or callable(rng, shape, dtype) -> array}
# The kinds of inputs, besides ordinary ones and those that the caller gives.
SUBNORMAL, HOSTILE, REPRESENTATIVE = "subnormal", "hostile", "representative"
UNKNOWN = 3  # for a size that the caller leaves open, in inputs of TensorFlow functions


def draw(
  rng: np.random.Generator,
  shape: tuple[int, ...],
  dtype: np.dtype[Any],
  kind: str,
  sample: int,
  full: bool = False,
) -> np.ndarray:
  """Normally distributed floats, or integers from 0 to 9; `full`: of the whole range of the dtype.
  In a hostile draw half of the rows have a special value at random places."""
  if dtype.kind == "b":
    return rng.integers(0, 2, shape).astype(bool)
  inexact = jnp.issubdtype(dtype, np.inexact)
  if not inexact:
    limits = jnp.iinfo(dtype)
    least, most = (int(limits.min), int(limits.max)) if full else (0, min(9, int(limits.max)))
    array = rng.integers(least, most, shape, endpoint=True).astype(dtype)
    specials: list[Any] = (
      [limits.min, limits.max, 0] + [-1] * (limits.min < 0) if kind == HOSTILE else []
    )
  else:
    array = rng.standard_normal(shape).astype(dtype)
    if jnp.issubdtype(dtype, np.complexfloating):
      array = (array + 1j * rng.standard_normal(shape)).astype(dtype)
    tiny = float(jnp.finfo(dtype).tiny)
    specials = {
      HOSTILE: [np.nan, np.inf, -np.inf, -0.0, 0.0],
      SUBNORMAL: [tiny / 2, -tiny / 4],
    }.get(kind, [])
  if specials and array.size:
    rows = array.reshape(shape[0], -1) if array.ndim > 1 else array.reshape(-1, 1)
    for i in range(math.ceil(len(rows) / 2)):
      is_special = rng.random(rows.shape[1]) < 0.2
      is_special[rng.integers(rows.shape[1])] = True
      rows[i, is_special] = np.array(specials[(i + sample) % len(specials)]).astype(dtype)
  return array


def checked(
  name: str, example: Any, rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> np.ndarray:
  """The array that the caller gives for an input.

  Raises:
    ValueError: it has another shape or dtype.
  """
  array = np.asarray(example(rng, shape, dtype) if callable(example) else example)
  if array.dtype.kind in "iu" and dtype.kind in "iu" and np.array_equal(array.astype(dtype), array):
    # NumPy makes int64 of Python's integers, and of those that it draws
    array = array.astype(dtype)
  if array.shape != shape or array.dtype != dtype:
    raise ArgumentError(
      Argument("inputs", key=name),
      problem=f"it is {array.dtype}{list(array.shape)}, and the signature takes "
      f"{dtype}{list(shape)} here",
    )
  return array


def countable(text: str) -> str:
  """The spec of an input of `preprocess` as one that JAX can have: "string[b,?]" -> "bool[b,3]"."""
  spec = Spec.parse(text)
  dims = tuple(UNKNOWN if dim == "?" else dim for dim in spec.dims or ())
  return str(Spec(np.dtype(bool) if spec.is_string else spec.dtype, dims))


def tensor(
  name: str, text: str, example: Any, rng: np.random.Generator, shape: tuple[int, ...] | None = None
) -> np.ndarray:
  """An input of TensorFlow functions, "string[?,2]": the caller's, or an arbitrary one if it is
  passed through."""
  spec = Spec.parse(text)
  if example is not None:
    array = as_numpy(
      example(rng, shape or spec.sizes or (), spec.dtype) if callable(example) else example
    )
    if array.dtype != spec.dtype:
      raise ArgumentError(
        Argument("inputs", key=name), problem=f"it is {array.dtype}, and the signature takes {spec}"
      )
    return array
  known = (
    shape if shape is not None else tuple(UNKNOWN if d is None else d for d in spec.sizes or ())
  )
  if spec.is_string:
    return np.array([rng.bytes(4) for _ in range(math.prod(known))], object).reshape(known)
  return draw(rng, known, spec.dtype, "ordinary", 0)


def as_numpy(x: Any) -> np.ndarray:
  """As a NumPy array. A typed PRNG key becomes its words; strings become bytes."""
  if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
    x = jax.random.key_data(x)
  array = np.asarray(x)
  if array.dtype.kind not in "SUO":
    return array
  return np.array(
    [s.encode() if isinstance(s, str) else bytes(s) for s in array.reshape(-1)], object
  ).reshape(array.shape)
