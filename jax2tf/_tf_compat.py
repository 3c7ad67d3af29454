"""Every touch of `tensorflow.python` and `tensorflow.compiler`; nothing else may have one."""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops as _xla_ops
from tensorflow.compiler.tf2xla.python import xla as _xla
from tensorflow.core.framework.function_pb2 import RegisteredGradient as _RegisteredGradient
from tensorflow.python import pywrap_tfe as _pywrap_tfe
from tensorflow.python.eager import backprop as _backprop
from tensorflow.python.eager import forwardprop_util as _forwardprop
from tensorflow.python.eager import record as _record
from tensorflow.python.framework import function_def_to_graph as _function_graphs
from tensorflow.python.framework import ops as _ops
from tensorflow.python.ops import control_flow_state as _control_flow_state
from tensorflow.python.ops.parallel_for import pfor as _pfor
from tensorflow.python.saved_model import save as _save
from tensorflow.python.saved_model import save_context as _save_context
from tensorflow.python.trackable import data_structures as _data_structures

# tf.Module wraps the containers that it holds; to JAX they are the dict, list or tuple inside.
ListWrapper = _data_structures.ListWrapper
DictWrapper = _data_structures._DictWrapper
TupleWrapper = _data_structures._TupleWrapper

is_saving = _save_context.in_save_context
# FunctionDef of a graph's library -> tf.Graph with `inputs` and `outputs`.
function_graph = _function_graphs.function_def_to_graph


def traced_for_saving(function: Any) -> Any:
  """The concrete function of a tf.function with an input signature, which saving takes as it is: TensorFlow would trace it once more."""
  with _save_context.save_context(tf.saved_model.SaveOptions()):
    return function.get_concrete_function()


def is_watched(tensor: tf.Tensor) -> bool:
  """True where an active GradientTape or ForwardAccumulator watches this eager tensor, or what it was computed from."""
  return _record.should_record_backprop([tensor]) or bool(_forwardprop.pack_tangents([tensor]).tangents)


def is_missing(cotangent: tf.Tensor) -> bool:
  """Whether there is no cotangent, and TensorFlow has put zeros in its place."""
  return getattr(cotangent, "_jax2tf_is_missing", False)


def missing(zeros: Any) -> Any:
  """The zeros, as such that stand for no cotangent."""
  if isinstance(zeros, tf.Tensor):
    zeros._jax2tf_is_missing = True
  return zeros


def _filling(make_zeros: Callable[..., Any]) -> Callable[..., Any]:
  return lambda *args: missing(make_zeros(*args))


# The two that put zeros in the place of missing cotangents: a tape, and the gradients of the ops of a graph. Eager zeros are kept by
# TensorFlow for each shape and dtype, and given to nobody else.
_pywrap_tfe.TFE_Py_RegisterVSpace(
  _backprop._default_vspace._replace(
    zeros_fn=_filling(_backprop._default_vspace.zeros_fn), zeros_like_fn=_filling(_backprop._default_vspace.zeros_like_fn)
  )
)
_control_flow_state.ZerosLike = _filling(_control_flow_state.ZerosLike)


@contextlib.contextmanager
def recording_again() -> Iterator[None]:
  """Where recording is stopped, tapes record: for what JAX traces may be TensorFlow with a tape of its own, as a call_tf is."""
  stopped = _pywrap_tfe.TFE_Py_TapeSetIsStopped()
  if stopped:
    _pywrap_tfe.TFE_Py_TapeSetRestartOnThread()
  try:
    yield
  finally:
    if stopped:
      _pywrap_tfe.TFE_Py_TapeSetStopOnThread()


def fails_under_xla(condition: tf.Tensor, message: str) -> tf.Operation:
  """An op that XLA compiles only where the condition holds, for XLA drops Asserts. Put it behind an Assert, which speaks elsewhere.

  The condition may depend on sizes, which XLA knows when it compiles. Its error names the op, which is named after the message.
  Without XLA nobody reads the result, and Grappler removes the op.
  """
  name = re.sub(r"[^\w.]+", "_", message).strip("_")
  step = tf.cast(condition, tf.int32)
  return tf.range(step, step, step, name=name).op  # a range has no steps of 0


