"""Runs a while loop on those of its lanes that still go on.

TensorFlow's sizes are dynamic, XLA's are not. So a graph has the loop in this form and in that of
all lanes; XLA, exporters and TensorFlow's pfor take the latter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from jax2tf.context import RuleContext
from jax2tf.lowering._lanes import LANES, LaneLoop
from jax2tf.lowering._matrices import unless_compiled

Tensors = list[tf.Tensor]

# Up to here no lanes are picked: launches of kernels take most of the time of a step.
_FEW_LANES = 8192
# TF 2.21: Eigen rounds functions of whole vectors of floats otherwise than those of a few at the
# end.
_VECTOR = 16


def may_run_by_lanes(ctx: RuleContext) -> bool:
  """Whether the graph under construction may have loops over some of their lanes."""
  return (
    ctx.inside is not None
    and ctx.graph.compiled is not True
    and not ctx.destination.annotates_shardings
  )


def run_by_lanes(
  ctx: RuleContext, loop: LaneLoop, whole: Callable[..., Tensors], *operands: tf.Tensor
) -> Tensors:
  """(test consts, body consts, carry) -> carry.

  Args:
    ctx: of the while equation.
    loop: it, for any number of lanes.
    whole: `whole(ctx, *operands)` runs it for all.
    operands: those of the equation.
  """
  size = ctx.dim(loop.whole_test.out_avals[0].shape[0])
  if isinstance(size, int) and size <= _FEW_LANES:
    return whole(ctx, *operands)
  assert ctx.inside is not None
  as_for_xla, by_kernels = ctx.inside(True, {}), ctx.inside(False, {})

  def all_lanes() -> Tensors:
    return whole(as_for_xla, *operands)

  def by_size() -> Tensors:
    if isinstance(size, int):
      return _run(by_kernels, loop, operands)
    return list(tf.cond(size > _FEW_LANES, lambda: _run(by_kernels, loop, operands), all_lanes))

  return (
    by_size()
    if ctx.graph.compiled is False
    else list(unless_compiled(by_size, all_lanes, by_pfor=False))
  )


def _run(ctx: RuleContext, loop: LaneLoop, operands: Sequence[tf.Tensor]) -> Tensors:
  """The loop; whenever half of the lanes have stopped, the others go on without them."""
  n_test, n_body = len(loop.test_consts), len(loop.body_consts)
  consts, carry = operands[: n_test + n_body], operands[n_test + n_body :]

  def iteration(going: tf.Tensor, *carry: tf.Tensor) -> Tensors:
    """going i64[k] -> the lanes that go on afterwards; their carry is in its rows."""
    count = tf.size(going)
    spare = tf.math.floormod(-count, _VECTOR)
    picked = tf.concat([going, tf.fill(spare[tf.newaxis], going[0])], 0)
    rows = [tf.gather(x, picked) for x in carry]
    by_lane = zip(consts, (*loop.test_consts, *loop.body_consts), strict=True)
    picked_operands = [tf.gather(x, picked) if each else x for x, each in by_lane]
    is_real = tf.range(tf.size(picked)) < count
    fewest = tf.where(count > _FEW_LANES, tf.math.floordiv(count, 2), 0)
    active, rows = _steps(ctx, loop, picked_operands, rows, is_real, fewest)
    indices, written = going[:, tf.newaxis], [y[:count] for y in rows]
    new = [tf.tensor_scatter_nd_update(x, indices, y) for x, y in zip(carry, written, strict=True)]
    return [tf.boolean_mask(going, _any(active)[:count]), *new]

  first = ctx.lower(loop.whole_test, *consts[:n_test], *carry)[0]
  going = tf.where(_any(first))[:, 0]
  shapes = (tf.TensorShape([None]), *(x.shape for x in carry))
  return list(
    tf.while_loop(lambda going, *_: tf.size(going) > 0, iteration, (going, *carry), shapes)
  )[1:]


def _steps(
  ctx: RuleContext,
  loop: LaneLoop,
  consts: Sequence[tf.Tensor],
  rows: Sequence[tf.Tensor],
  is_real: tf.Tensor,
  fewest: tf.Tensor,
) -> tuple[tf.Tensor, Tensors]:
  """Steps until no more than `fewest` lanes go on -> which do, and their rows."""
  assert ctx.inside is not None
  lower, n_test = ctx.inside(False, {LANES: tf.size(is_real)}).lower, len(loop.test_consts)

  def test(rows: Sequence[tf.Tensor]) -> tf.Tensor:
    return lower(loop.test, *consts[:n_test], *rows)[0]

  def step(active: tf.Tensor, *rows: tf.Tensor) -> Tensors:
    after = lower(loop.body, *consts[n_test:], *rows)
    new = [select_lanes(active, x, before) for x, before in zip(after, rows, strict=True)]
    return [active & test(new), *new]

  first = test(rows)
  for _ in first.shape[1:]:
    is_real = tf.expand_dims(is_real, -1)
  active, *results = tf.while_loop(
    lambda active, *_: tf.reduce_sum(tf.cast(_any(active), tf.int32)) > fewest,
    lambda *state: tuple(step(*state)),
    (is_real & first, *rows),
  )
  return active, results


def _any(active: tf.Tensor) -> tf.Tensor:
  """bool[n,...] -> bool[n]."""
  rank = active.shape.rank
  return active if rank == 1 else tf.reduce_any(active, list(range(1, rank)))


def select_lanes(active: tf.Tensor, after: tf.Tensor, before: tf.Tensor) -> tf.Tensor:
  """active bool[b], after and before f32[b,...] -> f32[b,...]."""
  extra = after.shape.rank - active.shape.rank
  for _ in range(extra):
    active = tf.expand_dims(active, -1)
  return tf.where(active, after, before)
