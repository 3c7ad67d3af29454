"""All uses of `jax._src`, and all branches on the JAX version; the modules beside this one have
those for one subject each.

The rest of the project is written as if there were only one JAX. Public names of JAX are used
directly, not through this module.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
import jax.version
import numpy as np
from jax._src import callback as _callback
from jax._src import compute_on as _compute_on
from jax._src import config as _config
from jax._src import core as _core
from jax._src import custom_batching as _custom_batching
from jax._src import custom_derivatives as _custom_derivatives
from jax._src import debugging as _debugging
from jax._src import dtypes as _dtypes
from jax._src import effects as _effects
from jax._src import hijax as _hijax
from jax._src import pjit as _pjit
from jax._src import source_info_util as _source_info_util
from jax._src import traceback_util as _traceback_util
from jax._src import tree_util as _tree_util
from jax._src import util as _util
from jax._src import xla_metadata as _xla_metadata
from jax._src import xla_metadata_lib as _xla_metadata_lib
from jax._src.interpreters import pxla as _pxla
from jax._src.lax import lax as _lax
from jax._src.lax import linalg as _linalg
from jax._src.lax.control_flow import conditionals as _conditionals
from jax._src.lax.scaled_dot import _scaled_dot_impl
from jax._src.lax.scaled_dot import scaled_dot_p as _scaled_dot_p
from jax._src.random import core as _random
from jax._src.random import philox2x32 as _philox2x32
from jax._src.random import philox4x32 as _philox4x32
from jax._src.random import prng as _prng
from jax._src.random import threefry4x32 as _threefry4x32
from jax._src.state import discharge as _discharge
from jax._src.state import primitives as _state_primitives
from jax._src.state.types import ReadEffect as _ReadEffect
from jax.core import Tracer
from jax.extend.core import ClosedJaxpr as ClosedJaxpr  # type: ignore[attr-defined]
from jax.extend.core import Effect, Effects, Jaxpr, Primitive
from jax.extend.core import primitives as _primitives
from jax.interpreters import mlir as _mlir
from jax.ref import AbstractRef
from jax.sharding import NamedSharding, PartitionSpec, Sharding
from jaxlib import _jax as _jaxlib

trace_context = _config.trace_context
is_user_file = _source_info_util.is_user_filename
leave_out_frames = _traceback_util.register_exclusion  # of a folder, in what a debugger shows
# Caches for facts about a jaxpr, which holds the arrays that its function closes over. The first is
# keyed by its first argument, the second by all arguments, including jaxprs in tuples. Neither
# keeps a jaxpr alive, so no value may refer to its own key.
weakly_cached = functools.partial(_util.weakref_lru_cache, trace_context_in_key=False)
weakly_cached_by_all = _util.multi_weakref_lru_cache

# JAX 0.12: digamma(0) is the limit from the right; 0.10: NaN, as at the other poles.
DIGAMMA_OF_ZERO = -math.inf if jax.version.__version_info__ >= (0, 12) else math.nan
# igamma(inf, x) and igammac(inf, x), of a finite x from 1 on, and of an infinite one.
if jax.version.__version_info__ >= (0, 12):
  IGAMMA_OF_INFINITY, IGAMMAC_OF_INFINITY = (0.0, math.nan), (1.0, math.nan)
else:
  IGAMMA_OF_INFINITY, IGAMMAC_OF_INFINITY = (math.nan, 1.0), (math.nan, 0.0)


class Eqn(Protocol):
  """An equation, as JAX's JaxprEqn is one.

  JAX types the aval of a variable as an AbstractValue, which has neither shape nor dtype. Ours are
  ShapedArrays but for refs and tokens, so variables and literals are not typed here.
  """

  primitive: Primitive
  invars: list[Any]
  outvars: list[Any]
  params: dict[str, Any]
  effects: Effects
  source_info: Any
  ctx: Any

  def replace(
    self,
    *,
    invars: list[Any] | None = None,
    outvars: list[Any] | None = None,
    primitive: Primitive | None = None,
    params: dict[str, Any] | None = None,
    effects: Effects | None = None,
    source_info: Any = None,
    ctx: Any = None,
  ) -> Eqn:
    """The equation with other parts."""


def optional_primitive(name: str, *modules: Any) -> Primitive | None:
  """The primitive `name` of `jax.extend.core.primitives` or of `modules`; None where this JAX has
  none."""
  return next(
    (p for m in (_primitives, *modules) if (p := getattr(m, name, None)) is not None), None
  )


# Whether `lax.ppermute` counts devices in the order of the mesh, in whatever order it names axes.
# Otherwise it refuses another order.
PERMUTES_IN_ORDER_OF_MESH = not hasattr(jax.config, "jax_raise_on_ppermute_sort_diff")


def is_of_axes(effect: Any) -> bool:
  """Whether an effect only says that an equation names an axis."""
  return isinstance(effect, _core.NamedAxisEffect)


def named_scopes(eqn: Eqn) -> str:
  """The user's name scopes around an equation, such as `attention/softmax`, without JAX's
  transformations."""
  return "/".join(
    part.name
    for part in eqn.source_info.name_stack.stack
    if isinstance(part, _source_info_util.Scope)
  )


def in_place_of(call: Eqn, eqn: Eqn) -> Eqn:
  """An equation from inside a `jit`, inlined: in the scope of the call, and with its line if it has
  none."""
  inner, outer = eqn.source_info, call.source_info
  scopes = outer.name_stack.extend(call.params["name"]) + inner.name_stack
  line = inner.traceback if _source_info_util.user_frame(inner.traceback) else outer.traceback
  return eqn.replace(source_info=inner.replace(name_stack=scopes, traceback=line))


if ClosedJaxpr is not Jaxpr:

  def closed(jaxpr: Any, consts: Sequence[Any] = ()) -> Any:
    """Closes an inner jaxpr. Depending on the JAX version, primitives hold open or closed
    jaxprs."""
    return jaxpr if isinstance(jaxpr, ClosedJaxpr) else ClosedJaxpr(jaxpr, consts)

  def replaced(jaxpr: Any, **parts: Any) -> Any:
    """A closed jaxpr with other `eqns`, `outvars` ..., and the same constants."""
    return ClosedJaxpr(jaxpr.jaxpr.replace(**parts), jaxpr.consts)

else:  # JAX 0.12: the values of constants, if any, belong to a jaxpr

  def closed(jaxpr: Any, consts: Sequence[Any] = ()) -> Any:
    n = len(consts)
    return (
      jaxpr.replace(constvars=jaxpr.all_invars[:n], invars=jaxpr.all_invars[n:], consts=consts)
      if n
      else jaxpr
    )

  def replaced(jaxpr: Any, **parts: Any) -> Any:
    return jaxpr.replace(**parts)


def without_refs(jaxpr: Any) -> Any:
  """A closed jaxpr with its own mutable arrays discharged. One that takes or closes over a mutable
  array is unchanged."""
  if any(isinstance(v.aval, AbstractRef) for v in (*jaxpr.invars, *jaxpr.constvars)):
    return jaxpr
  return _discharge.discharge_state(jaxpr)


NEW_REFS = (_core.ref_p, _core.empty_ref_p)
freeze_p = _core.freeze_p


def is_ref(x: Any) -> bool:
  """Whether a traced value is a mutable array."""
  return isinstance(jax.typeof(x), AbstractRef)


def only_reads(eqn: Eqn, ref: Any) -> bool:
  """Whether an equation declares a read of this mutable array, and no other effect on it."""
  effects = [e for e in eqn.effects if isinstance(e, _effects.JaxprInputEffect) and e.input is ref]
  return bool(effects) and all(isinstance(e, _ReadEffect) for e in effects)


def physical_aval(aval: Any) -> Any:
  """key<fry>[3] -> u32[3,2]; every other aval is its own physical one."""
  return _core.physical_aval(aval)


def key_implementation(dtype: Any) -> Any:
  """The implementation of the dtype of typed PRNG keys, as JAX's functions of raw keys take it."""
  return dtype._impl


