"""Writes each attention of a step as engines expect it: products of f32[b,heads,s,size].

JAX's libraries spell attention in many ways: with the heads of a group apart, keys times queries or
queries times keys, masks of several shapes. What is alike is the dataflow: a product of queries and
keys, a mask, a softmax over the keys, a product with the values. It is followed axis by axis.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.extend.core.primitives as P
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal

from jax2tf import normalise
from jax2tf.jaxprs import ClosedJaxpr, Eqn, live, replaced

# Below it a number hides a score.
HIDES = -1e9
HIDDEN = -(2.0**127)

_MOVES = (P.transpose_p, P.reshape_p, P.squeeze_p)
_OF_SCORES = (P.mul_p, P.div_p, P.select_n_p, P.add_p)
_REPEATED = (P.broadcast_in_dim_p, P.reshape_p)
# What `jax.nn.softmax` does to a maximum; the softmax is the same for any.
_OF_A_SHIFT = (P.max_p, P.stop_gradient_p)
_ELEMENTWISE = (
  *(P.and_p, P.or_p, P.not_p, P.select_n_p, P.convert_element_type_p, P.mul_p, P.add_p, P.sub_p),
  *(P.ge_p, P.gt_p, P.le_p, P.lt_p, P.eq_p, P.ne_p),
)

# The axes of the scores that an axis of another array consists of, in order.
Axis: TypeAlias = tuple[int, ...]


@dataclass(frozen=True)
class Attention:
  """One attention in a jaxpr.

  Attributes:
    root: the product with the values.
    query, key, value: its operands.
    query_axes, key_axes, value_axes: how to transpose them: batch, kv heads (of the query also
      those of a group), rows, numbers of a head.
    mask: bool or float array of the mask's axes, or None.
    mask_axes: the axes of `mask`: batch, those along which it is constant, queries, keys.
    scale: what the scores are multiplied by.
    out_axes: the axes of (batch, kv heads, group or none, rows, numbers) in the result.
  """

  root: Eqn
  query: Any
  key: Any
  value: Any
  query_axes: tuple[int, ...]
  key_axes: tuple[int, ...]
  value_axes: tuple[int, ...]
  mask: Any
  mask_axes: tuple[int, ...]
  scale: float
  out_axes: tuple[int, ...]


def rewritten(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
  """The step with each attention that is recognised in one spelling.

  Args:
    jaxpr: the step, without calls. The sizes of batch and rows are symbolic.
  """
  found = _found(jaxpr)
  eqns = [part for eqn in jaxpr.eqns for part in (_spelled(found[eqn]) if eqn in found else [eqn])]
  return replaced(jaxpr, eqns=eqns)


def masks(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
  """The step with other results: the mask [b,1,s,t] of each attention that is recognised. Without a
  mask it is True everywhere."""
  results: dict[Any, Any] = {}
  eqns: list[Eqn] = list(jaxpr.eqns)
  found = [*_found(jaxpr).values()]
  for one in found:
    if one.mask not in results:
      of_mask = functools.partial(_of_one_head, axes=one.mask_axes)
      everywhere = functools.partial(_everywhere, one)
      new, results[one.mask] = (
        _substituted(everywhere, [one.query, one.key], one.root)
        if one.mask is None
        else _substituted(of_mask, [one.mask], one.root)
      )
      eqns += new
  outvars = [results[one.mask] for one in found]
  return replaced(jaxpr, eqns=live(eqns, outvars), outvars=outvars)


def _found(jaxpr: ClosedJaxpr) -> dict[Eqn, Attention]:
  reader = _Reader({v: eqn for eqn in jaxpr.eqns for v in eqn.outvars})
  read = {eqn: reader.read(eqn) for eqn in jaxpr.eqns if eqn.primitive is P.dot_general_p}
  return {eqn: one for eqn, one in read.items() if one is not None}


def _spelled(one: Attention) -> list[Eqn]:
  atoms = [one.query, one.key, one.value, *([] if one.mask is None else [one.mask])]

  def attention(query: Any, key: Any, value: Any, mask: Any = None) -> Any:
    heads_apart = jnp.transpose(query, one.query_axes)
    key, value = jnp.transpose(key, one.key_axes), jnp.transpose(value, one.value_axes)
    batch, kv_heads, *group, rows, size = heads_apart.shape
    shape = (batch, kv_heads * math.prod(group), rows, size)
    query = heads_apart.reshape(shape) * np.float32(one.scale)
    key, value = (_repeated(array, group) for array in (key, value))
    scores = jnp.matmul(query, jnp.swapaxes(key, 2, 3))
    if mask is not None:
      mask = _of_one_head(mask, one.mask_axes)
      hidden = mask.dtype == np.bool_
      scores = jnp.where(mask, scores, np.float32(HIDDEN)) if hidden else scores + mask
    mixed = jnp.matmul(jax.nn.softmax(scores, axis=-1), value)
    apart = mixed.reshape(batch, kv_heads, *group, rows, mixed.shape[-1])
    return jnp.transpose(apart, one.out_axes)

  eqns, result = _substituted(attention, atoms, one.root)
  (out,) = one.root.outvars
  return [eqn.replace(outvars=[out if v is result else v for v in eqn.outvars]) for eqn in eqns]


def _substituted(
  fun: Callable[..., Any], operands: Sequence[Any], at: Eqn
) -> tuple[list[Eqn], Any]:
  """(the equations of fun(operands), at the user's line of `at`; its result)."""
  avals = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in operands]
  traced = normalise.normalised(jax.make_jaxpr(fun)(*avals))
  flat = normalise.Flat(dict(zip(traced.invars, operands, strict=True)), inside=True)
  flat.add(traced.eqns)
  (result,) = map(flat.read, traced.outvars)
  return [eqn.replace(source_info=at.source_info) for eqn in flat.eqns], result


