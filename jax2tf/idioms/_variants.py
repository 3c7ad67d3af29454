"""Variants of JAX's primitives for operands that only TensorFlow's op accepts, so that the
equations of idioms are well formed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax.core import ShapedArray
from jax.extend.core import Primitive

from jax2tf.registry import lowers, rule_for


def variant(
  primitive: Primitive, as_jax: Callable[..., Any] = lambda *avals: avals, **fixed: Any
) -> Primitive:
  """A primitive of the same name, for errors, and lowered by the same rule.

  Args:
    primitive: JAX's.
    as_jax: the avals of its operands -> those that `primitive` takes for the same result.
    fixed: additional params for the rule.
  """
  own = Primitive(primitive.name)
  own.def_effectful_abstract_eval(
    lambda *avals, **params: primitive.abstract_eval(*as_jax(*avals), **params)
  )

  @lowers(own)
  def rule(ctx: Any, *operands: Any, **params: Any) -> Any:
    known = rule_for(primitive)
    assert known is not None
    return known(ctx, *operands, **params, **fixed)

  return own


def repeated_avals(*avals: Any) -> list[ShapedArray]:
  """f32[b,3], f32[3] -> f32[b,3], f32[b,3]: as TensorFlow's elementwise ops repeat them."""
  rank = max(len(aval.shape) for aval in avals)
  shapes = [(1,) * (rank - len(aval.shape)) + aval.shape for aval in avals]
  shape = tuple(
    next((size for size in sizes if not (isinstance(size, int) and size == 1)), 1)
    for sizes in zip(*shapes, strict=True)
  )
  return [ShapedArray(shape, aval.dtype) for aval in avals]
