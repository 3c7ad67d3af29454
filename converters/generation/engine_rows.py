"""A decoder's step for engines that keep the keys and values themselves, in arrays of their own
layout: of a fixed length, or of the rows so far.

A decoder writes into a cache of a fixed length. For an engine whose cache grows it gets one that is
exactly long enough, and a write of the new rows at its end becomes a concatenation (`appending`).
A step that computes with no other length than `context_length` gets that (`padded`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.extend.core.primitives as P
import jax.numpy as jnp
import numpy as np
from jax import export, tree_util
from jax.extend.core import Literal, Var, jaxpr_as_fun

from jax2tf import normalise
from jax2tf.jaxprs import ClosedJaxpr, Eqn, replaced

from ..bundle.notation import Spec
from .cache import Leaf
from .decoder import Decoder, causal

LENGTH = 2  # the axis of an engine's array that has the rows


@dataclass(frozen=True)
class EngineRows:
  """How an engine holds a leaf with rows: f[b,heads,length,size].

  Attributes:
    leaf: the leaf.
    order: its axes, as the engine has them: the batch if it has one, those of the heads, the
      length, those of a row of a head.
    heads, size: the sizes of the second and the last axis.
  """

  leaf: Leaf
  order: tuple[int, ...]
  heads: int
  size: int

  @classmethod
  def of(cls, leaf: Leaf, *, by_heads: bool) -> EngineRows:
    """The layout of a leaf.

    Args:
      leaf: a leaf with rows.
      by_heads: whether the second axis is that of the heads. Otherwise the layout is the one that
        costs no transpose: its second axis has what stands before the length.
    """
    batch, length = leaf.batch_axis, _length_axis(leaf)
    others = [axis for axis in range(len(leaf.shape)) if axis not in (batch, length)]
    number = len(others) - 1 if by_heads else sum(axis < length for axis in others)
    before, after = others[: max(0, number)], others[max(0, number) :]
    order = [*([] if batch is None else [batch]), *before, length, *after]
    heads, size = (math.prod(leaf.shape[axis] for axis in axes) for axes in (before, after))
    return cls(leaf, tuple(order), heads, size)

  def shape(self, batch: Any, length: Any) -> tuple[Any, ...]:
    """The engine's shape."""
    return batch, self.heads, length, self.size

  def spec(self, batch: Any, length: Any) -> str:
    """The engine's shape and dtype, such as "f32[1,4,p,64]"."""
    return str(Spec(np.dtype(self.leaf.dtype), self.shape(batch, length)))

  def of_leaf(self, array: jax.Array) -> jax.Array:
    """A leaf as the engine's array."""
    batch = 1 if self.leaf.batch_axis is None else array.shape[self.leaf.batch_axis]
    length = array.shape[_length_axis(self.leaf)]
    return jnp.transpose(array, self.order).reshape(self.shape(batch, length))

  def to_leaf(self, array: jax.Array) -> jax.Array:
    """The engine's array as the leaf."""
    sized = self.leaf.sized(array.shape[0], array.shape[LENGTH])
    in_order = array.reshape([sized[axis] for axis in self.order])
    return jnp.transpose(in_order, [self.order.index(axis) for axis in range(len(self.order))])


def _length_axis(leaf: Leaf) -> int:
  if leaf.length_axis is None:
    raise ValueError(f"{leaf.path} has no rows")
  return leaf.length_axis


Step: TypeAlias = Callable[..., tuple[jax.Array, dict[str, jax.Array]]]


def shared(decoder: Decoder, rows: Mapping[str, EngineRows]) -> Step:
  """A step with arrays of `context_length` rows: (params, tokens i32[b,s], positions i32[b,s],
  {path: engine's array}) -> (logits f32[b,s,V], {path: engine's array})."""

  def step(params: Any, tokens: jax.Array, positions: jax.Array, past: Any) -> Any:
    cache = {path: one.to_leaf(past[path]) for path, one in rows.items()}
    logits, after = decoder.on_rows(params, tokens, positions, cache)
    return logits.astype(jnp.float32), {path: rows[path].of_leaf(after[path]) for path in rows}

  return step


def growing(
  decoder: Decoder,
  rows: Mapping[str, EngineRows],
  change: Callable[[ClosedJaxpr], ClosedJaxpr] = lambda jaxpr: jaxpr,
) -> Step:
  """As `shared`, with arrays of p rows before the call, and of p + s after it.

  Args:
    decoder: takes a mask if the step is to have a last operand i32[b,p+s], which is 0 for rows that
      hold no token.
    rows: the layouts.
    change: makes another jaxpr of the step's.
  """

  def step(
    params: Any, tokens: jax.Array, positions: jax.Array, past: Any, held: jax.Array | None = None
  ) -> Any:
    jaxpr, operands = traced(decoder, rows, params, tokens, positions, past, held)
    logits, *after = jaxpr_as_fun(change(jaxpr))(*operands)
    return logits, dict(zip(rows, after, strict=True))

  return step


