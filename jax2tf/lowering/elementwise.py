"""Elementwise arithmetic, comparison and logic; integer arithmetic is in `integers`, special
functions in `special`."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import jax.extend.core.primitives as P
import tensorflow as tf

from jax2tf import _jax_compat
from jax2tf.context import RuleContext
from jax2tf.dtypes import HALF, NARROW, ON_HOST_OF_GPU, UNSIGNED, WIDER
from jax2tf.lowering._as_written import apart, as_written, divide
from jax2tf.lowering._common import (
  beside_images,
  cast,
  is_known,
  key_kind,
  ordinals,
  scalar,
  where,
  widened,
)
from jax2tf.lowering._kernels import negative, subtract
from jax2tf.registry import lower_directly, lowers

_add = as_written(tf.add)
_multiply = widened(as_written(tf.multiply))
# Grappler rewrites exp(x) - 1 to expm1(x)
_subtract = as_written(lambda x, y: subtract(apart(x, "Exp"), y))


def _square(x: tf.Tensor) -> tf.Tensor:
  if not x.dtype.is_complex:
    return tf.square(x)
  re, im = tf.math.real(x), tf.math.imag(x)
  return tf.complex(
    _multiply(_subtract(re, im), _add(re, im)), _multiply(scalar(2, re), _multiply(re, im))
  )


def _log(x: tf.Tensor) -> tf.Tensor:
  if x.dtype.is_complex:  # TF 2.21: the kernel squares both parts, which overflows and underflows
    re, im = tf.math.real(x), tf.math.imag(x)
    return tf.complex(_log_of_size(re, im), tf.atan2(im, re))
  return tf.math.log(apart(x, "AddV2"))  # Grappler rewrites log(1 + x) to log1p(x)


def _log_of_size(re: tf.Tensor, im: tf.Tensor) -> tf.Tensor:
  """log |re + i im|."""
  most, least = tf.maximum(tf.abs(re), tf.abs(im)), tf.minimum(tf.abs(re), tf.abs(im))
  ratio = where(tf.equal(least, most), scalar(1, re), least / most)
  return _add(tf.math.log(most), scalar(0.5, re) * tf.math.log1p(ratio * ratio))


def _expm1(x: tf.Tensor) -> tf.Tensor:
  if not x.dtype.is_complex:
    return tf.math.expm1(x)
  # TF 2.21: the kernel is NaN where exp is infinite.
  re, im = tf.math.real(x), tf.math.imag(x)
  half = tf.sin(scalar(0.5, im) * im)
  real = _subtract(
    _multiply(tf.math.expm1(re), tf.cos(im)), _multiply(scalar(2, half), tf.square(half))
  )
  return tf.complex(real, where(tf.equal(im, scalar(0, im)), im, _multiply(tf.exp(re), tf.sin(im))))


_TABLE = {
  P.add_p: _add,
  P.add_jaxvals_p: _add,
  P.sub_p: _subtract,
  P.neg_p: negative,
  P.square_p: _square,
  P.sqrt_p: tf.sqrt,
  P.rsqrt_p: tf.math.rsqrt,
  P.exp_p: tf.exp,
  P.expm1_p: _expm1,
  P.log_p: _log,
  P.sin_p: tf.sin,
  P.cos_p: tf.cos,
  P.tan_p: tf.tan,
  P.asin_p: tf.asin,
  P.acos_p: tf.acos,
  P.atan_p: tf.atan,
  P.sinh_p: tf.sinh,
  P.cosh_p: tf.cosh,
  P.tanh_p: tf.tanh,
  P.asinh_p: tf.asinh,
  P.acosh_p: tf.acosh,
  P.atanh_p: tf.atanh,
  P.logistic_p: tf.sigmoid,
  P.floor_p: tf.floor,
  P.ceil_p: tf.math.ceil,
  P.is_finite_p: tf.math.is_finite,
  P.abs_p: tf.abs,
  P.eq_p: tf.equal,
  P.ne_p: tf.not_equal,
  P.real_p: tf.math.real,
  P.imag_p: tf.math.imag,
  P.complex_p: tf.complex,
}
# TF 2.21: no kernel of Less and similar ops for bool.
_UNORDERED = (*NARROW, tf.bool)
_ORDER = {P.ge_p: tf.greater_equal, P.gt_p: tf.greater, P.le_p: tf.less_equal, P.lt_p: tf.less}

lower_directly(_TABLE, lacks=NARROW, lacks_on_gpu=ON_HOST_OF_GPU)
lower_directly(_ORDER, lacks=_UNORDERED, lacks_on_gpu=ON_HOST_OF_GPU)


@lowers(P.mul_p, lacks_on_gpu=ON_HOST_OF_GPU)
def _mul(ctx: RuleContext, x: tf.Tensor, y: tf.Tensor, *, out_dtype: Any = None) -> tf.Tensor:
  """x f32[...], y f32[...] -> f32[...]; integers wrap. With an `out_dtype` their types may
  differ."""
  return _multiply(tf.cast(x, ctx.dtype_out), tf.cast(y, ctx.dtype_out))


@lowers(P.sign_p, lacks=NARROW, lacks_on_gpu=ON_HOST_OF_GPU)
def _sign(ctx: RuleContext, x: tf.Tensor) -> tf.Tensor:
  """x f32[...] -> f32[...]: -1, 0, 1 or NaN; x / |x| for complex."""
  if x.dtype.is_complex:  # TF 2.21: the kernel squares both parts, which overflows and underflows
    size = tf.abs(x)
    parts = (tf.math.divide_no_nan(part, size) for part in (tf.math.real(x), tf.math.imag(x)))
    return tf.complex(*parts)
  # TF 2.21: no unsigned kernel for Sign
  return tf.minimum(x, scalar(1, x)) if x.dtype in UNSIGNED else tf.sign(x)


@lowers(P.round_p, lacks=NARROW)
def _round(ctx: RuleContext, x: tf.Tensor, *, rounding_method: Any) -> tf.Tensor:
  """x f32[...] -> f32[...]; halves to even, or away from zero."""
  nearest = tf.round(x)
  if rounding_method.name == "TO_NEAREST_EVEN":
    return nearest
  half = scalar(0.5, x)
  return where(tf.equal(tf.abs(x - nearest), half), x + tf.sign(x) * half, nearest)


@lowers(P.exp2_p, lacks=NARROW)
def _exp2(ctx: RuleContext, x: tf.Tensor) -> tf.Tensor:
  """x f32[...] -> f32[...], exp(x log 2) as JAX has it."""
  return tf.exp(x * scalar(math.log(2), x))


@lowers(_jax_compat.optional_primitive("log2_p"), lacks=NARROW)  # JAX 0.12
def _log2(ctx: RuleContext, x: tf.Tensor) -> tf.Tensor:
  """x f32[...] -> f32[...], log(x) / log 2."""
  if x.dtype.is_complex:  # part by part: an infinite part must not meet a zero
    log = _log(x)
    return tf.complex(
      *(part * scalar(1 / math.log(2), part) for part in (tf.math.real(log), tf.math.imag(log)))
    )
  return _log(x) * scalar(1 / math.log(2), x)


@lowers(P.log1p_p, lacks=NARROW)
def _log1p(ctx: RuleContext, x: tf.Tensor) -> tf.Tensor:
  """x f32[...] -> f32[...], log(1 + x) without cancellation."""
  # TF 2.21: the complex kernel loses the real part of small imaginary x, and is NaN at -1
  if x.dtype.is_complex:
    re, im = tf.math.real(x), tf.math.imag(x)
    near = scalar(0.5, re) * tf.math.log1p(_distance_from_circle(re, im))
    far = _log_of_size(_add(re, scalar(1, re)), im)
    return tf.complex(
      where(tf.abs(x) < scalar(2, re), near, far), tf.atan2(im, _add(re, scalar(1, re)))
    )
  return tf.math.log1p(x)


def _distance_from_circle(re: tf.Tensor, im: tf.Tensor) -> tf.Tensor:
  """|1 + re + i im|**2 - 1 = 2 re + re**2 + im**2, whose terms may cancel, as if in twice the
  precision."""
  if re.dtype == tf.float32:
    re, im = tf.cast(re, tf.float64), tf.cast(im, tf.float64)
    return tf.cast(_add(_multiply(re, _add(scalar(2, re), re)), tf.square(im)), tf.float32)
  twice = _add(re, re)
  (x, dx), (y, dy) = _exact_square(re), _exact_square(im)
  sum_, error = _exact_sum(twice, x)
  sum_, other = _exact_sum(sum_, y)
  return _add(sum_, _add(_add(error, other), _add(dx, dy)))


def _exact_sum(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
  """(x + y, its rounding error); Knuth, The Art of Computer Programming, vol. 2, 4.2.2."""
  total = _add(x, y)
  part = _subtract(total, x)
  return total, _add(_subtract(x, _subtract(total, part)), _subtract(y, part))


def _exact_square(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
  """(x * x, its rounding error), of f64; Dekker, "A floating-point technique for extending the
  available precision", 1971."""
  square, scaled = tf.square(x), _multiply(x, scalar(2**27 + 1, x))
  high = _subtract(scaled, _subtract(scaled, x))
  low = _subtract(x, high)
  error = _subtract(tf.square(high), square)
  return square, _add(_add(error, _multiply(scalar(2, x), _multiply(high, low))), tf.square(low))


