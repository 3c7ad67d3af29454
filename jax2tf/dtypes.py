"""Maps dtypes and avals between JAX and TensorFlow."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf
from jax import dtypes, lax

from jax2tf._jax_compat import physical_aval

FLOAT0 = dtypes.float0
SCALARS = (bool, int, float, complex)

# What TensorFlow lacks: the tables to which a new dtype may have to be added, and the only ones.
# TF 2.21 on CPU casts nothing to or from these.
NO_CAST = tuple(
  map(
    tf.as_dtype,
    ("int2", "uint2", "float4_e2m1fn", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e4m3b11fnuz"),
  )
)
# TF 2.21 on CPU has little more than Cast for these: rules compute in a wider dtype.
_INT4, _UINT4 = map(tf.as_dtype, ("int4", "uint4"))
FLOAT8 = tuple(map(tf.as_dtype, ("float8_e4m3fn", "float8_e5m2")))
NARROW = (_INT4, _UINT4, *FLOAT8)
HALF = (tf.float16, tf.bfloat16)
# TF 2.21: on GPUs most ops take and leave these in host memory.
ON_HOST_OF_GPU = (tf.int32,)
UNSIGNED = (tf.uint8, tf.uint16, tf.uint32, tf.uint64)
# dtype -> one that holds all its values (and the products of two of them, for integers under 32
# bits). TensorFlow casts between the two.
WIDER = {
  tf.bool: tf.uint8,
  _INT4: tf.int8,
  _UINT4: tf.uint8,
  tf.int8: tf.int32,
  tf.uint8: tf.int32,
  tf.int16: tf.int32,
  tf.uint16: tf.int32,
  tf.int32: tf.int64,
  tf.uint32: tf.int64,
  **dict.fromkeys((*FLOAT8, *HALF), tf.float32),
}


def is_key(dtype: Any) -> bool:
  """True for the dtype of typed PRNG key arrays, which are passed as their physical uint32 data."""
  return jnp.issubdtype(dtype, dtypes.prng_key)


@functools.cache
def data_of(dtype: Any) -> tuple[tuple[int, ...], Any] | None:
  """(shape, dtype) of the data of one element of an extended dtype, such as those of
  `jax.experimental.primal_tangent_dtype`.

  None for other dtypes and for typed PRNG keys.
  """
  if is_key(dtype) or not jnp.issubdtype(dtype, dtypes.extended):
    return None
  element = physical_aval(jax.core.ShapedArray((), dtype))
  return tuple(element.shape), np.dtype(element.dtype)


def is_differentiable(dtype: Any) -> bool:
  """Floating point and complex: the dtypes whose tangent is not float0."""
  return jnp.issubdtype(dtype, np.inexact)


def tf_dtype(dtype: Any) -> tf.DType:
  """The TensorFlow dtype of a JAX dtype. float0 is bool, as in `jax.experimental.jax2tf`.

  Raises:
    TypeError: TensorFlow has no such dtype (float8_e3m4, float8_e8m0fnu ...).
  """
  if is_key(dtype):
    return tf.uint32
  if data := data_of(dtype):
    dtype = data[1]
  try:
    return tf.bool if dtype == FLOAT0 else tf.as_dtype(np.dtype(dtype))
  except TypeError as error:
    raise TypeError(
      f"TensorFlow has no dtype for JAX's {dtype}; cast arguments, results and intermediate "
      "values to another dtype"
    ) from error


# The attribute of the tensor that holds the data of a key array.
_KEY_DTYPE = "jax_dtype"


def mark_keys(tensor: tf.Tensor, dtype: Any) -> tf.Tensor:
  """Marks a tensor as the data of a key array, key<fry>, so that a converted function takes it as
  one."""
  setattr(tensor, _KEY_DTYPE, dtype)
  return tensor


def key_dtype_of(tensor: Any) -> Any:
  """The key dtype that `mark_keys` recorded, or None."""
  return getattr(tensor, _KEY_DTYPE, None)


# TF 2.21 keeps a value of 4 bits in a byte, and XLA two of them: what a function that XLA compiles
# takes or returns is garbled.
_IN_A_BYTE = {jnp.dtype(jnp.int4): jnp.dtype(jnp.int8), jnp.dtype(jnp.uint4): jnp.dtype(jnp.uint8)}


def in_bytes(dtype: Any) -> Any:
  """The dtype in which values cross the boundary of XLA's code: int8 for int4, uint8 for uint4,
  `dtype` for all others."""
  return _IN_A_BYTE.get(dtype, dtype)


def as_dtype(x: Any, dtype: Any) -> Any:
  """A JAX value in another dtype, for instance that of `in_bytes`; itself if it has the dtype."""
  return x if x.dtype == dtype else lax.convert_element_type(x, dtype)


def physical(aval: Any) -> tuple[tuple[Any, ...], tf.DType]:
  """(shape, TensorFlow dtype) of the tensor that holds an aval: key<fry>[3] -> ((3, 2), uint32)."""
  return tuple(physical_aval(aval).shape), tf_dtype(aval.dtype)


def describe(val: Any, path: str = "") -> tuple[tuple[int | None, ...], Any, bool]:
  """(shape, canonical JAX dtype, weak type) of an argument leaf; `path` names it in errors.

  A dimension that TensorFlow does not know is None.

  Raises:
    TypeError: not a numeric array, scalar, tf.Variable or tf.Tensor; a jax.Ref.
    ValueError: a tensor of unknown rank.
  """
  if type(val) in SCALARS:
    return (), _canonical(type(val)), type(val) is not bool
  if isinstance(val, jax.Ref):
    raise TypeError(
      f"{path or 'the argument'} is a jax.Ref, and TensorFlow has variables: pass "
      "jax2tf.Ref(jax2tf.variable_of(ref)), which the function "
      "reads and writes, or its value, ref[...]"
    )
  if isinstance(val, jax.Array | jax.ShapeDtypeStruct):
    if is_key(val.dtype):
      return tuple(val.shape), val.dtype, False
    return tuple(val.shape), _canonical(val.dtype), bool(val.weak_type)
  if isinstance(val, np.ndarray | np.generic):
    if not jnp.issubdtype(val.dtype, np.generic) or val.dtype.kind in "OSUMm":
      raise _not_numeric(path, val, val.dtype)
    return val.shape, _canonical(val.dtype), False
  if isinstance(val, tf.RaggedTensor | tf.SparseTensor | tf.IndexedSlices):
    raise _not_an_array(path, val)
  dtype, shape = getattr(val, "dtype", None), getattr(val, "shape", None)
  if dtype is None or shape is None:
    raise _not_an_array(path, val)
  try:
    dtype = tf.as_dtype(dtype)
  except TypeError as error:
    raise _not_an_array(path, val) from error
  if dtype in (tf.string, tf.resource, tf.variant):
    raise _not_numeric(path, val, dtype.name)
  shape = tf.TensorShape(shape)
  if shape.rank is None:
    raise ValueError(
      f"Cannot iterate over a shape with unknown rank: argument {path or val!r}; "
      "give its tf.TensorSpec a rank, with None for the dimensions that vary"
    )
  if (key_dtype := key_dtype_of(val)) is not None:
    return tuple(shape.as_list()[:-1]), key_dtype, False
  return tuple(shape.as_list()), _canonical(dtype.as_numpy_dtype), False


def dtype_of_val(val: Any) -> tf.DType:
  """Returns the dtype that JAX gives a value, as a TensorFlow dtype. Without `jax_enable_x64`, JAX
  narrows 64-bit dtypes to 32 bits.

  Args:
    val: a tf.Tensor, tf.Variable, NumPy or JAX array, or a Python scalar.

  Returns:
    the tf.DType; for a typed key, tf.uint32.

  Raises:
    TypeError: `val` is not numeric, or TensorFlow has no such dtype.
    ValueError: `val` is a tensor of unknown rank.

  Examples:
    >>> import numpy as np, jax2tf
    >>> jax2tf.dtype_of_val(np.float64(1))
    tf.float32
  """
  return tf_dtype(describe(val, "val")[1])


def tensor_of(val: Any, dtype: tf.DType) -> tf.Tensor:
  """`val` as a tensor of `dtype`; a cast from 64 to 32 bits wraps and rounds as JAX's does.

  Raises:
    OverflowError: a Python int that does not fit.
  """
  if isinstance(val, tf.Tensor):
    return val if val.dtype == dtype else tf.cast(val, dtype)
  if type(val) is int and dtype.is_integer and not dtype.min <= val <= dtype.max:
    raise OverflowError(
      f"argument {val} does not fit {dtype.name}; enable jax_enable_x64, or pass an array"
    )
  if isinstance(val, jax.Array):
    val = jax.random.key_data(val) if is_key(val.dtype) else val
    return tf.constant(np.asarray(val), dtype)
  if isinstance(val, np.ndarray | np.generic):
    return tf.constant(val.astype(dtype.as_numpy_dtype), dtype)
  if type(val) in SCALARS:
    return tf.constant(val, dtype)
  return tensor_of(tf.convert_to_tensor(val), dtype)


def _canonical(dtype: Any) -> np.dtype:
  return jnp.dtype(dtypes.canonicalize_dtype(dtype))


def _not_an_array(path: str, val: Any) -> TypeError:
  return TypeError(
    f"Argument {path} = {val!r} of type {type(val)} is not a valid JAX type: it should be NumPy "
    "array, scalar, tf.Variable, or tf.Tensor"
  )


def _not_numeric(path: str, val: Any, dtype: Any) -> TypeError:
  return TypeError(
    f"Argument {path} of dtype {dtype} is not a valid JAX array type. Only arrays of "
    "numeric types are supported by JAX. Turn it into numbers in TensorFlow before the call"
  )
