"""Shared helpers of lowering rules: casts between all dtypes, computation in a wider dtype,
constants."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
import tensorflow as tf

from jax2tf.context import RuleContext
from jax2tf.dtypes import NARROW, WIDER


def widened(op: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
  """`op`, computed in a wider dtype for operands of a NARROW one, for a rule that rounds after each
  op. Where only the result is rounded, the registration of the rule says `lacks=NARROW`."""

  def wide_op(*operands: tf.Tensor) -> tf.Tensor:
    dtype = operands[0].dtype
    if dtype not in NARROW:
      return op(*operands)
    return tf.cast(op(*(tf.cast(x, WIDER[dtype]) for x in operands)), dtype)

  return wide_op


def scalar(value: Any, like: tf.Tensor) -> tf.Tensor:
  """A constant of the dtype of `like`."""
  return tf.constant(value, like.dtype)


def is_known(condition: Callable[[np.ndarray], Any], tensor: tf.Tensor) -> bool:
  """True if `tensor` is a small constant of the graph and `condition` holds for all its
  elements."""
  if (tensor.shape.num_elements() or 0) not in range(1, 65):
    return False
  value = known(tensor)
  return value is not None and bool(np.all(condition(value)))


def known(tensor: tf.Tensor) -> np.ndarray | None:
  """The value of a constant of the graph, and of what TensorFlow can compute from constants."""
  try:
    with np.errstate(all="ignore"), warnings.catch_warnings():  # it folds casts with NumPy
      # TF 2.21 reads f16 and bf16 in a way that NumPy 2.5 deprecates
      warnings.simplefilter("ignore", DeprecationWarning)
      value: np.ndarray | None = tf.get_static_value(tensor)
      return value
  except TypeError:  # NumPy has no cast between 4-bit integers
    return None


def where(condition: tf.Tensor, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
  """`x` where the condition holds, else `y`; one of the two has the shape of the result."""
  if (rank := max(condition.shape.rank, x.shape.rank, y.shape.rank)) <= 8:
    return tf.where(condition, x, y)
  # TF 2.21: SelectV2 takes at most 8 dimensions. Select takes more, but broadcasts nothing.
  shape = tf.shape(x if x.shape.rank == rank else y)
  condition = tf.logical_or(condition, tf.fill(shape, False))
  return tf.raw_ops.Select(
    condition=condition,
    x=x if x.shape.rank else tf.fill(shape, x),
    y=y if y.shape.rank else tf.fill(shape, y),
  )


def beside_images(ctx: RuleContext, rank: int, *cases: tf.Tensor) -> list[tf.Tensor]:
  """The cases of a selection, which has this rank. Where the graph may run on a GPU and select
  images, a constant number has as many dimensions, of size 1.

  TF 2.21 on a GPU: Grappler's optimizer of layouts gives up the whole graph, with an error in the
  log, where a SelectV2 of images has an operand without dimensions.
  """
  if not (ctx.destination.on_gpu and rank in (4, 5)):
    return list(cases)
  values = [known(case) if case.shape.rank == 0 else None for case in cases]
  return [
    case if value is None else tf.constant(value, case.dtype, [1] * rank)
    for case, value in zip(cases, values, strict=True)
  ]


def bit_width(dtype: tf.DType) -> int:
  """The bits of an integer dtype: 4 for uint4."""
  return int(jnp.iinfo(dtype.as_numpy_dtype).bits)


def as_signed(x: tf.Tensor) -> tf.Tensor:
  """The same bits as a signed integer; other dtypes stay."""
  return tf.cast(x, x.dtype.name.removeprefix("u"))


def as_unsigned(x: tf.Tensor) -> tf.Tensor:
  """The same bits as an unsigned integer; other dtypes stay."""
  return tf.cast(x, "u" + x.dtype.name if x.dtype.name.startswith("int") else x.dtype)


def float_bits(x: tf.Tensor, kind: Literal["int", "uint"] = "int") -> tf.Tensor:
  """x f32[...] -> i32[...] or u32[...], the same bits."""
  return tf.bitcast(x, tf.as_dtype(f"{kind}{8 * x.dtype.size}"))


def key_kind(ctx: RuleContext) -> Literal["int", "uint"]:
  """The kind of integers by which floats are compared.

  TF 2.21: for GPUs int32 is compared in host memory, uint32 is not. For CPUs the exporters know the
  keys of signed integers.
  """
  return "uint" if ctx.destination.on_gpu else "int"


def ordinals(x: tf.Tensor, kind: Literal["int", "uint"] = "int") -> tf.Tensor:
  """Integers in the order of the floats `x`, NaN > inf > ... > 0.0 > -0.0 > ... > -inf > -NaN,
  adjacent for adjacent floats. Signed ones are -1 for -0.0."""
  bits = float_bits(x, kind)
  if kind == "int":
    return where(
      bits < scalar(0, bits), tf.bitwise.bitwise_xor(bits, scalar(bits.dtype.max, bits)), bits
    )
  sign = sign_bit(bits)
  return where(bits < sign, tf.bitwise.bitwise_or(bits, sign), tf.bitwise.invert(bits))


def sign_bit(bits: tf.Tensor) -> tf.Tensor:
  """The upper bit of unsigned integers, u32[]."""
  return scalar(1 << (bit_width(bits.dtype) - 1), bits)


def saturating_cast(x: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
  """f32[...] -> i32[...] towards zero; what does not fit becomes the nearest bound and NaN becomes
  0.

  This is XLA's conversion; TensorFlow's Cast leaves these values undefined.
  """
  if x.dtype.size < 4:
    x = tf.cast(x, tf.float32)  # so that the bounds below have values
  least, most = dtype.min, dtype.max
  zero = scalar(0, x)  # NaN > 0 is False
  x = (
    where(x > zero, x, zero)
    if least == 0
    else tf.maximum(where(tf.math.is_nan(x), zero, x), scalar(least, x))
  )
  if int(x.dtype.as_numpy_dtype(most)) == most:
    return cast(tf.minimum(x, scalar(most, x)), dtype)
  # most + 1 is a power of two, the first value that does not fit.
  return where(x < scalar(most + 1, x), tf.cast(x, dtype), tf.constant(most, dtype))


def cast(x: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
  """tf.cast for all pairs of dtypes but float to integer; integers wrap, other values become bool
  by `x != 0`."""
  if x.dtype == dtype:
    return x
  # TF 2.21: no Cast between int4 and floats or bool, nor between float8 and integers or bool.
  if not (x.dtype.is_floating and dtype.is_floating):
    if x.dtype in NARROW:
      x = tf.cast(x, WIDER[x.dtype])
    if dtype in NARROW:
      x = tf.cast(x, WIDER[dtype])
  return tf.cast(x, dtype)
