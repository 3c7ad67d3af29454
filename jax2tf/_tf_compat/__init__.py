"""All uses of `tensorflow.python` and `tensorflow.compiler`: `functions` has those for `call_tf`,
`patches` what we replace."""

from __future__ import annotations

import contextlib
import functools
import itertools
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from jax import tree_util
from tensorflow.compiler.tf2xla.ops import gen_xla_ops as _xla_ops
from tensorflow.compiler.tf2xla.python import xla as _xla
from tensorflow.python import pywrap_tfe as _pywrap_tfe
from tensorflow.python.eager import context as _context
from tensorflow.python.eager import forwardprop_util as _forwardprop
from tensorflow.python.eager import record as _record
from tensorflow.python.framework import auto_control_deps as _auto_control_deps
from tensorflow.python.framework import function_def_to_graph as _function_graphs
from tensorflow.python.framework import op_def_registry as _op_defs
from tensorflow.python.framework import ops as _ops
from tensorflow.python.ops import control_flow_util as _control_flow_util
from tensorflow.python.ops import script_ops as _script_ops
from tensorflow.python.saved_model import save_context as _save_context
from tensorflow.python.trackable import data_structures as _data_structures

from jax2tf._tf_compat import autograph as _autograph  # noqa: F401  (AutoGraph leaves us alone)

_WRAPPERS = (
  _data_structures.ListWrapper | _data_structures._DictWrapper | _data_structures._TupleWrapper
)


def unwrapped(tree: Any) -> Any:
  """Unwraps tf.Module's containers to dicts, lists and tuples, which JAX accepts."""

  def unwrap(x: Any) -> Any:
    if isinstance(x, _data_structures._DictWrapper):
      return unwrapped(dict(x))
    if isinstance(x, _data_structures._TupleWrapper):
      return unwrapped(x.__wrapped__)
    return unwrapped(list(x)) if isinstance(x, _data_structures.ListWrapper) else x

  leaves, structure = tree_util.tree_flatten(tree, is_leaf=lambda x: isinstance(x, _WRAPPERS))
  if not any(isinstance(x, _WRAPPERS) for x in leaves):
    return tree  # as it is: the nodes of users are not built again
  return tree_util.tree_unflatten(structure, map(unwrap, leaves))


is_saving = _save_context.in_save_context
# The functions of PyFunc ops: {token: a function of NumPy arrays}, held weakly.
python_functions = _script_ops._py_funcs._funcs
# A graph in which no function is called: replacements run there what is eager in tf.init_scope.
FuncGraph = tf.__internal__.FuncGraph
# FunctionDef of a graph's library -> tf.Graph with `inputs` and `outputs`.
function_graph = _function_graphs.function_def_to_graph
# Executes eagerly, even while a graph is built. Unlike tf.init_scope, tapes keep recording.
outside_graphs = _context.eager_mode


def traced_for_saving(function: Any) -> Any:
  """The concrete function of a tf.function with an input signature, which saving takes as it is:
  TensorFlow would trace it once more."""
  with _save_context.save_context(tf.saved_model.SaveOptions()):
    return function.get_concrete_function()


class TracedGraph:
  """What a ConcreteFunction says of its graph, in half the time. A call of it traces `function`.

  Args:
    function: a tf.function with an input signature that returns a dict of tensors.

  Attributes:
    graph: a tf.Graph with `inputs`, `outputs`, `captures` and `variables`.
    function_type, structured_outputs: as those of the ConcreteFunction.
  """

  def __init__(self, function: Any):
    self._function = function
    self.function_type = function.function_type
    self.graph = graph = FuncGraph("traced")
    with graph.as_default(), _save_context.save_context(tf.saved_model.SaveOptions()):
      for spec in function.input_signature:
        graph.inputs.append(tf.compat.v1.placeholder(spec.dtype, spec.shape, spec.name))
      self.structured_outputs = function.python_function(*graph.inputs)
    graph.outputs = tf.nest.flatten(self.structured_outputs)
    graph.variables = graph._watched_variables

  def __call__(self, **tensors: tf.Tensor) -> Any:
    """{output: tensor} of the named inputs."""
    return self._function(**tensors)


def is_watched(tensor: tf.Tensor) -> bool:
  """True where an active GradientTape or ForwardAccumulator watches this eager tensor, or what it
  was computed from."""
  return _record.should_record_backprop([tensor]) or bool(
    _forwardprop.pack_tangents([tensor]).tangents
  )


@contextlib.contextmanager
def recording_again() -> Iterator[None]:
  """Resumes recording of tapes, because a function that JAX traces may use its own tape, as a
  call_tf does."""
  stopped = _pywrap_tfe.TFE_Py_TapeSetIsStopped()
  if stopped:
    _pywrap_tfe.TFE_Py_TapeSetRestartOnThread()
  try:
    yield
  finally:
    if stopped:
      _pywrap_tfe.TFE_Py_TapeSetStopOnThread()


