"""Attention with a mask as a product, times a number, plus an addend: Grappler fuses the three into
one op, but not with a Select.

A number of -1e30 or less absorbs every score: in float32 the sum of both is that number, as long as
the score is below 3e22. The derivative is that of the Select: a row that is masked as a whole has
none, as in JAX.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend.core.primitives as P
import jax.numpy as jnp
import numpy as np
import tensorflow as tf
from jax.extend.core import Literal, Primitive

from jax2tf.idioms._dataflow import Dataflow, Equations, new_var, reshape
from jax2tf.idioms.fused._inline import substituted
from jax2tf.idioms.fused._primitives import composite
from jax2tf.idioms.fused._template import Templates
from jax2tf.jaxprs import Eqn
from jax2tf.lowering._movement import is_one

_LEAST = -1e30
_HEADS, _QUERIES = -3, -2

biased_p = composite("biased", operator.add, tf.add)
masked_p = composite(
  "masked",
  operator.add,
  tf.add,
  lambda result, operands, tangents: jnp.where(operands[1] == 0, tangents[0], 0),
)


def biased(flow: Dataflow, root: Eqn, templates: Templates) -> Equations | None:
  """q @ k * f32[] + f32[b,h,q,k] -> biased(q @ k * f32[], f32[b,1,q,k]), of a bias that all heads
  share."""
  rewritten = (
    _with(flow, root, x, y, lambda bias: bias, biased_p)
    for x, y in (root.invars, root.invars[::-1])
  )
  return next(filter(None, rewritten), None)


def masked(flow: Dataflow, root: Eqn, templates: Templates) -> Equations | None:
  """select_n(bool[b,h,q,k], -1e30, q @ k * f32[]) -> masked(q @ k * f32[], f32[b,1,q,k]), of a mask
  that all heads share."""
  mask, *cases = root.invars
  numbers = [_number(flow, case) for case in cases]
  number, at = next(
    ((n, i) for i, n in enumerate(numbers) if n is not None and n <= _LEAST), (None, 0)
  )
  if number is None or len(cases) != 2 or mask.aval.dtype != np.bool_:
    return None
  addends = (number, 0) if at == 0 else (0, number)  # of False, of True

  def addend(*masks: jax.Array) -> jax.Array:
    of_false, of_true = map(jnp.float32, addends)
    return jnp.where(functools.reduce(jnp.logical_and, masks), of_true, of_false)

  return _with(flow, root, cases[1 - at], mask, addend, masked_p)


def _with(
  flow: Dataflow,
  root: Eqn,
  scores: Any,
  other: Any,
  addend: Callable[..., jax.Array],
  primitive: Primitive,
) -> Equations | None:
  """The scores, and what `addend` makes of the parts of `other`, as the operands of a primitive."""
  (out,) = root.outvars
  shape = list(out.aval.shape)
  if len(shape) not in (4, 5) or out.aval.dtype != np.float32 or is_one(shape[_HEADS]):
    return None
  parts = _parts(flow, other, range(len(shape)), len(shape))
  sizes = [
    next((size for size in of if not is_one(size)), 1)
    for of in zip(*(sizes for _, sizes in parts), strict=True)
  ]
  if (
    not is_one(sizes[_HEADS])
    or all(map(is_one, sizes))
    or (product := _product(flow, scores)) is None
  ):
    return None
  # TF 2.21: oneDNN's product takes hundreds of times as long with an addend that is repeated along
  # b or k, but not along q.
  wide = sizes if is_one(sizes[_QUERIES]) else [*shape[:_HEADS], 1, *shape[_QUERIES:]]

  def added(*arrays: jax.Array) -> jax.Array:
    aligned = (jnp.reshape(x, of) for x, (_, of) in zip(arrays, parts, strict=True))
    return jnp.broadcast_to(addend(*aligned), wide).reshape(wide[-4:])

  atoms = [atom for atom, _ in parts]
  eqns, results = substituted(
    jax.make_jaxpr(added)(*(jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in atoms)), atoms
  )
  eqns = [*product, *(eqn.replace(source_info=root.source_info) for eqn in eqns)]
  total = out if len(shape) == 4 else new_var(out, shape[1:])
  eqns.append(
    root.replace(
      primitive=primitive, invars=[*product[-1].outvars, *results], outvars=[total], params={}
    )
  )
  return eqns if total is out else [*eqns, reshape(root, total, out)]


def _number(flow: Dataflow, atom: Any) -> float | None:
  """The number that fills an array, or None."""
  while (eqn := flow.producer(atom, P.broadcast_in_dim_p)) is not None:
    atom = eqn.invars[0]
  return float(atom.val) if isinstance(atom, Literal) and not np.shape(atom.val) else None


def _product(flow: Dataflow, atom: Any) -> Equations | None:
  """What gives scores as f32[b,h,q,k]: a product, and what its operands or its result are
  multiplied by; None for anything else.

  Those of `jax.nn` are f32[1,b,h,q,k], made of f32[b,h,q,1,k].
  """
  if grouped := len(atom.aval.shape) == 5:
    transpose = flow.single_use(atom, P.transpose_p)
    if transpose is None or tuple(transpose.params["permutation"]) != (3, 0, 1, 2, 4):
      return None
    atom = transpose.invars[0]
  scores, factor = _times(flow, atom)
  dot = flow.single_use(scores, P.dot_general_p)
  if (
    dot is None
    or len(scores.aval.shape) != 4 + grouped
    or not dot.params["dimension_numbers"][1][0]
  ):
    return None
  if any(v.aval.dtype != np.float32 for v in dot.invars):
    return None
  (lhs, of_lhs), (rhs, of_rhs) = (_times(flow, v) for v in dot.invars)
  eqns: Equations = []
  params = dict(dot.params)
  if grouped:
    (contract, rhs_contract), (batch, rhs_batch) = params["dimension_numbers"]
    group = max({*range(len(lhs.aval.shape))} - {*contract, *batch})
    if not is_one(lhs.aval.shape[group]):
      return None
    flat = new_var(lhs, [size for d, size in enumerate(lhs.aval.shape) if d != group])
    eqns, lhs = [reshape(dot, lhs, flat)], flat
    contract, batch = (tuple(d - (d > group) for d in dims) for dims in (contract, batch))
    params["dimension_numbers"] = (contract, rhs_contract), (batch, rhs_batch)
  product = new_var(
    scores, [size for d, size in enumerate(scores.aval.shape) if not grouped or d != 3]
  )
  eqns.append(dot.replace(invars=[lhs, rhs], outvars=[product], params=params))
  if (factor := factor * of_lhs * of_rhs) == 1:
    return eqns
  spec = jax.ShapeDtypeStruct(product.aval.shape, product.aval.dtype)
  scaling, _ = substituted(jax.make_jaxpr(lambda x: x * np.float32(factor))(spec), [product])
  return [*eqns, *(eqn.replace(source_info=dot.source_info) for eqn in scaling)]


def _times(flow: Dataflow, atom: Any) -> tuple[Any, float]:
  """(what a number is multiplied with, the number)."""
  eqn, factor = flow.single_use(atom, P.mul_p, P.div_p), 1.0
  while eqn is not None and any(isinstance(v, Literal) for v in eqn.invars):
    if eqn.primitive is P.mul_p:
      (number,), (atom,) = (
        [v for v in eqn.invars if isinstance(v, Literal) is one] for one in (True, False)
      )
      factor *= float(number.val)
    elif isinstance(eqn.invars[1], Literal) and eqn.invars[1].val != 0:
      atom, factor = eqn.invars[0], factor / float(eqn.invars[1].val)
    else:
      break
    eqn = flow.single_use(atom, P.mul_p, P.div_p)
  return atom, factor


def _parts(
  flow: Dataflow, atom: Any, dims: Sequence[int], rank: int
) -> list[tuple[Any, list[Any]]]:
  """What a mask is the conjunction of, or a bias, each with its sizes in as many dimensions as
  scores have: 1 where it is repeated.

  `dims`: those of `atom` among those of the scores.
  """
  if (eqn := flow.producer(atom, P.and_p)) is not None:
    return [part for v in eqn.invars for part in _parts(flow, v, dims, rank)]
  eqn = flow.producer(atom, P.broadcast_in_dim_p)
  if eqn is not None and len(eqn.invars) == 1:
    return _parts(
      flow, eqn.invars[0], [dims[int(d)] for d in eqn.params["broadcast_dimensions"]], rank
    )
  sizes: list[Any] = [1] * rank
  # a number has no dimensions
  for d, size in zip(dims if atom.aval.shape else (), atom.aval.shape, strict=True):
    sizes[d] = size
  return [(atom, sizes)]


IDIOMS = [("attention", P.select_n_p, masked), ("attention", P.add_p, biased)]
