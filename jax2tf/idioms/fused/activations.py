"""Activations that TensorFlow has as an op, and Grappler fuses with the product or convolution
before them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf
from jax import lax

from jax2tf.idioms.fused._primitives import fused, self_adjoint

_SCALE, _ALPHA = 1.0507009873554805, 1.6732632423543772
_raw = tf.raw_ops


def _of_result(grad: Any) -> Any:
  """A tangent that follows from the result, so that a backward pass keeps nothing else."""
  return lambda result, operands, tangents: grad(tangents[0], result)


_relu_grad = self_adjoint(
  "relu_grad",
  lambda g, y: jnp.where(y > 0, g, 0),
  lambda g, y: _raw.ReluGrad(gradients=g, features=y),
)
_relu6_grad = self_adjoint(
  "relu6_grad",
  lambda g, y: jnp.where((y > 0) & (y < 6), g, 0),
  lambda g, y: _raw.Relu6Grad(gradients=g, features=y),
)
_elu_grad = self_adjoint(
  "elu_grad",
  lambda g, y: jnp.where(y < 0, g * (y + 1), g),
  lambda g, y: _raw.EluGrad(gradients=g, outputs=y),
)
# TF 2.21: SeluGrad has the slope from the right in 0, JAX that from the left.
_selu_grad = self_adjoint(
  "selu_grad",
  lambda g, y: g * jnp.where(y > 0, _SCALE, y + _SCALE * _ALPHA),
  lambda g, y: (
    g * tf.where(y > 0, tf.constant(_SCALE, y.dtype), y + tf.constant(_SCALE * _ALPHA, y.dtype))
  ),
)


def _as_float32(dtype: Any, alpha: float) -> bool:
  """Whether float32, the dtype of LeakyRelu's attribute, and the dtype of the operand hold the same
  number."""
  return float(np.float32(alpha)) == float(np.asarray(alpha, dtype))


# Contains relu.
CLIPS = fused("relu6", lambda x: jnp.minimum(jnp.maximum(x, 0), 6), op=tf.nn.relu6)
IDIOMS = [
  *fused("relu", jax.nn.relu, op=tf.nn.relu, tangent=_of_result(_relu_grad)),
  # These have another derivative at 0, JAX's.
  *fused(
    "relu",
    lambda x: jnp.maximum(x, 0),
    lambda x: jnp.clip(x, min=0),
    lambda x: lax.max(x, jnp.zeros_like(x)),
    op=tf.nn.relu,
  ),
  *fused("relu6", jax.nn.relu6, op=tf.nn.relu6, tangent=_of_result(_relu6_grad)),
  # `jax.nn` converts a given slope or alpha to the dtype, but not its default.
  *fused(
    "leaky_relu",
    *(jax.nn.leaky_relu, lambda x, slope: jnp.where(x >= 0, x, slope * x)),
    op=tf.nn.leaky_relu,
    holes=["alpha"],
    takes=_as_float32,
  ),
  *fused(
    "elu", jax.nn.elu, lambda x: jax.nn.elu(x, 1.0), op=tf.nn.elu, tangent=_of_result(_elu_grad)
  ),
  *fused("selu", jax.nn.selu, op=tf.nn.selu, tangent=_of_result(_selu_grad)),
  *fused(
    "silu", jax.nn.silu, lambda x: x * (1 / (1 + jnp.exp(-x))), op=lambda x: x * tf.sigmoid(x)
  ),
]
