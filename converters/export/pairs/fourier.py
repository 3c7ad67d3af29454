"""Discrete Fourier transforms of pairs along the last axis: by a matrix up to 64 elements, by two
shorter ones for products, and by a convolution with a chirp (Bluestein's) for large primes.

ONNX Runtime 1.32: its DFT has errors of 1e-5 to 1e-3 for lengths that are no powers of two, and is
slower from 512 on. LiteRT's RFFT2D takes powers of two only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from ..pair import Pair
from .arithmetic import multiply, real

# The longest transform by a matrix; from _LONG on larger factors are faster (ONNX Runtime 1.32,
# 16384: 2.0 in place of 2.9 ms). A prime takes the longer matrix always: 127 in 17 in place of 52
# us.
_MATRIX, _LONG_MATRIX, _LONG = 64, 128, 8192


def forward(x: Pair) -> Pair:
  """x c64[...,n] -> c64[...,n]."""
  size = x.shape[-1]
  rows = x.map(lambda part: tf.reshape(part, [-1, size]))
  return _transformed(rows, _longest_matrix(size)).map(_with_rows_of, x)


def inverse(x: Pair) -> Pair:
  """x c64[...,n] -> c64[...,n], divided by n: forward with the parts exchanged."""
  size = tf.constant(x.shape[-1], x.re.dtype)
  y = forward(Pair(x.im, x.re))
  return Pair(y.im / size, y.re / size)


def forward_of_real(x: tf.Tensor) -> Pair:
  """x f32[...,n] -> c64[...,n//2+1]; of an even length by a complex transform of half of it."""
  size = x.shape[-1]
  kept = size // 2 + 1
  if size <= 2 * _longest_matrix(size):
    angles = _angles(size, kept, size)
    matrix = _constant(np.concatenate([np.cos(angles), -np.sin(angles)], 1), x.dtype)
    return Pair(*tf.split(_product(x, matrix), [kept, kept], -1))
  if size % 2:
    return forward(real(x)).map(lambda part: part[..., :kept])
  # z[k] = x[2 k] + i x[2 k + 1], whose transform has those of the even and the odd elements
  z = forward(Pair(x[..., ::2], x[..., 1::2]))
  z = z.map(lambda part: tf.concat([part, part[..., :1]], -1))
  even, odd = _folded(z)
  odd = multiply(odd, _unit_circle(-_multiples(kept, size), x.dtype))
  half = tf.constant(0.5, x.dtype)
  return Pair(half * (even.re + odd.im), half * (even.im - odd.re))


def inverse_to_real(x: Pair, size: int) -> tf.Tensor:
  """x c64[...,n//2+1] -> f32[...,n]; the inverse of `forward_of_real`, for n = `size`."""
  kept, dtype = size // 2 + 1, x.re.dtype
  # As in JAX the imaginary part of what is its own conjugate counts for nothing.
  is_own = np.zeros(kept, bool)
  is_own[0] = True
  is_own[-1] |= size % 2 == 0
  if size <= 2 * _longest_matrix(size):
    angles = _angles(kept, size, size)
    twice = np.where(is_own, 1.0, 2.0)[:, None] / size
    sines = np.where(is_own[:, None], 0.0, -twice * np.sin(angles))
    matrix = np.concatenate([twice * np.cos(angles), sines], 0)
    return _product(tf.concat([x.re, x.im], -1), _constant(matrix, dtype))
  x = Pair(x.re, x.im * _constant(~is_own, dtype))
  if size % 2:
    mirrored = x.map(lambda part: tf.reverse(part[..., 1:], [-1]))
    full = Pair(tf.concat([x.re, mirrored.re], -1), tf.concat([x.im, -mirrored.im], -1))
    return inverse(full).re
  even, odd = _folded(x)
  odd = multiply(odd, _unit_circle(_multiples(kept, size), dtype))
  half = tf.constant(0.5, dtype)
  z = Pair(half * (even.re - odd.im), half * (even.im + odd.re))
  z = inverse(z.map(lambda part: part[..., : size // 2]))
  elements = tf.reshape(tf.stack([z.re, z.im], -1), [-1, size])
  return _with_rows_of(elements, x.re)


def _folded(x: Pair) -> tuple[Pair, Pair]:
  """The sum of x and its mirrored conjugate, and their difference."""
  mirrored = x.map(lambda part: tf.reverse(part, [-1]))
  return (
    Pair(x.re + mirrored.re, x.im - mirrored.im),
    Pair(x.re - mirrored.re, x.im + mirrored.im),
  )


def _multiples(count: int, size: int) -> np.ndarray:
  """The first multiples of 2 pi / size, f64[count]."""
  return 2 * np.pi * np.arange(count) / size


def _longest_matrix(size: int) -> int:
  return _MATRIX if size < _LONG else _LONG_MATRIX


def _transformed(x: Pair, longest: int) -> Pair:
  """x c64[b,n] -> c64[b,n]."""
  size = x.shape[-1]
  primes = _prime_factors(size)
  if size <= longest or (primes == [size] and size <= _LONG_MATRIX):
    return _by_matrix(x)
  return _by_factors(x, longest) if primes[-1] <= _LONG_MATRIX else _by_chirp(x)


def _prime_factors(n: int) -> list[int]:
  """In ascending order; [1] of 1."""
  factors, candidate = [], 2
  while candidate * candidate <= n:
    while n % candidate == 0:
      factors.append(candidate)
      n //= candidate
    candidate += 1
  return [*factors, n] if n > 1 or not factors else factors


def _by_matrix(x: Pair) -> Pair:
  """x c64[b,n] -> c64[b,n], as one real product with [[cos, -sin], [sin, cos]]."""
  size = x.shape[-1]
  angles = _angles(size, size, size)
  cos, sin = np.cos(angles), np.sin(angles)
  matrix = _constant(np.block([[cos, -sin], [sin, cos]]), x.re.dtype)
  return Pair(*tf.split(tf.matmul(tf.concat([x.re, x.im], -1), matrix), 2, -1))


def _by_factors(x: Pair, longest: int) -> Pair:
  """x c64[b,n] -> c64[b,n] for n = p q: of the q columns, turned, and of the p rows."""
  size = x.shape[-1]
  p = next(k for k in range(math.isqrt(size), 0, -1) if size % k == 0)
  q = size // p
  columns = x.map(lambda part: tf.transpose(tf.reshape(part, [-1, p, q]), [0, 2, 1]))
  columns = _transformed(columns.map(lambda part: tf.reshape(part, [-1, p])), longest)
  columns = columns.map(lambda part: tf.reshape(part, [-1, q, p]))
  columns = multiply(columns, _unit_circle(-_angles(q, p, size), x.re.dtype))
  rows = columns.map(lambda part: tf.reshape(tf.transpose(part, [0, 2, 1]), [-1, q]))
  rows = _transformed(rows, longest)
  return rows.map(
    lambda part: tf.reshape(tf.transpose(tf.reshape(part, [-1, p, q]), [0, 2, 1]), [-1, size])
  )


def _by_chirp(x: Pair) -> Pair:
  """x c64[b,n] -> c64[b,n] as a convolution with exp(i pi k**2 / n), by transforms of a power of
  two."""
  size, dtype = x.shape[-1], x.re.dtype
  k = np.arange(size)
  angles = np.pi * (k * k % (2 * size)) / size
  padded = 1 << (2 * size - 2).bit_length()
  chirp = np.zeros(padded, complex)
  chirp[:size] = np.exp(1j * angles)
  chirp[padded - size + 1 :] = chirp[1:size][::-1]
  response = np.fft.fft(chirp)
  turn = _unit_circle(-angles, dtype)
  turned = multiply(x, turn)
  turned = turned.map(lambda part: tf.pad(part, [[0, 0], [0, padded - size]]))
  spectrum = multiply(
    forward(turned), Pair(_constant(response.real, dtype), _constant(response.imag, dtype))
  )
  return multiply(inverse(spectrum).map(lambda part: part[:, :size]), turn)


def _angles(rows: int, columns: int, size: int) -> np.ndarray:
  """2 pi j k / size, f64[rows, columns]; j k is reduced as an integer."""
  return 2 * np.pi * (np.outer(np.arange(rows), np.arange(columns)) % size) / size


def _unit_circle(angles: np.ndarray, dtype: tf.DType) -> Pair:
  return Pair(_constant(np.cos(angles), dtype), _constant(np.sin(angles), dtype))


def _constant(values: np.ndarray, dtype: tf.DType) -> tf.Tensor:
  return tf.constant(values.astype(dtype.as_numpy_dtype))


def _product(x: tf.Tensor, matrix: tf.Tensor) -> tf.Tensor:
  """x f32[...,n], matrix f32[n,m] -> f32[...,m]."""
  return _with_rows_of(tf.matmul(tf.reshape(x, [-1, matrix.shape[0]]), matrix), x)


def _with_rows_of(x: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
  """x f32[b,m], like f32[...,n] -> f32[...,m], of the same b = ... rows."""
  sizes: Sequence[int | None] = like.shape.as_list()[:-1]
  size = x.shape[-1]
  if sizes.count(None) <= 1 and 0 not in sizes:
    return tf.reshape(x, [*(-1 if n is None else n for n in sizes), size])
  result = tf.reshape(x, tf.concat([tf.shape(like)[:-1], [size]], 0))
  return tf.ensure_shape(result, [*sizes, size])
