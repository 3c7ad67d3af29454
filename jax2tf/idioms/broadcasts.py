"""Removes explicit broadcasts before elementwise ops that broadcast implicitly, and adds them where
TensorFlow cannot."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import jax.extend.core.primitives as P
from jax.extend.core import Literal

from jax2tf.idioms._dataflow import Dataflow, Equations, is_array, new_var, provably_equal, reshape
from jax2tf.idioms._variants import repeated_avals, variant
from jax2tf.jaxprs import Eqn
from jax2tf.lowering._movement import is_one
from jax2tf.traits import ARITHMETIC, COMPARISONS, LOGIC, OF_SEVERAL, SHIFTS, SUMS

# Of operands with other shapes, where JAX has one shape for all.
_REPEATING = {
  primitive: variant(primitive, repeated_avals)
  for primitive in ARITHMETIC
  | SUMS
  | COMPARISONS
  | LOGIC
  | SHIFTS
  | {P.max_p, P.min_p, P.select_n_p}
}
_FLOATS_ONLY = (P.div_p, P.max_p, P.min_p)

# TF 2.21: the binary ops broadcast in 5 dimensions on CPU, after neighbours that are repeated alike
# are made one; Betainc repeats scalars only.
_BROADCAST = 5
_LIMITS = {P.regularized_incomplete_beta_p: 0}


def drop_broadcasts(flow: Dataflow, eqn: Eqn) -> Equations | None:
  """add(x, broadcast_in_dim(y)) -> add(x, y), or add(x, reshape(y)) where y's dimensions are not
  the last ones of x."""
  shape = eqn.outvars[0].aval.shape
  if not 0 < len(shape) <= _BROADCAST:
    return None
  if eqn.primitive in _FLOATS_ONLY and eqn.outvars[0].aval.dtype.kind != "f":
    return None
  producers = [flow.producer(v, P.broadcast_in_dim_p) for v in eqn.invars]
  broadcasts = {
    i: producer
    for i, producer in enumerate(producers)
    if producer is not None and len(producer.invars) == 1 and is_array(producer.invars[0])
  }
  if eqn.primitive is P.select_n_p:
    broadcasts.pop(0, None)  # The predicate stays: it is a scalar or of the shape of the cases.
  # One operand at least has the shape of the result, and keeps it.
  if not broadcasts or not any(
    i not in broadcasts and provably_equal(v.aval.shape, shape)
    for i, v in enumerate(eqn.invars)
    if not isinstance(v, Literal)
  ):
    return None
  operands, eqns = list(eqn.invars), []
  for i, broadcast in broadcasts.items():
    source, aligned = _aligned(broadcast)
    if aligned is None:
      operands[i] = source
    else:
      operands[i] = new_var(source, aligned)
      eqns.append(reshape(broadcast, source, operands[i]))
  return [*eqns, eqn.replace(primitive=_REPEATING[eqn.primitive], invars=operands)]


def _aligned(broadcast: Eqn) -> tuple[Any, list[Any] | None]:
  """(what is repeated, the shape with sizes 1 in which TensorFlow repeats it, or None where that is
  its own)."""
  source, shape = broadcast.invars[0], broadcast.outvars[0].aval.shape
  dims = [int(d) for d in broadcast.params["broadcast_dimensions"]]
  if dims == list(range(len(shape) - len(dims), len(shape))):
    return source, None
  aligned: list[Any] = [1] * len(shape)
  for size, axis in zip(source.aval.shape, dims, strict=True):
    aligned[axis] = size
  return source, aligned[dims[0] :]


def add_broadcasts(flow: Dataflow, eqn: Eqn) -> Equations | None:
  """mul(x f32[a,1,c,1,e,1], y f32[1,b,1,d,1,f]) -> mul of both, repeated to the shape of the
  result."""
  shape = eqn.outvars[0].aval.shape
  apart = [
    i for i, v in enumerate(eqn.invars) if v.aval.shape and not provably_equal(v.aval.shape, shape)
  ]
  if not apart or _alternations([v.aval.shape for v in eqn.invars if v.aval.shape]) <= _LIMITS.get(
    eqn.primitive, _BROADCAST
  ):
    return None
  operands, eqns = list(eqn.invars), []
  for i in apart:
    operands[i] = new_var(eqn.invars[i], shape)
    params = {"shape": shape, "broadcast_dimensions": tuple(range(len(shape))), "sharding": None}
    eqns.append(
      eqn.replace(
        primitive=P.broadcast_in_dim_p, invars=[eqn.invars[i]], outvars=[operands[i]], params=params
      )
    )
  return [*eqns, eqn.replace(invars=operands)]


def _alternations(shapes: Sequence[Sequence[Any]]) -> int:
  """The number of dimensions after merging neighbours that broadcast alike."""
  kinds = [tuple(map(is_one, sizes)) for sizes in zip(*shapes, strict=True)]
  return sum(1 for _ in itertools.groupby(kind for kind in kinds if not all(kind)))


def _either(flow: Dataflow, eqn: Eqn) -> Equations | None:
  return add_broadcasts(flow, eqn) or drop_broadcasts(flow, eqn)


def _is_product(flow: Dataflow, atom: Any) -> bool:
  """Whether it comes from dot_general, perhaps times a number."""
  scaled = flow.producer(atom, P.mul_p, P.div_p, _REPEATING[P.mul_p], _REPEATING[P.div_p])
  return any(
    flow.producer(v, P.dot_general_p) is not None
    for v in (atom, *(scaled.invars if scaled is not None else ()))
  )


def _sum(flow: Dataflow, eqn: Eqn) -> Equations | None:
  """As `_either`; what is added to scores f32[b,h,q,k] of a product, such as f32[1,1,q,k], as
  f32[b,1,q,k].

  TF 2.21: Grappler makes one op of product, number and sum, which takes hundreds of times as long
  with an addend that is repeated along b or k, but not along q.
  """
  rewritten, shape = _either(flow, eqn), eqn.outvars[0].aval.shape
  if len(shape) != 4 or not any(_is_product(flow, v) for v in eqn.invars):
    return rewritten
  *eqns, total = rewritten or [eqn]
  rows, operands, repeats = (shape[0], 1, *shape[2:]), list(total.invars), []
  for i, v in enumerate(operands):
    sizes = v.aval.shape
    if (
      len(sizes) == 4
      and is_one(sizes[1])
      and not is_one(sizes[2])
      and not provably_equal(sizes, rows)
    ):
      operands[i] = new_var(v, rows)
      params = {"shape": rows, "broadcast_dimensions": (0, 1, 2, 3), "sharding": None}
      repeats.append(
        eqn.replace(
          primitive=P.broadcast_in_dim_p, invars=[v], outvars=[operands[i]], params=params
        )
      )
  return [*eqns, *repeats, total.replace(invars=operands)] if repeats else rewritten


# What takes operands with sizes 1 where others have more.
IDIOMS = (
  dict.fromkeys(OF_SEVERAL, add_broadcasts) | dict.fromkeys(_REPEATING, _either) | {P.add_p: _sum}
)
