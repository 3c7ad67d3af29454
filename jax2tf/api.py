"""The public functions: check the arguments, then one call per stage."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import tensorflow as tf
from jax import export, tree_util

from jax2tf import _jax_compat, _tf_compat, nans, refs
from jax2tf._jax_compat import checkify, shape_poly
from jax2tf.caches import BoundedCache
from jax2tf.conversion import Conversion
from jax2tf.dtypes import dtype_of_val as dtype_of_val  # noqa: PLC0414  (public here)
from jax2tf.dtypes import is_key, key_dtype_of, mark_keys, tensor_of
from jax2tf.errors import warn_user
from jax2tf.idioms import fused
from jax2tf.messages import Argument, ArgumentError, ArgumentTypeError, Text
from jax2tf.options import destination_of, is_on_one_device, native_target
from jax2tf.trace import Traceable, TraceCache, TracedFunction

DisabledSafetyCheck = export.DisabledSafetyCheck
PolyShape = shape_poly.PolyShape

# The default of `max_conversions`: bounds the memory of a long-lived process. A small conversion
# takes 1 MB.
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
  meshes: str = "one_device",
  dtensor_mesh: Any = None,
  static_argnums: int | Sequence[int] | None = None,
  static_argnames: str | Sequence[str] | None = None,
  max_conversions: int = _MAX_CONVERSIONS,
) -> Callable[..., Any]:
  """Converts `fun_jax` to a TensorFlow function made of ordinary TensorFlow ops, with the same
  values and gradients.

  The result works eagerly, under tf.function (with and without jit_compile), in tf.data and in
  Keras layers. It traces `fun_jax` once for every combination of argument structure, dtypes,
  (polymorphic) shapes and static values.

  A result that is a typed PRNG key array, key<fry>[3], becomes a tensor u32[3,2] of its physical
  data. The tensor's attribute `jax_dtype` records the dtype, so a converted function takes it as a
  key array again. A SavedModel or a tf.function drops the attribute; a converted function then
  reads the uint32 data as a raw key of the implementation `jax_default_prng_impl`.

  Args:
    fun_jax: a function that JAX can trace and that takes pytrees of arrays. It may be a result of
      `jax.jit`, with static arguments.
    polymorphic_shapes: None, a string such as "b, _" for all positional arguments, or a pytree
      prefix of them with a string or None at every leaf. Strings have the grammar of
      `jax.export.symbolic_shape`; its result may replace a string. Or a dict from the names of
      positional or keyword arguments to such prefixes: {"x": "b, _", "mask": "b"}. If the only
      argument is itself a dict, put its shapes in a list: [{"w": "n, _"}]. If a size is unknown and
      its entry is a number, as in "b, 4", the graph checks the size when it runs.
    polymorphic_constraints: conditions on the dimension variables, such as "b >= 2", "mod(b, 4) ==
      0" or "a*b == c".
    with_gradient: whether TensorFlow may differentiate the result; it uses JAX's VJP and JVP.
    gradient_orders: the number of derivative orders in a SavedModel. Every order has its own graph.
      A loaded function raises an error for a higher order.
    enable_xla: accepted for compatibility: the graph lowering emits no `Xla*` op either way, and
      native serialization refuses False.
    native_serialization: lower to XlaCallModule ops, which XLA compiles when they run, instead of
      ordinary ops.
    native_serialization_platforms: for native serialization: the platforms on which the module may
      run, as for `platforms`; by default JAX's default backend.
    native_serialization_disabled_checks: for native serialization:
      `DisabledSafetyCheck.platform()`, `.custom_call(target)`.
    stablehlo_version: for native serialization: the StableHLO version ("1.0.0") or the TensorFlow
      release ("2.16") of the reader; by default the installed TensorFlow.
    platforms: where the graph will run, if not on this machine: a subset of cpu, cuda, rocm, tpu.
      It selects the branch of `lax.platform_dependent`, and the dtype of products: for cuda and
      rocm alone, products of bf16 and f16 keep their dtype. Devices that the function names need
      not exist on this machine. For cuda and rocm, the conversion chooses ops that have kernels on
      GPUs and keep integers there.
    device_map: JAX device -> TensorFlow device, for the devices that `jax.device_put`,
      `jax.default_device` and `compute_on` name. A key is a jax.Device, "gpu:1", a whole platform
      "gpu", or "host"; None leaves the placement to TensorFlow. By default "gpu:1" is
      "/device:GPU:1", and "host" is "/device:CPU:0".
    keep_shardings: whether sharding annotations become XlaSharding ops, for XLA's partitioner under
      jit_compile; by default they have no effect, and a warning says so. Native serialization
      always keeps them.
    idioms: "exact" for JAX's values; "fused" to use TensorFlow's composite ops too, such as
      Softmax, Relu and FusedBatchNorm, which are faster and supported by other runtimes; or the
      names of some of them, such as "softmax,gelu". NaN, infinity and rounding may differ
      (docs/guide/fused.md).
    meshes: "one_device" to compute on one device what `jax.shard_map`, `jax.pmap` and their
      collectives compute on several (docs/guide/many-devices.md); "error" to refuse them. The
      devices need not exist on this machine. Native serialization lowers them for several devices.
    dtensor_mesh: experimental: a tf.experimental.dtensor.Mesh with the axis names and sizes of
      JAX's mesh; sharding annotations become layouts on it (docs/guide/dtensor.md).
    static_argnums, static_argnames: arguments that are hashable Python values instead of arrays, as
      in `jax.jit`.
    max_conversions: the number of cached combinations of structure, dtypes, (polymorphic) shapes
      and static values. Every combination has its own graphs. Above this number, the function drops
      the least recently used combination; the first drop warns.

  Returns:
    a function of the arguments of `fun_jax`: pytrees of tf.Tensor, tf.Variable, NumPy and JAX
    arrays, Python scalars, and `jax2tf.Ref(variable)` for a `jax.Ref`. It returns the pytree of
    `fun_jax`, with tf.Tensors of JAX's dtypes. Its `trace(*args, **kwargs)` takes specs too and
    computes nothing: it returns the `jaxpr` and the pytree of the avals of the `results`, and a
    call with such arguments does not trace again.

  Raises:
    TypeError: `fun_jax` is not callable; at a call, an argument is not a numeric array, or a `Ref`
      holds no tf.Variable of a JAX dtype.
    ValueError: an option is invalid, or excludes another option; no sizes meet the constraints. At
      a call: the call is inside a JAX transformation, shapes do not fit `polymorphic_shapes`, a
      rank is unknown, a static argument is not hashable, two `Ref`s hold the same variable,
      TensorFlow lacks a device, operands are on several devices, or an eager call of a native
      function is sharded.
    NotImplementedError: at a call: a `LoweringError` that lists all equations without a lowering;
      the reader's StableHLO or TensorFlow is too old for the native module; the function writes
      variables in a graph that does not order writes (TF1).
    OverflowError: at a call, a Python int does not fit the dtype that JAX gives it.
    FloatingPointError: at a call, a result is NaN or infinite under `jax_debug_nans` or
      `jax_debug_infs`.
    LookupError: at a derivative, with `with_gradient=False`.
    tf.errors.InvalidArgumentError: in a running graph, sizes do not meet `polymorphic_shapes`, or a
      derivative is above `gradient_orders`.

  Examples:
    >>> import jax.numpy as jnp, tensorflow as tf, jax2tf
    >>> mean = jax2tf.convert(lambda x: jnp.mean(x, axis=0), polymorphic_shapes="b, 2")
    >>> of_any_batch = tf.function(mean, input_signature=[tf.TensorSpec([None, 2])])
    >>> of_any_batch([[1.0, 2.0], [3.0, 6.0]]).numpy().tolist()
    [2.0, 4.0]
    >>> select = jax2tf.convert(
    ...   lambda x, *, mask: jnp.where(mask, x, 0), polymorphic_shapes={"x": "b", "mask": "b"}
    ... )
    >>> tf.function(lambda x: select(x, mask=x > 1), input_signature=[tf.TensorSpec([None])])(
    ...   [1.0, 2.0]
    ... ).numpy().tolist()
    [0.0, 2.0]
    >>> x = tf.Variable(3.0)
    >>> with tf.GradientTape() as tape:
    ...   y = jax2tf.convert(jnp.square)(x)
    >>> tape.gradient(y, x).numpy().item()
    6.0
  """
  if not callable(fun_jax):
    raise ArgumentTypeError(
      "fun_jax",
      # JAX's words
      problem=f"Expected a callable value, got {fun_jax!r} of type {type(fun_jax).__name__}",
    )
  target = native_target(
    enable_xla,
    native_serialization,
    native_serialization_platforms,
    native_serialization_disabled_checks,
    stablehlo_version,
  )
  if gradient_orders < 1:
    raise ArgumentError(
      "gradient_orders",
      gradient_orders,
      problem="it must be at least 1",
      advice=Text("give 1 or more, or ", Argument("with_gradient", False), " for none"),
    )
  composites = fused.names_of(idioms)
  if target and composites:
    raise ArgumentError(
      "idioms",
      idioms,
      problem="native_serialization is not supported with them: a module contains JAX's own "
      "equations",
      advice="drop one of the two",
    )
  orders = gradient_orders if with_gradient else 0
  on_one_device = is_on_one_device(meshes)
  destination = destination_of(platforms, device_map, keep_shardings, dtensor_mesh)
  if dtensor_mesh is not None and (keep_shardings or target):
    raise ValueError(
      "dtensor_mesh makes layouts of sharding annotations, and keep_shardings and "
      "native_serialization XLA's; choose one"
    )
  traceable = Traceable.of(fun_jax, static_argnums, static_argnames)
  traces = TraceCache(traceable, polymorphic_shapes, polymorphic_constraints, max_conversions)
  warn = functools.partial(_warn_of_many_conversions, traceable.name, max_conversions)
  conversions: BoundedCache[TracedFunction, Conversion] = BoundedCache(max_conversions, warn)

  @_wraps(fun_jax)
  def converted(*args: Any, **kwargs: Any) -> Any:
    with _tf_compat.errors_as_raised():
      return call(args, kwargs)

  def call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if _jax_compat.inside_trace():
      raise ValueError(
        f"convert must be used outside all JAX transformations: '{traceable.name}' is called "
        "inside one. Call the converted function from TensorFlow, or the JAX function from JAX"
      )
    refs_in_arguments = refs.refs_of((args, kwargs))
    if refs_in_arguments:
      refs.check((args, kwargs), traceable.name)
    fun = refs.as_values(fun_jax) if refs_in_arguments else fun_jax
    traced, flat = values(fun, args, kwargs)
    results, after = traced.signature.split_results(flat)
    if after:
      results = refs.written(refs_in_arguments, traced.jaxpr, traced.signature, after, results)
    return _in_structure(traced.signature.out_tree, results, traceable.name)

  def values(
    fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
  ) -> tuple[TracedFunction, list[tf.Tensor]]:
    """(the traced function, its flat results)."""
    leaves, traced = traces(args, kwargs)
    if traced.signature.closed_over:
      refs.check_order(traceable.name)
    refs.check_captured((args, kwargs), traced.signature.captured, traceable.name)
    conversion = conversions.get(
      traced, lambda: Conversion(traced, orders, destination, composites, target, on_one_device)
    )
    operands = [tensor_of(x, dtype) for x, dtype in zip(leaves, conversion.dtypes, strict=True)]
    results = nans.checked(
      conversion(operands), f"'{traceable.name}'", lambda: _run_by_jax(fun, args, kwargs)
    )
    return traced, [
      mark_keys(y, aval.dtype) if is_key(aval.dtype) else y
      for y, aval in zip(results, traced.jaxpr.out_avals, strict=True)
    ]

  # AutoGraph would rewrite the user's JAX code along with ours.
  result = tf.autograph.experimental.do_not_convert(converted)
  static = traceable.static_argnums or traceable.static_argnames
  # TF 2.21: a Mesh that is compared with None raises.
  is_default = not composites and on_one_device and dtensor_mesh is None
  plain = target is None and is_default and not static
  if (
    polymorphic_shapes is None
    and with_gradient
    and plain
    and destination == destination_of(None, None, False)
  ):
    setattr(result, _ORIGIN, _Origin(weakref.ref(result), fun_jax))
  result.trace = lambda *args, **kwargs: traces(args, kwargs)[1]
  return result


def _in_structure(tree: Any, tensors: Sequence[tf.Tensor], name: str) -> Any:
  """The pytree of the results."""
  try:
    return tree_util.tree_unflatten(tree, tensors)
  except Exception as error:
    error.add_note(
      f"The result of '{name}' has the structure {tree}. A class in it raised this error when JAX "
      "built it from tf.Tensors; "
      "let it take them, or return a tuple or dict of arrays"
    )
    raise


def _run_by_jax(fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
  """Calls the JAX function on the arguments of the converted function."""
  tensors = tf.Tensor | tf.Variable

  def of(x: Any) -> Any:
    if not isinstance(x, tensors):
      return x
    return checkify.array(x.numpy(), key_dtype_of(x) or x.dtype.as_numpy_dtype)

  args, kwargs = tree_util.tree_map(of, _tf_compat.unwrapped((args, kwargs)))
  return fun(*args, **kwargs)


def _assert_no_error(error: Any) -> None:
  convert(checkify.check_error)(error)


checkify.thrown_by(_assert_no_error)

_ORIGIN = "_jax2tf_origin"


@dataclasses.dataclass(frozen=True)
class _Origin:
  """Marks a converted function that equals its JAX function, and holds both. A pickled copy has no
  mark."""

  itself: weakref.ref[Any] | None = None
  fun_jax: Callable[..., Any] | None = None

  def __reduce__(self) -> Any:
    return _Origin, ()


def jax_function_of(converted: Any) -> Callable[..., Any] | None:
  """The JAX function of a converted one that adds no checks and has all derivatives; None for any
  other object."""
  origin = getattr(converted, _ORIGIN, _Origin())
  # functools.wraps copies the attributes of a function to others.
  return origin.fun_jax if origin.itself is not None and origin.itself() is converted else None


def _warn_of_many_conversions(name: str, count: int) -> None:
  warn_user(
    f"'{name}' was called with more than {count} combinations of shapes, dtypes and static "
    "values; those that come back are traced "
    'and built again. Make one graph for all sizes with polymorphic_shapes, such as ["b, ..."], '
    "or keep more with max_conversions"
  )


def eval_polymorphic_shape(
  fun_jax: Callable[..., Any],
  *,
  polymorphic_shapes: Any = None,
  polymorphic_constraints: Sequence[str] = (),
) -> Callable[..., Any]:
  """Returns a function that maps the specs of the arguments to the specs of the result. It traces
  `fun_jax` and computes nothing.

  Args:
    fun_jax, polymorphic_shapes, polymorphic_constraints: as for `convert`.

  Returns:
    a function of the arguments of `fun_jax`, with specs (anything with a shape and a dtype) in
    place of arrays. It returns (pytree of jax.ShapeDtypeStruct, pytree of strings such as "(2*b,
    3)" for `polymorphic_shapes`).

  Raises:
    TypeError: `fun_jax` is not callable; at a call, an argument has no numeric dtype.
    ValueError: no sizes meet the constraints; at a call, shapes do not fit `polymorphic_shapes`.

  Examples:
    >>> import jax, jax.numpy as jnp, jax2tf
    >>> specs = jax2tf.eval_polymorphic_shape(
    ...   lambda x: jnp.concatenate([x, x]), polymorphic_shapes="b, 3"
    ... )
    >>> specs(jax.ShapeDtypeStruct((4, 3), jnp.float32))[1]
    '(2*b, 3)'
  """
  if not callable(fun_jax):
    raise ArgumentTypeError(
      "fun_jax",
      # JAX's words
      problem=f"Expected a callable value, got {fun_jax!r} of type {type(fun_jax).__name__}",
    )
  traces = TraceCache(
    Traceable.of(fun_jax), polymorphic_shapes, polymorphic_constraints, _MAX_CONVERSIONS
  )

  def evaluate(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
    _, traced = traces(args, kwargs)
    avals, _ = traced.signature.split_results(traced.jaxpr.out_avals)
    tree = traced.signature.out_tree
    specs = [jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type) for a in avals]
    texts = [_ShapeText(spec) for spec in specs]
    return tree_util.tree_unflatten(tree, specs), tree_util.tree_unflatten(tree, texts)

  return evaluate


class _ShapeText(str):
  """A shape such as "(2*b, 3)" that a user's pytree node takes for an array of that shape."""

  shape: tuple[Any, ...]
  dtype: Any

  def __new__(cls, spec: jax.ShapeDtypeStruct) -> _ShapeText:
    text = super().__new__(cls, spec.shape)
    text.shape, text.dtype = spec.shape, spec.dtype
    return text

  @property
  def ndim(self) -> int:
    """The rank."""
    return len(self.shape)

  def __reduce__(self) -> tuple[type, tuple[str]]:
    return str, (str(self),)


