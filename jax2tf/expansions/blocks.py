"""Blocks: what one step of the grid of a Pallas kernel sees of an array.

All functions trace JAX operations on whole arrays. An array is first made whole, so that each block
lies inside it: what is added has no defined value, as memory that nothing has written.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax, tree_util
from jax.experimental import pallas as pl
from jax.extend.core import jaxpr_as_fun

from jax2tf._jax_compat import pallas
from jax2tf.errors import InexpressibleError
from jax2tf.jaxprs import opened


def uninitialized(shape: Sequence[Any], dtype: Any) -> Any:
  """An array that nothing has been written to, as JAX's interpreter of kernels has it: NaN, the
  least integer, False; semaphores are 0."""
  if dtype == pallas.SEMAPHORE_DTYPE or dtype == jnp.bool_:
    value: Any = 0
  elif jnp.issubdtype(dtype, jnp.inexact):
    value = jnp.nan
  else:
    value = jnp.iinfo(dtype).min
  return lax.full(tuple(shape), value, dtype)


@dataclass(frozen=True)
class Dimension:
  """How a dimension of an array is cut into blocks.

  Attributes:
    size: of a block; 1 for a squeezed dimension.
    spec: the dimension of the BlockSpec.
  """

  size: Any
  spec: Any

  @classmethod
  def of(cls, spec: Any) -> Dimension:
    """
    Raises:
      InexpressibleError: a kind of block that has no meaning for arrays.
    """
    if isinstance(spec, pl.Squeezed):
      return cls(1, spec)
    if isinstance(spec, pl.Blocked | pl.Element | pl.BoundedSlice):
      return cls(spec.block_size, spec)
    raise InexpressibleError(f"blocks of the kind {type(spec).__name__} have no rule")

  @property
  def is_squeezed(self) -> bool:
    """Whether the kernel's ref lacks this dimension."""
    return isinstance(self.spec, pl.Squeezed)

  @property
  def padding(self) -> tuple[int, int]:
    """What blocks see before and after the array."""
    return self.spec.padding if isinstance(self.spec, pl.Element) else (0, 0)

  @property
  def is_counted(self) -> bool:
    """Whether an index counts blocks."""
    return isinstance(self.spec, pl.Blocked | pl.Squeezed)

  def start(self, index: Any) -> Any:
    """The first element of the block at an index, which is that of the index map."""
    if isinstance(self.spec, pl.BoundedSlice):
      return index.start
    return index * self.size if isinstance(self.spec, pl.Blocked) else index


@dataclass(frozen=True)
class Place:
  """Where a block lies in a whole array.

  Attributes:
    starts: its first elements, one for each dimension; the number 0 is known while tracing.
    counts: how many elements of a dimension belong to the block, if not all.
  """

  starts: Sequence[Any]
  counts: dict[int, Any]

  @property
  def indices(self) -> list[Any]:
    """The first elements as arrays of one dtype."""
    return [np.int32(start) if isinstance(start, int) else start for start in self.starts]


