"""The dtype in which XLA multiplies, where operands and result of a product have different ones."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf
from jax import lax

from jax2tf.context import RuleContext
from jax2tf.dtypes import HALF, tf_dtype
from jax2tf.lowering._common import cast


def multiplied_in(lhs: Any, rhs: Any, out: Any) -> np.dtype:
  """The dtype to convert both operands to before the product, which is converted to `out` after it.

  Args:
    lhs, rhs: the dtypes of the operands.
    out: the dtype of the result, for instance `preferred_element_type`.

  Returns:
    `out` if it has every value of the operands, or a larger range; else the dtype of the operands.
  """
  lhs, rhs, out = map(np.dtype, (lhs, rhs, out))
  if lhs != rhs and not (_is_float8(lhs) and _is_float8(rhs)):
    return out  # JAX itself converts mixed operands
  own = max(lhs, rhs, key=_order)
  return out if _order(out) >= _order(own) else own


def _order(dtype: np.dtype) -> tuple[bool, int, int]:
  """XLA's order of precision: complex, largest exponent, bits of the mantissa. All integers are
  equal: they convert first."""
  if not jnp.issubdtype(dtype, np.inexact):
    return False, -1, -1
  info = jnp.finfo(dtype)
  return jnp.issubdtype(dtype, np.complexfloating), int(info.maxexp), int(info.nmant)


def _is_float8(dtype: np.dtype) -> bool:
  return dtype.itemsize == 1 and jnp.issubdtype(dtype, np.floating)


def multiplicands(ctx: RuleContext, operands: Sequence[tf.Tensor], dtype: Any) -> list[tf.Tensor]:
  """The operands of a rule, lhs and rhs, in the dtype of `multiplied_in`."""
  return [
    converted(ctx, x, aval.shape, dtype) for x, aval in zip(operands, ctx.avals_in, strict=True)
  ]


def converted(ctx: RuleContext, x: tf.Tensor, shape: Sequence[Any], dtype: Any) -> tf.Tensor:
  """x f32[...] as i32[...], by the rule for conversions."""
  if x.dtype == tf_dtype(dtype):
    return x
  aval = jax.ShapeDtypeStruct(tuple(shape), x.dtype.as_numpy_dtype)
  return ctx.lower_fun(functools.partial(_convert, dtype=np.dtype(dtype)), x, avals=[aval])


def _convert(x: Any, *, dtype: np.dtype) -> Any:
  if jnp.iscomplexobj(x) and not jnp.issubdtype(dtype, np.complexfloating):
    x = lax.real(x)  # as the conversion itself does, with a warning
  return lax.convert_element_type(x, dtype)


def product_as_result(ctx: RuleContext, product: tf.Tensor, dtype: Any) -> tf.Tensor:
  """A product f32[...] of operands of `dtype`, rounded to it and then converted to the dtype of the
  result."""
  out, own = ctx.aval_out.dtype, tf_dtype(dtype)
  if own in HALF and product.dtype.is_floating and own != ctx.dtype_out:
    info = jnp.finfo(dtype)
    rounded = functools.partial(
      lax.reduce_precision, exponent_bits=int(info.nexp), mantissa_bits=int(info.nmant)
    )
    aval = jax.ShapeDtypeStruct(ctx.aval_out.shape, product.dtype.as_numpy_dtype)
    # XLA may leave out a cast to a narrow float and back.
    product = ctx.lower_fun(rounded, product, avals=[aval])
  elif own == tf.bool:
    return tf.not_equal(product, 0)
  return converted(ctx, cast(product, own), ctx.aval_out.shape, out)