@functools.cache
def is_stateful(kind: str) -> bool:
  """Whether ops of this type are stateful; a call of a function is if an op inside is."""
  definition = _op_defs.get(kind)
  return definition is not None and definition.is_stateful


def outputs_of(kind: str) -> Sequence[Any]:
  """The ArgDefs of the outputs of an op type; empty for one that TensorFlow does not know."""
  definition = _op_defs.get(kind)
  return () if definition is None else definition.output_arg


def keep_order(op: tf.Operation) -> None:
  """Keeps Grappler from merging a sum or product with those of its operands, which changes where
  values round and overflow.

  TF 2.21: the attribute is Grappler's own mark of the sums and products that it has rearranged.
  """
  op._set_attr(_ORDERED, _TRUE)


def keep_constant(op: tf.Operation) -> None:
  """Keeps Grappler from moving the constant operand of an op into another op, and from replacing
  the op.

  TF 2.21: constant folding passes over nodes that have an attribute of a name with "_tpu_" in it,
  and needs no TPU for that.
  """
  op._set_attr(_WITH_CONSTANT, _TRUE)


def take_last_in_pfor(index: tf.Tensor) -> None:
  """Makes pfor convert the last branch alone of the Case with this index: it may lack converters
  for the others."""
  index.op._set_attr(LAST_IN_PFOR, _TRUE)


def mark_window(result: tf.Tensor, sizes: Sequence[int | None]) -> None:
  """Notes on a TensorScatterUpdate that its updates are one window of the operand, of these sizes.
  None is one that is not known. An exporter may have an op that writes a window."""
  if not tf.executing_eagerly() and result.op.type == "TensorScatterUpdate":
    known = [-1 if size is None else size for size in sizes]
    result.op._set_attr(
      WINDOW, tf.compat.v1.AttrValue(list=tf.compat.v1.AttrValue.ListValue(i=known))
    )


def mark_fake_quant(result: tf.Tensor, x: tf.Tensor, attributes: Mapping[str, Any]) -> tf.Tensor:
  """The result of Qwix' composite `quant.fake_quant` of `x`, behind an IdentityN of both that has
  the attributes of the composite. An exporter may make quantization parameters of them."""
  if tf.executing_eagerly():
    return result
  value = tf.compat.v1.AttrValue
  kinds = value.ListValue
  both = tf.raw_ops.IdentityN(input=[result, x])
  axis = attributes.get("quantization_dimension", -1)
  zeros = np.asarray(attributes.get("zero_point", ())).tolist()
  for key, attribute in {
    "scale": value(list=kinds(f=np.asarray(attributes["scale"]).tolist())),
    "zero_point": value(list=kinds(i=zeros)),
    "axis": value(i=-1 if axis is None else int(axis)),
    "dtype": value(s=str(attributes["dtype"]).encode()),
    "narrow_range": value(b=bool(attributes["narrow_range"])),
  }.items():
    both[0].op._set_attr(f"{FAKE_QUANT}{key}", attribute)
  return both[0]


# What the attributes begin with.
FAKE_QUANT = "_jax2tf_fake_quant_"
LAST_IN_PFOR = "_jax2tf_last_in_pfor"
WINDOW = "_jax2tf_window"
_TRUE = tf.compat.v1.AttrValue(b=True)
# The attributes of the two, which copies of an op keep.
AS_WRITTEN = (_ORDERED, _WITH_CONSTANT) = (
  "_grappler_ArithmeticOptimizer_AddOpsRewriteStage",
  "_jax2tf_tpu_as_written",
)


def keeping_effects(compute: Callable[[], list[tf.Tensor]]) -> list[tf.Tensor]:
  """The results of `compute`, with control dependencies on all its effectful ops, which run in
  program order.

  TensorFlow does this in a tf.function, but not in TF1 graphs, nor in a gradient requested by a
  tape outside of a tf.function.
  """
  graph: Any = tf.compat.v1.get_default_graph()
  if graph._add_control_dependencies:
    return compute()
  with _auto_control_deps.AutomaticControlDependencies() as dependencies:
    results = [dependencies.mark_as_return(y) for y in compute()]
  graph._add_control_dependencies = False  # the enclosing graph has its own setting
  return results