_GRADIENT = "Jax2tfGradient"
_gradient_numbers = itertools.count()


def with_derivatives(
  compute: Callable[[], tuple[list[tf.Tensor], Any]],
  operands: Sequence[tf.Tensor],
  pull: Callable[..., Sequence[tf.Tensor | None]],
  push: Callable[..., Sequence[tf.Tensor | None]],
) -> list[tf.Tensor]:
  """The results that `compute` gives for `operands`, in an op with derivatives of our own.

  As tf.custom_gradient does it, with an IdentityN that has its own gradient function. But that looks through the
  whole graph for variables each time, and in a graph gives zero tangents to a ForwardAccumulator.

  Args:
    compute: -> results, residuals; without recording: TensorFlow would prepare a gradient of its own for every loop and branch inside.
    operands: floating point and complex tensors.
    pull: residuals, cotangents of the results -> those of the operands.
    push: tangents of the operands -> those of the results.
  """
  graph = current_graph()
  with _record.stop_recording():
    outs, residuals = compute()
    pull = errors_as_raised()(functools.partial(pull, residuals))
    if graph is None:
      tensors = [tf.identity(y) for y in outs]
    else:
      gradient_type = f"{_GRADIENT}-{next(_gradient_numbers)}"

      _register_gradient(graph, gradient_type, lambda *cotangents: [None] * len(outs) + list(pull(*cotangents[: len(outs)])))
      with graph.gradient_override_map({"IdentityN": gradient_type}):
        tensors = tf.identity_n([*outs, *operands])[: len(outs)] if outs else []
  _record.record_operation("Jax2tf", tensors, list(operands), pull, errors_as_raised()(push))
  return tensors


def without_derivatives(results: Callable[[], list[tf.Tensor]], operands: Sequence[tf.Tensor], reason: str) -> list[tf.Tensor]:
  """What `results()` computes from `operands`, in ops whose derivatives are a LookupError, in a loaded model too."""
  with _record.stop_recording():
    tensors = [tf.raw_ops.PreventGradient(input=y, message=reason) for y in results()]

  @errors_as_raised()
  def refuse(*_: tf.Tensor) -> Any:
    raise LookupError(f"Gradient explicitly disabled. Reason: {reason}")

  _record.record_operation("Jax2tf", tensors, list(operands), refuse, refuse)
  return tensors


def _register_gradient(graph: tf.Graph, gradient_type: str, gradient: Callable[..., list[tf.Tensor | None]]) -> None:
  """Registers the gradient function of one op of `graph`, for as long as the graph lives.

  TensorFlow's registry forgets nothing, and the function holds tensors, so the graph and the weights in it: the graph keeps it instead.
  """
  setattr(graph, gradient_type, gradient)
  alive = weakref.ref(graph)

  @tf.RegisterGradient(gradient_type)
  @tf.autograph.experimental.do_not_convert  # saving a model traces it once more
  def registered(_: Any, *cotangents: tf.Tensor) -> list[tf.Tensor | None]:
    return getattr(alive(), gradient_type)(*cotangents)

  weakref.finalize(graph, _ops.gradient_registry._registry.pop, gradient_type).atexit = False


def _vectorized_identity_n(pfor_input: Any, vectorized: Any = _pfor._pfor_converter_registry["IdentityN"]) -> Any:
  # TF 2.21: pfor makes a plain IdentityN of it, and TensorFlow would differentiate the ops behind it, silently.
  if not pfor_input.op.node_def.attr["_gradient_op_type"].s.startswith(_GRADIENT.encode()):
    return vectorized(pfor_input)

  def refuse(*_: tf.Tensor) -> Any:
    raise LookupError(
      "TensorFlow's pfor (tf.vectorized_map, and jacobian with one more tape around it) leaves out the derivatives of a "
      "jax2tf-converted function. Use jax.vmap before convert, or experimental_use_pfor=False"
    )

  tensors = [x.t for x in pfor_input.inputs]
  operands = [x for x in tensors if x.dtype.is_floating or x.dtype.is_complex]
  results = with_derivatives(lambda: (tensors, None), operands, refuse, refuse)
  return [_pfor.wrap(y, x.is_stacked) for y, x in zip(results, pfor_input.inputs, strict=True)]


