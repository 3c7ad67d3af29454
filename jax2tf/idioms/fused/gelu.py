"""GELU, both forms, much as `tf.nn.gelu` writes them: behind MatMul and BiasAdd Grappler makes one
op of all.

TF 2.21's `tf.nn.gelu` casts the numbers of float64 from float32.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import tensorflow as tf
from jax import lax

from jax2tf.idioms.fused._primitives import fused, self_adjoint

_tanh = functools.partial(jax.nn.gelu, approximate=True)
_erfc = functools.partial(jax.nn.gelu, approximate=False)


# TF 2.21: Grappler makes one op of MatMul, BiasAdd and this, but only if the name of x comes before
# that of its cube. "z" lets most names come before it; otherwise it is in the scope of x.
def _tanh_of(x: tf.Tensor) -> tf.Tensor:
  own = "/".join(filter(None, [tf.get_current_name_scope(), "z_gelu/"]))
  with tf.name_scope(own if x.op.name < own else f"{x.op.name}_gelu/"):
    return tf.tanh(math.sqrt(2 / math.pi) * (x + tf.constant(0.044715, x.dtype) * tf.pow(x, 3)))


def _tanh_in_tf(x: tf.Tensor) -> tf.Tensor:
  return 0.5 * x * (1.0 + _tanh_of(x))


def _erf_in_tf(x: tf.Tensor) -> tf.Tensor:
  return 0.5 * x * tf.math.erfc(-x * tf.constant(math.sqrt(0.5), x.dtype))


# Grappler reuses the tanh of the forward pass: the ops are equal.
def _tanh_grad_in_tf(g: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
  tanh, c = _tanh_of(x), math.sqrt(2 / math.pi)
  # x comes last: x^3 overflows where 1 - tanh^2 is 0.
  bend = (1 - tf.square(tanh)) * (c / 2 + (1.5 * 0.044715 * c) * tf.square(x)) * x
  return g * ((0.5 + 0.5 * tanh) + bend)


def _erf_grad_in_tf(g: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
  cdf = 0.5 * tf.math.erfc(-x * math.sqrt(0.5))
  return g * (cdf + x * tf.exp(-0.5 * tf.square(x)) * (1 / math.sqrt(2 * math.pi)))


def _of(gelu: Callable[..., Any]) -> Callable[..., Any]:
  return lambda g, x: jax.jvp(gelu, (x,), (g,))[1]


_tanh_grad = self_adjoint("gelu_tanh_grad", _of(_tanh), _tanh_grad_in_tf)
_erf_grad = self_adjoint("gelu_erf_grad", _of(_erfc), _erf_grad_in_tf)


def _erf(x: jax.Array) -> jax.Array:
  return x * 0.5 * (1 + lax.erf(x / math.sqrt(2)))


def _erf_times(x: jax.Array) -> jax.Array:
  return 0.5 * x * (1 + lax.erf(x / jnp.sqrt(2).astype(x.dtype)))


IDIOMS = [
  *fused(
    "gelu",
    _tanh,
    op=_tanh_in_tf,
    tangent=lambda result, operands, tangents: _tanh_grad(*tangents, *operands),
  ),
  *fused(
    "gelu",
    *(_erfc, _erf, _erf_times),
    op=_erf_in_tf,
    tangent=lambda result, operands, tangents: _erf_grad(*tangents, *operands),
  ),
]
