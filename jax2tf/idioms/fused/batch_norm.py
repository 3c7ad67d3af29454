"""Factors and offsets for each feature of a convolution: FusedBatchNorm, which Grappler fuses with the convolution.

BatchNorm in inference is this, in all forms: the mean, the variance and the parameters are such vectors. In training they follow from the
result of the convolution, which something else uses then.
"""

from __future__ import annotations

import operator
from typing import Any

import jax
import jax.extend.core.primitives as P
import jax.numpy as jnp
import numpy as np
import tensorflow as tf

from jax2tf.idioms._dataflow import Dataflow, Equations, same
from jax2tf.idioms.fused._inline import substituted
from jax2tf.idioms.fused._primitives import composite
from jax2tf.idioms.fused._template import Templates
from jax2tf.lowering._movement import is_one

_DO = {P.add_p: operator.add, P.sub_p: operator.sub, P.mul_p: operator.mul, P.div_p: operator.truediv}


def _in_tf(x: tf.Tensor, scale: tf.Tensor, offset: tf.Tensor) -> tf.Tensor:
  # Grappler fuses no Mul with a convolution; of a mean of 0 and a variance of 1 FusedBatchNorm is one.
  zeros, ones = tf.zeros_like(scale), tf.ones_like(scale)
  return tf.raw_ops.FusedBatchNormV3(x=x, scale=scale, offset=offset, mean=zeros, variance=ones, epsilon=0.0, is_training=False)[0]


batch_norm_p = composite("batch_norm", lambda x, scale, offset: x * scale + offset, _in_tf)


def batch_norm(flow: Dataflow, root: Any, templates: Templates) -> Equations | None:
  """((conv - f32[c]) * f32[c]) + f32[c] -> batch_norm(conv, f32[c], f32[c]); one equation after the other."""
  del templates
  steps: list[tuple[Any, Any]] = []
  eqn, (out,) = root, root.outvars
  if out.aval.dtype != np.float32 or len(out.aval.shape) != 4:
    return None
  while eqn is not None and eqn.primitive in _DO:
    if (found := _of_rows(flow, eqn)) is None:
      return None
    value, row = found
    steps.append((_DO[eqn.primitive], row))
    eqn = flow.sole(value, *_DO, P.conv_general_dilated_p, batch_norm_p)
  if eqn is None:
    return None
  known: list[Any] = []
  if eqn.primitive is batch_norm_p:
    value, *known = eqn.invars
  elif eqn.params["dimension_numbers"].out_spec[1] != 3 or not any(do in (operator.mul, operator.truediv) for do, _ in steps):
    return None

  def folded(rows: Any, known: Any) -> tuple[Any, Any]:
    scale, offset = known or (jnp.ones(out.aval.shape[-1:], jnp.float32), jnp.zeros(out.aval.shape[-1:], jnp.float32))
    for (do, _), row in zip(reversed(steps), reversed(rows), strict=True):
      by = row.reshape(-1) if row.ndim else row
      offset = do(offset, by)
      scale = do(scale, by) if do in (operator.mul, operator.truediv) else scale
    return scale, offset

  rows = [row for _, row in steps]
  specs = [[jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in atoms] for atoms in (rows, known)]
  eqns, vectors = substituted(jax.make_jaxpr(folded)(*specs), [*rows, *known])
  return [
    *(e.replace(source_info=root.source_info) for e in eqns),
    root.replace(primitive=batch_norm_p, invars=[value, *vectors], params={}),
  ]


def _of_rows(flow: Dataflow, eqn: Any) -> tuple[Any, Any] | None:
  """(what is computed with, the f32[1,1,1,c] or f32[c] that it is combined with), in this order but for what commutes."""
  shape = eqn.outvars[0].aval.shape
  orders = (eqn.invars, eqn.invars[::-1]) if eqn.primitive in (P.add_p, P.mul_p) else (eqn.invars,)
  for value, other in orders:
    before = flow.sole(value, *_DO, P.conv_general_dilated_p, batch_norm_p)
    if before is not None and same(value.aval.shape, shape) and (row := _row(flow, other, shape[-1])) is not None:
      return value, row
  return None


def _row(flow: Dataflow, atom: Any, size: Any) -> Any:
  """What `atom` repeats along all dimensions but the last, or None."""
  while not all(map(is_one, atom.aval.shape[:-1])) and (eqn := flow.maker(atom, P.broadcast_in_dim_p)) is not None:
    operand, dims = eqn.invars[0], eqn.params["broadcast_dimensions"]
    if len(eqn.invars) != 1 or not same(operand.aval.shape[-1:], [size]) or int(dims[-1]) != len(atom.aval.shape) - 1:
      return None
    atom = operand
  return atom if same(atom.aval.shape[-1:], [size]) and all(map(is_one, atom.aval.shape[:-1])) else None


IDIOMS = [("batch_norm", primitive, batch_norm) for primitive in _DO]
