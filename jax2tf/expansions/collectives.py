"""Communication between devices, where `jax.vmap` over a named axis stands for each axis of a mesh.

JAX's own batching rules are right over one axis. Tuples of axes, groups of devices and partial
permutations, which they refuse, are made of `lax.all_gather`, `lax.axis_index` and reductions over
single axes here. Every function takes the axes of a mesh that have several devices, the major one
first; without any, a device communicates with itself alone.

`RULES` says for each primitive of JAX which of these it is.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from jax2tf import _jax_compat

Axes = tuple[Any, ...]
# Groups of devices that communicate, each device by its index along the axes; None: all together.
Groups = Sequence[Sequence[int]] | None


@dataclass(frozen=True)
class Scope:
  """The axes that a program maps over.

  Attributes:
    sizes: axis -> number of devices along it, in the order of the mesh.
    device: axis -> index, if one device alone is evaluated.
  """

  sizes: Mapping[Any, int]
  device: Mapping[Any, int] | None = None

  def several(self, names: Any) -> Axes:
    """The axes among names, or the axis of a name, that have several devices.

    Raises:
      ValueError: one device is evaluated alone.
    """
    listed = names if isinstance(names, tuple | list) else (names,)
    axes = tuple(axis for axis in listed if self.sizes[axis] > 1)
    if axes and self.device is not None:
      raise ValueError("it communicates in a branch or a loop that also prints or calls back")
    return axes

  @property
  def split(self) -> Axes:
    """All axes that have several devices, in the order of the mesh."""
    return tuple(axis for axis, size in self.sizes.items() if size > 1)

  def devices(self) -> list[Scope]:
    """A scope for each device alone, in the order of the mesh."""
    indices = itertools.product(*map(range, self.sizes.values()))
    return [Scope(self.sizes, dict(zip(self.sizes, index, strict=True))) for index in indices]

  def in_order(self, axes: Axes) -> Axes:
    """The axes in the order of the mesh."""
    return tuple(axis for axis in self.sizes if axis in axes)


def count(axes: Axes) -> int:
  """The number of devices along axes."""
  return math.prod(lax.axis_size(axis) for axis in axes)


def axis_index(axes: Axes) -> Any:
  """i32[]: the index of a device along axes."""
  index = jnp.int32(0)
  for axis in axes:
    index = index * lax.axis_size(axis) + lax.axis_index(axis)
  return index


def stacked(x: Any, axes: Axes, dimension: int = 0) -> Any:
  """The values of all devices along axes, in a new dimension; the same on each of these."""
  shape = list(x.shape)
  if not axes:
    return lax.expand_dims(x, (dimension,))
  for axis in reversed(axes):
    x = lax.all_gather(x, axis, axis=dimension)
  return lax.reshape(x, (*shape[:dimension], count(axes), *shape[dimension:]))


@dataclass(frozen=True)
class Reduction:
  """What `psum`, `pmax` and `pmin` do.

  Attributes:
    over_axis: reduces over one axis of a mesh.
    over_dimensions: reduces over dimensions of an array.
    neutral: dtype -> the number that changes no result.
  """

  over_axis: Callable[[Any, Any], Any]
  over_dimensions: Callable[[Any, Sequence[int]], Any]
  neutral: Callable[[Any], Any]


def _least(dtype: Any) -> Any:
  if dtype == np.bool_:
    return False
  return -np.inf if jnp.issubdtype(dtype, jnp.inexact) else jnp.iinfo(dtype).min


def _greatest(dtype: Any) -> Any:
  if dtype == np.bool_:
    return True
  return np.inf if jnp.issubdtype(dtype, jnp.inexact) else jnp.iinfo(dtype).max


SUM = Reduction(lax.psum, lax.reduce_sum, lambda dtype: 0)
MAX = Reduction(lax.pmax, lax.reduce_max, _least)
MIN = Reduction(lax.pmin, lax.reduce_min, _greatest)


def all_reduce(x: Any, axes: Axes, groups: Groups, by: Reduction) -> Any:
  """The reduction of the values of all devices, or of those in the group of each."""
  if groups is None:
    for axis in axes:
      x = by.over_axis(x, axis)
    return x
  values, is_member = _of_group(x, axes, groups)
  if is_member is not None:
    mask = lax.expand_dims(is_member, range(1, values.ndim))
    values = jnp.where(mask, values, jnp.asarray(by.neutral(x.dtype), x.dtype))
  return by.over_dimensions(values, [0])


def _of_group(x: Any, axes: Axes, groups: Groups) -> tuple[Any, Any]:
  """(the values of the devices in the group of each device, in a new first dimension; which of them
  count, None for all: smaller groups are filled up)."""
  values = stacked(x, axes)
  if groups is None:
    return values, None
  largest = max(map(len, groups))
  members = np.full((count(axes), largest), -1, np.int32)
  for group in groups:
    members[list(group), : len(group)] = group
  mine = jnp.asarray(members)[axis_index(axes)]
  return values[jnp.maximum(mine, 0)], None if (members >= 0).all() else mine >= 0


def _index_in_group(axes: Axes, groups: Groups) -> Any:
  """i32[]: the index of a device in its group."""
  if groups is None:
    return axis_index(axes)
  indices = np.zeros(count(axes), np.int32)
  for group in groups:
    indices[list(group)] = range(len(group))
  return jnp.asarray(indices)[axis_index(axes)]


def all_gather(x: Any, axes: Axes, groups: Groups, *, dimension: int, tiled: bool) -> Any:
  """x[..., s, ...] of each device -> [..., n, s, ...], or [..., n * s, ...] if tiled."""
  if groups is None:
    y = stacked(x, axes, dimension)
  else:
    y = jnp.moveaxis(_of_group(x, axes, groups)[0], 0, dimension)
  return lax.collapse(y, dimension, dimension + 2) if tiled else y


def reduce_scatter(x: Any, axes: Axes, groups: Groups, *, dimension: int, tiled: bool) -> Any:
  """x[..., n * s, ...] of each device -> the sum of all, of which device i has [..., s, ...] from
  i * s on; or x[..., n, ...] -> [..., ...] if not tiled."""
  if not axes:
    return x if tiled else lax.squeeze(x, (dimension,))
  if groups is None and len(axes) == 1:
    return lax.psum_scatter(x, axes[0], scatter_dimension=dimension, tiled=tiled)
  total = all_reduce(x, axes, groups, SUM)
  devices = len(groups[0]) if groups else count(axes)
  size = total.shape[dimension] // devices
  start = _index_in_group(axes, groups) * size
  piece = lax.dynamic_slice_in_dim(total, start, size, dimension)
  return piece if tiled else lax.squeeze(piece, (dimension,))


def all_to_all(x: Any, axes: Axes, groups: Groups, *, split: int, concat: int) -> Any:
  """x[..., n * s, ...] of each device -> the s that the n devices have for this one, one after
  another in dimension `concat`."""
  if not axes:
    return x
  if groups is None and len(axes) == 1:
    return lax.all_to_all(x, axes[0], split, concat, tiled=True)
  values, _ = _of_group(x, axes, groups)
  size = x.shape[split] // values.shape[0]
  start = _index_in_group(axes, groups) * size
  mine = lax.dynamic_slice_in_dim(values, start, size, split + 1)
  return lax.collapse(jnp.moveaxis(mine, 0, concat), concat, concat + 2)


def permute(x: Any, axes: Axes, pairs: Sequence[tuple[int, int]]) -> Any:
  """What the device that sends to this one has; zeros where none sends.

  Args:
    pairs: (source, destination), as indices along the axes.
  """
  if not axes:
    return x if pairs else jnp.zeros_like(x)
  devices = count(axes)
  sources = {destination % devices: source % devices for source, destination in pairs}
  if not len(pairs) == len(sources) == len({*sources.values()}):
    raise ValueError(f"perm = {tuple(pairs)} has a source or a destination twice")
  idle = [device for device in range(devices) if device not in sources.values()]
  # A permutation of all devices costs one gather.
  whole = sources | dict(zip([d for d in range(devices) if d not in sources], idle, strict=True))
  if len(axes) == 1:
    received = lax.ppermute(x, axes[0], [(source, d) for d, source in whole.items()])
  else:
    table = jnp.asarray([whole[d] for d in range(devices)], jnp.int32)
    received = broadcast(x, axes, table[axis_index(axes)])
  if not idle:
    return received
  receives = jnp.asarray([d in sources for d in range(devices)])[axis_index(axes)]
  return jnp.where(receives, received, jnp.zeros_like(received))


def broadcast(x: Any, axes: Axes, source: Any) -> Any:
  """What the device of an index along axes has."""
  if not axes:
    return x
  return lax.dynamic_index_in_dim(stacked(x, axes), source, 0, keepdims=False)


def ragged_all_to_all(
  operand: Any,
  output: Any,
  input_offsets: Any,
  send_sizes: Any,
  output_offsets: Any,
  recv_sizes: Any,
  *,
  axes: Axes,
) -> Any:
  """Rows of `operand` of each device, into rows of `output` of others.

  Sender s has `send_sizes[r]` rows from `input_offsets[r]` on for receiver r, which has them from
  `output_offsets[r]` of the sender on. `recv_sizes` follows from these.
  """
  me = axis_index(axes)
  sent = stacked(operand, axes)
  rows = lax.iota(np.int32, output.shape[0])
  starts, sizes, places = (
    stacked(table, axes)[:, me] for table in (input_offsets, send_sizes, output_offsets)
  )
  last = operand.shape[0] - 1
  for sender in range(sent.shape[0]):
    offset = rows - places[sender]
    comes = (offset >= 0) & (offset < sizes[sender])
    taken = sent[sender][jnp.clip(offset + starts[sender], 0, last)]
    output = jnp.where(lax.expand_dims(comes, range(1, output.ndim)), taken, output)
  return output


# The scope, the operands and the params of an equation -> its results.
CollectiveRule = Callable[..., list[Any]]


def _reduced(by: Reduction) -> CollectiveRule:
  def rule(scope: Scope, *operands: Any, axes: Any, axis_index_groups: Groups = None) -> list[Any]:
    # `jax.vmap` inside of the program has replaced names of its own by dimensions.
    dimensions = [axis for axis in axes if isinstance(axis, int)]
    named = scope.several([axis for axis in axes if not isinstance(axis, int)])
    results = []
    for x in operands:
      partial = by.over_dimensions(x, dimensions) if dimensions else x
      results.append(all_reduce(partial, named, axis_index_groups, by))
    return results

  return rule


def _along(collective: Callable[..., Any], param: str) -> CollectiveRule:
  """The rule of a collective along a dimension, which is a param of this name."""

  def rule(
    scope: Scope,
    x: Any,
    *,
    axis_name: Any,
    axis_size: int,
    tiled: bool,
    axis_index_groups: Groups = None,
    **params: int,
  ) -> list[Any]:
    axes, dimension = scope.several(axis_name), params.pop(param)
    return [collective(x, axes, axis_index_groups, dimension=dimension, tiled=tiled, **params)]

  return rule


def _exchanged(
  scope: Scope,
  x: Any,
  *,
  split_axis: int,
  concat_axis: int,
  axis_name: Any,
  axis_index_groups: Groups = None,
  tiled: bool = False,
) -> list[Any]:
  # `lax.all_to_all` adds and removes a dimension around the tiled form.
  axes = scope.several(axis_name)
  return [all_to_all(x, axes, axis_index_groups, split=split_axis, concat=concat_axis)]


def _ragged(
  scope: Scope, *operands: Any, axis_name: Any, axis_index_groups: Groups = None
) -> list[Any]:
  if axis_index_groups is not None:
    raise ValueError("ragged_all_to_all with axis_index_groups is not supported")
  return [ragged_all_to_all(*operands, axes=scope.several(axis_name))]


def _permuted(scope: Scope, x: Any, *, axis_name: Any, perm: Any) -> list[Any]:
  axes = scope.several(axis_name)
  ordered = scope.in_order(axes)
  if axes != ordered and not _jax_compat.PERMUTES_IN_ORDER_OF_MESH:
    raise ValueError(
      f"the axes {axis_name} are in another order than those of the mesh, {tuple(scope.sizes)}"
    )
  return [permute(x, ordered, perm)]


def _done(scope: Scope, x: Any, **params: Any) -> list[Any]:
  return [x]


def _from_source(scope: Scope, x: Any, *index: Any, axis_name: Any, **params: Any) -> list[Any]:
  [source] = index or [params["source"]]
  return [broadcast(x, scope.several(axis_name), source)]


def _index(scope: Scope, *, axis_name: Any) -> list[Any]:
  if scope.device is not None:
    names = axis_name if isinstance(axis_name, tuple | list) else (axis_name,)
    at, sizes = ([of[axis] for axis in names] for of in (scope.device, scope.sizes))
    return [np.int32(np.ravel_multi_index(at, sizes))]
  return [axis_index(scope.several(axis_name))]


RULES: dict[str, CollectiveRule] = {
  "psum": _reduced(SUM),
  "psum_invariant": _reduced(SUM),
  "unreduced_psum": _reduced(SUM),
  "pmax": _reduced(MAX),
  "unreduced_pmax": _reduced(MAX),
  "pmin": _reduced(MIN),
  "unreduced_pmin": _reduced(MIN),
  "all_gather": _along(all_gather, "all_gather_dimension"),
  "all_gather_invariant": _along(all_gather, "all_gather_dimension"),
  "all_gather_reduced": _along(all_gather, "all_gather_dimension"),
  "reduce_scatter": _along(reduce_scatter, "scatter_dimension"),
  "unreduced_reduce_scatter": _along(reduce_scatter, "scatter_dimension"),
  "all_to_all": _exchanged,
  "ragged_all_to_all": _ragged,
  "ppermute": _permuted,
  "pbroadcast": _from_source,
  "pbroadcast_dynamic": _from_source,
  "axis_index": _index,
}
# A collective that has been started is done.
_ASYNCHRONOUS = (
  "all_gather",
  "all_gather_reduced",
  "all_to_all",
  "pbroadcast",
  "ppermute",
  "psum",
  "psum_invariant",
  "reduce_scatter",
  "unreduced_psum",
  "unreduced_reduce_scatter",
)
for _name in _ASYNCHRONOUS:
  RULES[f"{_name}_start"] = RULES[_name]
  RULES[f"{_name}_done"] = _done