def padded(decoder: Decoder, rows: Mapping[str, EngineRows]) -> Step:
  """As `growing`, for one sequence and a step that needs a cache of `context_length` rows: rows of
  zeros follow the engine's. The last operand is always None."""

  def step(params: Any, tokens: jax.Array, positions: jax.Array, past: Any, _: None = None) -> Any:
    count = tokens.shape[1]
    length = past[next(iter(rows))].shape[LENGTH] + count
    # An engine that goes on behind the last row asks for a negative number of these, which fails.
    unused = decoder.context_length - length
    cache = {}
    for path, one in rows.items():
      zeros = [jnp.zeros(one.shape(1, size), past[path].dtype) for size in (count, unused)]
      cache[path] = one.to_leaf(jnp.concatenate([past[path], *zeros], LENGTH))
    logits, after = decoder.on_rows(params, tokens, positions, cache)
    held = {path: one.of_leaf(after[path])[:, :, :length] for path, one in rows.items()}
    return logits.astype(jnp.float32), held

  return step


def refusal(decoder: Decoder, rows: Mapping[str, EngineRows]) -> str:
  """Why the step cannot compute with a cache of any length; empty if it can."""
  count, before = export.symbolic_shape("s, p")
  ids = jax.ShapeDtypeStruct((1, count), jnp.int32)
  past = {
    path: jax.ShapeDtypeStruct(one.shape(1, before), one.leaf.dtype) for path, one in rows.items()
  }
  try:
    jax.eval_shape(growing(decoder, rows), decoder.params, ids, ids, past)
  except Exception as error:  # of the user's function, which was traced before with known sizes
    return f"{type(error).__name__}: {str(error).splitlines()[0]}"
  return ""


def traced(
  decoder: Decoder,
  rows: Mapping[str, EngineRows],
  params: Any,
  tokens: jax.Array,
  positions: jax.Array,
  past: Mapping[str, jax.Array],
  held: jax.Array | None,
) -> tuple[ClosedJaxpr, list[Any]]:
  """(the step of `growing` as a jaxpr of flat operands without calls, the operands)."""
  batch, count = tokens.shape
  before = past[next(iter(rows))].shape[LENGTH]
  length = before + count
  long = {
    path: jax.ShapeDtypeStruct(one.leaf.sized(batch, length), past[path].dtype)
    for path, one in rows.items()
  }
  leaves, tree = tree_util.tree_flatten((params, tokens, positions, held))

  def flat(*arrays: jax.Array) -> list[jax.Array]:
    params, tokens, positions, held = tree_util.tree_unflatten(tree, arrays[: len(leaves)])
    cache = dict(zip(long, arrays[len(leaves) :], strict=True))
    mask = None
    if held is not None:
      slots = jnp.broadcast_to(before + jnp.arange(count), (batch, count))
      mask = causal(slots, length) & (held > 0)[:, None]
    logits, after = decoder.on_rows(params, tokens, positions, cache, mask)
    return [logits.astype(jnp.float32), *(after[path] for path in rows)]

  jaxpr = normalise.normalised(jax.make_jaxpr(flat)(*leaves, *long.values()))
  arrays = [past[path] for path in rows]
  return appending(jaxpr, list(rows.values()), arrays, count), [*leaves, *arrays]


