"""Factors and offsets for each feature of a convolution: FusedBatchNorm, which Grappler fuses with
the convolution.

BatchNorm in inference is this, in all forms: the mean, the variance and the parameters are such
vectors. In training they follow from the result of the convolution, which something else uses then.
"""

from __future__ import annotations

import operator
from typing import Any

import jax
import jax.extend.core.primitives as P
import jax.numpy as jnp
import numpy as np
import tensorflow as tf

from jax2tf.idioms._dataflow import Dataflow, Equations, new_var, provably_equal
from jax2tf.idioms.fused._inline import substituted
from jax2tf.idioms.fused._primitives import composite
from jax2tf.idioms.fused._template import Templates
from jax2tf.jaxprs import Eqn
from jax2tf.lowering._movement import is_one
from jax2tf.traits import COMMUTATIVE

_FACTORS = (operator.mul, operator.truediv)
_DO = {
  P.add_p: operator.add,
  P.sub_p: operator.sub,
  P.mul_p: operator.mul,
  P.div_p: operator.truediv,
}


def _in_tf(x: tf.Tensor, scale: tf.Tensor, offset: tf.Tensor) -> tf.Tensor:
  # Grappler fuses no Mul with a convolution; of a mean of 0 and a variance of 1 FusedBatchNorm is
  # one.
  zeros, ones = tf.zeros_like(scale), tf.ones_like(scale)
  return tf.raw_ops.FusedBatchNormV3(
    x=x, scale=scale, offset=offset, mean=zeros, variance=ones, epsilon=0.0, is_training=False
  )[0]


batch_norm_p = composite("batch_norm", lambda x, scale, offset: x * scale + offset, _in_tf)


def batch_norm(flow: Dataflow, root: Eqn, templates: Templates) -> Equations | None:
  """((conv - f32[c]) * f32[c]) + f32[c] -> batch_norm(conv, f32[c], f32[c]); one equation after the
  other."""
  steps: list[tuple[Any, Any]] = []
  eqn: Eqn | None = root
  (out,) = root.outvars
  if out.aval.dtype != np.float32 or len(out.aval.shape) != 4:
    return None
  while eqn is not None and eqn.primitive in _DO:
    if (value_and_row := _of_rows(flow, eqn)) is None:
      return None
    value, row = value_and_row
    steps.append((_DO[eqn.primitive], row))
    eqn = flow.single_use(value, *_DO, P.conv_general_dilated_p, batch_norm_p)
  if eqn is None:
    return None
  known: list[Any] = []
  if eqn.primitive is batch_norm_p:
    value, *known = eqn.invars
  elif eqn.params["dimension_numbers"].out_spec[1] != 3 or not any(
    do in _FACTORS for do, _ in steps
  ):
    return None

  def folded(rows: Any, known: Any) -> tuple[Any, Any]:
    scale: Any
    offset: Any
    scale, offset = known or (None, None)
    for (do, _), row in zip(reversed(steps), reversed(rows), strict=True):
      by = row.reshape(-1)
      if do in _FACTORS:
        scale, offset = _after(do, scale, by), None if offset is None else do(offset, by)
      else:
        offset = _after(do, offset, by)
    return scale, jnp.zeros_like(scale) if offset is None else offset

  rows = [row for _, row in steps]
  specs = [
    [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in atoms] for atoms in (rows, known)
  ]
  eqns, vectors = substituted(jax.make_jaxpr(folded)(*specs), [*rows, *known])
  return [
    *(e.replace(source_info=root.source_info) for e in eqns),
    root.replace(primitive=batch_norm_p, invars=[value, *vectors], params={}),
  ]


def _after(do: Any, vector: Any, by: Any) -> Any:
  """`vector` combined with `by`; None stands for no factor, or no offset, so far."""
  if vector is not None:
    return do(vector, by)
  return by if do in (operator.mul, operator.add) else -by if do is operator.sub else 1 / by