def _repeated(array: jax.Array, group: Sequence[int]) -> jax.Array:
  """f32[b,kv_heads,t,h] with each head as often as the query has heads for it."""
  batch, heads, rows, size = array.shape
  wide = jnp.broadcast_to(array[:, :, None], (batch, heads, math.prod(group), rows, size))
  return wide.reshape(batch, heads * math.prod(group), rows, size) if group else array


def _of_one_head(mask: jax.Array, axes: Sequence[int]) -> jax.Array:
  """[b,1,s,t] of a mask that is alike for all heads."""
  batch, *heads, rows, keys = axes
  first = jnp.transpose(mask, (*heads, batch, rows, keys))[(0,) * len(heads)]
  return first[:, None]


def _everywhere(one: Attention, query: jax.Array, key: jax.Array) -> jax.Array:
  """[b,1,s,t], True."""
  batch, rows = query.shape[one.query_axes[0]], query.shape[one.query_axes[-2]]
  return jnp.ones((batch, 1, rows, key.shape[one.key_axes[2]]), jnp.bool_)


class _Reader:
  """Recognises an attention from its last product back.

  Args:
    producers: {variable: the equation that makes it}.
  """

  def __init__(self, producers: Mapping[Any, Eqn]):
    self._producers = producers

  def read(self, root: Eqn) -> Attention | None:
    """The attention whose product with the values is `root`; None if it is none."""
    for position, weights in enumerate(root.invars):
      behind = self._moves(weights)
      softmax = self._softmax(behind[0])
      if softmax is None:
        continue
      try:
        return self._attention(root, position, softmax, behind[1])
      except _OtherwiseError:
        return None
    return None

  def _producer(self, atom: Any, *primitives: Any) -> Eqn | None:
    eqn = None if isinstance(atom, Literal) else self._producers.get(atom)
    return eqn if eqn is not None and eqn.primitive in primitives else None

  def _moves(self, atom: Any) -> tuple[Any, list[Eqn]]:
    """(what an array is made of by moves and conversions, these in order)."""
    moves: list[Eqn] = []
    while (eqn := self._producer(atom, *_MOVES, P.convert_element_type_p)) is not None:
      moves.append(eqn)
      atom = eqn.invars[0]
    return atom, moves[::-1]

  def _softmax(self, atom: Any) -> Any:
    """x of div(exp(x - max(x)), sum(exp(x - max(x)))) over the last axis; else None."""
    quotient = self._producer(atom, P.div_p)
    power = None if quotient is None else self._producer(quotient.invars[0], P.exp_p)
    shifted = None if power is None else self._producer(power.invars[0], P.sub_p)
    if quotient is None or power is None or shifted is None:
      return None
    scores = shifted.invars[0]
    total = self._reduced(quotient.invars[1], P.reduce_sum_p, _REPEATED)
    largest = self._reduced(shifted.invars[1], P.reduce_max_p, (*_REPEATED, *_OF_A_SHIFT))
    return scores if total is power.outvars[0] and largest is scores else None

  def _reduced(self, atom: Any, reduction: Any, after: Sequence[Any]) -> Any:
    """What is reduced along its last axis to `atom`, with other primitives after it; else None."""
    while (eqn := self._producer(atom, *after)) is not None:
      atom = next((v for v in eqn.invars if not isinstance(v, Literal)), None)
    eqn = self._producer(atom, reduction)
    if eqn is None or tuple(eqn.params["axes"]) != (len(eqn.invars[0].aval.shape) - 1,):
      return None
    return eqn.invars[0]

  def _attention(self, root: Eqn, position: int, scores: Any, after: list[Eqn]) -> Attention:
    chain, mask, scale, product = self._scores(scores)
    labels = _labels(product)
    for eqn in chain:
      labels = _moved(labels, eqn, product)
    at_softmax = labels
    for eqn in after:
      labels = _moved(labels, eqn, product)
    (keys,) = _only(at_softmax[-1])
    roles = _roles(product, keys)
    batch, heads, group, rows = roles.batch, roles.heads, roles.group, roles.rows
    order = (batch, heads, *group, rows)
    mask_axes: tuple[int, ...] = ()
    if mask is not None:
      of_mask = [_index(at_softmax, (axis,)) for axis in (batch, rows, keys)]
      of_heads = [axis for axis in range(len(at_softmax)) if axis not in of_mask]
      _require(all(self._is_constant_along(mask, axis) for axis in of_heads))
      mask_axes = (of_mask[0], *of_heads, *of_mask[1:])
    # the second product
    (of_lhs, of_rhs), (batch_lhs, batch_rhs) = root.params["dimension_numbers"]
    of_weights, of_value = (of_lhs, of_rhs) if position == 0 else (of_rhs, of_lhs)
    batch_weights, batch_value = (batch_lhs, batch_rhs) if position == 0 else (batch_rhs, batch_lhs)
    value = root.invars[1 - position]
    _require([labels[axis] for axis in of_weights] == [(keys,)] and len(value.aval.shape) == 4)
    of = {labels[w]: v for w, v in zip(batch_weights, batch_value, strict=True)}
    _require(set(of) == {(batch,), (heads,)})
    used = {*batch_value, *of_value}
    (numbers,) = (axis for axis in range(4) if axis not in used)
    free = [labels[a] for a in range(len(labels)) if a not in {*batch_weights, *of_weights}]
    batches = [labels[axis] for axis in batch_weights]
    out = [*batches, *free, ("value",)] if position == 0 else [*batches, ("value",), *free]
    canonical = [*((axis,) for axis in order), ("value",)]
    _require(all(v.aval.dtype == np.float32 for v in (*product.invars, value)))
    return Attention(
      root,
      roles.query,
      roles.key,
      value,
      roles.query_axes,
      roles.key_axes,
      (of[batch,], of[heads,], of_value[0], numbers),
      mask,
      mask_axes,
      scale,
      tuple(_index(canonical, axis) for axis in out),
    )

  def _scores(self, atom: Any) -> tuple[list[Eqn], Any, float, Eqn]:
    """(moves from the product to the softmax, the mask, the scale, the product)."""
    chain: list[Eqn] = []
    mask, scale = None, 1.0
    while (eqn := self._producer(atom, *_MOVES, *_OF_SCORES)) is not None:
      if eqn.primitive in _MOVES:
        chain.append(eqn)
        atom = eqn.invars[0]
      elif eqn.primitive in (P.mul_p, P.div_p):
        which = 0 if self._number(eqn.invars[1]) is None else 1
        number = self._number(eqn.invars[which])
        if number is None or (eqn.primitive is P.div_p and which == 0):
          raise _OtherwiseError
        scale = scale * number if eqn.primitive is P.mul_p else scale / number
        atom = eqn.invars[1 - which]
      else:
        # Between the mask and the softmax nothing may stand.
        _require(mask is None and not chain and scale == 1.0)
        mask, atom = self._masked(eqn)
    product = self._producer(atom, P.dot_general_p)
    if product is None:
      raise _OtherwiseError
    return chain[::-1], mask, scale, product

  def _masked(self, eqn: Eqn) -> tuple[Any, Any]:
    """(the mask, the scores) of select_n(mask, -1e30, scores) or of a sum of a bias and scores."""
    if eqn.primitive is P.select_n_p:
      which, hidden, seen = eqn.invars
      number = self._number(hidden)
      _require(number is not None and number <= HIDES)
      return which, seen
    are_scores = [self._is_product(v) for v in eqn.invars]
    _require(sum(are_scores) == 1)
    return eqn.invars[are_scores.index(False)], eqn.invars[are_scores.index(True)]

  def _is_product(self, atom: Any) -> bool:
    while (eqn := self._producer(atom, *_MOVES, P.mul_p, P.div_p)) is not None:
      atom = eqn.invars[1] if isinstance(eqn.invars[0], Literal) else eqn.invars[0]
    return self._producer(atom, P.dot_general_p) is not None

  def _number(self, atom: Any) -> float | None:
    while (eqn := self._producer(atom, P.broadcast_in_dim_p, P.convert_element_type_p)) is not None:
      atom = eqn.invars[0]
    return float(atom.val) if isinstance(atom, Literal) and not np.shape(atom.val) else None

  def _is_constant_along(self, atom: Any, axis: int) -> bool:
    """Whether all elements along an axis are provably equal."""
    if isinstance(atom, Literal) or _is_one(atom.aval.shape[axis]):
      return True
    eqn = self._producers.get(atom)
    if eqn is None:
      return False
    if eqn.primitive is P.broadcast_in_dim_p:
      dims = [int(d) for d in eqn.params["broadcast_dimensions"]]
      return axis not in dims or self._is_constant_along(eqn.invars[0], dims.index(axis))
    if eqn.primitive is P.transpose_p:
      return self._is_constant_along(eqn.invars[0], int(eqn.params["permutation"][axis]))
    if eqn.primitive in _ELEMENTWISE:
      return all(not v.aval.shape or self._is_constant_along(v, axis) for v in eqn.invars)
    return False


