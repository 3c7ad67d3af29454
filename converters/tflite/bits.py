"""Bitwise ops and shifts for LiteRT, which has only BitwiseXor and RightShift of int32. 64-bit
integers are two words."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from ..export.replay import Replacement, again

_Words = tuple[tf.Tensor, tf.Tensor]


def bitwise(function: Callable[..., tf.Tensor]) -> Replacement:
  """A replacement by a bitwise function of int32."""

  def replacement(op: tf.Operation, *operands: tf.Tensor) -> Sequence[tf.Tensor]:
    if operands[0].dtype.size < 8:
      return [function(*operands)]
    return [tf.bitcast(function(*(tf.bitcast(x, tf.int32) for x in operands)), operands[0].dtype)]

  return replacement


def conjunction(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
  """x & y, from a + b = (a ^ b) + 2 (a & b). It applies to all bits but the lowest, so the sum
  cannot overflow."""
  one = tf.constant(1, tf.int32)
  a, b = _arithmetic(x, one), _arithmetic(y, one)
  lowest = (x - (a + a)) * (y - (b + b))
  return a + b - tf.bitwise.bitwise_xor(a, b) + lowest


def disjunction(op: tf.Operation, x: tf.Tensor, y: tf.Tensor) -> Sequence[tf.Tensor]:
  """x | y. The two parts of a rotation have no common bit, so there it is x ^ y."""
  if _is_rotation(op):
    return bitwise(tf.bitwise.bitwise_xor)(op, x, y)
  return bitwise(lambda a, b: tf.bitwise.bitwise_xor(a, b) + conjunction(a, b))(op, x, y)


def _is_rotation(op: tf.Operation) -> bool:
  """Whether it is x << n | y >> (bits - n) of unsigned integers, as in the rounds of threefry."""
  shifts = {
    x.op.type: tf.get_static_value(x.op.inputs[1])
    for x in op.inputs
    if x.op.type in ("LeftShift", "RightShift")
  }
  dtype = op.inputs[0].dtype
  if len(shifts) < 2 or not dtype.is_unsigned or any(amount is None for amount in shifts.values()):
    return False
  return bool(
    np.all(
      shifts["LeftShift"].astype(np.int64) + shifts["RightShift"].astype(np.int64) >= 8 * dtype.size
    )
  )


def inverted(x: tf.Tensor) -> tf.Tensor:
  return tf.bitwise.bitwise_xor(x, tf.constant(-1, tf.int32))


def left_shift(op: tf.Operation, x: tf.Tensor, amount: tf.Tensor) -> Sequence[tf.Tensor]:
  return [_left(x, amount) if x.dtype.size < 8 else _shifted(x, amount, _left_near, _left_far)]


def right_shift(op: tf.Operation, x: tf.Tensor, amount: tf.Tensor) -> Sequence[tf.Tensor]:
  """x >> n: logical for unsigned integers. Those narrower than 32 bits are not negative in int32,
  so RightShift is right."""
  shift = logical_shift if op.inputs[0].dtype in (tf.uint32, tf.uint64) else _arithmetic
  if x.dtype.size < 8:
    return [shift(x, amount)]
  return [
    _shifted(
      x,
      amount,
      functools.partial(_right_near, shift=shift),
      functools.partial(_right_far, shift=shift),
    )
  ]


def _left(x: tf.Tensor, amount: tf.Tensor) -> tf.Tensor:
  """x << n as x * 2**n."""
  powers = np.array([1 << k for k in range(32)], np.uint32).view(np.int32)
  if (known := tf.get_static_value(amount)) is not None:
    return x * tf.constant(powers[np.clip(known, 0, 31)])
  within = tf.minimum(tf.maximum(amount, tf.constant(0, tf.int32)), tf.constant(31, tf.int32))
  return x * tf.gather(tf.constant(powers), within)


def _arithmetic(x: tf.Tensor, amount: tf.Tensor) -> tf.Tensor:
  """The arithmetic shift x >> n."""
  return tf.bitwise.right_shift(*_of_one_shape(x, amount))


def logical_shift(x: tf.Tensor, amount: tf.Tensor) -> tf.Tensor:
  """The logical shift x >> n, by LiteRT's uint32 kernel on the same bits."""
  x, amount = _of_one_shape(x, amount)
  return tf.cast(
    tf.bitwise.right_shift(tf.cast(x, tf.uint32), tf.cast(amount, tf.uint32)), tf.int32
  )