_pfor._pfor_converter_registry["IdentityN"] = _vectorized_identity_n


@_pfor.RegisterPFor("PreventGradient")  # TF 2.21 has none, and would take a loop over the rows
def _vectorized_prevent_gradient(pfor_input: Any) -> Any:
  return _pfor.wrap(tf.raw_ops.PreventGradient(input=pfor_input.stacked_input(0), message=pfor_input.get_attr("message")), True)


def stablehlo_version() -> str:
  """The newest StableHLO that this TensorFlow reads."""
  from tensorflow.compiler.mlir.stablehlo import stablehlo  # noqa: PLC0415  (0.2 s, for those who lower natively)

  return stablehlo.get_current_version()


def xla_call_module(
  operands: Sequence[tf.Tensor],
  *,
  module: bytes,
  version: int,
  platforms: Sequence[str],
  shapes: Sequence[Sequence[int | None]],
  dtypes: Sequence[tf.DType],
  disabled_checks: Sequence[str],
) -> list[tf.Tensor]:
  """One XlaCallModule op: a StableHLO module that XLA compiles when it runs, for the shapes that it then has.

  Raises:
    NotImplementedError: this TensorFlow has an older calling convention.
  """
  if version > (newest := _xla.call_module_maximum_supported_version()):
    raise NotImplementedError(
      f"XlaCallModule from your TensorFlow installation supports up to serialization version {newest}, not {version}"
    )
  if not dtypes:
    return []
  results = _xla_ops.xla_call_module(
    list(operands),
    version=version,
    module=module,
    platforms=list(platforms),
    Sout=[list(shape) for shape in shapes],
    Tout=list(dtypes),
    disabled_checks=list(disabled_checks),
  )
  for result, shape in zip(results, shapes, strict=True):
    result.set_shape(shape)
  return list(results)


def xla_sharding(operand: tf.Tensor, tiles: tuple[Sequence[int], Sequence[int], bool] | None, free: Sequence[int] = ()) -> tf.Tensor:
  """The operand with an annotation for XLA's partitioner; `tiles` as of `_jax_compat.hlo_sharding`, `free` dimensions are left to it."""
  from tensorflow.compiler.xla import xla_data_pb2  # noqa: PLC0415  (for those who shard)

  if tiles is None:
    proto = xla_data_pb2.OpSharding(type=xla_data_pb2.OpSharding.REPLICATED)
  else:
    proto = xla_data_pb2.OpSharding(
      type=xla_data_pb2.OpSharding.OTHER,
      tile_assignment_dimensions=tiles[0],
      tile_assignment_devices=tiles[1],
      replicate_on_last_tile_dim=tiles[2],
    )
  return _xla_ops.xla_sharding(operand, sharding=proto.SerializeToString(), unspecified_dims=sorted(free))


class _Saved:
  """A function of a graph that is being saved, whose captures and arguments are found by identity."""

  def __init__(self, function: Any):
    self.name, self.outer_graph = function.name, function.graph.outer_graph
    self.captured = {id(inner): outer for outer, inner in function.graph.captures}
    definition = function.cached_definition
    self._arguments = {id(x): f"{y.name}:0" for x, y in zip(function.graph.inputs, definition.signature.input_arg, strict=True)}
    self._results = {op: result.split(":")[0] for op, result in definition.ret.items()}

  def saved_name(self, x: tf.Tensor) -> str:
    """The name that a tensor of the function is saved with."""
    # TF 2.21: an op after which a result of its function is named, as "jax2tf_arg_0" and "strided_slice" are, is saved as "jax2tf_arg_0_0".
    op, index = self._arguments.get(id(x), x.name).split(":")
    result = self._results.get(op, "")
    return f"{result if result.startswith(f'{op}_') else op}:{index}"


