"""Softmax and LogSoftmax along the last axis."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import tensorflow as tf

from jax2tf.idioms.fused._primitives import fused, self_adjoint


def _softmax_grad_in_tf(g: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
  return (g - tf.reduce_sum(g * y, -1, keepdims=True)) * y


_softmax_grad = self_adjoint(
  "softmax_grad", lambda g, y: (g - jnp.sum(g * y, -1, keepdims=True)) * y, _softmax_grad_in_tf
)


def _by_hand(x: jax.Array) -> jax.Array:
  e = jnp.exp(x - jnp.max(x, -1, keepdims=True))
  return e / jnp.sum(e, -1, keepdims=True)


def _tangent_of_log(result: Any, operands: Any, tangents: Any) -> Any:
  return tangents[0] - jnp.sum(jnp.exp(result) * tangents[0], -1, keepdims=True)


IDIOMS = [
  *fused(
    "softmax",
    jax.nn.softmax,
    _by_hand,
    op=tf.nn.softmax,
    elementwise=False,
    tangent=lambda result, operands, tangents: _softmax_grad(*tangents, result),
  ),
  *fused(
    "log_softmax",
    jax.nn.log_softmax,
    op=tf.nn.log_softmax,
    elementwise=False,
    tangent=_tangent_of_log,
  ),
]
