"""What the call of a Pallas kernel says: its grid, its blocks, and what it computes."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jax2tf._jax_compat import pallas
from jax2tf.errors import InexpressibleError
from jax2tf.expansions.blocks import Block
from jax2tf.expansions.bodies import forwarded
from jax2tf.jaxprs import Eqn, contains, opened
from jax2tf.traits import EFFECTFUL


@dataclass(frozen=True, eq=False)
class Kernel:
  """A kernel without refs.

  Attributes:
    bounds: of the grid: numbers, symbolic sizes, and None for an operand whose size is not known.
    is_dynamic: whether each bound is an operand.
    names: of the dimensions of the grid; empty if they have none.
    vmapped: dimensions of the grid that `jax.vmap` added, which the kernel does not see.
    parallel: other dimensions of the grid whose steps the user declares to be independent; None if
      nothing is declared.
    body: (scalars, blocks of operands, blocks of results, scratch) -> their final values.
    n_scalars: how many operands are prefetched scalars.
    operands: the other ones.
    results: of the call.
    scratch: avals.
    aliases: {position among the operands: the result that has its memory}.
    writes: whether the kernel declares to write each operand of its body.
    has_effects: whether it prints or calls back.
  """

  bounds: tuple[Any, ...]
  is_dynamic: tuple[bool, ...]
  names: tuple[Any, ...]
  vmapped: frozenset[int]
  parallel: frozenset[int] | None
  body: Any
  n_scalars: int
  operands: tuple[Block, ...]
  results: tuple[Block, ...]
  scratch: tuple[Any, ...]
  aliases: Mapping[int, int]
  writes: Sequence[bool]
  has_effects: bool

  @property
  def blocks(self) -> tuple[Block, ...]:
    """Of operands and results."""
    return (*self.operands, *self.results)

  @functools.cached_property
  def _changes(self) -> Sequence[bool]:
    """Whether the kernel may change each operand of its body."""
    return [origin != i for i, origin in enumerate(forwarded(opened(self.body)))]

  @property
  def changes(self) -> Sequence[bool]:
    """Whether the kernel may change each block."""
    return self._changes[self.n_scalars : self.n_scalars + len(self.blocks)]

  @property
  def changed_scalars(self) -> Sequence[int]:
    """The prefetched scalars that the kernel may change; the next step sees them changed."""
    return [i for i in range(self.n_scalars) if self._changes[i]]


def parameters(eqn: Eqn) -> Mapping[str, Any]:
  """Those of a `pallas_call`, also for a `pl.kernel`.

  Raises:
    InexpressibleError: the kernel is several ones, on several kinds of cores.
  """
  params = eqn.params
  if eqn.primitive.name == "pallas_call":
    return params
  if len(params["jaxprs"]) != 1 or params["external_meshes"]:
    raise InexpressibleError("several kernels run at the same time")
  return {
    **params,
    "grid_mapping": pallas.mapping_of_mesh(eqn),
    "jaxpr": params["jaxprs"][0],
    "input_output_aliases": tuple(params["input_output_aliases"].items()),
  }


def kernel_of(params: Mapping[str, Any], symbolic: Sequence[Any]) -> Kernel:
  """The kernel of a `pallas_call`.

  Args:
    params: of the equation.
    symbolic: for each bound that is an operand its symbolic size, or None.

  Raises:
    Exception: JAX cannot discharge the kernel's refs, or a block has no meaning for arrays.
  """
  mapping, jaxpr = params["grid_mapping"], params["jaxpr"]
  body, scratch = pallas.without_refs(jaxpr, mapping)
  writes = pallas.written(jaxpr)
  n_scalars = mapping.num_index_operands
  blocks = tuple(map(Block.of, mapping.block_mappings))
  for i in range(n_scalars):
    if writes[i] and any(block.reads(len(mapping.grid) + i) for block in blocks):
      raise InexpressibleError("it writes a prefetched scalar by which a block is chosen")
  operands, results = blocks[: mapping.num_inputs], blocks[mapping.num_inputs :]
  sizes = iter(symbolic)
  is_dynamic = tuple(map(pallas.is_dynamic, mapping.grid))
  bounds = [
    next(sizes) if dynamic else bound
    for bound, dynamic in zip(mapping.grid, is_dynamic, strict=True)
  ]
  aliases = {i - n_scalars: result for i, result in params["input_output_aliases"]}
  if any(operand < 0 for operand in aliases):
    raise InexpressibleError("a result has the memory of a prefetched scalar")
  for operand, result in aliases.items():
    if operands[operand].whole_shape != results[result].whole_shape:
      raise InexpressibleError(
        "blocks of an operand and of the result that has its memory end elsewhere"
      )
  return Kernel(
    bounds=tuple(bounds),
    is_dynamic=is_dynamic,
    names=tuple(mapping.grid_names or ()),
    vmapped=frozenset(mapping.vmapped_dims),
    parallel=_declared(params),
    body=body,
    n_scalars=n_scalars,
    operands=operands,
    results=results,
    scratch=tuple(scratch),
    aliases=aliases,
    writes=writes,
    has_effects=contains(body, EFFECTFUL),
  )


def _declared(params: Mapping[str, Any]) -> frozenset[int] | None:
  """The dimensions that `dimension_semantics` declares to be parallel; None without one."""
  semantics = getattr(params["compiler_params"], "dimension_semantics", None)
  mapping = params["grid_mapping"]
  seen = [p for p in range(len(mapping.grid)) if p not in mapping.vmapped_dims]
  if semantics is None or len(semantics) != len(seen):
    return None
  words = [str(getattr(word, "value", word)).lower() for word in semantics]
  return frozenset(p for p, word in zip(seen, words, strict=True) if "parallel" in word)