@contextlib.contextmanager
def functional_control_flow() -> Iterator[None]:
  """Makes loops and branches ops with functions, also after tf.compat.v1.disable_control_flow_v2.

  TensorFlow 1 puts their ops into the graph itself, where a value that is computed in a branch
  cannot be used outside of it. This is a setting of the whole process. TF 2.21 reads it in graphs
  of TensorFlow 1 only.
  """
  if tf.compat.v1.control_flow_v2_enabled():
    yield
    return
  tf.compat.v1.enable_control_flow_v2()
  try:
    yield
  finally:
    tf.compat.v1.disable_control_flow_v2()


def is_compiled_by_xla() -> bool:
  """Whether the graph under construction, or one around it, is of a tf.function with
  jit_compile=True."""
  return _control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())


GRADIENT = "Jax2tfGradient"
_gradient_numbers = itertools.count()


def with_derivatives(
  compute: Callable[[], tuple[list[tf.Tensor], Any]],
  operands: Sequence[tf.Tensor],
  vjp: Callable[..., Sequence[tf.Tensor | None]],
  jvp: Callable[..., Sequence[tf.Tensor | None]],
  has_effects: bool = False,
) -> list[tf.Tensor]:
  """The results of `compute(operands)`, with custom derivatives.

  Like tf.custom_gradient, it uses an IdentityN with a gradient function. But tf.custom_gradient
  searches the whole graph for variables at each call, and in a graph returns zero tangents to a
  ForwardAccumulator.

  Args:
    compute: -> results, residuals; without recording: TensorFlow would prepare a gradient of its
      own for every loop and branch inside.
    operands: floating point and complex tensors.
    vjp: residuals, cotangents of the results -> those of the operands.
    jvp: tangents of the operands -> those of the results.
    has_effects: whether `compute` has effects. `vjp` then depends on them; a TF1 graph would prune
      them if no cotangent depends on them.
  """
  graph = current_graph()
  with _record.stop_recording():
    outs, residuals = compute()
    vjp = errors_as_raised()(functools.partial(vjp, residuals))
    if graph is None:
      tensors = [tf.identity(y) for y in outs]
    else:
      gradient_type = f"{GRADIENT}-{next(_gradient_numbers)}"

      def gradient(*cotangents: tf.Tensor) -> list[tf.Tensor | None]:
        with tf.control_dependencies(tensors if has_effects and graph is current_graph() else []):
          return [None] * len(outs) + list(vjp(*cotangents[: len(outs)]))

      _register_gradient(graph, gradient_type, gradient)
      with graph.gradient_override_map({"IdentityN": gradient_type}):
        tensors = tf.identity_n([*outs, *operands])[: len(outs)] if outs else []
      _note_effects(tensors, has_effects)
  _record.record_operation("Jax2tf", tensors, list(operands), vjp, errors_as_raised()(jvp))
  return tensors


def without_derivatives(
  results: Callable[[], list[tf.Tensor]],
  operands: Sequence[tf.Tensor],
  reason: str,
  has_effects: bool = False,
) -> list[tf.Tensor]:
  """The results of `results()` for `operands`. Their derivatives raise a LookupError, in a loaded
  model too."""
  with _record.stop_recording():
    tensors = [_prevented(y, reason) for y in results()]
    if current_graph():
      _note_effects(tensors, has_effects)

  @errors_as_raised()
  def refuse(*_: tf.Tensor) -> Any:
    raise LookupError(f"Gradient explicitly disabled. Reason: {reason}")

  _record.record_operation("Jax2tf", tensors, list(operands), refuse, refuse)
  return tensors


def _prevented(y: tf.Tensor, reason: str) -> tf.Tensor:
  if y.dtype == tf.int32:  # TF 2.21: no kernel on GPUs; it has no gradient anyway
    return tf.identity_n([y])[0]
  return tf.raw_ops.PreventGradient(input=y, message=reason)


EFFECTS = (
  "_jax2tf_effects"  # an attribute of the ops that have the results of a function with effects
)


def _note_effects(results: Sequence[tf.Tensor], has_effects: bool) -> None:
  for op in {y.op for y in results if has_effects}:
    op._set_attr(EFFECTS, _TRUE)


def _register_gradient(
  graph: tf.Graph, gradient_type: str, gradient: Callable[..., list[tf.Tensor | None]]
) -> None:
  """Registers the gradient function of one op of `graph`, for as long as the graph lives.

  TensorFlow's registry never forgets a function, which holds tensors and thus the graph and its
  weights. So the graph holds it instead.
  """
  setattr(graph, gradient_type, gradient)
  alive = weakref.ref(graph)

  @tf.RegisterGradient(gradient_type)  # type: ignore[untyped-decorator]
  # Saving a model traces it once more.
  @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
  def registered(_: Any, *cotangents: tf.Tensor) -> list[tf.Tensor | None]:
    return getattr(alive(), gradient_type)(*cotangents)

  weakref.finalize(graph, _ops.gradient_registry._registry.pop, gradient_type).atexit = False


