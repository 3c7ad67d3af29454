"""Rotary embeddings f32[...,d] in a graph that is being built, for ONNX's RotaryEmbedding.

It turns the two parts of each row by an angle, where the parts are its halves, or the elements at
even and at odd places:

  (first * cos - second * sin, second * cos + first * sin)

Programs write this formula, or `x * cos + turned * sin`, where `turned` is (-second, first) and cos
and sin have each column twice. ONNX Runtime 1.32 takes 0.1 to 0.8 times as long for the node, from
64 elements to 2 million.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tensorflow as tf

from ..export import replay
from ..export.replay import Replacement
from . import opsets
from .composites import composite
from .matching import are_equal, grouped, is_last, known, product_of
from .replacements import same

_ELEMENTWISE = ("Cast", "Cos", "Identity", "Neg", "Sin")
_LAST_TWO = 2


@dataclass(frozen=True)
class _Part:
  """Some columns of the rows of a tensor f32[...,d].

  Attributes:
    source: the tensor, before transposes.
    order: the axes of `source` in the order of the part.
    start: the first column.
    step: 1 for a half of the columns; 2 for every other one.
    is_negative: whether it is minus these columns.
  """

  source: tf.Tensor
  order: tuple[int, ...]
  start: int
  step: int
  is_negative: bool

  def is_like(self, other: _Part) -> bool:
    """Whether both are the same columns."""
    return self.key == other.key

  @property
  def key(self) -> Any:
    return self.source.ref(), self.order, self.start, self.step, self.is_negative

  def is_second_of(self, first: _Part, n: int) -> bool:
    """Whether the two are the first 2 n columns, in halves or in turn."""
    start = n if self.step == 1 else 1
    return first.start == 0 and self.is_like(replace(first, start=start))


@dataclass(frozen=True)
class _Rotation:
  """An embedding of x f32[...,d].

  Attributes:
    x: the rows.
    cos, sin: of the angles, f32[...,n], whose other sizes are those of x or 1. The first 2 n
      columns are turned.
    step: 1 if the two parts are halves; 2 if they are columns in turn.
  """

  x: tf.Tensor
  cos: tf.Tensor
  sin: tf.Tensor
  step: int

  def before(self, rest: tf.Tensor) -> _Rotation | None:
    """The embedding of the tensor of which x are the first columns and `rest` the others; None if
    they are not."""
    turned, others = _columns(self.x), _columns(rest)
    if turned is None or others is None:
      return None
    n_turned, n_columns = self.x.shape[-1], others.source.shape[others.order[-1]]
    are_all = others.is_like(replace(turned, start=n_turned)) and turned.start == 0
    if not are_all or turned.step != 1 or n_turned + rest.shape[-1] != n_columns:
      return None
    return replace(self, x=_arranged(turned))

  def node(self) -> tf.Tensor | None:
    """The result of the node; None for shapes that it does not take.

    It takes f32[batch,heads,positions,d], or f32[batch,positions,heads * d] and the number of
    heads; angles f32[batch,positions,n], or f32[positions,n] and i64[batch,positions].
    """
    x = self.x
    sizes = x.shape.as_list()
    last, n = len(sizes) - 1, self.cos.shape[-1]
    angles = [_padded(angle, len(sizes)) for angle in (self.cos, self.sin)]
    if any(angle.shape.as_list() != angles[0].shape.as_list() for angle in angles):
      return None
    if (groups := _groups(sizes, angles[0].shape.as_list())) is None:
      return None
    attributes = {"interleaved": 1} if self.step == 2 else {}
    if 2 * n != sizes[-1]:
      attributes["rotary_embedding_dim"] = 2 * n
    by_position = False  # whether all of the batch have the same angles
    match [varies for varies, _ in groups], [axes for _, axes in groups]:
      case [], []:
        rows, of_angles = [[], [], [], [last]], [[], [], [last]]
      case [False], [heads]:
        rows, of_angles = [[], heads, [], [last]], [[], [], [last]]
      case [True], [positions]:
        rows, of_angles = [[], [], positions, [last]], [[], positions, [last]]
      case [False, True], [heads, positions]:
        rows, of_angles = [[], heads, positions, [last]], [[], positions, [last]]
      case [True, False, True], [batch, heads, positions]:
        rows, of_angles = [batch, heads, positions, [last]], [batch, positions, [last]]
      case [True, False], [positions, heads] if n_heads := product_of(sizes, heads):
        rows, of_angles = [[], positions, [*heads, last]], [[], positions, [last]]
        attributes["num_heads"] = n_heads
      case [False, True, False], [batch, positions, heads] if n_heads := product_of(sizes, heads):
        rows, of_angles = [batch, positions, [*heads, last]], [positions, [last]]
        attributes["num_heads"] = n_heads
        by_position = True
      case _:
        return None
    whole = grouped(x, rows)
    operands = [whole, *(grouped(angle, of_angles) for angle in angles)]
    if by_position:
      counts = tf.shape(whole, tf.int64)
      operands.append(tf.broadcast_to(tf.range(counts[1]), counts[:2]))
    result = composite("RotaryEmbedding", operands, **attributes)
    if whole is x:
      return result
    is_known = sizes.count(None) < 2
    return tf.reshape(
      result, [-1 if n is None else n for n in sizes] if is_known else tf.shape(x, tf.int64)
    )


class Rotations:
  """Replacements for one export. They recognise the ops that end an embedding."""

  def __init__(self, table: Mapping[str, Replacement]):
    self._table = table
    self._made: dict[Any, _Rotation] = {}  # by the result

  def table(self) -> dict[str, Replacement]:
    """{type of op: replacement}."""
    if not opsets.has("RotaryEmbedding"):
      return {}
    return {"AddV2": self._sum, "ConcatV2": self._concat, "Reshape": self._reshape}

  def _sum(self, op: Any, x: tf.Tensor, y: tf.Tensor) -> Sequence[tf.Tensor]:
    return self._node(_of_sum(x, y)) or self._ordinary(op, x, y)

  def _concat(self, op: Any, *operands: tf.Tensor) -> Sequence[tf.Tensor]:
    """The halves of the turned columns, or all of them, and columns that stay."""
    *parts, axis = operands
    if len(parts) < 2 or not is_last(axis, op.outputs[0]):
      return self._ordinary(op, *operands)
    turned = self._node(_of_parts(*parts[:2], step=1))
    first, *rest = [*turned, *parts[2:]] if turned else parts
    if not rest:
      return [first]
    rotation = self._made.get(first.ref()) if len(rest) == 1 else None
    if rotation is not None and (whole := self._node(rotation.before(*rest))):
      return whole
    return [tf.concat([first, *rest], -1)] if turned else self._ordinary(op, *operands)

  def _reshape(self, op: Any, x: tf.Tensor, shape: tf.Tensor) -> Sequence[tf.Tensor]:
    """The columns that were computed in two parts, in turn."""
    (result,) = self._ordinary(op, x, shape)
    pair = _in_turn(result)
    return (pair and self._node(_of_parts(*pair, step=2))) or [result]

  def _ordinary(self, op: Any, *operands: tf.Tensor) -> Sequence[tf.Tensor]:
    return self._table.get(op.type, same)(op, *operands)

  def _node(self, rotation: _Rotation | None) -> list[tf.Tensor]:
    """The result of the node; nothing if there is none."""
    if rotation is None or (result := rotation.node()) is None:
      return []
    self._made[result.ref()] = rotation
    return [result]


def _of_parts(first: tf.Tensor, second: tf.Tensor, *, step: int) -> _Rotation | None:
  """The embedding whose parts these two are, first * cos - second * sin and second * cos +
  first * sin; None if they are not.

  `step`: 1 if they are its halves, 2 if they are its columns in turn.
  """
  if first.dtype != tf.float32 or (first.op.type, second.op.type) != ("Sub", "AddV2"):
    return None
  if not first.shape.rank or first.shape[-1] is None:
    return None
  n = first.shape[-1]
  factors = (_factors(x) for x in (*first.op.inputs, *second.op.inputs))
  by_cos, by_sin, *others = map(list, factors)
  for (x1, cos), (x2, sin) in itertools.product(by_cos, by_sin):
    part1, part2 = _columns(x1), _columns(x2)
    if part1 is None or part2 is None or part1.is_negative or part1.step != step:
      continue
    if not part2.is_second_of(part1, n):
      continue
    for one, two in (others, others[::-1]):
      if _has_product(one, part2, cos) and _has_product(two, part1, sin):
        return _rotation(_first(_arranged(part1), 2 * n), cos, sin, step)
  return None


def _rotation(x: tf.Tensor, cos: tf.Tensor, sin: tf.Tensor, step: int) -> _Rotation | None:
  """The embedding of x f32[...,d] by angles f32[...,d/2]; None for other angles."""
  angles_fit = all(
    y.shape.rank and y.shape.rank <= x.shape.rank and x.shape[-1] == 2 * (y.shape[-1] or 0)
    for y in (cos, sin)
  )
  return _Rotation(x, cos, sin, step) if angles_fit else None


def _of_sum(x: tf.Tensor, y: tf.Tensor) -> _Rotation | None:
  """The embedding that x + y is, as x * cos + turned * sin; None if it is none."""
  if x.dtype != tf.float32:
    return None
  for one, two in ((x, y), (y, x)):
    for (whole, cos), (turned, sin) in itertools.product(_factors(one), _factors(two)):
      if (part := _turned(turned)) is None:
        continue
      source, order, is_negative = _stripped(whole)
      if is_negative or (source.ref(), order) != (part.source.ref(), part.order):
        continue
      cos_once, sin_once = (_once(angle, part.step) for angle in (cos, sin))
      if cos_once is not None and sin_once is not None:
        return _rotation(whole, cos_once, sin_once, part.step)
  return None


def _in_turn(rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor] | None:
  """The tensors f32[...,n] whose columns are in turn those of f32[...,2 n], by a Pack and a
  Reshape."""
  pack = rows.op.inputs[0].op if rows.op.type == "Reshape" else rows.op
  if pack.type != "Pack" or len(pack.inputs) != _LAST_TWO or rows.shape.rank is None:
    return None
  stacked = pack.outputs[0].shape  # f32[...,n,2]
  if stacked.rank != rows.shape.rank + 1 or pack.get_attr("axis") not in (-1, rows.shape.rank):
    return None
  *outer, n, _ = stacked.as_list()
  if n is None or rows.shape.as_list() != [*outer, 2 * n]:
    return None
  first, second = pack.inputs
  return first, second


def _factors(product: tf.Tensor) -> Iterator[tuple[tf.Tensor, tf.Tensor]]:
  """The operands of a product, in both orders."""
  if product.op.type == "Mul":
    x, y = product.op.inputs
    yield from ((x, y), (y, x))


def _has_product(
  factors: Sequence[tuple[tf.Tensor, tf.Tensor]], part: _Part, angle: tf.Tensor
) -> bool:
  """Whether the factors of a product are these columns and this tensor."""
  for x, y in factors:
    found = _columns(x)
    if found is not None and found.is_like(part) and are_equal(y, angle):
      return True
  return False


def _stripped(x: tf.Tensor) -> tuple[tf.Tensor, tuple[int, ...], bool]:
  """(the tensor before transposes and negations, its axes in the order of x, whether x is minus
  the tensor)."""
  order, is_negative = tuple(range(x.shape.rank or 0)), False
  while x.op.type in ("Transpose", "Neg"):
    if x.op.type == "Neg":
      is_negative = not is_negative
    elif (axes := tf.get_static_value(x.op.inputs[1])) is not None:
      order = tuple(int(axes[axis]) for axis in order)
    else:
      break
    x = x.op.inputs[0]
  return x, order, is_negative


def _columns(x: tf.Tensor) -> _Part | None:
  """The columns that x is, of another tensor."""
  cut, order, is_negative = _stripped(x)
  if not order or order[-1] != len(order) - 1 or (found := _cut(cut)) is None:
    return None
  whole, start, step = found
  if whole.shape.rank != len(order):
    return None
  source, inner, is_minus = _stripped(whole)
  return _Part(source, tuple(inner[axis] for axis in order), start, step, is_negative != is_minus)


def _cut(x: tf.Tensor) -> tuple[tf.Tensor, int, int] | None:
  """(tensor, start, step) if x is `tensor[..., start::step]`, or its beginning."""
  op = x.op
  if op.type in ("Split", "SplitV"):
    whole, axis = op.inputs[::-1] if op.type == "Split" else (op.inputs[0], op.inputs[2])
    before = op.outputs[: x.value_index]
    if not is_last(axis, whole) or any(y.shape[-1] is None for y in before):
      return None
    return whole, sum(y.shape[-1] for y in before), 1
  if op.type == "Slice":
    whole, begin, sizes = op.inputs[0], *map(known, op.inputs[1:])
    if begin is None or sizes is None or begin[:-1].any():
      return None
    full = zip(sizes[:-1], whole.shape[:-1].as_list(), strict=True)
    return (whole, int(begin[-1]), 1) if all(n in (-1, size) for n, size in full) else None
  if op.type == "StridedSlice":
    return _strided(op)
  if op.type == "GatherV2":
    whole, indices, axis = op.inputs
    columns = known(indices)
    if columns is None or op.get_attr("batch_dims") or not is_last(axis, whole):
      return None
    steps = np.diff(columns) if columns.ndim == 1 else np.zeros(1)
    if not steps.size or steps[0] < 1 or (steps != steps[0]).any():
      return None
    return whole, int(columns[0]), int(steps[0])
  return None


def _strided(op: Any) -> tuple[tf.Tensor, int, int] | None:
  """As `_cut`, of a StridedSlice."""
  whole, *operands = op.inputs
  begin, end, strides = map(known, operands)
  others = ("ellipsis_mask", "new_axis_mask", "shrink_axis_mask")
  if begin is None or end is None or strides is None or any(map(op.get_attr, others)):
    return None
  sizes = whole.shape.as_list()
  if len(begin) != len(sizes):
    return None
  from_start, to_end = op.get_attr("begin_mask"), op.get_attr("end_mask")
  for axis, size in enumerate(sizes[:-1]):
    is_whole = (from_start >> axis & 1 or begin[axis] == 0) and (
      to_end >> axis & 1 or end[axis] == size
    )
    if not is_whole or strides[axis] != 1:
      return None
  last = len(sizes) - 1
  start = 0 if from_start >> last & 1 else int(begin[-1])
  return (whole, start, int(strides[-1])) if start >= 0 else None


def _turned(x: tf.Tensor) -> _Part | None:
  """The first part if x is (-second, first); the step says how the two are put together."""
  if x.op.type == "ConcatV2" and len(x.op.inputs) == 3 and is_last(x.op.inputs[2], x):
    (one, two, _), step = x.op.inputs, 1
  elif pair := _in_turn(x):
    (one, two), step = pair, 2
  else:
    return None
  second, first, n = _columns(one), _columns(two), two.shape[-1]
  if second is None or first is None or n is None or not second.is_negative or first.step != step:
    return None
  if first.is_negative or first.source.shape[first.order[-1]] != 2 * n:
    return None
  return first if replace(second, is_negative=False).is_second_of(first, n) else None


def _once(x: tf.Tensor, step: int) -> tf.Tensor | None:
  """f32[...,n], if x f32[...,2 n] has each of its columns twice, in halves or in turn; what x is
  computed of, is computed for half of the columns."""
  n_columns = x.shape[-1] if x.shape.rank else None
  if n_columns is None or n_columns % 2:
    return None
  n, op = n_columns // 2, x.op
  if (value := tf.get_static_value(x)) is not None:
    one, two = (
      (value[..., :n], value[..., n:]) if step == 1 else (value[..., ::2], value[..., 1::2])
    )
    return tf.constant(one) if np.array_equal(one, two) else None
  if step == 1 and op.type == "ConcatV2" and len(op.inputs) == 3 and is_last(op.inputs[2], x):
    return op.inputs[0] if are_equal(*op.inputs[:2]) else None
  if step == 1 and op.type == "Tile" and (times := known(op.inputs[1])) is not None:
    return op.inputs[0] if times.tolist() == [*[1] * (len(times) - 1), 2] else None
  if step == 2 and (pair := _in_turn(x)):
    return pair[0] if are_equal(*pair) else None
  if op.type == "Reshape":
    return _reshaped_once(op, n, step)
  if op.type in _ELEMENTWISE and (inner := _once(op.inputs[0], step)) is not None:
    return _like(op, [inner])
  if op.type == "Mul":
    for y, factor in _factors(x):
      is_number = factor.shape.rank == 0 or (factor.shape.rank and factor.shape[-1] == 1)
      if is_number and (inner := _once(y, step)) is not None:
        return _like(op, [inner, factor])
  return None


def _reshaped_once(op: Any, n: int, step: int) -> tf.Tensor | None:
  """As `_once`, of a Reshape to f32[...,2 n]."""
  x, shape = op.inputs
  inner = None
  if x.shape.rank and x.shape[-1] == 2 * n:
    inner = _once(x, step)
  elif step == 2 and x.shape.rank and x.shape[-1] == 2:
    repeated = _repeated(x)
    if repeated is not None and repeated.shape[-1] == 1 and repeated.shape[:-1] == x.shape[:-1]:
      inner = repeated
  if inner is None:
    return None
  sizes = known(shape)
  if sizes is not None:
    return tf.reshape(inner, [*map(int, sizes[:-1]), n])
  return tf.reshape(inner, [*shape.op.inputs[:-1], n]) if shape.op.type == "Pack" else None


def _repeated(x: tf.Tensor) -> tf.Tensor | None:
  """f32[...,n,1], of which x f32[...,n,2] is a broadcast or two copies, as of jnp.repeat."""
  if x.op.type == "BroadcastTo" and x.op.inputs[0].shape.rank == x.shape.rank:
    source = x.op.inputs[0]
    return _repeated(source) if source.shape[-1] == 2 else source
  if x.op.type == "ConcatV2" and len(x.op.inputs) == 3 and is_last(x.op.inputs[2], x):
    one, two, _ = x.op.inputs
    return one if are_equal(one, two) else None
  return None


def _like(op: Any, operands: Sequence[tf.Tensor]) -> tf.Tensor:
  """An op of the graph for other operands."""
  (y,) = replay.again(op, operands)
  return y


def _arranged(part: _Part) -> tf.Tensor:
  """The whole tensor of a part, with the axes of the part."""
  is_in_order = part.order == tuple(range(len(part.order)))
  return part.source if is_in_order else tf.transpose(part.source, part.order)


def _first(x: tf.Tensor, n: int) -> tf.Tensor:
  """The first n columns."""
  if x.shape[-1] == n:
    return x
  rank = x.shape.rank
  return tf.slice(x, [0] * rank, [*[-1] * (rank - 1), n])


def _padded(x: tf.Tensor, rank: int) -> tf.Tensor:
  """x with axes of size 1 before its own."""
  for _ in range(rank - x.shape.rank):
    x = tf.expand_dims(x, 0)
  return x


def _groups(sizes: Sequence[Any], of_angles: Sequence[Any]) -> list[tuple[bool, list[int]]] | None:
  """(whether the angles vary, adjacent axes), for all axes but the last and those of size 1; None
  if the angles have another size."""
  groups: list[tuple[bool, list[int]]] = []
  for axis, (size, of_angle) in enumerate(zip(sizes[:-1], of_angles[:-1], strict=True)):
    if of_angle not in (1, size):
      return None
    if size == 1:
      continue
    varies = of_angle != 1
    if groups and groups[-1][0] == varies:
      groups[-1][1].append(axis)
    else:
      groups.append((varies, [axis]))
  return groups