def split_to_logical_devices(
  tensor: tf.Tensor, partition_dimensions: Sequence[int] | None
) -> tf.Tensor:
  """Annotates a tensor of a graph for XLA's partitioner, with an XlaSharding op. Eagerly, it
  returns the tensor without annotation.

  Args:
    tensor: any tensor, such as f32[n,m].
    partition_dimensions: the number of parts for every dimension; their product is the number of
      devices. None replicates the tensor.

  Returns:
    the tensor, of the same dtype and shape.

  Raises:
    ValueError: `partition_dimensions` does not have one entry per dimension, or has an entry below
      1.

  Examples:
    >>> import tensorflow as tf, jax2tf
    >>> jax2tf.split_to_logical_devices(tf.constant([[1.0], [2.0]]), [2, 1]).shape
    TensorShape([2, 1])
  """
  rank = tensor.shape.rank
  if partition_dimensions is not None:
    if rank is not None and len(partition_dimensions) != rank:
      raise ArgumentError(
        "partition_dimensions",
        partition_dimensions,
        problem=f"it has {len(partition_dimensions)} entries for a tensor of rank {rank}",
        advice="give one for each dimension",
      )
    if any(n < 1 for n in partition_dimensions):
      raise ArgumentError(
        "partition_dimensions",
        partition_dimensions,
        problem="each dimension needs at least 1 part",
        advice="give 1 for a dimension that stays whole",
      )
  if _tf_compat.current_graph() is None:
    return tf.identity(tensor)
  parts = partition_dimensions
  return _tf_compat.xla_sharding(
    tensor, None if parts is None else (parts, range(math.prod(parts)), False)
  )


def _wraps(fun: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
  """The user's name and docstring, but not the signature: TensorFlow would check its
  annotations."""

  def wrap(converted: Callable[..., Any]) -> Callable[..., Any]:
    functools.update_wrapper(
      converted, fun, assigned=("__module__", "__name__", "__qualname__"), updated=()
    )
    del converted.__wrapped__  # type: ignore[attr-defined]
    converted.__doc__ = (
      f"TensorFlow version of {getattr(fun, '__name__', fun)}.\n\n{inspect.getdoc(fun) or ''}"
    )
    return converted

  return wrap
