"""Rows minus their mean, divided by their standard deviation: the part of LayerNorm that all its
forms share."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend.core.primitives as P
import jax.numpy as jnp
import tensorflow as tf

from jax2tf.idioms._dataflow import Dataflow, Equations, new_var
from jax2tf.idioms.fused._primitives import composite, finding, self_adjoint
from jax2tf.idioms.fused._template import Templates
from jax2tf.jaxprs import Eqn

_mean = functools.partial(jnp.mean, axis=-1, keepdims=True)


def _in_tf(x: tf.Tensor, epsilon: float) -> tuple[tf.Tensor, tf.Tensor]:
  mean = tf.reduce_mean(x, -1, keepdims=True)
  inverse = tf.math.rsqrt(
    tf.reduce_mean(tf.math.squared_difference(x, mean), -1, keepdims=True)
    + tf.constant(epsilon, x.dtype)
  )
  return (x - mean) * inverse, inverse


def _grad_in_tf(g: tf.Tensor, x: tf.Tensor, epsilon: float) -> tf.Tensor:
  # Grappler reuses the equal ops of the forward pass.
  y, inverse = _in_tf(x, epsilon)
  return (
    g - tf.reduce_mean(g, -1, keepdims=True) - y * tf.reduce_mean(g * y, -1, keepdims=True)
  ) * inverse


def _grad(g: jax.Array, x: jax.Array, epsilon: float) -> jax.Array:
  return jax.jvp(lambda x: _definition(x, epsilon), (x,), (g,))[1]


def _definition(x: jax.Array, epsilon: float) -> jax.Array:
  centred = x - _mean(x)
  return centred * jax.lax.rsqrt(_mean(jnp.square(centred)) + epsilon)


_normalize_grad = self_adjoint("normalize_grad", _grad, _grad_in_tf)
normalize_p = composite(
  "normalize",
  _definition,
  lambda x, epsilon: _in_tf(x, epsilon)[0],
  lambda result, operands, tangents, epsilon: _normalize_grad(
    tangents[0], operands[0], epsilon=epsilon
  ),
)


def _of_squares(x: jax.Array) -> tuple[jax.Array, jax.Array]:
  """As in Flax, which inserts the dimension last."""
  mean = jnp.mean(x, -1)
  variance = jnp.maximum(0.0, jnp.mean(jnp.square(x), -1) - jnp.square(mean))
  return x - jnp.expand_dims(mean, -1), jnp.expand_dims(variance, -1)


def _centred(
  variance: Callable[[jax.Array], jax.Array],
) -> Callable[[jax.Array], tuple[jax.Array, jax.Array]]:
  return lambda x: (x - _mean(x), variance(x))


# x -> (x - mean, variance).
_MOMENTS = (
  _of_squares,
  _centred(lambda x: jnp.var(x, -1, keepdims=True)),
  _centred(lambda x: jnp.maximum(0.0, jnp.var(x, -1, keepdims=True))),  # as in Equinox
  _centred(lambda x: _mean(jnp.square(x - _mean(x)))),
  # as in jax.nn.standardize
  _centred(lambda x: jnp.clip(_mean(jnp.square(x)) - jnp.square(_mean(x)), 0)),
)
_FORMS: Sequence[Callable[..., jax.Array]] = (
  lambda centred, variance: centred / jnp.sqrt(variance),
  lambda centred, variance: centred * jax.lax.rsqrt(variance),
  lambda centred, variance, scale: (
    centred * (jax.lax.rsqrt(variance) * jnp.expand_dims(scale, range(centred.ndim - 1)))
  ),
)


def _template(
  form: Callable[..., jax.Array], moments: Callable[..., Any], x: jax.Array, *others: Any
) -> jax.Array:
  *scale, epsilon = others
  centred, variance = moments(x)
  return form(centred, variance + epsilon, *scale)


def _idiom(find: Any, flow: Dataflow, root: Eqn, templates: Templates) -> Equations | None:
  """(x - mean(x)) / sqrt(var(x) + epsilon) * f32[n] -> normalize(x) * f32[n]."""
  if (match := find(flow, root, templates)) is None:
    return None
  (operand, *scale), [epsilon] = match
  normalize = root.replace(primitive=normalize_p, invars=[operand], params={"epsilon": epsilon})
  if not scale:
    return [normalize]
  (out,), rank = root.outvars, len(root.outvars[0].aval.shape)
  rows, repeated = (
    new_var(out, out.aval.shape),
    new_var(out, (*[1] * (rank - 1), out.aval.shape[-1])),
  )
  params = {"shape": repeated.aval.shape, "broadcast_dimensions": (rank - 1,), "sharding": None}
  broadcast = root.replace(
    primitive=P.broadcast_in_dim_p, invars=scale, outvars=[repeated], params=params
  )
  return [
    normalize.replace(outvars=[rows]),
    broadcast,
    root.replace(primitive=P.mul_p, invars=[rows, repeated]),
  ]


IDIOMS = [
  ("layer_norm", primitive, functools.partial(_idiom, find))
  for (n, form), moments in itertools.product(enumerate(_FORMS), _MOMENTS)
  for primitive, find in [
    finding(functools.partial(_template, form, moments), vectors=n == 2, holes=1)
  ]
]