def appending(
  jaxpr: ClosedJaxpr, rows: Sequence[EngineRows], past: Sequence[Any], count: Any
) -> ClosedJaxpr:
  """A step that takes and returns the engine's arrays, of p rows before and p + s after it, where
  `jaxpr` takes and returns leaves of p + s.

  A decoder writes the rows of its tokens at their positions, which are p, p + 1 ... for an engine:
  at the end of the cache. So a write of s rows, as all that reads the old cache, is a
  concatenation. Where the cache is read otherwise, s rows of zeros follow the old ones.

  Args:
    jaxpr: the step, without calls. The leaves are its last operands and its last results.
    rows: the layouts of the leaves.
    past: the engine's arrays.
    count: s.
  """
  operands, results = list(jaxpr.invars), list(jaxpr.outvars)
  eqns: list[Eqn] = list(jaxpr.eqns)
  before: list[Eqn] = []
  after: list[Eqn] = []
  for i, (one, array) in enumerate(zip(rows, past, strict=True)):
    operand, result = len(operands) - len(rows) + i, len(results) - len(rows) + i
    leaf, new_leaf = operands[operand], results[result]
    engine = Var(jax.core.ShapedArray(array.shape, array.dtype))
    grown = Var(
      jax.core.ShapedArray(one.shape(array.shape[0], array.shape[LENGTH] + count), array.dtype)
    )
    uses = [k for k, eqn in enumerate(eqns) if leaf in eqn.invars]
    update = _written(eqns[uses[0]], leaf, one) if len(uses) == 1 else None
    if update is not None and new_leaf is eqns[uses[0]].outvars[0]:
      write = eqns[uses[0]]
      joined = _concatenation(one, update[1])
      eqns[uses[0] : uses[0] + 1] = _equations(
        joined, [engine, update[0]], [grown, new_leaf], write
      )
    else:
      before += _equations(_padding(one, count), [engine], [leaf], eqns[0])
      after += _equations(one.of_leaf, [new_leaf], [grown], eqns[-1])
    operands[operand], results[result] = engine, grown
  return replaced(jaxpr, invars=operands, eqns=[*before, *eqns, *after], outvars=results)


def of_decoder(decoder: Decoder, *, by_heads: bool) -> dict[str, EngineRows]:
  """{path: layout} of all leaves with rows."""
  leaves = decoder.cache.of_kind("rows")
  return {leaf.path: EngineRows.of(leaf, by_heads=by_heads) for leaf in leaves}


def _written(eqn: Eqn, leaf: Any, rows: EngineRows) -> tuple[Any, tuple[int, ...]] | None:
  """(the new rows that an equation writes into `leaf`, their axes in the order of the leaf's axes);
  None if it does not write rows whole."""
  axis, rank = _length_axis(rows.leaf), len(leaf.aval.shape)
  if eqn.primitive is P.dynamic_update_slice_p and eqn.invars.index(leaf) == 0:
    update, order = eqn.invars[1], tuple(range(rank))
  elif eqn.primitive is P.scatter_p and eqn.invars.index(leaf) == 0:
    numbers, update = eqn.params["dimension_numbers"], eqn.invars[2]
    others = [d for d in range(len(update.aval.shape)) if d not in numbers.update_window_dims]
    at_rows = numbers.inserted_window_dims == numbers.scatter_dims_to_operand_dims == (axis,)
    if not at_rows or numbers.operand_batching_dims or len(others) != 1:
      return None
    window = list(numbers.update_window_dims)
    order = (*window[:axis], others[0], *window[axis:])
  else:
    return None
  sizes = [update.aval.shape[d] for d in order]
  whole = all(
    a == b for d, (a, b) in enumerate(zip(sizes, leaf.aval.shape, strict=True)) if d != axis
  )
  return (update, order) if whole and eqn.invars.count(leaf) == 1 else None


def _concatenation(
  rows: EngineRows, order: Sequence[int]
) -> Callable[..., tuple[jax.Array, jax.Array]]:
  def joined(past: jax.Array, update: jax.Array) -> tuple[jax.Array, jax.Array]:
    grown = jnp.concatenate([past, rows.of_leaf(jnp.transpose(update, order))], LENGTH)
    return grown, rows.to_leaf(grown)

  return joined


def _padding(rows: EngineRows, count: Any) -> Callable[..., jax.Array]:
  def padded(past: jax.Array) -> jax.Array:
    zeros = jnp.zeros(rows.shape(past.shape[0], count), past.dtype)
    return rows.to_leaf(jnp.concatenate([past, zeros], LENGTH))

  return padded


def _equations(
  fun: Callable[..., Any], operands: Sequence[Any], results: Sequence[Any], at: Eqn
) -> list[Eqn]:
  """The equations results = fun(operands), at the user's line of `at`."""
  avals = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in operands]
  traced = normalise.normalised(jax.make_jaxpr(fun)(*avals))
  flat = normalise.Flat(dict(zip(traced.invars, operands, strict=True)), inside=True)
  flat.add(traced.eqns)
  names = dict(zip(map(flat.read, traced.outvars), results, strict=True))

  def named(v: Any) -> Any:
    return v if isinstance(v, Literal) else names.get(v, v)

  return [
    eqn.replace(
      invars=[*map(named, eqn.invars)],
      outvars=[*map(named, eqn.outvars)],
      source_info=at.source_info,
    )
    for eqn in flat.eqns
  ]
