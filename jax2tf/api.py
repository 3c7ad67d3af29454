"""The public functions: check the arguments, then one call per stage."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import re
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import tensorflow as tf
from jax import export, tree_util

from jax2tf import _jax_compat, _tf_compat, nans, refs
from jax2tf._jax_compat import checkify, shape_poly
from jax2tf.conversion import Conversion
from jax2tf.dims import LeafSpec, scope_of, specs_of
from jax2tf.dtypes import describe, is_key, key_dtype_of, mark_keys, tensor_of
from jax2tf.dtypes import dtype_of_val as dtype_of_val  # noqa: PLC0414  (public here)
from jax2tf.idioms import fused
from jax2tf.native import Target
from jax2tf.native import stablehlo_version as stablehlo_version_of
from jax2tf.placement.devices import PLATFORMS, Destination, place_named, place_of
from jax2tf.trace import BoundedCache, Traceable, TracedFunction

DisabledSafetyCheck = export.DisabledSafetyCheck
PolyShape = shape_poly.PolyShape

# The default of `max_conversions`: bounds the memory of a long-lived process. A small conversion takes 1 MB.
_MAX_CONVERSIONS = 512


def convert(
  fun_jax: Callable[..., Any],
  *,
  polymorphic_shapes: Any = None,
  polymorphic_constraints: Sequence[str] = (),
  with_gradient: bool = True,
  gradient_orders: int = 1,
  enable_xla: bool = True,
  native_serialization: bool = False,
  native_serialization_platforms: Sequence[str] | None = None,
  native_serialization_disabled_checks: Sequence[DisabledSafetyCheck] = (),
  stablehlo_version: str | None = None,
  platforms: Sequence[str] | None = None,
  device_map: Mapping[jax.Device | str, str | None] | None = None,
  keep_shardings: bool = False,
  idioms: str = "exact",
  dtensor_mesh: Any = None,
  static_argnums: int | Sequence[int] | None = None,
  static_argnames: str | Sequence[str] | None = None,
  max_conversions: int = _MAX_CONVERSIONS,
) -> Callable[..., Any]:
  """Returns a TensorFlow function, made of ordinary TensorFlow ops, with the values and gradients of `fun_jax`.

  The result works eagerly, under tf.function (with and without jit_compile), in tf.data and in Keras layers. It traces `fun_jax` once for
  each combination of argument structure, dtypes, (polymorphic) shapes and static values.

  A result that is a typed PRNG key array, key<fry>[3], becomes a tensor u32[3,2] of its physical data. The tensor's attribute `jax_dtype`
  records the dtype, so a converted function takes it as a key array again. A SavedModel or a tf.function drops the attribute; then
  uint32 data are a raw key of the implementation `jax_default_prng_impl`.

  Args:
    fun_jax: a function that JAX can trace, of pytrees of arrays; `jax.jit` and its static arguments are honoured.
    polymorphic_shapes: None, a string such as "b, _" for all positional arguments, or a pytree prefix of them with a string or
      None at each leaf; the grammar is that of `jax.export.symbolic_shape`, whose result may stand in place of a string.
    polymorphic_constraints: conditions on the dimension variables, such as "b >= 2", "mod(b, 4) == 0" or "a*b == c".
    with_gradient: whether TensorFlow may differentiate the result; it uses JAX's VJP and JVP.
    gradient_orders: the number of derivative orders in a SavedModel, each in its own graph; a loaded function raises for higher ones.
    enable_xla: accepted for compatibility: the graph lowering emits no `Xla*` op either way, and native serialization refuses False.
    native_serialization: lower to XlaCallModule ops, which XLA compiles when they run, instead of ordinary ops.
    native_serialization_platforms: for native serialization: where the module may run, as `platforms`; by default on JAX's default backend.
    native_serialization_disabled_checks: for native serialization: `DisabledSafetyCheck.platform()`, `.custom_call(target)`.
    stablehlo_version: for native serialization: the reader's StableHLO version ("1.0.0") or TensorFlow release
      ("2.16"); by default that of the installed TensorFlow.
    platforms: where the graph will run, if not on this machine: a subset of cpu, cuda, rocm, tpu. It selects the branch of
      `lax.platform_dependent`; devices that the function names need not exist here.
    device_map: JAX device -> TensorFlow device, for the devices that `jax.device_put`, `jax.default_device` and `compute_on` name. A key
      is a jax.Device, "gpu:1", a whole platform "gpu", or "host"; None leaves the placement to TensorFlow. By default "gpu:1" is
      "/device:GPU:1", and "host" is "/device:CPU:0".
    keep_shardings: whether sharding annotations become XlaSharding ops, for XLA's partitioner under jit_compile; by default they have no
      effect, and a warning says so. Native serialization always keeps them.
    idioms: "exact" for JAX's values; "fused" to use TensorFlow's composite ops too, such as Softmax, Relu and FusedBatchNorm, which are
      faster and supported by other runtimes; or names of some, such as "softmax,gelu". NaN, infinity and rounding may differ
      (docs/guide/fused.md).
    dtensor_mesh: experimental: a tf.experimental.dtensor.Mesh with the axis names and sizes of JAX's mesh; sharding annotations become
      layouts on it (docs/guide/dtensor.md).
    static_argnums, static_argnames: arguments that are hashable Python values instead of arrays, as in `jax.jit`.
    max_conversions: the number of cached combinations of structure, dtypes, (polymorphic) shapes and static values, each with its graphs.
      Beyond it, the least recently used one is dropped; the first drop warns.

  Returns:
    a function of the arguments of `fun_jax`: pytrees of tf.Tensor, tf.Variable, NumPy and JAX arrays, Python scalars, and
    `jax2tf.Ref(variable)` for a `jax.Ref`. It returns the pytree of `fun_jax`, with tf.Tensors of JAX's dtypes.

  Raises:
    TypeError: `fun_jax` is not callable; at a call, an argument is not a numeric array, or a `Ref` holds no tf.Variable of a JAX dtype.
    ValueError: an option is not valid, or excludes another one; no sizes meet the constraints. At a call: it is inside a JAX
      transformation, shapes do not fit `polymorphic_shapes`, a rank is unknown, a static argument is not hashable, two `Ref`s have one
      variable, TensorFlow lacks a device, operands are on several devices, or an eager call of a native function is sharded.
    NotImplementedError: at a call: a `LoweringError` that lists all equations without a lowering; the reader's StableHLO or TensorFlow
      is too old for the native module; the function writes variables in a graph that does not order writes (TF1).
    OverflowError: at a call, a Python int does not fit the dtype that JAX gives it.
    FloatingPointError: at a call, a result is NaN or infinite under `jax_debug_nans` or `jax_debug_infs`.
    LookupError: at a derivative, with `with_gradient=False`.
    tf.errors.InvalidArgumentError: in a running graph, sizes do not meet `polymorphic_shapes`, or a derivative is above `gradient_orders`.

  Examples:
    >>> import jax.numpy as jnp, tensorflow as tf, jax2tf
    >>> mean = jax2tf.convert(lambda x: jnp.mean(x, axis=0), polymorphic_shapes="b, 2")
    >>> of_any_batch = tf.function(mean, input_signature=[tf.TensorSpec([None, 2])])
    >>> of_any_batch([[1.0, 2.0], [3.0, 6.0]]).numpy().tolist()
    [2.0, 4.0]
    >>> x = tf.Variable(3.0)
    >>> with tf.GradientTape() as tape:
    ...   y = jax2tf.convert(jnp.square)(x)
    >>> tape.gradient(y, x).numpy().item()
    6.0
  """
  if not callable(fun_jax):
    raise TypeError(f"Expected a callable value, got {fun_jax!r} of type {type(fun_jax).__name__}")
  target = _native_target(
    enable_xla, native_serialization, native_serialization_platforms, native_serialization_disabled_checks, stablehlo_version
  )
  if gradient_orders < 1:
    raise ValueError(f"gradient_orders = {gradient_orders}: it must be at least 1; with_gradient=False saves none")
  composites = fused.names_of(idioms)
  if target and composites:
    raise ValueError(
      f"native_serialization is not supported with idioms = {idioms!r}: a module contains JAX's own equations; drop one of the two"
    )
  orders = gradient_orders if with_gradient else 0
  destination = _destination(platforms, device_map, keep_shardings, dtensor_mesh)
  if dtensor_mesh is not None and (keep_shardings or target):
    raise ValueError("dtensor_mesh makes layouts of sharding annotations, and keep_shardings and native_serialization XLA's; choose one")
  traceable = Traceable.of(fun_jax, static_argnums, static_argnames)
  traces = _TraceCache(traceable, polymorphic_shapes, polymorphic_constraints, max_conversions)
  of_refs = BoundedCache(1)
  conversions = BoundedCache(max_conversions, functools.partial(_warn_of_many_conversions, traceable.name, max_conversions))

  @_wraps(fun_jax)
  def converted(*args: Any, **kwargs: Any) -> Any:
    with _tf_compat.errors_as_raised():
      return call(args, kwargs)

  def call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if _jax_compat.inside_trace():
      raise ValueError(
        f"convert must be used outside all JAX transformations: '{traceable.name}' is called inside one. "
        "Call the converted function from TensorFlow, or the JAX function from JAX"
      )
    found = refs.refs_of((args, kwargs))
    if not found:
      traced, results, after = values(fun_jax, traces, args, kwargs)
    else:
      refs.check((args, kwargs), traceable.name)
      of_values = of_refs.get((), lambda: _TraceCache(traceable.of_refs(), polymorphic_shapes, polymorphic_constraints, max_conversions))
      traced, (results, last), after = values(refs.as_values(fun_jax), of_values, args, kwargs)
      after = [*last, *after]
    closed_over = traced.variables[len(traced.variables) - traced.n_refs :]
    return refs.written([*(ref.variable for ref in found), *closed_over], traced.jaxpr, after, results) if after else results

  def values(
    fun: Callable[..., Any], traces: _TraceCache, args: tuple[Any, ...], kwargs: dict[str, Any]
  ) -> tuple[TracedFunction, Any, list[tf.Tensor]]:
    """(the traced function, its results, the values of the refs that it closes over)."""
    leaves, traced = traces(args, kwargs)
    if traced.n_refs:
      refs.check_order(traceable.name)
    refs.check_captured((args, kwargs), traced.variables, traceable.name)
    conversion = conversions.get(traced, lambda: Conversion(_with_composite_ops(traced, composites), orders, destination, target))
    operands = [tensor_of(x, dtype) for x, dtype in zip(leaves, conversion.dtypes, strict=True)]
    results = nans.checked(conversion(operands), f"'{traceable.name}'", lambda: _run_by_jax(fun, args, kwargs))
    own = len(results) - traced.n_refs
    marked = [mark_keys(y, aval.dtype) if is_key(aval.dtype) else y for y, aval in zip(results, traced.jaxpr.out_avals, strict=True)]
    return traced, tree_util.tree_unflatten(traced.out_tree, marked[:own]), results[own:]

  # AutoGraph would rewrite the user's JAX code along with ours.
  result = tf.autograph.experimental.do_not_convert(converted)
  static = traceable.static_argnums or traceable.static_argnames
  # TF 2.21: a Mesh that is compared with None raises.
  plain = target is None and not composites and not static and dtensor_mesh is None
  if polymorphic_shapes is None and with_gradient and plain and destination == _destination(None, None, False):
    setattr(result, _ORIGIN, _Origin(weakref.ref(result), fun_jax))
  return result


def _with_composite_ops(traced: TracedFunction, names: frozenset[str]) -> TracedFunction:
  return dataclasses.replace(traced, jaxpr=fused.with_composite_ops(traced.jaxpr, names)) if names else traced


def _run_by_jax(fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
  """Calls the JAX function on the arguments of the converted function."""
  tensors = tf.Tensor | tf.Variable
  of = lambda x: checkify.array(x.numpy(), key_dtype_of(x) or x.dtype.as_numpy_dtype) if isinstance(x, tensors) else x  # noqa: E731
  args, kwargs = tree_util.tree_map(of, _tf_compat.unwrapped((args, kwargs)))
  return fun(*args, **kwargs)


def _assert_no_error(error: Any) -> None:
  convert(checkify.check_error)(error)


checkify.thrown_by(_assert_no_error)

_ORIGIN = "_jax2tf_origin"


@dataclasses.dataclass(frozen=True)
class _Origin:
  """Marks a converted function that equals its JAX function, and holds both. A pickled copy has no mark."""

  itself: weakref.ref[Any] | None = None
  fun_jax: Callable[..., Any] | None = None

  def __reduce__(self) -> Any:
    return _Origin, ()


def jax_function_of(converted: Any) -> Callable[..., Any] | None:
  """The JAX function of a converted one that adds no checks and has all derivatives; None for any other object."""
  origin = getattr(converted, _ORIGIN, _Origin())
  # functools.wraps copies the attributes of a function to others.
  return origin.fun_jax if origin.itself is not None and origin.itself() is converted else None


def _warn_of_many_conversions(name: str, count: int) -> None:
  warnings.warn(
    f"'{name}' was called with more than {count} combinations of shapes, dtypes and static values; those that come back are traced "
    'and built again. Make one graph for all sizes with polymorphic_shapes, such as ["b, ..."], or keep more with max_conversions',
    UserWarning,
    stacklevel=7,
  )


def eval_polymorphic_shape(
  fun_jax: Callable[..., Any], *, polymorphic_shapes: Any = None, polymorphic_constraints: Sequence[str] = ()
) -> Callable[..., Any]:
  """Returns a function from argument specs to the result's specs. It traces `fun_jax` and computes nothing.

  Args:
    fun_jax, polymorphic_shapes, polymorphic_constraints: as for `convert`.

  Returns:
    a function of the arguments of `fun_jax`, with specs (anything with a shape and a dtype) in place of arrays. It returns (pytree of
    jax.ShapeDtypeStruct, pytree of strings such as "(2*b, 3)" for `polymorphic_shapes`).

  Raises:
    TypeError: `fun_jax` is not callable; at a call, an argument has no numeric dtype.
    ValueError: no sizes meet the constraints; at a call, shapes do not fit `polymorphic_shapes`.

  Examples:
    >>> import jax, jax.numpy as jnp, jax2tf
    >>> specs = jax2tf.eval_polymorphic_shape(lambda x: jnp.concatenate([x, x]), polymorphic_shapes="b, 3")
    >>> specs(jax.ShapeDtypeStruct((4, 3), jnp.float32))[1]
    '(2*b, 3)'
  """
  if not callable(fun_jax):
    raise TypeError(f"Expected a callable value, got {fun_jax!r} of type {type(fun_jax).__name__}")
  traces = _TraceCache(Traceable.of(fun_jax), polymorphic_shapes, polymorphic_constraints)

  def evaluate(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
    _, traced = traces(args, kwargs)
    avals = traced.jaxpr.out_avals
    specs = [jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type) for a in avals]
    return tree_util.tree_unflatten(traced.out_tree, specs), tree_util.tree_unflatten(traced.out_tree, [str(a.shape) for a in avals])

  return evaluate


def split_to_logical_devices(tensor: tf.Tensor, partition_dimensions: Sequence[int] | None) -> tf.Tensor:
  """Annotates a tensor of a graph for XLA's partitioner, with an XlaSharding op. Eagerly it returns the tensor without annotation.

  Args:
    tensor: any tensor, f32[n,m] for instance.
    partition_dimensions: the number of parts of each dimension, whose product is the number of devices; None replicates.

  Returns:
    the tensor, of the same dtype and shape.

  Raises:
    ValueError: `partition_dimensions` does not have one entry for each dimension, or has one below 1.

  Examples:
    >>> import tensorflow as tf, jax2tf
    >>> jax2tf.split_to_logical_devices(tf.constant([[1.0], [2.0]]), [2, 1]).shape
    TensorShape([2, 1])
  """
  rank = tensor.shape.rank
  if partition_dimensions is not None:
    if rank is not None and len(partition_dimensions) != rank:
      raise ValueError(f"partition_dimensions = {partition_dimensions} has {len(partition_dimensions)} entries for a tensor of rank {rank}")
    if any(n < 1 for n in partition_dimensions):
      raise ValueError(f"partition_dimensions = {partition_dimensions}: each dimension needs at least 1 part")
  if _tf_compat.current_graph() is None:
    return tf.identity(tensor)
  parts = partition_dimensions
  return _tf_compat.xla_sharding(tensor, None if parts is None else (parts, range(math.prod(parts)), False))


class _TraceCache:
  """(args, kwargs) -> (dynamic leaves, TracedFunction), with a bounded cache of traces.

  One scope serves all calls: equal polymorphic shapes give equal symbolic dimensions, and calls of different sizes share one trace.
  """

  def __init__(self, traceable: Traceable, polymorphic_shapes: Any, constraints: Sequence[str], size: int = _MAX_CONVERSIONS):
    self._traceable = traceable
    self._polymorphic_shapes = polymorphic_shapes
    self._scope = scope_of(polymorphic_shapes, constraints)
    self._by_actual_shapes = BoundedCache(16 * size)
    self._by_specs = BoundedCache(size)

  def __call__(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[list[Any], TracedFunction]:
    args, kwargs, static = self._traceable.split(args, kwargs)
    leaves, tree = tree_util.tree_flatten(_tf_compat.unwrapped((args, kwargs)))
    try:
      described = tuple(describe(leaf) for leaf in leaves)
    except (TypeError, ValueError):
      described = tuple(describe(leaf, path) for leaf, path in zip(leaves, argument_paths(tree), strict=True))
    values = (*self._traceable.bound, *self._traceable.bound_by_name.values())
    by_place = tuple((place, type(value), value) for place, value in static.items())
    context = (values, by_place, _jax_compat.trace_context())
    traced = self._by_actual_shapes.get((tree, described, context), lambda: self._trace(tree, described, static, context))
    return leaves, traced

  def _trace(self, tree: Any, described: Sequence[Any], static: dict[Any, Any], context: Any) -> TracedFunction:
    args, kwargs = tree_util.tree_unflatten(tree, [LeafSpec(*d) for d in described])
    args = specs_of(args, self._polymorphic_shapes, self._scope)
    kwargs = specs_of(kwargs, None, self._scope)
    avals = tuple((s.shape, s.dtype, s.weak_type) for s in tree_util.tree_leaves((args, kwargs)))
    return self._by_specs.get((tree, avals, context), lambda: self._traceable.trace(args, kwargs, static))


def argument_paths(tree: Any) -> list[str]:
  """Names of the leaves of (args, kwargs), as `args[0]['w']`."""
  paths = tree_util.tree_flatten_with_path(tree_util.tree_unflatten(tree, range(tree.num_leaves)))[0]
  return [("args", "kwargs")[path[0].idx] + tree_util.keystr(path[1:]) for path, _ in paths]


def _check_platforms(argument: str, platforms: Any) -> None:
  if not isinstance(platforms, list | tuple) or not platforms or not all(p in PLATFORMS for p in platforms):
    raise ValueError(f"{argument} must be a sequence containing a subset of {PLATFORMS}, got {platforms!r}")


_PLACE = re.compile(r"(cpu|gpu|cuda|rocm|tpu)(:\d+)?|host")
_TF_DEVICE = re.compile(r"(/job:\w+)?(/replica:\d+)?(/task:\d+)?(/device:|/)?[A-Za-z_]+:\d+")


def _destination(platforms: Any, device_map: Any, keep_shardings: bool, dtensor_mesh: Any = None) -> Destination:
  """Validates where the graph will run."""
  if platforms is not None:
    _check_platforms("platforms", platforms)
  devices: dict[str, str | None] = {}
  for key, device in (device_map or {}).items():
    place = place_named(key) if isinstance(key, str) and _PLACE.fullmatch(key) else place_of(key)
    if place is None:
      raise ValueError(f'device_map: {key!r} is not a JAX device; name one by a jax.Device, "gpu:1", "gpu" or "host"')
    if device is not None and not (isinstance(device, str) and _TF_DEVICE.fullmatch(device)):
      raise ValueError(f'device_map[{key!r}] = {device!r} is not a TensorFlow device, such as "/device:GPU:1"')
    devices[place] = device
  return Destination(tuple(platforms or ()), devices, keep_shardings, dtensor_mesh)


def _native_target(
  enable_xla: bool, native: bool, platforms: Sequence[str] | None, disabled_checks: Sequence[DisabledSafetyCheck], version: str | None
) -> Target | None:
  """The reader of the native modules; None for the graph lowering."""
  if platforms:
    _check_platforms("native_serialization_platforms", platforms)
    if not native:
      warnings.warn(
        "using native_serialization_platforms without native_serialization has no effect: the graph lowering runs wherever TensorFlow does",
        UserWarning,
        stacklevel=3,
      )
  if not native:
    return None
  if not enable_xla:
    raise ValueError("native_serialization is not supported with enable_xla=False; drop one of the two")
  # JAX calls the backend "gpu" that it exports to as cuda or rocm.
  default = {"gpu": "cuda"}.get(jax.default_backend(), jax.default_backend())
  return Target(tuple(platforms or (default,)), tuple(disabled_checks), stablehlo_version_of(version))


def _wraps(fun: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
  """The user's name and docstring, but not the signature: TensorFlow would check its annotations."""

  def wrap(converted: Callable[..., Any]) -> Callable[..., Any]:
    functools.update_wrapper(converted, fun, assigned=("__module__", "__name__", "__qualname__"), updated=())
    del converted.__wrapped__  # type: ignore[attr-defined]
    converted.__doc__ = f"TensorFlow version of {getattr(fun, '__name__', fun)}.\n\n{inspect.getdoc(fun) or ''}"
    return converted

  return wrap