class _OtherwiseError(Exception):
  """It is no attention that the module knows."""


def _require(condition: Any) -> None:
  if not condition:
    raise _OtherwiseError


def _index(axes: Sequence[Any], axis: Any) -> int:
  _require(axis in axes)
  return axes.index(axis)


def _only(axes: Sequence[Any]) -> Sequence[Any]:
  _require(len(axes) == 1)
  return axes


def _is_one(size: Any) -> bool:
  return isinstance(size, int) and size == 1


def _labels(product: Eqn) -> list[Axis]:
  return [(axis,) for axis in range(len(product.outvars[0].aval.shape))]


def _moved(labels: Sequence[Axis], eqn: Eqn, product: Eqn) -> list[Axis]:
  """The axes after a move. A reshape may join axes and part joined ones, not cut one."""
  if eqn.primitive is P.convert_element_type_p:
    return list(labels)
  if eqn.primitive is P.transpose_p:
    return [labels[axis] for axis in eqn.params["permutation"]]
  sizes = product.outvars[0].aval.shape
  atoms = [axis for group in labels for axis in group if not _is_one(sizes[axis])]
  moved: list[Axis] = []
  for size in eqn.outvars[0].aval.shape:
    group: list[int] = []
    product_of: Any = 1
    while not (product_of is size or product_of == size):
      _require(atoms)
      group.append(atoms.pop(0))
      product_of = product_of * sizes[group[-1]]
    moved.append(tuple(group))
  _require(not atoms)
  return moved


