"""Replaces the addition of a vector to a matrix product or convolution by BiasAdd, which Grappler
fuses with the previous op."""

from __future__ import annotations

import math
from typing import Any

import jax.extend.core.primitives as P
import numpy as np
import tensorflow as tf
from jax.extend.core import Primitive

from jax2tf.context import RuleContext
from jax2tf.idioms._dataflow import Dataflow, Equations, new_var, provably_equal, reshape
from jax2tf.idioms.conv_gradient import conv_of_reversed_p
from jax2tf.jaxprs import Eqn
from jax2tf.lowering._movement import is_one
from jax2tf.registry import lowers

bias_add_p = Primitive("bias_add")
bias_add_p.def_abstract_eval(lambda value, bias: value.update(weak_type=False))

# Halves are multiplied in float32, so that a Cast comes between; no gain.
_DTYPES = (np.dtype(np.float32), np.dtype(np.float64))


@lowers(bias_add_p)
def _bias_add(ctx: RuleContext, value: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
  """value f32[b,n], bias f32[n] -> f32[b,n]."""
  return tf.nn.bias_add(value, bias)


def bias_add(flow: Dataflow, eqn: Eqn) -> Equations | None:
  """add(dot_general or conv, broadcast_in_dim(f32[n])) -> bias_add.

  Grappler fuses a MatMul with the BiasAdd right behind it, so a product of more than two dimensions
  becomes one of two, and the reshape to JAX's dimensions comes last.
  """
  (out,), shape = eqn.outvars, eqn.outvars[0].aval.shape
  if out.aval.dtype not in _DTYPES or len(shape) < 2:
    return None
  for value, broadcast in (eqn.invars, eqn.invars[::-1]):
    bias = vector(flow, broadcast, shape[-1])
    if bias is None or not provably_equal(value.aval.shape, shape):
      continue
    if (
      product := flow.single_use(
        value, P.dot_general_p, P.conv_general_dilated_p, conv_of_reversed_p
      )
    ) is None:
      continue
    if product.primitive is P.dot_general_p:
      return _behind_matmul(eqn, product, bias)
    if product.params["dimension_numbers"].out_spec[1] == len(shape) - 1:
      return [eqn.replace(primitive=bias_add_p, invars=[value, bias], params={})]
  return None


def vector(flow: Dataflow, atom: Any, size: Any) -> Any:
  """The f32[n] that `atom` repeats along all dimensions but the last, or None."""
  while (eqn := flow.producer(atom, P.broadcast_in_dim_p, P.reshape_p)) is not None:
    operand = eqn.invars[0]
    if (
      len(eqn.invars) != 1
      or not provably_equal(operand.aval.shape[-1:], [size])
      or not all(map(is_one, operand.aval.shape[:-1]))
    ):
      return None
    if (
      eqn.primitive is P.broadcast_in_dim_p
      and eqn.params["broadcast_dimensions"][-1] != len(atom.aval.shape) - 1
    ):
      return None
    if eqn.primitive is P.reshape_p and not (
      provably_equal(atom.aval.shape[-1:], [size]) and all(map(is_one, atom.aval.shape[:-1]))
    ):
      return None
    if len(operand.aval.shape) == 1:
      return operand
    atom = operand
  return None


def _behind_matmul(eqn: Eqn, dot: Eqn, bias: Any) -> Equations | None:
  """The sum as MatMul, BiasAdd and, where JAX has more than two dimensions, reshapes around
  both."""
  (lhs, rhs), (out,) = dot.invars, eqn.outvars
  (lhs_contract, rhs_contract), (lhs_batch, _) = dot.params["dimension_numbers"]
  rank = len(lhs.aval.shape)
  if lhs_batch or len(lhs_contract) != 1 or len(rhs.aval.shape) != 2:
    return None
  if rank == 2:
    return [eqn.replace(primitive=bias_add_p, invars=[dot.outvars[0], bias], params={})]
  if rank < 2 or lhs_contract[0] != rank - 1:
    return None
  rows, features = math.prod(lhs.aval.shape[:-1]), out.aval.shape[-1]
  flat, product, total = (
    new_var(lhs, [rows, lhs.aval.shape[-1]]),
    new_var(out, [rows, features]),
    new_var(out, [rows, features]),
  )
  numbers = ((1,), rhs_contract), ((), ())
  return [
    reshape(dot, lhs, flat),
    dot.replace(
      invars=[flat, rhs], outvars=[product], params=dot.params | {"dimension_numbers": numbers}
    ),
    eqn.replace(primitive=bias_add_p, invars=[product, bias], outvars=[total], params={}),
    reshape(eqn, total, out),
  ]


IDIOMS = {P.add_p: bias_add}