def lowered_function(primitive: Primitive) -> Callable[..., Any] | None:
  """The JAX function from which `mlir.lower_fun` made the lowering of a primitive; None for other
  lowerings, or none."""
  tables = (_mlir._lowerings, _mlir._platform_specific_lowerings["cpu"])
  rule = next((table[primitive].rule for table in tables if primitive in table), None)
  # All of its closures share one code object, and it closes over its arguments only.
  if rule is None or getattr(rule, "__code__", None) is not _LOWER_FUN:
    return None
  return inspect.getclosurevars(rule).nonlocals["fun"]


_LOWER_FUN = _mlir.lower_fun(lambda: ()).__code__


def prefix_error(prefix: Any, tree: Any, is_leaf: Callable[[Any], bool], name: str) -> str:
  """JAX's words, in one line, for a pytree that is not a prefix of another one."""
  first, *_ = _tree_util.prefix_errors(prefix, tree, is_leaf)
  return " ".join(str(first(name)).split())


def check_leaked_tracers(traced: Any) -> None:
  """Raises JAX's UnexpectedTracerError for a `jax.stages.Traced` that closes over a tracer of an
  earlier trace."""
  for const in traced._consts:
    if isinstance(const, Tracer):
      raise _core.escaped_tracer_error(const)


_replaced_hook = _config.default_device._update_thread_local_hook
_on_default_device: list[Callable[[Any], None]] = []


