"""Attention in a graph that is being built, for ONNX's Attention: two products with a Softmax
between them, and what may stand between these.

  softmax(q k^T * scale + bias, where the mask has True) v
  softmax(cap * tanh(q k^T * scale / cap)) v

Queries f32[b,h,t,d] and keys f32[b,k,s,d] may have any order of axes in the graph, and a head of
keys may belong to several heads of queries. So each axis is a sequence of atoms: the reshapes and
transposes between the two products regroup them.

ONNX Runtime 1.32 returns 0 for a query whose keys are all masked, by -inf or by the least float32;
JAX returns the mean of v, or NaN of -inf. So masks are added as numbers that are not that small.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from ..export.replay import Replacement
from . import opsets
from .atoms import Atom, Axis, axis_of, leaves_of, regrouped, size_of
from .composites import composite
from .matching import grouped, squeezed
from .replacements import same

_PRODUCT = "BatchMatMulV2"
_MOVES = ("Reshape", "Transpose", "Squeeze", "ExpandDims")
# A number of at most -1e30 absorbs every score, as long as the score is above -3e22.
_ABSORBS = -1e30
_MASKED = float(np.float32(-0.7 * np.finfo(np.float32).max))  # as jax.nn has it
_LEAST = -3e38  # above the least float32


@dataclass
class _Scores:
  """What follows the first product.

  Attributes:
    axes: of the scores.
    scale: of the product.
    cap: of `softcap`, or 0.
    addend: what is added, as it is in the graph, and the axes of the scores there.
    mask: what is False at the masked places, likewise.
    fill: the number at the masked places.
    is_softmax: whether the Softmax is behind.
  """

  axes: list[Axis]
  scale: float = 1.0
  cap: float = 0.0
  has_tanh: bool = False
  addend: tuple[tf.Tensor, list[Axis]] | None = None
  mask: tuple[tf.Tensor, list[Axis]] | None = None
  fill: float = 0.0
  is_softmax: bool = False

  def follows(self, op: Any, before: Any) -> bool:
    """Takes the next op, whose operand is the result of the one before. Whether it may be there."""
    if op.type in _MOVES:
      return self._moves(op)
    if self.is_softmax:
      return False
    if op.type == "Softmax":
      self.is_softmax = True
      return True
    if op.type in ("Mul", "RealDiv"):
      return self._scales(op, before)
    if op.type == "Tanh":
      is_first = not (self.has_tanh or self.addend or self.mask)
      self.has_tanh = True
      return is_first
    if op.type == "AddV2":
      is_first = not (self.addend or self.mask)
      (other,) = [x for x in op.inputs if x.op is not before] or [None]
      self.addend = (other, self.axes) if other is not None else None
      return is_first and self.addend is not None and self.is_capped
    if op.type == "SelectV2":
      return self._masks(op, before)
    return False

  @property
  def is_capped(self) -> bool:
    """Whether a tanh has its factor."""
    return not self.has_tanh or self.cap > 0

  def _moves(self, op: Any) -> bool:
    if op.type == "Transpose":
      order = tf.get_static_value(op.inputs[1])
      if order is None:
        return False
      self.axes = [self.axes[i] for i in order]
      return True
    moved = regrouped(self.axes, op.outputs[0].shape.as_list())
    self.axes = moved or []
    return moved is not None

  def _scales(self, op: Any, before: Any) -> bool:
    numbers = [_number(x) for x in op.inputs if x.op is not before]
    is_quotient = op.type == "RealDiv"
    if len(numbers) != 1 or not numbers[0] or (is_quotient and op.inputs[0].op is not before):
      return False
    factor = 1 / numbers[0] if is_quotient else numbers[0]
    if self.addend or self.mask or factor <= 0:
      return False
    if self.has_tanh:
      self.cap = (self.cap or 1.0) * factor
    else:
      self.scale *= factor
    return True

  def _masks(self, op: Any, before: Any) -> bool:
    condition, of_true, of_false = op.inputs
    is_kept = of_true.op is before
    number = _number(of_false if is_kept else of_true)
    if self.mask or number is None or number > _ABSORBS or not self.is_capped:
      return False
    if condition.dtype != tf.bool:
      return False
    self.mask = (condition if is_kept else ~condition), self.axes
    self.fill = -math.inf if number == -math.inf else _MASKED
    return True


class Attentions:
  """Replacements for one export, which make Attention of the second product.

  Attributes:
    count: the number of the nodes.
  """

  def __init__(self, table: Mapping[str, Replacement]):
    self._table = table
    self.count = 0

  def table(self) -> dict[str, Replacement]:
    """{type of op: replacement}."""
    return {_PRODUCT: self._product} if opsets.has("Attention") else {}

  def _product(self, op: Any, x: tf.Tensor, y: tf.Tensor) -> Sequence[tf.Tensor]:
    flags = op.get_attr("adj_x"), op.get_attr("adj_y")
    if x.dtype == tf.float32:
      for weights, values, is_first in ((x, y, True), (y, x, False)):
        adjoint_w, adjoint_v = flags if is_first else flags[::-1]
        # the keys are the last axis of the weights, and the last but one of the values
        has_keys_last = adjoint_w != is_first
        v = tf.linalg.matrix_transpose(values) if adjoint_v == is_first else values
        result = _attention(weights, v, has_keys_last=has_keys_last)
        if result is not None:
          self.count += 1
          return [result if is_first else tf.linalg.matrix_transpose(result)]
    return self._table.get(op.type, same)(op, x, y)


def _attention(weights: tf.Tensor, v: tf.Tensor, *, has_keys_last: bool) -> tf.Tensor | None:
  """weights f32[...,t,s], or f32[...,s,t]; v f32[...,s,d] -> f32[...,t,d] by an Attention; None if
  the weights are no softmax of a product."""
  chain = _chain(weights, adds=1)
  if chain is None or "Softmax" not in [op.type for op in chain]:
    return None
  product, *others = chain
  q, k = _operands(product)
  batch, n_queries, n_keys = q.shape[:-2].as_list(), q.shape[-2], k.shape[-2]
  if k.shape[:-2].as_list() != batch or v.shape[:-2].as_list() != batch:
    return None
  if v.shape[-1] != q.shape[-1] or q.shape[-1] is None:
    return None
  outer, queries, keys = [axis_of(n) for n in batch], axis_of(n_queries), axis_of(n_keys)
  scores = _Scores([*outer, queries, keys])
  before, of_keys = product, None
  for op in others:
    if not scores.follows(op, before):
      return None
    if op.type == "Softmax":
      of_keys = leaves_of(scores.axes[-1])
    before = op
  if of_keys is None or not scores.is_capped:
    return None
  # ONNX Runtime 1.26 adds the mask before the tanh, as the standard had it.
  if scores.cap and (scores.addend or scores.mask):
    return None
  if of_keys != leaves_of(keys):  # the product is of keys and queries
    q, k, queries, keys = k, q, keys, queries
  *of_batch, rows, columns = map(leaves_of, scores.axes)
  rows, columns = (rows, columns) if has_keys_last else (columns, rows)
  is_batch = [leaf for axis in of_batch for leaf in axis] == leaves_of(
    [a for x in outer for a in x]
  )
  if of_keys != leaves_of(keys) or columns != of_keys or not is_batch:
    return None
  if v.shape[-2] not in (None, k.shape[-2]) or {*rows} != {*leaves_of(queries)}:
    return None
  return _Call(q, k, v, outer, queries, keys, rows).node(scores)


@dataclass
class _Call:
  """The operands of an Attention: q f32[*outer,queries,d], k and v f32[*outer,keys,d], and the
  queries in the order of the result."""

  q: tf.Tensor
  k: tf.Tensor
  v: tf.Tensor
  outer: list[Axis]
  queries: Axis
  keys: Axis
  rows: list[Atom]

  def node(self, scores: _Scores) -> tf.Tensor | None:
    """f32[*outer,rows,d]; None if it cannot be written."""
    queries = leaves_of(self.queries)
    heads, times = [], self.rows
    if self.rows != queries:  # several heads of queries for each of keys
      heads, times = self.rows[:-1], self.rows[-1:]
    rank = len(self.outer)
    *batch, of_keys = [[], *self.outer] if rank else [[], []]
    batch_axes = list(range(rank - 1)) if rank else []
    head_axes = [rank - 1] if rank else []
    q = self._in_order(heads)
    if q is None:
      return None
    n_heads = len(heads)
    head_of_q = [*head_axes, *range(rank, rank + n_heads)]
    time_axes = [rank + n_heads]
    whole_q = grouped(q, [batch_axes, head_of_q, time_axes, [rank + n_heads + 1]])
    whole_k, whole_v = (
      grouped(x, [batch_axes, head_axes, [rank], [rank + 1]]) for x in (self.k, self.v)
    )
    operands = [whole_q, whole_k, whole_v]
    places = [
      leaves_of([atom for axis in batch for atom in axis]),
      [*leaves_of(of_keys), *heads],
      list(times),
      leaves_of(self.keys),
    ]
    if scores.addend or scores.mask:
      bias = _bias(scores, places, whole_q, whole_k)
      if bias is None:
        return None
      operands.append(bias)
    attributes = {"scale": scores.scale}
    if scores.cap:  # ONNX divides the scores by it first
      attributes = {"scale": scores.scale * scores.cap, "softcap": scores.cap}
    result = composite("Attention", operands, **attributes)
    return self._as_rows(result, q, n_heads)

  def _in_order(self, heads: Sequence[Atom]) -> tf.Tensor | None:
    """q f32[*outer,*heads,times,d]."""
    if not heads:
      return self.q
    rank, queries = len(self.outer), leaves_of(self.queries)
    sizes = [leaf.size for leaf in queries]
    if sizes.count(None) > 1:
      return None
    *batch, _, width = _sizes(self.q)
    cut = tf.reshape(self.q, [*batch, *[-1 if n is None else n for n in sizes], width])
    order = [rank + queries.index(leaf) for leaf in self.rows]
    return tf.transpose(cut, [*range(rank), *order, rank + len(order)])

  def _as_rows(self, result: tf.Tensor, q: tf.Tensor, n_heads: int) -> tf.Tensor:
    """The result f32[b,h,t,d] as f32[*outer,rows,d]."""
    rank = len(self.outer)
    if not n_heads and result.shape.as_list() == q.shape.as_list():
      return result
    sizes = _sizes(q)
    n_rows = math.prod(sizes[rank : rank + n_heads + 1])
    rows = tf.reshape(result, [*sizes[:rank], n_rows, sizes[-1]])
    known = [leaf.size for leaf in self.rows]
    of_rows = None if None in known else math.prod(n for n in known if n)
    rows.set_shape([*q.shape[:rank].as_list(), of_rows, q.shape[-1]])
    return rows


def _sizes(x: tf.Tensor) -> list[Any]:
  """The sizes of a tensor: ints where they are known, else scalars."""
  if x.shape.is_fully_defined():
    return list(x.shape.as_list())
  counts = tf.shape(x)
  return [counts[i] if n is None else n for i, n in enumerate(x.shape.as_list())]


def _chain(x: tf.Tensor, adds: int) -> list[Any] | None:
  """The ops from a product to x, each with the result of the one before among its operands.

  `adds`: how many sums may be among them.
  """
  op = x.op
  if op.type == _PRODUCT:
    return [op] if x.dtype == tf.float32 else None
  operands: list[tf.Tensor] = []
  if op.type in (*_MOVES, "Tanh", "Softmax"):
    operands = [op.inputs[0]]
  elif op.type in ("Mul", "RealDiv"):
    operands = [y for y, z in zip(op.inputs, op.inputs[::-1], strict=True) if _number(z)]
  elif op.type == "AddV2" and adds:
    operands, adds = list(op.inputs), adds - 1
  elif op.type == "SelectV2":
    _, y, z = op.inputs
    operands = [a for a, b in ((y, z), (z, y)) if _number(b) is not None]
  for operand in operands:
    if (chain := _chain(operand, adds)) is not None:
      return [*chain, op]
  return None


def _operands(product: Any) -> tuple[tf.Tensor, tf.Tensor]:
  """x [...,m,d] and y [...,n,d] of a product [...,m,n]."""
  x, y = product.inputs
  if product.get_attr("adj_x"):
    x = tf.linalg.matrix_transpose(x)
  if product.get_attr("adj_y"):
    return x, y
  # the transpose of a transpose is what is transposed
  if y.op.type == "Transpose":
    order = tf.get_static_value(y.op.inputs[1])
    rank = y.shape.rank
    if order is not None and list(order) == [*range(rank - 2), rank - 1, rank - 2]:
      return x, y.op.inputs[0]
  return x, tf.linalg.matrix_transpose(y)


def _number(x: tf.Tensor) -> float | None:
  """The number that fills a tensor, or None."""
  while x.op.type in ("BroadcastTo", "Reshape", "ExpandDims", "Identity"):
    x = x.op.inputs[0]
  value = tf.get_static_value(x)
  if value is None or not value.size or value.dtype != np.float32:
    return None
  return float(value.flat[0]) if (value == value.flat[0]).all() else None


def _bias(
  scores: _Scores, places: Sequence[Sequence[Atom]], q: tf.Tensor, k: tf.Tensor
) -> tf.Tensor | None:
  """f32[b,h,t,s], of which the first two sizes may be 1, that is added to the scores.

  A row of -inf is NaN in JAX, and a row of the least float32 the mean of v: so the sum has NaN, or
  a number that is not that small.
  """
  bias = tf.constant(0.0)
  if scores.addend and (bias := _placed(*scores.addend, places)) is None:
    return None
  if scores.mask:
    if (mask := _placed(*scores.mask, places)) is None:
      return None
    bias = tf.where(mask, bias, tf.constant(scores.fill))
  if scores.addend or scores.fill == -math.inf:
    spread = tf.constant(0.0) * tf.reduce_max(bias, -1, keepdims=True)
    bias = tf.maximum(bias, tf.constant(_LEAST)) + spread
  *outer, n_queries, n_keys = bias.shape.as_list()
  if (n_queries, n_keys) != (q.shape[2], k.shape[2]) or None in (n_queries, n_keys):
    sizes = [*_sizes(bias)[:2], _sizes(q)[2], _sizes(k)[2]]
    bias = tf.broadcast_to(bias, sizes)
    bias.set_shape([*outer, q.shape[2], k.shape[2]])
  return bias


def _placed(
  x: tf.Tensor, axes: Sequence[Axis], places: Sequence[Sequence[Atom]]
) -> tf.Tensor | None:
  """x, aligned with scores of these axes, with an axis of the size or of 1 for each place."""
  x = _padded(_unrepeated(x), len(axes))
  leaves: list[Atom] = []
  for size, axis in zip(x.shape.as_list(), axes, strict=True):
    own = leaves_of(axis)
    if size == 1:
      continue
    if not own or size != size_of(own):
      return None
    leaves += own
  sizes = [leaf.size for leaf in leaves]
  if sizes.count(None) < 2:
    x = tf.reshape(x, [-1 if n is None else n for n in sizes])
  else:
    x = squeezed(x, [i for i, n in enumerate(x.shape.as_list()) if n == 1])
    if x.shape.as_list() != sizes:
      return None
  order = [leaf for place in places for leaf in place if leaf in leaves]
  if len(order) != len(leaves):
    return None
  x = tf.transpose(x, [leaves.index(leaf) for leaf in order])
  groups, start = [], 0
  for place in places:
    present = [leaf for leaf in place if leaf in leaves]
    if present and len(present) != len(place):
      return None
    groups.append(list(range(start, start + len(present))))
    start += len(present)
  return grouped(x, groups)


def _padded(x: tf.Tensor, rank: int) -> tf.Tensor:
  for _ in range(rank - x.shape.rank):
    x = tf.expand_dims(x, 0)
  return x


def _unrepeated(x: tf.Tensor) -> tf.Tensor:
  """A tensor of the same rank that is broadcast to x, with sizes of 1 where x is known to repeat
  its elements."""
  op, rank = x.op, x.shape.rank
  value = tf.get_static_value(x)
  if value is not None:
    for axis in range(rank):
      first = np.take(value, [0], axis) if value.shape[axis] else value
      value = first if np.array_equal(np.broadcast_to(first, value.shape), value) else value
    return tf.constant(value)
  if op.type == "BroadcastTo":
    return _padded(_unrepeated(op.inputs[0]), rank)
  if op.type == "LogicalAnd":
    parts = [_padded(_unrepeated(y), rank) for y in op.inputs]
    known = [tf.get_static_value(part) for part in parts]
    needed = [y for y, v in zip(parts, known, strict=True) if v is None or not v.all()]
    return needed[0] if len(needed) == 1 else parts[0] & parts[1]
  if op.type == "LogicalNot":
    return ~_unrepeated(op.inputs[0])
  if op.type == "Transpose" and (order := tf.get_static_value(op.inputs[1])) is not None:
    return tf.transpose(_unrepeated(op.inputs[0]), order)
  if op.type in ("Reshape", "Squeeze", "ExpandDims"):
    inner = op.inputs[0]
    before = [i for i, n in enumerate(inner.shape.as_list()) if n != 1]
    after = [i for i, n in enumerate(x.shape.as_list()) if n != 1]
    if [inner.shape[i] for i in before] == [x.shape[i] for i in after]:
      y = _unrepeated(inner)
      y = squeezed(y, [i for i in range(inner.shape.rank) if i not in before])
      for i in range(rank):
        y = y if i in after else tf.expand_dims(y, i)
      return y
  return x