@lowers(P.cbrt_p)
def _cbrt(ctx: RuleContext, x: tf.Tensor) -> tf.Tensor:
  """x f32[...] -> f32[...], the real cube root."""
  wide = tf.cast(x, tf.float64)  # a power of 1/3 in float32 misses even the cubes of integers
  size = tf.abs(wide)
  root = tf.pow(size, scalar(1 / 3, wide))
  if x.dtype == tf.float64:  # one Newton step for the last digits; not from zero or infinity
    better = root - (root - size / (root * root)) / scalar(3, wide)
    root = where(tf.math.is_finite(better), better, root)
  # TF 2.21: sign(-0.0) is 0.0
  return tf.cast(where(root > scalar(0, root), tf.sign(wide) * root, wide), x.dtype)


@lowers(P.atan2_p, lacks=NARROW)
def _atan2(ctx: RuleContext, y: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
  """y, x f32[...] -> f32[...], the angle of x + iy; for complex its analytic continuation."""
  if y.dtype.is_complex:
    i = scalar(1j, y)
    return -i * tf.math.log((x + i * y) / tf.sqrt(x * x + y * y))
  return tf.atan2(y, x)


@lowers(P.conj_p)
def _conj(
  ctx: RuleContext, x: tf.Tensor, *, input_dtype: Any = None, _input_dtype: Any = None
) -> tf.Tensor:
  """x c64[...] or f32[...] -> c64[...]; the params are for JAX's transpose rule, and it lets
  callers omit them."""
  return tf.math.conj(x) if x.dtype.is_complex else tf.cast(x, ctx.dtype_out)


@lowers(P.pow_p)
def _pow(ctx: RuleContext, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
  """x f32[...], y f32[...] or i32[...] -> f32[...]."""
  y = cast(y, x.dtype)
  if x.dtype.is_complex:  # TF 2.21: 0 ** 0 is NaN
    return where(tf.equal(y, scalar(0, y)), scalar(1, x), tf.pow(x, y))
  # TF 2.21: Grappler makes it a root, which is -0.0 for -0.0, and NaN for -inf, or the op
  # Reciprocal, which `divide` avoids.
  special: dict[float, Callable[[tf.Tensor], tf.Tensor]] = {
    0.5: functools.partial(_root, tf.sqrt),
    -0.5: functools.partial(_root, tf.math.rsqrt),
    -1: _reciprocal,
  }
  if x.shape.rank == len(ctx.aval_out.shape):
    for power, function in special.items():
      if is_known(functools.partial(operator.eq, power), y):
        return widened(function)(x)
  return widened(tf.pow)(x, y)


def _root(root: Callable[[tf.Tensor], tf.Tensor], x: tf.Tensor) -> tf.Tensor:
  infinity = scalar(math.inf, x)
  return where(tf.equal(x, -infinity), tf.abs(root(infinity)), tf.abs(root(x)))


@lowers(P.integer_pow_p, lacks_on_gpu=ON_HOST_OF_GPU)
def _integer_pow(ctx: RuleContext, x: tf.Tensor, *, y: int) -> tf.Tensor:
  """x f32[...] -> f32[...], by repeated squaring; integers wrap, a negative y is for floats."""
  if y == 0:
    return cast(
      tf.fill(ctx.shape(ctx.aval_out.shape), tf.constant(1, WIDER.get(x.dtype, x.dtype))), x.dtype
    )
  power, result, rest = x, None, abs(y)
  while rest:
    if rest & 1:
      result = power if result is None else _multiply(result, power)
    rest >>= 1
    if rest:
      power = widened(tf.square)(power)
  return widened(_reciprocal)(result) if y < 0 else result


def _reciprocal(x: tf.Tensor) -> tf.Tensor:
  return divide(scalar(1, x), x)


@lowers(_jax_compat.optional_primitive("one_minus_square_p"), lacks=NARROW)  # JAX 0.12
def _one_minus_square(ctx: RuleContext, x: tf.Tensor) -> tf.Tensor:
  """x f32[...] -> f32[...], (1 + x)(1 - x), exact near 1."""
  return (scalar(1, x) + x) * (scalar(1, x) - x)


@lowers(_jax_compat.optional_primitive("polynomial_p"))  # JAX 0.12
def _polynomial(
  ctx: RuleContext, x: tf.Tensor, *coefficients: tf.Tensor, unroll: int | None = None
) -> tf.Tensor:
  """x f32[...], coefficients f32[...] from the constant term up -> f32[...], by Horner's rule."""
  add = widened(tf.add)
  *lower, result = coefficients
  for coefficient in reversed(lower):
    result = add(_multiply(result, x), coefficient)
  return result if len(coefficients) > 1 else tf.broadcast_to(result, ctx.shape(ctx.aval_out.shape))


@lowers(P.max_p, lacks=NARROW, lacks_on_gpu=ON_HOST_OF_GPU)
def _max(ctx: RuleContext, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
  """x, y f32[...] -> f32[...]; NaN wins, complex is ordered by real part, then imaginary part; bool
  is `or`."""
  if x.dtype == tf.bool:
    return tf.logical_or(x, y)
  if x.dtype.is_complex:
    return where(_complex_greater(x, y), x, y)
  x, y = _constant_last(x, y)
  # TF 2.21: of max(min(x, 6), 0) the TFLite converter makes Relu6, which has no kernel for
  # integers; not with the 0 first.
  return tf.maximum(y, x) if x.dtype.is_integer else tf.maximum(x, y)


@lowers(P.min_p, lacks=NARROW, lacks_on_gpu=ON_HOST_OF_GPU)
def _min(ctx: RuleContext, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
  """x, y f32[...] -> f32[...]; NaN wins, complex is ordered by real part, then imaginary part; bool
  is `and`."""
  if x.dtype == tf.bool:
    return tf.logical_and(x, y)
  if x.dtype.is_complex:
    return where(_complex_greater(y, x), x, y)
  return tf.minimum(*_constant_last(x, y))


@lowers(P.clamp_p, lacks=NARROW, lacks_on_gpu=ON_HOST_OF_GPU)
def _clamp(ctx: RuleContext, low: tf.Tensor, x: tf.Tensor, high: tf.Tensor) -> tf.Tensor:
  """low, x, high f32[...] -> f32[...], min(max(x, low), high); bounds may be scalars."""
  if x.dtype == tf.bool or x.dtype.is_complex:
    return _min(ctx, _max(ctx, x, low), high)
  return tf.minimum(tf.maximum(x, low), high)


def _constant_last(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
  """TensorFlow's XLA runs with fast min and max, which keep the NaN of their first operand only."""
  return (y, x) if is_known(lambda value: value == value, x) else (x, y)


def _complex_greater(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
  real_x, real_y = tf.math.real(x), tf.math.real(y)
  return where(tf.equal(real_x, real_y), tf.math.imag(x) > tf.math.imag(y), real_x > real_y)


@lowers(P.select_n_p, lacks=NARROW)
def _select_n(ctx: RuleContext, which: tf.Tensor, *cases: tf.Tensor) -> tf.Tensor:
  """which bool[...] or i32[...], a scalar or of the shape of the cases -> cases[which], element by
  element.

  An index out of range selects the nearest case, as XLA's decision tree does.
  """
  if which.dtype == tf.bool:
    if len(cases) == 1:
      return cases[0]
    no, yes = beside_images(ctx, len(ctx.aval_out.shape), *cases)
    return where(which, yes, no)

  def among(first: int, cases: tuple[tf.Tensor, ...]) -> tf.Tensor:
    if len(cases) == 1:
      return cases[0]
    middle = len(cases) // 2
    lower, upper = among(first, cases[:middle]), among(first + middle, cases[middle:])
    return where(which < scalar(first + middle, which), lower, upper)

  return among(0, cases)


def _total_order(compare: Any) -> Any:
  """The comparison in IEEE total order: -NaN < -inf < -0 < 0 < inf < NaN."""

  def rule(ctx: RuleContext, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """x, y f32[...] -> bool[...]."""
    if x.dtype.is_complex:
      ctx.refuse("total order of complex numbers", "compare real and imaginary parts")
    if x.dtype.is_floating:
      x, y = (ordinals(z, key_kind(ctx)) for z in (x, y))
    return compare(x, y)

  return rule


lowers(P.eq_to_p, lacks=_UNORDERED, lacks_on_gpu=ON_HOST_OF_GPU)(_total_order(tf.equal))
lowers(P.le_to_p, lacks=_UNORDERED, lacks_on_gpu=ON_HOST_OF_GPU)(_total_order(tf.less_equal))
lowers(P.lt_to_p, lacks=_UNORDERED, lacks_on_gpu=ON_HOST_OF_GPU)(_total_order(tf.less))


@lowers(P.nextafter_p)
def _nextafter(ctx: RuleContext, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
  """x, y f32[...] -> f32[...], the float next to x in the direction of y."""
  if x.dtype not in (*HALF, *NARROW):
    return tf.math.nextafter(x, y)
  if x.dtype in NARROW:
    ctx.refuse(f"TensorFlow cannot access the bits of {x.dtype.name}", "use another dtype")
  # TF 2.21: NextAfter has kernels for float32 and float64 only.
  start, end = (tf.cast(ordinals(z), tf.int32) for z in (x, y))
  # -0.0 and 0.0 count as one
  start, end = (ordinal + tf.cast(ordinal < 0, tf.int32) for ordinal in (start, end))
  ordinal = start + tf.sign(end - start)
  bits = where(ordinal < 0, -(2**15) - ordinal, ordinal)
  return where(
    tf.math.is_nan(x) | tf.math.is_nan(y),
    x + y,
    where(tf.equal(start, end), y, tf.bitcast(tf.cast(bits, tf.int16), x.dtype)),
  )