def call_on_default_device(function: Callable[[Any], None]) -> None:
  """Has `function(device)` called whenever a `jax.default_device` begins or ends in this thread."""
  _on_default_device.append(function)


def _default_device_changed(device: Any) -> None:
  if _replaced_hook is not None:
    _replaced_hook(device)
  for function in _on_default_device:
    function(device)


# tests/conversion/test_patches.py guards it.
_config.default_device._update_thread_local_hook = _default_device_changed


def set_xla_metadata(name: str, value: str | None) -> None:
  """The equations that this thread traces from now on have the metadata; None removes it."""
  metadata = _config.xla_metadata_context_manager
  updated = _xla_metadata_lib.update_metadata(metadata.get_local(), {name: value})
  metadata.set_local(updated)


def hlo_sharding(sharding: Sharding, rank: int) -> tuple[list[int], list[int], bool] | None:
  """(number of parts of each dimension, the device of each part, whether the last dimension only
  repeats); None if it is replicated."""
  hlo = sharding._to_xla_hlo_sharding(rank)
  if hlo.is_replicated():
    return None
  return (
    list(hlo.tile_assignment_dimensions()),
    list(hlo.tile_assignment_devices()),
    hlo.replicate_on_last_tile_dim(),
  )


def forget_lowering(jaxpr: Any) -> None:
  """Frees a jaxpr that was exported with all its arguments. JAX 0.12: its cache of lowerings holds
  the jaxpr itself."""
  _pxla._dce_jaxpr.evict_weakref(jaxpr)


def with_plain_shardings() -> contextlib.AbstractContextManager[Any]:
  """Shardings as StableHLO custom calls, which are versioned and which every reader supports,
  instead of the Shardy dialect."""
  return _config.use_shardy_partitioner(False)


def inside_trace() -> bool:
  """True inside any JAX transformation or trace."""
  return not _core.trace_state_clean()


hlo_to_stablehlo = _jaxlib.mlir.hlo_to_stablehlo


def call_effect(name: str, *, ordered: bool) -> Any:
  """An effect that control flow, rematerialisation and custom derivatives allow, and that has a
  lowering."""
  members = {
    "__str__": lambda _: name,
    # an exported function is read with effects of its own
    "__eq__": lambda self, other: type(self) is type(other),
    "__hash__": lambda _: hash(name),
  }
  kind = type(name, (Effect,), members)
  allowed = (
    _effects.control_flow_allowed_effects,
    _effects.remat_allowed_effects,
    _effects.custom_derivatives_allowed_effects,
  )
  for allowing in (_mlir.lowerable_effects, *allowed):
    allowing.add_type(kind)
  if ordered:
    _effects.ordered_effects.add_type(kind)
    _effects.shardable_ordered_effects.add_type(kind)
  return kind()


def bind_over_devices(primitive: Primitive, *arrays: Any, **params: Any) -> Any:
  """Binds one of our primitives. Inside jax.shard_map, its operands first vary over the same axes,
  as for JAX's own."""
  return primitive.bind(*_core.auto_insert_reshard(*arrays), **params)


def varying_like(aval: Any, operands: Sequence[Any]) -> Any:
  """The aval of a result, which varies over the axes of a jax.shard_map that its operands vary
  over."""
  first = next((x for x in operands if x.mat.varying), None)
  if first is None:
    return aval
  return aval.update(
    sharding=NamedSharding(first.sharding.mesh, PartitionSpec(*[None] * aval.ndim)),
    manual_axis_type=first.mat,
  )


pure_callback_p = _callback.pure_callback_p


io_callback_p = _callback.io_callback_p


def pure_callback(callback: Any) -> Callable[..., Sequence[Any]]:
  """Arrays -> results, as JAX itself calls the function of an equation."""
  return functools.partial(
    _callback.pure_callback_impl,
    callback=callback,
    result_avals=(),
    sharding=None,
    vmap_method=None,
  )


def io_callback(callback: Any) -> Callable[..., Sequence[Any]]:
  """Arrays -> results, as JAX itself calls the function of an equation."""
  return functools.partial(
    _callback.io_callback_impl, callback=callback, result_avals=(), sharding=None, ordered=False
  )


debug_print_p, debug_callback_p = _debugging.debug_print_p, _debugging.debug_callback_p


def debug(primitive: str, params: dict[str, Any]) -> Callable[..., Any]:
  """Arrays -> None: prints or calls back as JAX does for this equation."""
  impls = {
    "debug_print": _debugging.debug_print_impl,
    "debug_callback": _debugging.debug_callback_impl,
  }
  return functools.partial(impls[primitive], **params)


