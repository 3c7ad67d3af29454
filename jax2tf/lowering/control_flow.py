"""cond, while and scan as TensorFlow's functional If and While."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import jax
import jax.extend.core.primitives as P
import numpy as np
import tensorflow as tf
from jax.extend.core import jaxpr_as_fun

from jax2tf import _jax_compat, _tf_compat
from jax2tf.context import RuleContext
from jax2tf.dtypes import NARROW, physical, tf_dtype
from jax2tf.graph_context import StackedRows
from jax2tf.jaxprs import ClosedJaxpr, closed, contains, inner_jaxprs, walk
from jax2tf.lowering._counters import Counter
from jax2tf.lowering._kernels import stacked
from jax2tf.lowering._lane_loops import may_run_by_lanes, run_by_lanes, select_lanes
from jax2tf.lowering._lanes import lane_loop
from jax2tf.lowering._movement import across, as_before, carrier_of, converted, unstacked
from jax2tf.registry import lowers
from jax2tf.traits import HASHES, LOOPS

Tensors = list[tf.Tensor]
# The rows of a loop, f32[n,...].
Xs: TypeAlias = tf.Tensor | Counter


@lowers(P.cond_p, lacks=NARROW, on_keys=True)
def _cond(
  ctx: RuleContext,
  index: tf.Tensor,
  *operands: tf.Tensor,
  branches: Sequence[Any],
  branches_platforms: Any = None,
) -> Tensors:
  """index i32[] or bool[], operands -> results of branches[index]; of a platform_dependent, the
  branch for the destination."""
  if branches_platforms is not None:
    chosen = ctx.destination.branch(branches_platforms)
    # platform_index has refused if there is not one
    (branch,) = [branches[i] for i in chosen if i is not None]
    branches = [branch]
  return _branch(ctx, index, *operands, branches=branches)


def _branch(
  ctx: RuleContext, index: tf.Tensor, *operands: tf.Tensor, branches: Sequence[Any]
) -> Tensors:
  """As `_cond`; an index out of range takes the last branch, as in XLA."""
  if len(branches) == 1:
    return ctx.lower(closed(branches[0]), *operands)
  outside = across(ctx, operands)

  def run(branch: Any) -> Tensors:
    return across(ctx, ctx.lower(closed(branch), *as_before(outside, operands)))

  bodies = [functools.partial(run, branch) for branch in branches]
  if len(bodies) == 2:
    results = _if(index if index.dtype == tf.bool else tf.not_equal(index, 0), bodies[1], bodies[0])
  else:
    in_range = tf.logical_and(index >= 0, index < len(bodies))
    results = _switch(tf.where(in_range, index, len(bodies) - 1), bodies, 0)
  return [converted(y, physical(aval)[1]) for y, aval in zip(results, ctx.avals_out, strict=True)]


def _switch(index: tf.Tensor, bodies: Sequence[Callable[[], Tensors]], first: int) -> Tensors:
  """A balanced tree of If: converters to LiteRT, ONNX and TF.js do not support Case."""
  if len(bodies) == 1:
    return bodies[0]()
  half = len(bodies) // 2
  return _if(
    index < first + half,
    lambda: _switch(index, bodies[:half], first),
    lambda: _switch(index, bodies[half:], first + half),
  )


def _if(predicate: tf.Tensor, true: Callable[[], Tensors], false: Callable[[], Tensors]) -> Tensors:
  results = tf.cond(predicate, lambda: tuple(true()), lambda: tuple(false()))
  return tf.nest.flatten(results) if results is not None else []


@lowers(_jax_compat.platform_index_p)
def _platform_index(ctx: RuleContext, *, platforms: Sequence[Sequence[str] | None]) -> tf.Tensor:
  """-> i32[], the first entry that names the platform on which the graph will run, or the default
  (None)."""
  chosen = ctx.destination.branch(platforms)
  where = ", ".join(ctx.destination.platforms) or "this machine"
  names = ", ".join("default" if names is None else "/".join(names) for names in platforms)
  if None in chosen:
    ctx.refuse(
      f"its branches ({names}) have none for {where}",
      "add a default to lax.platform_dependent, or name another of platforms=",
    )
  if len(chosen) > 1:
    ctx.refuse(
      f"its branches ({names}) differ for {where}, and a graph has one",
      "convert once for each of platforms=",
    )
  return tf.constant(chosen.pop(), tf.int32)


@lowers(P.while_p, lacks=NARROW, on_keys=True)
def _while(
  ctx: RuleContext,
  *operands: tf.Tensor,
  cond_nconsts: int,
  cond_jaxpr: Any,
  body_nconsts: int,
  body_jaxpr: Any,
) -> Tensors:
  """(cond consts, body consts, carry) -> carry. A batched predicate, from vmap, stops each element
  on its own."""
  whole = functools.partial(
    _whole_while,
    cond_nconsts=cond_nconsts,
    cond_jaxpr=cond_jaxpr,
    body_nconsts=body_nconsts,
    body_jaxpr=body_jaxpr,
  )
  loop = (
    lane_loop(body_jaxpr, cond_jaxpr, cond_nconsts, body_nconsts) if may_run_by_lanes(ctx) else None
  )
  return run_by_lanes(ctx, loop, whole, *operands) if loop is not None else whole(ctx, *operands)


def _whole_while(
  ctx: RuleContext,
  *operands: tf.Tensor,
  cond_nconsts: int,
  cond_jaxpr: Any,
  body_nconsts: int,
  body_jaxpr: Any,
) -> Tensors:
  """As `_while`; all elements are computed until the last one stops."""
  cond_consts = operands[:cond_nconsts]
  body_consts = operands[cond_nconsts : cond_nconsts + body_nconsts]
  carry = operands[cond_nconsts + body_nconsts :]
  test, body = closed(cond_jaxpr), closed(body_jaxpr)

  outside_cond, outside_body = across(ctx, cond_consts), across(ctx, body_consts)

  def predicate(*carry: tf.Tensor) -> tf.Tensor:
    return ctx.lower(test, *as_before(outside_cond, cond_consts), *carry)[0]

  def after(*carry: tf.Tensor) -> Tensors:
    return ctx.lower(body, *as_before(outside_body, body_consts), *carry)

  if not test.out_avals[0].shape:
    return _loop(ctx, predicate, after, carry, ctx.avals_out)

  def step(active: tf.Tensor, *carry: tf.Tensor) -> Tensors:
    return [select_lanes(active, new, old) for new, old in zip(after(*carry), carry, strict=True)]

  if test.effects:  # as often as in JAX, which evaluates the predicate in the body too
    return _loop(
      ctx,
      lambda *c: tf.reduce_any(predicate(*c)),
      lambda *c: step(predicate(*c), *c),
      carry,
      ctx.avals_out,
    )

  def step_and_test(active: tf.Tensor, *carry: tf.Tensor) -> Tensors:
    new = step(active, *carry)
    return [predicate(*new), *new]

  avals = [test.out_avals[0], *ctx.avals_out]
  return _loop(
    ctx, lambda active, *_: tf.reduce_any(active), step_and_test, [predicate(*carry), *carry], avals
  )[1:]


def _loop(
  ctx: RuleContext,
  predicate: Callable[..., tf.Tensor],
  body: Callable[..., Tensors],
  carry: Sequence[tf.Tensor],
  avals: Sequence[Any],
) -> Tensors:
  """While, with the carry set to JAX's shapes: an initial value may have a more specific static
  shape than the body keeps."""
  if not carry:
    return []
  shapes = [tf.TensorShape(ctx.dimensions.static_shape(physical(aval)[0])) for aval in avals]
  results = tf.while_loop(
    lambda *c: predicate(*as_before(c, carry)),
    lambda *c: tuple(across(ctx, body(*as_before(c, carry)))),
    tuple(across(ctx, carry)),
    shape_invariants=tuple(shapes),
  )
  return as_before(results, carry)


@lowers(P.scan_p, lacks=NARROW, on_keys=True)
def _scan(
  ctx: RuleContext,
  *operands: tf.Tensor,
  jaxpr: Any,
  length: Any,
  reverse: bool,
  unroll: int,
  num_consts: int | None = None,
  num_carry: int | None = None,
  ft_in: Any = None,
  ft_out: Any = None,
  counters: Sequence[tuple[int, int] | None] = (),
) -> Tensors:
  """(consts, carry, xs f32[n,...]) -> (carry, ys f32[n,...]).

  With `counters`, (first, step) or None for each of the xs, those with numbers are no operands.
  """
  n_consts, n_carry = _jax_compat.scan_split(num_consts, num_carry, ft_in)
  n_outer = n_consts + n_carry
  consts, carry = operands[:n_consts], operands[n_consts:n_outer]
  body = closed(jaxpr)
  rows = body.in_avals[n_outer:]
  xs = _with_counters(operands[n_outer:], counters, rows)
  if xs and not n_carry and _is_scalar(body) and not _has_nested_while(body):
    arrays = [x.numbers(length) if isinstance(x, Counter) else x for x in xs]
    stacks = [jax.ShapeDtypeStruct((length, *aval.shape), aval.dtype) for aval in rows]
    avals = [*ctx.avals_in[:n_consts], *stacks]
    mapped = functools.partial(_mapped, body, n_consts)
    return list(ctx.lower_fun(mapped, *consts, *arrays, avals=avals))

  outside = across(ctx, consts)

  def step_of(carry: Sequence[tf.Tensor], x: Sequence[tf.Tensor]) -> tuple[Tensors, Tensors]:
    results = ctx.lower(body, *as_before(outside, consts), *carry, *x)
    return results[:n_carry], results[n_carry:]

  size = ctx.dim(length)
  unroll_factor = _unroll_factor(body, size, int(unroll)) if isinstance(size, int) else 1
  if isinstance(size, int) and size <= unroll_factor:
    return [*itertools.chain(*_unrolled(ctx, step_of, size, reverse, carry, xs))]
  return _scan_loop(ctx, step_of, size, unroll_factor, reverse, carry, xs, body.out_avals[n_carry:])


def _with_counters(
  arrays: Sequence[tf.Tensor], counters: Sequence[tuple[int, int] | None], rows: Sequence[Any]
) -> list[Xs]:
  """The xs whose rows have these avals: arrays, and counters where there are numbers."""
  if not counters:
    return list(arrays)
  rest = iter(arrays)
  return [
    next(rest) if numbers is None else Counter(*numbers, tf_dtype(aval.dtype))
    for numbers, aval in zip(counters, rows, strict=True)
  ]


def _is_scalar(jaxpr: Any) -> bool:
  """Whether a jaxpr and those inside it have scalars only: then all steps of a map cost little more
  than one, and no more memory."""
  # vmap makes a scan of a sequential one, and so on
  if any(eqn.primitive is _jax_compat.pure_callback_p for eqn in jaxpr.eqns):
    return False
  avals: list[Any] = [
    x.aval
    for x in (*jaxpr.invars, *jaxpr.constvars, *(y for eqn in jaxpr.eqns for y in eqn.outvars))
  ]
  inner = (j for eqn in jaxpr.eqns for j in inner_jaxprs(eqn))
  return (
    not jaxpr.effects
    and all(a.shape == () and isinstance(a.dtype, np.dtype) for a in avals)
    and all(map(_is_scalar, inner))
  )


def _has_nested_while(jaxpr: Any) -> bool:
  """Whether a while loop is in a branch or another while loop: vmap runs it for all elements, and
  may never end for those not meant."""
  outer = (eqn for eqn in walk(jaxpr) if eqn.primitive in (P.cond_p, P.while_p))
  return any(contains(inner, (P.while_p,)) for eqn in outer for inner in inner_jaxprs(eqn))


def _mapped(body: ClosedJaxpr, n_consts: int, *operands: Any) -> Any:
  """A scan without carry, as where JAX differentiates random.gamma on CPU: a loop would run one
  scalar op after the other."""
  return jax.vmap(jaxpr_as_fun(body), [None] * n_consts + [0] * (len(operands) - n_consts))(
    *operands
  )


# The equations that an iteration of a loop has at most, where it makes several steps; and those
# that become many ops each.
_MAX_EQUATIONS_PER_ITERATION = 40
_LARGE = LOOPS | HASHES | {P.random_gamma_p}

Step = Callable[[Sequence[tf.Tensor], Sequence[tf.Tensor]], tuple[Tensors, Tensors]]


def _unrolled(
  ctx: RuleContext,
  step: Step,
  size: int,
  reverse: bool,
  carry: Sequence[tf.Tensor],
  xs: Sequence[Xs],
) -> tuple[Sequence[tf.Tensor], Tensors]:
  """The steps one after another, without a loop; also the scan over nothing."""
  rows, columns = [], [_column(ctx, x, size) for x in xs]
  for i in reversed(range(size)) if reverse else range(size):
    carry, ys = step(carry, [x[i] for x in columns])
    rows.append(ys)
  if reverse:
    rows.reverse()
  if rows:
    return carry, [stacked(column) for column in zip(*rows, strict=True)]
  empty = [physical(aval) for aval in ctx.avals_out[len(carry) :]]
  return carry, [tf.zeros(ctx.shape(shape), dtype) for shape, dtype in empty]


def _column(ctx: RuleContext, x: Xs, size: int) -> Sequence[tf.Tensor]:
  """f32[size,...] -> its rows."""
  if isinstance(x, Counter):
    return x.constants(size)
  return unstacked(ctx, x, size) if size else []


def _unroll_factor(body: ClosedJaxpr, size: int, unroll: int) -> int:
  """How many steps one iteration of the loop makes: TensorFlow's own work for an iteration, some 20
  nodes, is more than that of a few equations."""
  eqns = [eqn.primitive for eqn in walk(body)]
  if unroll > 1:
    most = unroll
  elif _LARGE.intersection(eqns):
    most = 1
  else:
    most = _MAX_EQUATIONS_PER_ITERATION // max(1, len(eqns))
  if size <= max(1, most):
    return size
  return max((n for n in range(4, min(most, size // 2) + 1) if size % n == 0), default=1)


def _scan_loop(
  ctx: RuleContext,
  step: Step,
  size: int | tf.Tensor,
  unroll_factor: int,
  reverse: bool,
  first: Sequence[tf.Tensor],
  xs: Sequence[Xs],
  row_avals: Sequence[Any],
) -> Tensors:
  """A While with a counter; rows, or blocks of those of one iteration, are read from and written to
  TensorArrays."""
  iterations = size if unroll_factor == 1 else size // unroll_factor
  block = [] if unroll_factor == 1 else [unroll_factor]
  inputs = [_rows(ctx, x, iterations, block) for x in xs]
  rows = [physical(aval) for aval in row_avals]
  outputs = [
    tf.TensorArray(
      carrier_of(ctx, dtype),
      iterations,
      element_shape=[*block, *ctx.dimensions.static_shape(shape)],
    )
    for shape, dtype in rows
  ]
  is_reversed = reverse and _is_reversed_at_last(len(block) + len(shape) for shape, _ in rows)

  def body(i: tf.Tensor, carry: Sequence[tf.Tensor], outputs: Sequence[tf.TensorArray]) -> Any:
    row = iterations - 1 - i if reverse else i
    x = [read(row) for read in inputs]
    old = as_before(carry, first)
    new, ys = _unrolled(ctx, step, unroll_factor, reverse, old, x) if block else step(old, x)
    return (
      i + 1,
      tuple(across(ctx, new)),
      tuple(
        o.write(i if is_reversed else row, converted(y, o.dtype))
        for o, y in zip(outputs, ys, strict=True)
      ),
    )

  shapes = [
    tf.TensorShape(ctx.dimensions.static_shape(physical(aval)[0]))
    for aval in ctx.avals_out[: len(first)]
  ]
  _, last, outputs = tf.while_loop(
    lambda i, *_: i < iterations,
    body,
    (tf.constant(0), tuple(across(ctx, first)), tuple(outputs)),
    shape_invariants=(
      tf.TensorShape([]),
      tuple(shapes),
      tuple(tf.TensorShape(None) for _ in outputs),
    ),
  )
  stacks = [
    _stacked(ctx, o, iterations, [*block, *shape])
    for o, (shape, _) in zip(outputs, rows, strict=True)
  ]
  if is_reversed:
    stacks = [tf.reverse(y, [0]) for y in stacks]
  stacks = [converted(y, dtype) for y, (_, dtype) in zip(stacks, rows, strict=True)]
  if block:
    stacks = [ctx.reshape(y, [size, *shape]) for y, (shape, _) in zip(stacks, rows, strict=True)]
  for y, o in zip(stacks, outputs, strict=True):
    ctx.graph.stacks.add(y, StackedRows(o.flow, block, is_reversed))
  return [*as_before(last, first), *stacks]


def _is_reversed_at_last(ranks: Iterable[int]) -> bool:
  """Whether the rows of a reversed scan are written in the order of the iterations, and reversed at
  last.

  ONNX's Loop has no other order, and tf2onnx 1.17 takes any for that. XLA writes them where they
  belong: there the reversal takes time, at worst 1.4 times that of a loop that only copies. TF 2.21
  reverses tensors of at most 8 dimensions.
  """
  return all(rank < 8 for rank in ranks) and not _tf_compat.is_compiled_by_xla()


def _stacked(
  ctx: RuleContext, array: tf.TensorArray, iterations: int | tf.Tensor, shape: Sequence[Any]
) -> tf.Tensor:
  """The rows of these dimensions as one tensor f32[n,...]."""
  if isinstance(iterations, int) or None not in ctx.dimensions.static_shape(shape):
    return array.stack()
  # Of no rows, the list does not know the sizes.
  return tf.raw_ops.TensorListStack(
    input_handle=array.flow,
    element_shape=ctx.shape(shape),
    element_dtype=array.dtype,
    num_elements=-1,
  )


def _rows(
  ctx: RuleContext, x: Xs, iterations: int | tf.Tensor, block: list[int]
) -> Callable[[tf.Tensor], tf.Tensor]:
  """f32[n,...] -> its rows, or blocks of rows, by number.

  Counters are computed from this number. What a loop of this graph has stacked in the same blocks,
  as residuals, is read from its list.
  """
  if isinstance(x, Counter):
    return functools.partial(x.block, sizes=block)
  rows = ctx.graph.stacks.of(x)
  if rows is None or rows.block != block:
    x = tf.reshape(x, tf.concat([[iterations, *block], tf.shape(x)[1:]], 0)) if block else x
    array = tf.TensorArray(carrier_of(ctx, x.dtype), iterations)
    array = array.unstack(converted(x, array.dtype))
    return lambda i: converted(array.read(i), x.dtype)
  shape = [*block, *(-1 if n is None else n for n in x.shape.as_list()[1:])]

  def read(i: tf.Tensor) -> tf.Tensor:
    index = iterations - 1 - i if rows.is_reversed else i
    row = tf.raw_ops.TensorListGetItem(
      input_handle=rows.handle,
      index=index,
      element_shape=shape,
      element_dtype=carrier_of(ctx, x.dtype),
    )
    return converted(row, x.dtype)

  return read
