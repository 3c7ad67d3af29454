"""Discrete Fourier transforms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from jax.extend.core import primitives as P
from jax.lax import FftType

from jax2tf.context import RuleContext
from jax2tf.registry import lowers

_TRANSFORMS = {
  FftType.FFT: (tf.signal.fft, tf.signal.fft2d, tf.signal.fft3d),
  FftType.IFFT: (tf.signal.ifft, tf.signal.ifft2d, tf.signal.ifft3d),
  FftType.RFFT: (tf.signal.rfft, tf.signal.rfft2d, tf.signal.rfft3d),
  FftType.IRFFT: (tf.signal.irfft, tf.signal.irfft2d, tf.signal.irfft3d),
}


@lowers(P.fft_p)
def _fft(
  ctx: RuleContext, operand: tf.Tensor, *, fft_type: FftType, fft_lengths: Sequence[Any]
) -> tf.Tensor:
  """operand c64[b,n,m], fft_lengths=(n, m) -> c64[b,n,m]; RFFT takes f32[b,n,m] to c64[b,n,m//2+1],
  IRFFT the way back."""
  if len(fft_lengths) > 3:
    ctx.refuse(
      "XLA does not support transforms of more than three axes either",
      "use jnp.fft, which takes them three at a time",
    )
  if 0 in ctx.aval_out.shape:  # TF 2.21 aborts the process for a length of 0
    return tf.zeros(ctx.shape(ctx.aval_out.shape), ctx.dtype_out)
  transform = _TRANSFORMS[fft_type][len(fft_lengths) - 1]
  return (
    transform(operand, ctx.shape(fft_lengths)) if fft_type == FftType.IRFFT else transform(operand)
  )
