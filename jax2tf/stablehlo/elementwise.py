"""Elementwise ops, and casts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy import special

from jax2tf.stablehlo.graph import Op
from jax2tf.stablehlo.rules import COMPOSITES, OPS, Evaluation, Refusal, Rule, plainly, rule


def _bits_for_booleans(
  of_numbers: Callable[..., Any], of_booleans: Callable[..., Any]
) -> Callable[..., Any]:
  """Booleans are numbers of one bit in StableHLO, and no numbers in JAX."""

  def function(left: Any, right: Any) -> Any:
    return (of_booleans if left.dtype == bool else of_numbers)(left, right)

  return function


def _real(value: Any) -> Any:
  return lax.real(value) if jnp.iscomplexobj(value) else value


def _imaginary(value: Any) -> Any:
  return lax.imag(value) if jnp.iscomplexobj(value) else jnp.zeros_like(value)


_PLAIN: dict[str, Callable[..., Any]] = {
  "abs": lax.abs,
  "add": _bits_for_booleans(lax.add, lax.bitwise_or),
  "and": lax.bitwise_and,
  "atan2": lax.atan2,
  "cbrt": lax.cbrt,
  "ceil": lax.ceil,
  "clamp": lax.clamp,
  "complex": lax.complex,
  "cosine": lax.cos,
  "count_leading_zeros": lax.clz,
  "divide": lax.div,
  "exponential": lax.exp,
  "exponential_minus_one": lax.expm1,
  "floor": lax.floor,
  "imag": _imaginary,
  "is_finite": lax.is_finite,
  "log": lax.log,
  "log_plus_one": lax.log1p,
  "logistic": lax.logistic,
  "maximum": _bits_for_booleans(lax.max, lax.bitwise_or),
  "minimum": _bits_for_booleans(lax.min, lax.bitwise_and),
  "multiply": _bits_for_booleans(lax.mul, lax.bitwise_and),
  "negate": lax.neg,
  "not": lax.bitwise_not,
  "or": lax.bitwise_or,
  "popcnt": lax.population_count,
  "power": lax.pow,
  "real": _real,
  "remainder": lax.rem,
  "round_nearest_afz": lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO),
  "round_nearest_even": lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN),
  "rsqrt": lax.rsqrt,
  "shift_left": lax.shift_left,
  "shift_right_arithmetic": lax.shift_right_arithmetic,
  "shift_right_logical": lax.shift_right_logical,
  "sign": lax.sign,
  "sine": lax.sin,
  "sqrt": lax.sqrt,
  "subtract": _bits_for_booleans(lax.sub, lax.bitwise_xor),
  "tan": lax.tan,
  "tanh": lax.tanh,
  "xor": lax.bitwise_xor,
}
OPS.update({f"stablehlo.{name}": plainly(function) for name, function in _PLAIN.items()})

# JAX writes most of them as composites, "chlo.erf" with a decomposition; older ones as ops of CHLO,
# or as custom calls "mhlo.erf".
_CHLO: dict[str, Callable[..., Any]] = {
  "acos": lax.acos,
  "acosh": lax.acosh,
  "asin": lax.asin,
  "asinh": lax.asinh,
  "atan": lax.atan,
  "atanh": lax.atanh,
  "bessel_i1e": lax.bessel_i1e,
  "conj": lax.conj,
  "cosh": lax.cosh,
  "digamma": lax.digamma,
  "erf": lax.erf,
  "erf_inv": lax.erf_inv,
  "erfc": lax.erfc,
  "is_inf": jnp.isinf,
  "is_neg_inf": jnp.isneginf,
  "is_pos_inf": jnp.isposinf,
  "lgamma": lax.lgamma,
  "next_after": lax.nextafter,
  "polygamma": special.polygamma,
  "sinh": lax.sinh,
  "square": lax.square,
  "tan": lax.tan,
  "zeta": special.zeta,
}
OPS.update({f"chlo.{name}": plainly(function) for name, function in _CHLO.items()})
COMPOSITES.update({f"chlo.{name}": plainly(function) for name, function in _CHLO.items()})


def of_chlo(name: str) -> Rule:
  """The rule of a function of CHLO, for the custom calls that stand for it."""
  return plainly(_CHLO[name])


@rule("select")
def _select(evaluation: Evaluation, op: Op, condition: Any, left: Any, right: Any) -> Any:
  return lax.select(condition, *_same(left, right))


def _same(*arrays: Any) -> list[Any]:
  """NumPy's arrays as JAX's: lax.select asks for one class."""
  return [jnp.asarray(each) for each in arrays]


_COMPARISONS = {"EQ": lax.eq, "NE": lax.ne, "LT": lax.lt, "LE": lax.le, "GT": lax.gt, "GE": lax.ge}


@rule("compare")
def _compare(evaluation: Evaluation, op: Op, left: Any, right: Any) -> Any:
  if op.get("compare_type") == "TOTALORDER" and jnp.issubdtype(left.dtype, jnp.floating):
    left, right = total_order(left), total_order(right)
  return _COMPARISONS[op.attributes["comparison_direction"]](left, right)


def total_order(floats: Any) -> Any:
  """Integers in IEEE 754's total order of floats: -NaN, -inf, -0.0, 0.0, inf, NaN."""
  bits = 8 * floats.dtype.itemsize
  raw = lax.bitcast_convert_type(floats, np.dtype(f"int{bits}"))
  magnitude = np.array((1 << (bits - 1)) - 1, raw.dtype)
  return jnp.where(raw < 0, lax.bitwise_xor(raw, magnitude), raw)


@rule("convert")
def _convert(evaluation: Evaluation, op: Op, value: Any) -> Any:
  dtype = op.results[0].dtype
  if jnp.iscomplexobj(value) and dtype.kind != "c":
    value = lax.real(value)
  return lax.convert_element_type(value, dtype)


@rule("bitcast_convert")
def _bitcast_convert(evaluation: Evaluation, op: Op, value: Any) -> Any:
  return lax.bitcast_convert_type(value, op.results[0].dtype)


@rule("reduce_precision")
def _reduce_precision(evaluation: Evaluation, op: Op, value: Any) -> Any:
  return lax.reduce_precision(value, op.attributes["exponent_bits"], op.attributes["mantissa_bits"])


def _check_uniform(op: Op) -> Refusal | None:
  return Refusal("quantized types have no arrays in JAX", "export the model before quantization")


rule("uniform_quantize", "uniform_dequantize", check=_check_uniform)(lambda *operands: None)