@dataclass(frozen=True, eq=False)
class Block:
  """An operand or a result of a kernel.

  Attributes:
    shape: of the array.
    dtype: of the array.
    dimensions: one for each dimension of the array.
    index_map: (indices of the grid, prefetched scalars) -> leaves of the block's indices.
    index_tree: of these leaves.
    of_lanes: the dimensions of which a lane of the grid has one block only.
  """

  shape: tuple[Any, ...]
  dtype: Any
  dimensions: tuple[Dimension, ...]
  index_map: Any
  index_tree: Any
  of_lanes: frozenset[int] = frozenset()

  @classmethod
  def of(cls, mapping: Any) -> Block:
    """The block of JAX's block mapping.

    Raises:
      InexpressibleError: a kind of block that has no meaning for arrays.
    """
    if mapping.transforms:
      raise InexpressibleError("a block with another layout (Mosaic GPU) has no meaning for arrays")
    return cls(
      tuple(mapping.array_aval.shape),
      mapping.array_aval.dtype,
      tuple(map(Dimension.of, mapping.block_shape)),
      pallas.index_map(mapping),
      mapping.index_map_out_tree,
    )

  @property
  def sizes(self) -> tuple[Any, ...]:
    """The shape of a block, squeezed dimensions included."""
    return tuple(dimension.size for dimension in self.dimensions)

  @property
  def _squeezed(self) -> list[int]:
    return [d for d, dimension in enumerate(self.dimensions) if dimension.is_squeezed]

  def count(self, d: int) -> Any:
    """The number of blocks in a dimension of the whole array."""
    size = self.shape[d] + sum(self.dimensions[d].padding)
    return pl.cdiv(size, self.dimensions[d].size)

  def index(self, d: int) -> Any:
    """The variable of the index map that is the index in a dimension; a literal if it is fixed."""
    leaves = opened(self.index_map).outvars[: self.index_tree.num_leaves]
    return tree_util.tree_unflatten(self.index_tree, leaves)[d]

  def reads(self, i: int) -> bool:
    """Whether the index map uses its operand i."""
    jaxpr = opened(self.index_map)
    return any(v is jaxpr.invars[i] for eqn in jaxpr.eqns for v in eqn.invars)

  def _room(self, d: int) -> tuple[Any, Any]:
    """How many elements a dimension of the whole array has before and after the array."""
    dimension = self.dimensions[d]
    before, _ = dimension.padding
    if isinstance(dimension.spec, pl.BoundedSlice):  # it may begin anywhere
      return 0, dimension.size
    return before, self.count(d) * dimension.size - self.shape[d] - before

  @property
  def whole_shape(self) -> tuple[Any, ...]:
    """The shape of the array with room for whole blocks."""
    return tuple(size + sum(self._room(d)) for d, size in enumerate(self.shape))

  def whole(self, x: Any) -> Any:
    """The array with room for whole blocks."""
    for d in range(len(self.shape)):
      x = _with_room(x, d, *self._room(d))
    return x

  def array(self, whole: Any) -> Any:
    """The array without the room."""
    for d, size in enumerate(self.shape):
      before, _ = self._room(d)
      if whole.shape[d] != size:
        whole = lax.slice_in_dim(whole, before, before + size, axis=d)
    return whole

  def place(self, indices: Sequence[Any], scalars: Sequence[Any]) -> Place:
    """Where the block of a step lies."""
    leaves = jaxpr_as_fun(self.index_map)(*indices, *scalars)
    leaves = leaves[: self.index_tree.num_leaves]
    by_dimension = tree_util.tree_unflatten(self.index_tree, leaves)
    starts: list[Any] = []
    counts = {}
    for d, (dimension, index) in enumerate(zip(self.dimensions, by_dimension, strict=True)):
      is_only = d in self.of_lanes or self._is_alone(d)
      starts.append(0 if is_only else lax.convert_element_type(dimension.start(index), jnp.int32))
      if isinstance(dimension.spec, pl.BoundedSlice):
        counts[d] = index.size
    return Place(starts, counts)

  def _is_alone(self, d: int) -> bool:
    """Whether all blocks are the same in a dimension: another index is clamped to it."""
    is_bounded = isinstance(self.dimensions[d].spec, pl.BoundedSlice)
    return not is_bounded and isinstance(self.shape[d], int) and self.count(d) == 1

  def read(self, whole: Any, place: Place) -> Any:
    """The block of an array, as the kernel's ref has it."""
    if _is_everything(whole, place, self.sizes):
      block = whole
    else:
      block = lax.dynamic_slice(whole, place.indices, self.sizes)
    for d, count in place.counts.items():
      block = jnp.where(self._belongs(d, count), block, uninitialized((), self.dtype))
    return lax.squeeze(block, self._squeezed)

  def write(self, whole: Any, place: Place, block: Any) -> Any:
    """The array with another block."""
    block = lax.expand_dims(block, self._squeezed)
    if place.counts:
      before = lax.dynamic_slice(whole, place.indices, self.sizes)
      for d, count in place.counts.items():
        block = jnp.where(self._belongs(d, count), block, before)
    if _is_everything(whole, place, self.sizes):
      return block
    return lax.dynamic_update_slice(whole, block, place.indices)

  def _belongs(self, d: int, count: Any) -> Any:
    """bool[1,n,1]: which elements of a dimension belong to a block."""
    ranks = [1] * len(self.sizes)
    ranks[d] = self.sizes[d]
    return lax.broadcasted_iota(jnp.int32, ranks, d) < count

  def with_lanes(self, d: int) -> Block:
    """The block for lanes of the grid, each of which has one block of dimension d."""
    return dataclasses.replace(self, of_lanes=self.of_lanes | {d})


def _is_everything(whole: Any, place: Place, sizes: Sequence[Any]) -> bool:
  starts_are_zero = all(isinstance(start, int) for start in place.starts)
  return starts_are_zero and tuple(whole.shape) == tuple(sizes)


def _with_room(x: Any, d: int, before: Any, after: Any) -> Any:
  """x with undefined elements before and after it in a dimension; the numbers may be symbolic."""
  pieces = [x]
  if not (isinstance(before, int) and before == 0):
    pieces.insert(0, uninitialized((*x.shape[:d], before, *x.shape[d + 1 :]), x.dtype))
  if not (isinstance(after, int) and after == 0):
    pieces.append(uninitialized((*x.shape[:d], after, *x.shape[d + 1 :]), x.dtype))
  return lax.concatenate(pieces, d) if len(pieces) > 1 else x
