"""What JAX keeps to itself of Pallas kernels: how their refs are discharged, and how a grid is
described. Import it when a jaxpr has a kernel, since it imports all of Pallas."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from typing import Any

from jax import tree_util
from jax._src import core as _core
from jax._src.interpreters import partial_eval as _partial_eval
from jax._src.pallas import core as _pallas
from jax._src.pallas import hlo_interpreter as _hlo_interpreter
from jax._src.state import discharge as _discharge
from jax._src.state.types import AccumEffect as _AccumEffect
from jax._src.state.types import WriteEffect as _WriteEffect
from jax.extend.core import Primitive
from jax.ref import AbstractRef

from jax2tf._jax_compat import Eqn, closed

# JAX 0.12: an array knows the memory that it is in, which a graph has no use for.
_PARAMETERS = inspect.signature(_discharge.discharge_state).parameters
_PLAIN_MEMORY = {"strip_memory_space": True} if "strip_memory_space" in _PARAMETERS else {}

# Semaphores are numbers of this dtype; those without a value yet are 0.
SEMAPHORE_DTYPE = _pallas.SEMAPHORE_INTERPRET_DTYPE


def without_refs(jaxpr: Any, mapping: Any) -> tuple[Any, Sequence[Any]]:
  """(a kernel on values, the avals of its scratch): operands in the order of the refs -> their
  final values. Semaphores become integers."""
  discharged, consts, scratch = _hlo_interpreter.kernel_to_hlo_jaxpr(jaxpr, (), mapping)
  return closed(discharged, consts), [getattr(aval, "inner_aval", aval) for aval in scratch]


def index_map(block: Any) -> Any:
  """The index map of a block mapping, as a closed jaxpr on values.

  (indices of the grid, prefetched scalars) -> (leaves of the block's indices, the scalars).
  """
  return _discharge.discharge_state(block.index_map_jaxpr, **_PLAIN_MEMORY)


def run_scoped(jaxpr: Any, names: Sequence[Any], bounds: Sequence[Any]) -> Any:
  """The body of a `run_scoped` as a closed jaxpr on values: (values from outside, scoped ones) ->
  (results, final values of all).

  Args:
    jaxpr: the body.
    names: of the dimensions of the kernel's grid; empty if they have none.
    bounds: of these dimensions.
  """
  body = _partial_eval.convert_constvars_jaxpr(getattr(jaxpr, "jaxpr", jaxpr))
  grid = (_pallas.dynamic_grid_dim,) * len(bounds)
  named = zip(names, bounds, strict=False)
  with _pallas.tracing_grid_env(grid, ()), _core.extend_axis_env_nd(named):
    return _discharge.discharge_state(closed(body), **_PLAIN_MEMORY)


def written(jaxpr: Any) -> Sequence[bool]:
  """Whether a kernel declares to write each of its refs."""
  effects = [e for e in jaxpr.effects if isinstance(e, _WriteEffect | _AccumEffect)]
  return [any(e.input is v for e in effects) for v in jaxpr.invars]


def takes_refs(eqn: Eqn) -> bool:
  """Whether an operand of an equation is a mutable array."""
  return any(isinstance(v.aval, AbstractRef) for v in eqn.invars)


def is_remote(eqn: Eqn) -> bool:
  """Whether an equation of a kernel copies to another device, or signals it."""
  name = eqn.primitive.name
  if name == "dma_start":
    return eqn.params["tree"].unflatten(eqn.invars)[4] is not None
  if name == "semaphore_signal":
    return eqn.params["args_tree"].unflatten(eqn.invars)[3] is not None
  return name == "get_barrier_semaphore"


def is_of_mosaic_gpu(primitive: Primitive) -> bool:
  """Whether a primitive is an instruction of Mosaic GPU."""
  modules = [m for name, m in list(sys.modules.items()) if name.startswith(_MOSAIC_GPU)]
  return any(value is primitive for module in modules for value in list(vars(module).values()))


_MOSAIC_GPU = "jax._src.pallas.mosaic_gpu.primitives"


def is_dynamic(bound: Any) -> bool:
  """Whether a bound of a grid is an operand of the call."""
  return bound is _pallas.dynamic_grid_dim


def mapping_of_mesh(eqn: Eqn) -> Any:
  """The grid of a `pl.kernel`: a step for each core of its mesh, of which each sees all arrays."""
  [kernel], [mesh] = eqn.params["jaxprs"], eqn.params["meshes"]
  n_in, n_out = len(eqn.invars), len(eqn.outvars)
  refs = [v.aval for v in kernel.invars]
  arrays = [getattr(aval, "inner_aval", aval) for aval in refs[: n_in + n_out]]
  scratch = [_pallas.MemoryRef(aval.inner_aval, aval.memory_space) for aval in refs[n_in + n_out :]]
  whole = _pallas.BlockSpec(memory_space=mesh.default_memory_space)
  spec = _pallas.GridSpec(
    grid=tuple(mesh.shape.items()),
    in_specs=(whole,) * n_in,
    out_specs=(whole,) * n_out,
    scratch_shapes=tuple(scratch),
  )
  ins, outs = tuple(arrays[:n_in]), tuple(arrays[n_in:])
  _, mapping = _pallas.get_grid_mapping(
    spec,
    ins,
    tree_util.tree_structure(ins),
    [f"arg{i}" for i in range(n_in)],
    outs,
    tree_util.tree_structure(outs),
    [f"out{i}" for i in range(n_out)],
  )
  return mapping
