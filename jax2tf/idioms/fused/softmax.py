"""Softmax and LogSoftmax along the last axis."""

from __future__ import annotations

from typing import Any

import jax
import jax.extend.core.primitives as P
import jax.numpy as jnp
import tensorflow as tf

from jax2tf.idioms._dataflow import Dataflow, Equations, is_array, new_var
from jax2tf.idioms.fused._primitives import fused, self_adjoint
from jax2tf.idioms.fused._template import Templates
from jax2tf.jaxprs import Eqn


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


# Between the largest scores and what is subtracted.
_ON_EXTREMES = (P.broadcast_in_dim_p, P.stop_gradient_p, P.max_p, P.transpose_p)


def after_transpose(flow: Dataflow, root: Eqn, templates: Templates) -> Equations | None:
  """transpose(x) - transpose(max(x)) -> y - max(y), y = transpose(x), of rows along the last axis.

  So a batched softmax is written: JAX reduces scores before it moves their axes, and after that the
  maxima have no more dimensions than the template's.
  """
  moved, extremes = root.invars
  move = flow.producer(moved, P.transpose_p)
  if move is None or not is_array(moved) or len(extremes.aval.shape) != len(moved.aval.shape):
    return None
  permutation, last = tuple(move.params["permutation"]), len(moved.aval.shape) - 1
  chain: list[Eqn] = []
  while (eqn := flow.single_use(extremes, *_ON_EXTREMES)) is not None:
    arrays = [v for v in eqn.invars if v.aval.shape]
    if len(arrays) != 1:
      return None
    chain.insert(0, eqn)
    (extremes,) = arrays
  reduced = flow.single_use(extremes, P.reduce_max_p)
  moves = [eqn for eqn in chain if eqn.primitive is P.transpose_p]
  if (
    reduced is None
    or reduced.invars[0] is not move.invars[0]
    or tuple(reduced.params["axes"]) != (last,)
    or [(*eqn.params["permutation"], last) for eqn in moves] != [permutation]
  ):
    return None
  current = new_var(extremes, moved.aval.shape[:-1])
  eqns = [reduced.replace(invars=[moved], outvars=[current])]
  for eqn in chain:
    if eqn.primitive is P.transpose_p:
      continue
    operands = [current if v.aval.shape else v for v in eqn.invars]
    shape = eqn.outvars[0].aval.shape
    is_inserting = eqn.primitive is P.broadcast_in_dim_p
    current = new_var(extremes, shape if is_inserting else current.aval.shape)
    eqns.append(eqn.replace(invars=operands, outvars=[current]))
  return [*eqns, root.replace(invars=[moved, current])]


IDIOMS = [
  ("softmax", P.sub_p, after_transpose),
  ("log_softmax", P.sub_p, after_transpose),
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