def _trace_gradient_functions(graph: tf.Graph, view: Any) -> None:
  """Adds the gradient functions of the functions in `graph`, and theirs, to what is saved.

  TF 2.21 leaves out those of gradient functions, so that a loaded model would have no second derivative; and it compares each capture with
  each other one, which takes minutes for 500 parameters.

  Raises:
    ValueError: a gradient function fails, or captures what a SavedModel cannot hold.
  """
  saved: dict[tf.Graph, _Saved] = {}
  names: set[str] = set()
  types: set[str] = set()
  while new := [function for name, function in graph._functions.items() if name not in names]:
    names.update(graph._functions)
    saved.update((function.graph, _Saved(function)) for function in new if hasattr(function, "graph"))
    for function in new:
      for encoded, op in _save._iterate_op_types(function):
        if (gradient_type := encoded.decode()) not in types and gradient_type in _ops.gradient_registry.list():
          _save_gradient(graph, view, saved, gradient_type, op)
        types.add(gradient_type)


def _save_gradient(graph: tf.Graph, view: Any, saved: dict[tf.Graph, _Saved], gradient_type: str, op: tf.Operation) -> None:
  try:
    gradient = tf.function(_ops.gradient_registry.lookup(gradient_type)).get_concrete_function(None, *op.inputs)
  except Exception as error:
    raise ValueError(
      f"Error when tracing gradients for SavedModel: that of op {op.name!r} raises {type(error).__name__}: {error}. Mend it, or save "
      "without gradients: tf.saved_model.SaveOptions(experimental_custom_gradients=False)"
    ) from error
  with graph.as_default():
    for capture in gradient.captured_inputs:
      if capture.dtype in _save._UNCOPIABLE_DTYPES:
        continue
      outer, place = capture, op.graph
      while (of := saved.get(place)) is not None and not isinstance(outer, tf.__internal__.EagerTensor):
        if outer.graph is place:
          if id(outer) not in of.captured:
            break
          outer = of.captured[id(outer)]
        place = of.outer_graph
      if of is not None and not isinstance(outer, tf.__internal__.EagerTensor):
        view.add_capture_and_node(capture, _save._CapturedTensor(of.saved_name(outer), of.name))
      elif outer in view.captured_tensor_node_ids:
        view.captured_tensor_node_ids[capture] = view.captured_tensor_node_ids[outer]
      else:
        raise ValueError(f"Found invalid capture {outer} when saving custom gradients: that of op {op.name!r} has it from nowhere")
    gradient.add_to_graph(graph)
  view.gradient_functions.append(gradient)
  view.gradient_defs.append(_RegisteredGradient(gradient_func=gradient.name, registered_op_type=gradient_type))


_save._trace_gradient_functions = _trace_gradient_functions


def current_graph() -> tf.Graph | None:
  """The graph under construction, or None when ops run eagerly."""
  return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


@contextlib.contextmanager
def errors_as_raised() -> Iterator[None]:
  """Keeps AutoGraph from turning an exception into one of its own, which loses its type and its words."""
  try:
    yield
  except Exception as error:
    error.ag_pass_through = True  # type: ignore[attr-defined]
    raise


def grappled(definition: Any, fetches: Sequence[str], optimizers: Sequence[str]) -> Any:
  """A GraphDef after some of Grappler's optimizers: "constfold", "dependency", "remap" ...; the ops `fetches` keep their names."""
  from tensorflow.python.grappler import tf_optimizer  # noqa: PLC0415  (for those who export)

  graph = tf.Graph()
  with graph.as_default():
    tf.graph_util.import_graph_def(definition, name="")
    meta = tf.compat.v1.train.export_meta_graph(graph=graph, clear_devices=True)
  meta.collection_def["train_op"].node_list.value.extend(fetches)
  config = tf.compat.v1.ConfigProto()
  rewriting = config.graph_options.rewrite_options
  rewriting.optimizers.extend(optimizers)
  rewriting.min_graph_nodes = -1  # small graphs too
  return tf_optimizer.OptimizeGraph(config, meta)