@dataclass(frozen=True)
class _Roles:
  """What the axes of the scores stand for, and the operands of their product."""

  batch: int
  heads: int
  group: tuple[int, ...]
  rows: int
  query: Any
  key: Any
  query_axes: tuple[int, ...]
  key_axes: tuple[int, ...]


def _roles(product: Eqn, keys: int) -> _Roles:
  (contracted, batches) = product.params["dimension_numbers"]
  shape = product.outvars[0].aval.shape
  count = len(batches[0])
  free = [
    [a for a in range(len(v.aval.shape)) if a not in {*contracted[i], *batches[i]}]
    for i, v in enumerate(product.invars)
  ]
  starts = [count, count + len(free[0])]
  of_keys = 0 if starts[0] <= keys < starts[1] else 1
  of_query = 1 - of_keys
  _require(keys >= count and len(free[of_keys]) == 1 and len(contracted[0]) == 1 and count == 2)
  (batch,) = _only([a for a in range(count) if not isinstance(shape[a], int)])
  heads = 1 - batch
  of_rows = range(starts[of_query], starts[of_query] + len(free[of_query]))
  (rows,) = _only([a for a in of_rows if not isinstance(shape[a], int)])
  group = tuple(a for a in of_rows if a != rows)

  def query_axis(axis: int) -> int:
    return free[of_query][axis - starts[of_query]]

  return _Roles(
    batch,
    heads,
    group,
    rows,
    product.invars[of_query],
    product.invars[of_keys],
    (
      batches[of_query][batch],
      batches[of_query][heads],
      *map(query_axis, group),
      query_axis(rows),
      contracted[of_query][0],
    ),
    (batches[of_keys][batch], batches[of_keys][heads], free[of_keys][0], contracted[of_keys][0]),
  )
