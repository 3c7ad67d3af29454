"""The leaves of arguments and results: which of them become tensors."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import tensorflow as tf
from jax.extend.core import valid_jaxtype

_NO_NUMBERS = "OSUMm"  # objects, strings, times


def is_key(x: Any) -> bool:
  """Whether it is an array of typed PRNG keys."""
  return isinstance(x, jax.Array) and jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key)


def has_tracer(tree: Any) -> bool:
  """Whether JAX is tracing one of the leaves."""
  return any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(tree))


def is_scalar(x: Any) -> bool:
  """Whether it is a number of Python."""
  return isinstance(x, bool | int | float | complex) and not isinstance(x, np.generic)


def is_array(x: Any) -> bool:
  """Whether it becomes a tensor, an argument of the graph."""
  if isinstance(x, np.ndarray | np.generic):
    if x.dtype.kind in _NO_NUMBERS or x.dtype.names or x.dtype == jax.dtypes.float0:
      return False
    return type(x) is np.ndarray or isinstance(x, np.generic)
  return isinstance(x, jax.Array) and not (is_foreign(x) or is_key(x) or x.weak_type)


def is_foreign(x: Any) -> bool:
  """Whether it is a Ref, or an array of a type or dtype that only private functions of JAX make."""
  if type(getattr(x, "aval", None)).__name__ == "AbstractRef":
    return True
  if not isinstance(x, jax.Array):
    return valid_jaxtype(x) and not (is_scalar(x) or isinstance(x, np.ndarray | np.generic))
  return jax.numpy.issubdtype(x.dtype, jax.dtypes.extended) and not is_key(x)


def is_value(x: Any) -> bool:
  """Whether a result can be compared."""
  return is_array(x) or is_scalar(x) or (isinstance(x, jax.Array) and not is_foreign(x))


def is_inexact(x: Any) -> bool:
  """Whether it can be differentiated."""
  dtype = x.dtype if hasattr(x, "dtype") else np.dtype(type(x))
  return bool(jax.numpy.issubdtype(dtype, np.inexact))


def wide(x: np.ndarray) -> np.ndarray:
  """Numbers in 64 bits, complex ones in 128."""
  is_complex = jax.numpy.issubdtype(x.dtype, np.complexfloating)
  return x.astype(np.complex128 if is_complex else np.float64)


def same(x: np.ndarray, y: np.ndarray) -> np.ndarray:
  """Where numbers are equal, or both NaN."""
  return np.asarray((x == y) | ((x != x) & (y != y)))


def own(x: Any) -> Any:
  """A copy that outlives donation, and the caller's changes."""
  return np.array(x) if is_array(x) else x


def shaken(leaves: list[Any]) -> list[Any]:
  """The arrays and numbers of Python; inexact ones with other last bits."""
  rng = np.random.default_rng(0)
  return [_shaken(rng, x) for x in leaves]


def _shaken(rng: np.random.Generator, x: Any) -> Any:
  if isinstance(x, float | complex) and is_scalar(x):  # JAX gives it its own widest type
    return x * (1 + float(jax.numpy.finfo(jax.numpy.result_type(x)).eps))
  if not (is_array(x) and is_inexact(x)):
    return x
  array = np.asarray(x)
  factors = 1 + float(jax.numpy.finfo(array.dtype).eps) * rng.choice([-1.0, 1.0], array.shape)
  with np.errstate(all="ignore"):
    return np.asarray(array * factors).astype(array.dtype)


def tensor(x: Any) -> Any:
  """A tensor of an array; the array itself if TensorFlow has no such dtype."""
  try:
    return tf.constant(x)
  except (TypeError, ValueError, tf.errors.OpError):
    return x


def as_numpy(x: Any) -> np.ndarray:
  """A leaf of a result; typed keys as their words."""
  if is_key(x):
    x = jax.random.key_data(x)
  # NumPy 2.5 takes no scalar tensor of bfloat16.
  return np.asarray(x.numpy() if isinstance(x, tf.Tensor) else x)