def _of_rows(flow: Dataflow, eqn: Eqn) -> tuple[Any, Any] | None:
  """(what is computed with, the f32[1,1,1,c] or f32[c] that it is combined with), in this order but
  for what commutes."""
  shape = eqn.outvars[0].aval.shape
  orders = (eqn.invars, eqn.invars[::-1]) if eqn.primitive in COMMUTATIVE else (eqn.invars,)
  for value, other in orders:
    before = flow.single_use(value, *_DO, P.conv_general_dilated_p, batch_norm_p)
    if (
      before is not None
      and provably_equal(value.aval.shape, shape)
      and (row := _row(flow, other, shape[-1])) is not None
    ):
      return value, row
  return None


def _row(flow: Dataflow, atom: Any, size: Any) -> Any:
  """What `atom` repeats along all dimensions but the last, or None."""
  while (
    not all(map(is_one, atom.aval.shape[:-1]))
    and (eqn := flow.producer(atom, P.broadcast_in_dim_p)) is not None
  ):
    operand, dims = eqn.invars[0], eqn.params["broadcast_dimensions"]
    if (
      len(eqn.invars) != 1
      or not provably_equal(operand.aval.shape[-1:], [size])
      or int(dims[-1]) != len(atom.aval.shape) - 1
    ):
      return None
    atom = operand
  return (
    atom
    if provably_equal(atom.aval.shape[-1:], [size]) and all(map(is_one, atom.aval.shape[:-1]))
    else None
  )


def depthwise(flow: Dataflow, root: Eqn, templates: Templates) -> Equations | None:
  """batch_norm of a convolution by groups as a factor of its kernel and a bias: Grappler fuses no
  FusedBatchNorm with it, but BiasAdd."""
  conv = flow.single_use(root.invars[0], P.conv_general_dilated_p)
  return (
    None
    if conv is None or conv.params["feature_group_count"] == 1
    else _in_kernel(root, conv, root.outvars[0])
  )


def before_tanh(flow: Dataflow, root: Eqn, templates: Templates) -> Equations | None:
  """tanh(batch_norm(conv)) likewise. TF 2.21: Grappler makes one op of Conv2D, FusedBatchNorm and
  Tanh without a kernel: the call fails."""
  if (batch := flow.single_use(root.invars[0], batch_norm_p)) is None:
    return None
  if (conv := flow.single_use(batch.invars[0], P.conv_general_dilated_p)) is None:
    return None
  out = new_var(root.invars[0], root.invars[0].aval.shape)
  return [*_in_kernel(batch, conv, out), root.replace(invars=[out])]


def _in_kernel(batch: Eqn, conv: Eqn, out: Any) -> Equations:
  """out = conv(x, kernel * scale) + offset."""
  (x, kernel), (_, scale, offset) = conv.invars, batch.invars
  of_outputs = conv.params["dimension_numbers"].rhs_spec[0]
  product = new_var(out, out.aval.shape)

  def scaled(kernel: jax.Array, scale: jax.Array) -> jax.Array:
    return kernel * scale.reshape([-1 if d == of_outputs else 1 for d in range(kernel.ndim)])

  before, factors = _traced(scaled, kernel, scale)
  *after, add = _traced(operator.add, product, offset)[0]
  eqns = [
    *before,
    conv.replace(invars=[x, *factors], outvars=[product]),
    *after,
    add.replace(outvars=[out]),
  ]
  return [eqn.replace(source_info=batch.source_info) for eqn in eqns]


def _traced(function: Any, *atoms: Any) -> tuple[Equations, list[Any]]:
  specs = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in atoms]
  return substituted(jax.make_jaxpr(function)(*specs), atoms)


IDIOMS = [("batch_norm", primitive, batch_norm) for primitive in _DO]
# Once all factors are known.
LATER = [("batch_norm", batch_norm_p, depthwise), ("batch_norm", P.tanh_p, before_tanh)]
