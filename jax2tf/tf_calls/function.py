"""A TensorFlow function as JAX sees it: flat arrays of known shapes and dtypes in, flat arrays out.

Its linear map, the transpose of that, and its batched version are again such functions, made of
TensorFlow ops.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
import tensorflow as tf
from jax import dtypes
from jax.export import is_symbolic_dim

from jax2tf import _jax_compat, _tf_compat
from jax2tf.dtypes import is_differentiable, is_key, tf_dtype
from jax2tf.tf_calls.of_values import flat_call
from jax2tf.tf_calls.shapes import Shape, contradiction, symbolic_shapes

Run = Callable[..., list[tf.Tensor]]

# Stateful ops that are safe to run again: a derivative may run the function a second time.
REPEATABLE = frozenset(
  {
    "AnonymousHashTable",
    "Assert",
    "EagerPyFunc",
    "HashTableV2",
    "LookupTableFindV2",
    "LookupTableSizeV2",
    "Placeholder",
    "PrintV2",
    "PyFunc",
    "PyFuncStateless",
    "ReadVariableOp",
    "ResourceGather",
    "ResourceGatherNd",
    "StringFormat",
    "VarHandleOp",
    "VarIsInitializedOp",
    "VariableShape",
  }
)
# The subset that only reads: a call with unused results may be removed.
READING = REPEATABLE - {"Assert", "PrintV2", "PyFunc", "EagerPyFunc"}
_CALLS = frozenset(
  {
    "PartitionedCall",
    "StatefulPartitionedCall",
    "While",
    "If",
    "Case",
    "StatelessWhile",
    "StatelessIf",
    "StatelessCase",
  }
)


@dataclass(frozen=True)
class Options:
  """The options of a call.

  Attributes:
    has_side_effects: None for what the ops of the graph say.
    ordered: calls run in the order of the program.
    vmap_method: how a batch is called, as in `jax.pure_callback`; None chooses.
    under_jit: "auto", "inline" or "callback".
    call_tf_graph: only `convert` may lower the call.
  """

  has_side_effects: bool | None = None
  ordered: bool = False
  vmap_method: str | None = None
  under_jit: str = "auto"
  call_tf_graph: bool = False


class TfFunction:
  """Flat tensors -> flat tensors, for arguments of one signature.

  Attributes:
    name: for errors.
    run: makes the results, in the graph under construction or eagerly.
    avals_in: shapes and dtypes of the arguments.
    options: the user's options.
    shadows: {position of an argument: the variable that it stands for in derivatives}.
    substituted: {position of an argument: the variable whose value it is}: a call reads it there.
  """

  shadows: Mapping[int, tf.Variable] = MappingProxyType({})
  substituted: Mapping[int, tf.Variable] = MappingProxyType({})

  def __init__(
    self,
    name: str,
    run: Run,
    avals_in: Sequence[Any],
    options: Options,
    declared: Sequence[Any] | None = None,
  ):
    self.name, self.run, self.avals_in, self.options = name, run, tuple(avals_in), options
    self._declared = declared
    self._dtypes = [aval.dtype for aval in self.avals_in]
    self._derived: dict[Any, Any] = {}
    self._lock = threading.RLock()

  def __repr__(self) -> str:
    return self.name

  @functools.cached_property
  def concrete(self) -> Any:
    """The function as one TensorFlow graph."""
    with self._lock:
      return self._traced(self.specs)

  def _traced(self, specs: Sequence[tf.TensorSpec]) -> Any:
    """The concrete function for these arguments. Tapes record: the function may have one, and
    `convert` has stopped them."""
    with _tf_compat.outside_graphs(), jax.core.eval_context(), _tf_compat.recording_again():
      return self.compiled(None).get_concrete_function(*specs)

  @functools.cached_property
  def flat_call(self) -> Callable[[list[tf.Tensor]], Sequence[tf.Tensor]]:
    """The graph, called on eager tensors."""
    try:
      return flat_call(self.concrete, self.substituted)
    except ValueError as error:
      raise ValueError(
        f"'{self.name}' cannot take values in place of its variables: {error}. Read the variable "
        "before"
      ) from error

  def compiled(self, jit_compile: bool | None) -> Any:
    """The function as a tf.function."""
    return tf.function(self.run, autograph=False, jit_compile=jit_compile)

  @property
  def specs(self) -> list[tf.TensorSpec]:
    """The signature, as TensorFlow writes it."""
    return [tensor_spec(aval) for aval in self.avals_in]

  @functools.cached_property
  def avals_out(self) -> tuple[jax.ShapeDtypeStruct, ...]:
    """Shapes and dtypes of the results: the declared ones, or those that TensorFlow infers.

    Raises:
      ValueError: a shape depends on values, and none is declared; or they differ.
    """
    outs = self.concrete.outputs
    if self._declared is not None:
      declared = [declared_aval(aval) for aval in self._declared]
      shapes_in, shapes_out = (
        [aval.shape for aval in avals] for avals in (self.avals_in, declared)
      )
      if contradicting := contradiction(shapes_in, shapes_out, self._infer):
        i, sizes, other = contradicting
        raise self.contradicts(outs[i].dtype, other, declared[i], f" for {sizes}")
      return tuple(declared)
    shapes = self.shapes()
    for y, shape in zip(outs, shapes, strict=True):
      if shape is None:
        raise ValueError(
          f"call_tf cannot call functions whose output has dynamic shape: '{self.name}' returns "
          f"{y.dtype.name}{y.shape}. "
          "Declare the shape of the result with output_shape_dtype"
        )
    return tuple(
      jax.ShapeDtypeStruct(shape, y.dtype.as_numpy_dtype)
      for y, shape in zip(outs, shapes, strict=True)
      if shape is not None
    )

  def as_declared(self, y: tf.Tensor, aval: Any) -> tf.Tensor:
    """A result with the declared shape, where TensorFlow does not know it. A running graph raises
    if it has another.

    Raises:
      ValueError: it has another shape or dtype.
    """
    spec = tensor_spec(aval := declared_aval(aval))
    if y.dtype != spec.dtype or not y.shape.is_compatible_with(spec.shape):
      raise self.contradicts(y.dtype, y.shape, aval)
    known = y.shape.rank is not None and y.shape.merge_with(spec.shape) == y.shape
    return y if known or tf.executing_eagerly() else tf.ensure_shape(y, spec.shape)

  def contradicts(self, dtype: tf.DType, shape: Any, aval: Any, sizes: str = "") -> ValueError:
    """The error for a result of another shape or dtype than is declared."""
    return ValueError(
      "The shapes or dtypes returned by the TensorFlow function do not match the declared "
      "output_shape_dtype: "
      f"'{self.name}' returns {dtype.name}{shape}{sizes}, declared is "
      f"{aval.dtype}({', '.join(map(str, aval.shape))})"
    )

  @property
  def declares(self) -> bool:
    """Whether the user declares the shapes of the results."""
    return self._declared is not None

  def shapes(self) -> Sequence[tuple[Any, ...] | None]:
    """Those of the results, as TensorFlow infers them; None for one that it cannot."""
    shapes: Sequence[tuple[Any, ...] | None]
    shapes = [
      tuple(y.shape.as_list()) if y.shape.is_fully_defined() else None
      for y in self.concrete.outputs
    ]
    if None in shapes and any(is_symbolic_dim(d) for aval in self.avals_in for d in aval.shape):
      shapes = symbolic_shapes([aval.shape for aval in self.avals_in], self._infer)
    return shapes

  def _infer(self, shapes: list[Shape]) -> list[Shape]:
    specs = [
      tf.TensorSpec(shape, spec.dtype) for shape, spec in zip(shapes, self.specs, strict=True)
    ]
    return [tuple(y.shape.as_list()) for y in self._traced(specs).outputs]

  def eagerly(self, arrays: Sequence[jax.Array]) -> list[jax.Array]:
    """The results for concrete arrays."""
    return [jax_array(y) for y in self.run_eagerly(*map(tensor, arrays, self._dtypes))]

  def run_eagerly(self, *tensors: tf.Tensor) -> Sequence[tf.Tensor]:
    """The results for eager tensors: `run` itself for the user's function."""
    if self.substituted:
      return self.flat_call(list(tensors))
    if not tf.executing_eagerly():
      with _tf_compat.outside_graphs():
        return self.run(*tensors)
    return self.run(*tensors)

  def called_back(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The results for the arrays of a callback."""
    # TensorFlow's tensors share the memory of the arrays, and JAX's memory is used again after the
    # call.
    keep = np.array if self.stateful else np.asarray
    return [y.numpy() for y in self.flat_call([tf.constant(keep(x)) for x in arrays])]

  @functools.cached_property
  def stateful(self) -> frozenset[str]:
    """Types of the stateful ops, in the functions that it calls too."""
    definition = self.concrete.graph.as_graph_def()
    nodes = itertools.chain(
      definition.node, *(function.node_def for function in definition.library.function)
    )
    return frozenset(filter(_tf_compat.is_stateful, {node.op for node in nodes} - _CALLS))

  @property
  def has_effects(self) -> bool:
    """Whether a call must run although its results are unused."""
    option = self.options.has_side_effects
    return self.options.ordered or bool(self.stateful - READING if option is None else option)

  @property
  def variables(self) -> list[tf.Variable]:
    """The floating point and complex variables that it captures, in the order of their first
    use."""
    return [v for v in self.captured if v.dtype.is_floating or v.dtype.is_complex]

  @property
  def read(self) -> list[tf.Variable]:
    """Those whose values a call reads: an argument has the others."""
    substituted = {v.ref() for v in self.substituted.values()}
    return [v for v in self.variables if v.ref() not in substituted]

  @functools.cached_property
  def captured(self) -> list[tf.Variable]:
    """All variables that it captures, in the order of their first use; TensorFlow has them in a
    set."""
    by_handle = {id(v.handle): v for v in self.concrete.graph.variables}
    return [by_handle[id(x)] for x in self.concrete.captured_inputs if id(x) in by_handle]

  @property
  def captures_others(self) -> bool:
    """Whether it captures something that is not a JAX array: tables, string variables, or variables
    of unknown shape."""
    arrays = sum(v.shape.is_fully_defined() and v.dtype != tf.string for v in self.captured)
    return sum(x.dtype in (tf.resource, tf.variant) for x in self.concrete.captured_inputs) > arrays

  @property
  def inexact_results(self) -> list[int]:
    """Positions of the results that have tangents."""
    return [i for i, aval in enumerate(self.avals_out) if is_differentiable(aval.dtype)]

  def memoised(self, key: Any, make: Callable[[], Any]) -> Any:
    """A derived function, cached on first use."""
    with self._lock:
      if key not in self._derived:
        self._derived[key] = make()
      return self._derived[key]


class WithVariables(TfFunction):
  """A function with an argument more for some of its variables.

  Args:
    function: reads the variables.
    variables: those that become arguments, behind its own.
    shadowed: derivatives by the variables are those by these arguments, which have JAX's dtypes.
    substituted: a call uses these arguments in place of what it would read from the variables.
  """

  def __init__(
    self,
    function: TfFunction,
    variables: Sequence[tf.Variable],
    *,
    shadowed: bool,
    substituted: bool,
  ):
    n = len(function.avals_in)
    avals = [_canonical(v) if shadowed else packed_aval(v) for v in variables]
    super().__init__(
      function.name,
      lambda *tensors: function.run(*tensors[:n]),
      (*function.avals_in, *avals),
      function.options,
    )
    own = dict(enumerate(variables, n))
    self.function = function
    self.shadows = {**function.shadows, **own} if shadowed else function.shadows
    self.substituted = {**function.substituted, **own} if substituted else function.substituted

  @property
  def stateful(self) -> Any:
    """As of the function, whose ops it has."""
    return self.function.stateful

  @property
  def avals_out(self) -> Any:
    """Those of the function."""
    return self.function.avals_out

  @property
  def declares(self) -> bool:
    """As of the function."""
    return self.function.declares

  @property
  def captured(self) -> Any:
    """Those of the function."""
    return self.function.captured


class VariableReads(TfFunction):
  """Reads variables. It takes, and ignores, the arguments of a function, so that it runs at the
  same time."""

  def __init__(self, name: str, variables: Sequence[tf.Variable], options: Options):
    # With an effect, so that rematerialisation keeps the values.
    options = replace(options, has_side_effects=True, vmap_method=None)
    super().__init__(
      f"the variables of {name}",
      lambda *_: [packed(v.read_value()) for v in variables],
      (),
      options,
    )

  def called_back(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """As `TfFunction.called_back`; no array is copied."""
    return super().called_back(())


def _canonical(v: tf.Variable) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct(v.shape, dtypes.canonicalize_dtype(v.dtype.as_numpy_dtype))


def is_packed(dtype: tf.DType) -> bool:
  """Whether JAX only keeps values of this dtype as bits: it has no 64-bit elements without
  jax_enable_x64."""
  return dtypes.canonicalize_dtype(dtype.as_numpy_dtype) != dtype.as_numpy_dtype


def packed_aval(v: tf.Variable) -> jax.ShapeDtypeStruct:
  """The aval of a value of which JAX only keeps the bits."""
  return (
    jax.ShapeDtypeStruct((*v.shape, v.dtype.size // 4), np.uint32)
    if is_packed(v.dtype)
    else _canonical(v)
  )


def packed(y: tf.Tensor) -> tf.Tensor:
  """The bits of the value, in the dtype and shape of `packed_aval`."""
  return tf.bitcast(y, tf.uint32) if is_packed(y.dtype) else y


def declared_aval(aval: Any) -> jax.ShapeDtypeStruct:
  """The aval that `output_shape_dtype` means: of JAX's dtypes, and of the physical data of keys."""
  dtype = aval.dtype if is_key(aval.dtype) else dtypes.canonicalize_dtype(aval.dtype)
  physical = _jax_compat.physical_aval(jax.core.ShapedArray(aval.shape, dtype))
  return jax.ShapeDtypeStruct(physical.shape, physical.dtype)


def tensor_spec(aval: Any) -> tf.TensorSpec:
  """The aval as TensorFlow writes it."""
  return tf.TensorSpec(
    [None if is_symbolic_dim(d) else d for d in aval.shape], tf_dtype(aval.dtype)
  )


def tensor(array: Any, dtype: Any) -> tf.Tensor:
  """The array, or the Python scalar, as an eager tensor, which shares its memory where TensorFlow
  can."""
  if (
    isinstance(array, jax.Array)
    and array.dtype.name in _SHARED
    and len(array.sharding.device_set) == 1
  ):
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())
  return tf.constant(np.asarray(array, dtype))


def jax_array(y: tf.Tensor) -> jax.Array:
  """The eager tensor as an array, which shares its memory where JAX can."""
  if y.dtype.name in _SHARED and y.shape.num_elements():
    return jax.dlpack.from_dlpack(y)
  return jax.numpy.asarray(y.numpy())


# TF 2.21 and JAX exchange neither 4-bit nor 8-bit floating point dtypes.
_INTEGERS = (f"{kind}{n}" for kind in ("int", "uint") for n in (8, 16, 32, 64))
_SHARED = frozenset(
  {*_INTEGERS, "float16", "bfloat16", "float32", "float64", "complex64", "complex128"}
)
