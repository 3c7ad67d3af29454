"""The grid of a Pallas kernel as a loop over its steps.

The loop carries what the kernel writes, and nothing else. Dimensions of the grid whose steps do not
depend on each other are no part of the loop: `jax.vmap` computes all their steps, the lanes, at the
same time.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax2tf.expansions.blocks import Block, Place, uninitialized
from jax2tf.expansions.bodies import Step, evaluate
from jax2tf.expansions.calls import Kernel
from jax2tf.jaxprs import opened

Lanes = Callable[..., Sequence[Any]]


def run(kernel: Kernel, *operands: Any) -> list[Any]:
  """The results of a kernel, of the operands of its call: bounds of the grid, prefetched scalars,
  arrays."""
  n_bounds = sum(kernel.is_dynamic)
  dynamic = iter(operands[:n_bounds])
  bounds = list(kernel.bounds)
  for p, is_dynamic in enumerate(kernel.is_dynamic):
    operand = lax.reshape(next(dynamic), ()) if is_dynamic else None
    bounds[p] = operand if bounds[p] is None else bounds[p]
  scalars = operands[n_bounds : n_bounds + kernel.n_scalars]
  arrays = operands[n_bounds + kernel.n_scalars :]
  lanes = lane_dimensions(kernel)
  blocks = list(kernel.blocks)
  for dimensions in lanes.values():
    blocks = [
      block if d is None else block.with_lanes(d)
      for block, d in zip(blocks, dimensions, strict=True)
    ]
  starts = [block.whole(x) for block, x in zip(blocks, _memory(kernel, arrays), strict=True)]
  loop: Lanes = functools.partial(_loop, kernel, blocks, bounds, scalars, list(lanes))
  for p, dimensions in reversed(lanes.items()):
    loop = _over_lanes(loop, p, bounds[p], blocks, dimensions)
  ends = loop({}, *starts)
  return [block.array(end) for block, end in zip(kernel.results, ends[len(arrays) :], strict=True)]


def _memory(kernel: Kernel, arrays: Sequence[Any]) -> list[Any]:
  """The operands, and what is in the memory of the results before the first step."""
  sources = {result: operand for operand, result in kernel.aliases.items()}
  fresh = [
    arrays[sources[i]] if i in sources else uninitialized(block.shape, block.dtype)
    for i, block in enumerate(kernel.results)
  ]
  return [*arrays, *fresh]


def lane_dimensions(kernel: Kernel) -> dict[int, Sequence[int | None]]:
  """{dimension of the grid that needs no order: for each block the dimension of its array that it
  counts the blocks of, or None}.

  Its steps are independent: `jax.vmap` made them, the user declares so, or they share no scratch.
  And each has blocks of its own of all that the kernel writes.
  """
  if kernel.has_effects:
    return {}
  shares_memory = kernel.scratch or kernel.changed_scalars
  independent = kernel.vmapped
  if kernel.parallel is not None:
    independent |= kernel.parallel
  elif not shares_memory:
    independent = frozenset(range(len(kernel.bounds)))
  lanes: dict[int, Sequence[int | None]] = {}
  for p in sorted(independent):
    if kernel.bounds[p] is None or kernel.bounds[p] == 1:
      continue
    dimensions = [_counted(kernel, block, p) for block in kernel.blocks]
    if all(d is not None for d in _of_written(kernel, dimensions)) and _agree(kernel, dimensions):
      lanes[p] = dimensions
  return lanes


def _of_written(kernel: Kernel, dimensions: Sequence[int | None]) -> list[int | None]:
  n = len(kernel.operands)
  return [d for i, d in enumerate(dimensions) if i >= n or i in kernel.aliases or kernel.changes[i]]


def _agree(kernel: Kernel, dimensions: Sequence[int | None]) -> bool:
  """Whether lanes have the same part of an operand and of the result that has its memory."""
  n = len(kernel.operands)

  def part(i: int) -> Any:
    d = dimensions[i]
    return d if d is None else (d, kernel.blocks[i].sizes[d])

  return all(part(i) == part(n + result) for i, result in kernel.aliases.items())


def _counted(kernel: Kernel, block: Block, p: int) -> int | None:
  """The dimension of an array whose block in step i of grid dimension p is block i; None if there
  is none."""
  jaxpr = opened(block.index_map)
  for d, dimension in enumerate(block.dimensions):
    if not dimension.is_counted or block.index(d) is not jaxpr.invars[p]:
      continue
    bound, count = kernel.bounds[p], block.count(d)
    # More steps than blocks would meet the last block again.
    both_known = isinstance(bound, int) and isinstance(count, int)
    if bound <= count if both_known else bound == count:
      return d
  return None


def _over_lanes(
  loop: Lanes, p: int, bound: Any, blocks: Sequence[Block], dimensions: Sequence[int | None]
) -> Lanes:
  """A loop for all steps of dimension p of the grid."""

  def over(indices: Mapping[int, Any], *arrays: Any) -> list[Any]:
    pieces = [
      x if d is None else _split(x, d, bound, block.sizes[d])
      for x, d, block in zip(arrays, dimensions, blocks, strict=True)
    ]
    lane = lax.iota(jnp.int32, bound)
    one = lambda index, *pieces: loop({**indices, p: index}, *pieces)  # noqa: E731
    ends = jax.vmap(one, in_axes=(0, *dimensions), out_axes=list(dimensions))(lane, *pieces)
    return [
      x if d is None else _joined(end, x, d)
      for x, d, end in zip(arrays, dimensions, ends, strict=True)
    ]

  return over


def _split(x: Any, d: int, count: Any, size: Any) -> Any:
  """x[.., n * size, ..] -> [.., count, size, ..]."""
  if not _same(x.shape[d], count * size):
    x = lax.slice_in_dim(x, 0, count * size, axis=d)
  return lax.reshape(x, (*x.shape[:d], count, size, *x.shape[d + 1 :]))


def _joined(pieces: Any, before: Any, d: int) -> Any:
  """pieces[.., count, size, ..] -> [.., n * size, ..], the rest as before."""
  whole = lax.collapse(pieces, d, d + 2)
  if _same(whole.shape[d], before.shape[d]):
    return whole
  rest = lax.slice_in_dim(before, whole.shape[d], before.shape[d], axis=d)
  return lax.concatenate([whole, rest], d)


def _same(size: Any, other: Any) -> bool:
  return bool(size == other)


def _loop(
  kernel: Kernel,
  blocks: Sequence[Block],
  bounds: Sequence[Any],
  scalars: Sequence[Any],
  lanes: Sequence[int],
  indices: Mapping[int, Any],
  *arrays: Any,
) -> list[Any]:
  """The arrays after all steps of one lane."""
  sequential = {p: bound for p, bound in enumerate(bounds) if p not in lanes}
  carried = [i for i in range(len(blocks)) if _is_carried(kernel, i)]
  n_scratch = len(kernel.scratch)

  def step(flat: Any, carry: Sequence[Any]) -> list[Any]:
    there = {**indices, **_unraveled(flat, sequential)}
    position = [there[p] for p in range(len(bounds))]
    whole = _replaced(arrays, carried, carry)
    scratch = carry[len(carried) : len(carried) + n_scratch]
    now = _replaced(scalars, kernel.changed_scalars, carry[len(carried) + n_scratch :])
    places = [block.place(position, scalars) for block in blocks]
    seen = [p for p in range(len(bounds)) if p not in kernel.vmapped]
    names = [kernel.names[p] for p in seen if kernel.names]
    at = Step([position[p] for p in seen], [bounds[p] for p in seen], names)
    parts = [block.read(x, place) for block, x, place in zip(blocks, whole, places, strict=True)]
    results = evaluate(kernel.body, at, *now, *parts, *scratch)
    ends = _written(kernel, blocks, whole, places, results[kernel.n_scalars :])
    return [
      *(ends[i] for i in carried),
      *results[kernel.n_scalars + len(blocks) :],
      *(results[i] for i in kernel.changed_scalars),
    ]

  scratch = [uninitialized(aval.shape, aval.dtype) for aval in kernel.scratch]
  changed = [scalars[i] for i in kernel.changed_scalars]
  start = [*(arrays[i] for i in carried), *scratch, *changed]
  last = _repeated(step, math.prod(sequential.values()), start)
  return _replaced(arrays, carried, last)


def _replaced(values: Sequence[Any], positions: Sequence[int], new: Sequence[Any]) -> list[Any]:
  """The values, with the first of the new ones at these positions."""
  instead = dict(zip(positions, new, strict=False))
  return [instead.get(i, x) for i, x in enumerate(values)]


def _is_carried(kernel: Kernel, i: int) -> bool:
  """Whether steps change an array: a result, or an operand that the kernel writes."""
  n = len(kernel.operands)
  return i >= n or i in kernel.aliases or kernel.changes[i]


def _repeated(
  step: Callable[[Any, Sequence[Any]], list[Any]], n: Any, start: Sequence[Any]
) -> Sequence[Any]:
  """What `step(index, carry)` makes of the carry for each index below n."""
  if isinstance(n, int) and n == 1:
    return step(jnp.int32(0), start)
  if isinstance(n, int):
    body = lambda carry, index: (step(index, carry), None)  # noqa: E731
    return lax.scan(body, list(start), lax.iota(jnp.int32, n))[0]
  return lax.fori_loop(0, jnp.asarray(n, jnp.int32), step, list(start))


def _unraveled(flat: Any, bounds: dict[int, Any]) -> dict[int, Any]:
  """The index of each dimension in step `flat`, of which the last dimension counts fastest."""
  indices: dict[int, Any] = {p: np.int32(0) for p in bounds}
  bounds = {p: bound for p, bound in bounds.items() if not (isinstance(bound, int) and bound == 1)}
  for p in reversed(bounds):
    is_slowest = p == next(iter(bounds))
    bound = np.int32(bounds[p]) if isinstance(bounds[p], int) else jnp.asarray(bounds[p], np.int32)
    indices[p] = flat if is_slowest else lax.rem(flat, bound)
    flat = flat if is_slowest else lax.div(flat, bound)
  return indices


def _written(
  kernel: Kernel,
  blocks: Sequence[Block],
  arrays: Sequence[Any],
  places: Sequence[Place],
  parts: Sequence[Any],
) -> list[Any]:
  """The arrays after one step of the grid, which ends with these blocks."""
  ends = [
    block.write(x, place, part) if changes else x
    for block, x, place, part, changes in zip(
      blocks, arrays, places, parts, kernel.changes, strict=False
    )
  ]
  # An operand and the result that has its memory are one array, of which a kernel writes one; JAX
  # 0.12 has it so, while the operand of JAX 0.10 keeps its first values.
  for operand, result in kernel.aliases.items():
    of_result = len(kernel.operands) + result
    if kernel.writes[kernel.n_scalars + operand]:
      ends[of_result] = ends[operand]
    elif kernel.writes[kernel.n_scalars + of_result]:
      ends[operand] = ends[of_result]
  return ends