def callback_function(params: dict[str, Any]) -> Callable[..., Any]:
  """The user's function in a callback equation."""
  callback = params["callback"]
  if inspect.isfunction(callback):  # that of jax.debug.callback closes over it
    return inspect.getclosurevars(callback).nonlocals.get("callback", callback)
  return getattr(callback, "callback_func", callback)


def printed_text(operands: Sequence[Any], params: dict[str, Any]) -> str:
  """The text of `jax.debug.print`, with these values as the operands of the equation."""
  fmt = params["fmt"]

  def text(*args: Any, **kwargs: Any) -> str:
    return (
      fmt.format(*args, **kwargs)
      if params["has_placeholders"]
      else " ".join((fmt, *map(str, args)))
    )

  texts: list[str] = []
  callback = lambda *args, **kwargs: texts.append(text(*args, **kwargs))  # noqa: E731
  _debugging._make_flat_callback(params["in_tree"], callback, params["static_args"])(*operands)
  return texts[0]


def canonical(result: Any) -> Any:
  """A result of a callback as an array of a dtype that JAX has: without x64 a Python float is
  f32."""
  return _dtypes.canonicalize_value(np.asarray(result))


def callback_sharding(ctx: Any) -> Any:
  """Where the callback of an equation runs, as JAX does it for `jax.pure_callback`."""
  return _callback._callback_op_sharding(ctx.module_context.axis_context, None, ctx.avals_out)


def scan_split(num_consts: int | None, num_carry: int | None, ft_in: Any) -> tuple[int, int]:
  """(number of constants, number of carried values) of a scan equation."""
  if num_consts is not None and num_carry is not None:  # JAX < 0.12
    return num_consts, num_carry
  consts, carry, _ = ft_in.unpack()  # JAX 0.12 keeps (consts, carry, xs) as one tree
  return len(consts), len(carry)


core_call_p = optional_primitive("call_p")
if core_call_p is _primitives.closed_call_p:  # JAX 0.12: both names are the primitive eval_jaxpr
  core_call_p = None


custom_vmap_p = _custom_batching.custom_vmap_p
linear_call_p = _custom_derivatives.linear_call_p
composite_p = _lax.composite_p


def composite_attributes(attributes: Any) -> dict[str, Any]:
  """The attributes of a composite, from the param of its equation, which holds them as leaves."""
  return {
    name: jax.tree.unflatten(tree, [getattr(leaf, "val", leaf) for leaf in leaves])
    for name, leaves, tree in attributes
  }


reshard_p = _pjit.reshard_p
layout_constraint_p = _pjit.layout_constraint_p
xla_metadata_call_p = getattr(_xla_metadata, "xla_metadata_call_p", None)  # JAX 0.12
xla_metadata_value_p = getattr(_xla_metadata, "xla_metadata_value_p", None)  # JAX 0.12
relayout_p = getattr(_pjit, "relayout_p", None)  # JAX 0.12
# JAX 0.12
with_memory_space_constraint_p = getattr(_state_primitives, "with_memory_space_constraint_p", None)
dce_sink_p = _lax.dce_sink_p
tie_p = _lax.tie_p
ragged_dot_general_p = _lax.ragged_dot_general_p
ragged_dot_general_impl = _lax._ragged_dot_general_impl
scaled_dot_p, scaled_dot_impl = _scaled_dot_p, _scaled_dot_impl
platform_index_p = _conditionals.platform_index_p
compute_on_p = getattr(_compute_on, "compute_on_p", None)  # JAX 0.12
call_hi_primitive_p = getattr(_hijax, "call_hi_primitive_p", None)  # JAX 0.12

empty_p = _lax.empty_p
broadcast_to_p = _state_primitives.broadcast_to_p

# random: the key primitives that jax.extend does not export; both JAX 0.10 and 0.12 keep them here.
random_wrap_p, random_unwrap_p = _prng.random_wrap_p, _prng.random_unwrap_p
random_clone_p = _random.random_clone_p
iota_2x32_shape_p = _prng.iota_2x32_shape_p
random_gamma_impl = _random._gamma_impl
philox2x32_p, philox4x32_p, threefry4x32_p = (
  _philox2x32.philox2x32_p,
  _philox4x32.philox4x32_p,
  _threefry4x32.threefry4x32_p,
)

# casts: not exported by jax.extend.
to_edtype_p, from_edtype_p = _lax.to_edtype_p, _lax.from_edtype_p

# linalg: the primitives that JAX does not export; both JAX 0.10 and 0.12 keep them here.
geqrf_p, geqp3_p = _linalg.geqrf_p, _linalg.geqp3_p