def _of_one_shape(x: tf.Tensor, y: tf.Tensor) -> _Words:
  """LiteRT's RightShift does not broadcast."""
  if x.shape.rank == y.shape.rank:
    return x, y
  shape = tf.shape(x) if y.shape.rank == 0 else tf.shape(y)
  return tf.broadcast_to(x, shape), tf.broadcast_to(y, shape)


def _shifted(
  x: tf.Tensor, amount: tf.Tensor, near: Callable[..., _Words], far: Callable[..., _Words]
) -> tf.Tensor:
  """A shift of 64-bit integers.

  Args:
    near: (low word, high word, n) -> both shifted by n < 32.
    far: the same, shifted by 32 + n.
  """
  known = tf.get_static_value(amount)
  if known is not None and known.ndim == 0:
    n = int(np.clip(known, 0, 63))
    word, count = tf.constant(n % 32), None
  else:
    count = tf.minimum(
      tf.maximum(tf.bitcast(amount, tf.int32)[..., 0], tf.constant(0)), tf.constant(63)
    )
    n, word = 0, tf.where(count < tf.constant(32), count, count - tf.constant(32))
  low, high = tf.unstack(tf.bitcast(x, tf.int32), axis=-1)
  if count is None:
    words = (far if n >= 32 else near)(low, high, word)
  else:
    pairs = zip(near(low, high, word), far(low, high, word), strict=True)
    words = tuple(tf.where(count < tf.constant(32), a, b) for a, b in pairs)
  return tf.bitcast(tf.stack(words, -1), x.dtype)


# In two steps, because a shift of a word by 32 is undefined.


def _left_near(low: tf.Tensor, high: tf.Tensor, n: tf.Tensor) -> _Words:
  return _left(low, n), _left(high, n) + logical_shift(
    logical_shift(low, tf.constant(1)), tf.constant(31) - n
  )


def _left_far(low: tf.Tensor, high: tf.Tensor, n: tf.Tensor) -> _Words:
  return tf.zeros_like(low), _left(low, n)


def _right_near(
  low: tf.Tensor, high: tf.Tensor, n: tf.Tensor, shift: Callable[..., tf.Tensor]
) -> _Words:
  return logical_shift(low, n) + _left(_left(high, tf.constant(1)), tf.constant(31) - n), shift(
    high, n
  )


def _right_far(
  low: tf.Tensor, high: tf.Tensor, n: tf.Tensor, shift: Callable[..., tf.Tensor]
) -> _Words:
  sign = tf.zeros_like(high) if shift is logical_shift else shift(high, tf.constant(31))
  return shift(high, n), sign


def population_count(op: tf.Operation, x: tf.Tensor) -> Sequence[tf.Tensor]:
  """The number of ones, by Legendre's formula: x - (x >> 1) - (x >> 2) - ..."""
  if x.dtype.size == 8:
    return again(op, [x])  # the converter then refuses it
  if op.inputs[0].dtype == tf.int8:
    x = tf.cast(tf.cast(x, tf.uint8), tf.int32)
  elif op.inputs[0].dtype == tf.int16:
    x = tf.cast(tf.cast(x, tf.uint16), tf.int32)
  shifts = [logical_shift(x, tf.constant(k)) for k in range(1, 32)]
  return [functools.reduce(tf.subtract, shifts, x)]