def stablehlo_version() -> str:
  """The newest StableHLO that this TensorFlow reads."""
  from tensorflow.compiler.mlir.stablehlo import stablehlo  # noqa: PLC0415  (0.2 s; for native lowering only)

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
  """One XlaCallModule op: a StableHLO module that XLA compiles when it runs, for the shapes that it
  then has.

  Raises:
    NotImplementedError: this TensorFlow has an older calling convention.
  """
  if version > (newest := _xla.call_module_maximum_supported_version()):
    raise NotImplementedError(
      "XlaCallModule from your TensorFlow installation supports up to serialization version "
      f"{newest}, not {version}"
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


def xla_sharding(
  operand: tf.Tensor,
  tiles: tuple[Sequence[int], Sequence[int], bool] | None,
  free: Sequence[int] = (),
) -> tf.Tensor:
  """The operand with an annotation for XLA's partitioner; `tiles` as of `_jax_compat.hlo_sharding`,
  `free` dimensions are left to it."""
  from tensorflow.compiler.xla import xla_data_pb2  # noqa: PLC0415  (for shardings only)

  if tiles is None:
    proto = xla_data_pb2.OpSharding(type=xla_data_pb2.OpSharding.REPLICATED)
  else:
    proto = xla_data_pb2.OpSharding(
      type=xla_data_pb2.OpSharding.OTHER,
      tile_assignment_dimensions=tiles[0],
      tile_assignment_devices=tiles[1],
      replicate_on_last_tile_dim=tiles[2],
    )
  return _xla_ops.xla_sharding(
    operand, sharding=proto.SerializeToString(), unspecified_dims=sorted(free)
  )


def current_graph() -> tf.Graph | None:
  """The graph under construction, or None when ops run eagerly."""
  return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


def captured(x: tf.Tensor) -> tf.Tensor:
  """The tensor, as the graph under construction captures it if it is of another one."""
  graph = current_graph()
  return graph.capture(x) if isinstance(graph, FuncGraph) else x


def keeping_control_dependencies(x: tf.Tensor) -> tf.Tensor:
  """The tensor, as the result of an op that keeps control dependencies.

  TF 2.21: Grappler loses control dependencies on results of IdentityN, which every custom gradient
  creates, even through Identity and StopGradient. A variable could then be written before it is
  read. EnsureShape keeps them.
  """
  if not isinstance(x, tf.Tensor) or tf.executing_eagerly():
    return x
  # TF 2.21: a ForwardAccumulator in a graph cannot differentiate the op, whose attribute has no
  # TraceType.
  with _record.stop_recording():
    same = tf.ensure_shape(x, x.shape)
  _record.record_operation(
    "Jax2tf", [same], [x], lambda cotangent: [cotangent], lambda tangent: [tangent]
  )
  return same


def orders_writes() -> bool:
  """Whether TensorFlow runs reads and writes of variables in the order in which they are made
  here."""
  graph = current_graph()
  return graph is None or bool(getattr(graph, "_add_control_dependencies", False))


@contextlib.contextmanager
def errors_as_raised() -> Iterator[None]:
  """Prevents AutoGraph from replacing an exception by its own, which loses type and message."""
  try:
    yield
  except Exception as error:
    error.ag_pass_through = True  # type: ignore[attr-defined]
    raise


def optimized(definition: Any, fetches: Sequence[str], optimizers: Sequence[str]) -> Any:
  """A GraphDef after some of Grappler's optimizers: "constfold", "dependency", "remap" ...; the ops
  `fetches` keep their names."""
  from tensorflow.python.grappler import tf_optimizer  # noqa: PLC0415  (for exports only)

  meta = tf.compat.v1.MetaGraphDef(graph_def=definition)
  for node in meta.graph_def.node:
    node.ClearField("device")
  meta.collection_def["train_op"].node_list.value.extend(fetches)
  config = tf.compat.v1.ConfigProto()
  rewriting = config.graph_options.rewrite_options
  rewriting.optimizers.extend(optimizers)
  rewriting.min_graph_nodes = -1  # small graphs too
  return tf_optimizer.OptimizeGraph(config, meta)


def edit_models(converter: Any, edit: Callable[[bytes], bytes]) -> None:
  """Makes a `tf.lite.TFLiteConverter` edit the model that it makes: before it runs the model to
  measure the ranges of its tensors, and again when it has quantized it, which may undo an edit."""
  finish = converter._optimize_tflite_model

  @functools.wraps(finish)
  def finish_edited(model: bytes, *args: Any, **options: Any) -> Any:
    return edit(bytes(finish(edit(bytes(model)), *args, **options)))

  converter._optimize_tflite_model = finish_edited
