"""Discrete Fourier transforms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from jax.extend.core import primitives as P
from jax.lax import FftType

from jax2tf.context import RuleContext
from jax2tf.registry import lowers

# By the number of innermost axes; TensorFlow has no kernel for more than three on CPU.
_FORWARD = {1: tf.signal.fft, 2: tf.signal.fft2d, 3: tf.signal.fft3d}
_INVERSE = {1: tf.signal.ifft, 2: tf.signal.ifft2d, 3: tf.signal.ifft3d}
_FORWARD_REAL = {1: tf.signal.rfft, 2: tf.signal.rfft2d, 3: tf.signal.rfft3d}
_INVERSE_REAL = {1: tf.signal.irfft, 2: tf.signal.irfft2d, 3: tf.signal.irfft3d}


@lowers(P.fft_p)
def _fft(ctx: RuleContext, operand: tf.Tensor, *, fft_type: FftType, fft_lengths: Sequence[Any]) -> tf.Tensor:
  """operand c64[b,n,m], fft_lengths=(n, m) -> c64[b,n,m]; RFFT takes f32[b,n,m] to c64[b,n,m//2+1], IRFFT the way back."""
  axes = len(fft_lengths)
  inner, outer = min(axes, 3), range(operand.shape.rank - axes, operand.shape.rank - 3)
  match fft_type:
    case FftType.FFT:
      return _along(_FORWARD, _FORWARD[inner](operand), outer)
    case FftType.IFFT:
      return _along(_INVERSE, _INVERSE[inner](operand), outer)
    case FftType.RFFT:
      return _along(_FORWARD, _FORWARD_REAL[inner](operand), outer)
    case FftType.IRFFT:  # the redundant half belongs to the last axis, so this one goes last
      return _INVERSE_REAL[inner](_along(_INVERSE, operand, outer), ctx.shape(fft_lengths[-inner:]))


def _along(transform: dict[int, Any], operand: tf.Tensor, axes: Sequence[int]) -> tf.Tensor:
  """The transform along further axes, three at a time, each time moved to the end."""
  rank = operand.shape.rank
  for start in range(0, len(axes), 3):
    moved = list(axes[start:start + 3])
    order = [axis for axis in range(rank) if axis not in moved] + moved
    back = [order.index(axis) for axis in range(rank)]
    operand = tf.transpose(transform[len(moved)](tf.transpose(operand, order)), back)
  return operand
