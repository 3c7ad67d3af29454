"""Translates a signature to an onnx.ModelProto by tf2onnx, and raises the errors that tf2onnx only
logs."""

from __future__ import annotations

import contextlib
import functools
import logging
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from jax2tf.messages import ArgumentError, Message

from .. import collector
from ..bundle import graphs
from ..bundle.notation import Spec
from ..export import freezing
from ..export.ends import complex_names
from ..export.source import ExportError, Signature
from . import (
  bfloat16,
  constants,
  dequantization,
  fused,
  handlers,
  narrow,
  opsets,
  order,
  parameters,
  passes,
  protos,
  ranges,
  rows,
  walks,
)
from .attention import Attentions
from .parameters import Parameters
from .replacements import TABLE
from .rotary import Rotations
from .runtime import RUNTIME, extra, quiet_options, session
from .sorting import Sorting

# key in the model's metadata: the inputs and outputs, separated by spaces, whose f32[...,2] stands
# for c64[...]
COMPLEX = "jax2tf.complex"


@dataclass(frozen=True)
class Translated:
  """An ONNX model.

  Attributes:
    proto: the onnx.ModelProto.
    weights: {input of `proto`: the variable that gives its value}.
    last_rows: {input of `proto`: the number of which a further row of it consists}.
    ops: {name of a TensorFlow node: its type}. tf2onnx derives its names from these.
    narrow: the `weights` that are float16 in the file, and float32 as variables.
  """

  proto: Any
  weights: Mapping[str, Any]
  last_rows: Mapping[str, np.ndarray]
  ops: Mapping[str, str]
  narrow: frozenset[str] = frozenset()

  def asked_by(self, node: Any) -> str:
    """The type of the TensorFlow op behind an ONNX node, or the node's own type."""
    name = node.name
    while name not in self.ops and re.search(r"__\d+$", name):
      name = re.sub(r"__\d+$", "", name)
    return self.ops.get(name, node.op_type)


@collector.paused()
def translated(
  signature: Signature,
  opset: int | None,
  with_weights: bool,
  *,
  idioms: str,
  keeps_narrow: bool = True,
  attention_nodes: bool = False,
  quantizes: bool = False,
) -> Translated:
  """Translates the signature to ONNX.

  Args:
    signature: the signature to translate.
    opset: the version of ONNX's operators. None for the oldest that has all of them.
    with_weights: whether the parameters become constants of the model, or inputs.
    idioms: as the signature was made.
    keeps_narrow: whether parameters of 4 and 8 bits and of bfloat16 stay so in the file.
    attention_nodes: whether attention becomes Attention.
    quantizes: whether what the function quantizes becomes QuantizeLinear and DequantizeLinear.

  Raises:
    ExportError: ONNX or tf2onnx lacks ops or dtypes.
    ValueError: an input and an output have one name, or a node means something else in `opset`;
      there is no attention for `attention_nodes`.
  """
  taken = [*signature.record.inputs, *signature.record.outputs]
  if both := sorted({name for name in taken if taken.count(name) > 1}):
    raise ArgumentError(
      "outputs",
      problem=f"{both[0]!r} is an input and an output, and ONNX has one tensor of a name",
      advice="rename the output",
    )
  _refuse_narrow(signature)
  weights = Parameters(taken, beside=not with_weights, keeps=keeps_narrow, opset=opset)
  table = dict(fused.TABLE if idioms != "exact" else TABLE)
  with opsets.writing(opset or opsets.OLDEST):
    table = table | {"ReadVariableOp": weights.read}
    if idioms != "exact":
      table = table | Rotations(table).table()
    table = table | Sorting(table).table()
    attentions = Attentions(table)
    if attention_nodes:
      table = table | attentions.table()
    function = bfloat16.held(narrow.TABLE.held(signature.function))
    table |= ranges.quantizing(signature, weights, of_activations=quantizes)
    frozen = freezing.frozen_graph(function, table, bfloat16.HELD)
    newer = handlers.of_newer_opsets()
  if attention_nodes and not attentions.count:
    raise ArgumentError(
      "attention_nodes",
      True,
      problem="the function has no attention that ONNX's Attention computes as JAX does",
      advice="leave it out; docs/guide/onnx-functions.md says which it is",
    )
  graph = _with_own_names(frozen.graph)
  definition = graph.as_graph_def()
  ops = {node.name: node.op for node in graphs.nodes(definition)}
  _refuse_dtypes(signature, definition)
  inputs = {tensor.name: name for name, tensor in frozen.inputs.items()} | weights.names
  outputs = {tensor.name: name for name, tensor in frozen.outputs.items()}
  proto, last_rows = _by_tf2onnx(signature, graph, ops, inputs, outputs, set(weights.values), newer)
  parameters.widen(proto.graph, weights.wide, weights.specs)
  newest = opset or opsets.newest_without_change(proto.graph)
  oldest = dequantization.join(proto.graph, weights, last_rows, newest)
  _set_signature(proto, signature, frozen, weights, last_rows)
  dtypes = [narrow.SINCE.get(spec.dtype, 0) for spec in weights.specs.values()]
  oldest = max([oldest, narrow.finish(proto.graph), *dtypes])
  proto = _at_opset(proto, _chosen(opset, oldest))
  outside: dict[str, parameters.Value] = dict(weights.values)
  if with_weights:
    for name, value in weights.values.items():
      proto.graph.initializer.append(
        parameters.tensor(name, parameters.rows_of(value, last_rows.get(name)))
      )
    outside = {}
  return Translated(proto, outside, last_rows, ops)


def _with_own_names(graph: Any) -> Any:
  """The graph with names of nodes and arguments that are unique across functions: tf2onnx confuses
  inner names with equal outer ones."""
  definition = graph.as_graph_def()
  if not definition.library.function:
    return graph
  graphs.number_functions(definition)
  for i, function in enumerate(definition.library.function):
    nodes, values = function.node_def, function.ret
    names = {node.name: f"{node.name}__in{i}" for node in nodes}
    names |= {argument.name: f"{argument.name}__in{i}" for argument in function.signature.input_arg}
    for named in (*function.signature.input_arg, *nodes):
      named.name = names[named.name]
    for node in nodes:
      node.input[:] = [_renamed(operand, names) for operand in node.input]
    for output, tensor in list(values.items()):
      values[output] = _renamed(tensor, names)
  with tf.Graph().as_default() as renamed:
    tf.graph_util.import_graph_def(definition, name="")
  return renamed


def _renamed(operand: str, names: Mapping[str, str]) -> str:
  """ "^node", "node:output:0" or "argument" under the new name."""
  head, colon, rest = operand.removeprefix("^").partition(":")
  return f"{'^' * operand.startswith('^')}{names[head]}{colon}{rest}"


def _refuse_narrow(signature: Signature) -> None:
  """Refuses inputs and outputs of 4-bit integers and float8, and ops that compute in them."""
  for name, text in {**signature.record.inputs, **signature.record.outputs}.items():
    dtype = Spec.parse(text).dtype
    if any(dtype == one for one in narrow.HELD):
      raise ExportError(
        "onnx",
        Message(
          problem=f"{name!r} of signature {signature.name!r} is {dtype}, which ONNX has for "
          "parameters only",
          advice="take and return int8, uint8 or float32, and convert in the function",
        ),
      )
  if computing := narrow.TABLE.computing(signature.function):
    why = "ONNX moves and converts 4-bit integers and float8, and computes nothing in them"
    raise signature.refuse("onnx", RUNTIME, dict.fromkeys(computing, why))


def _refuse_dtypes(signature: Signature, definition: Any) -> None:
  refused: dict[str, str] = {}
  for node in graphs.nodes(definition):
    for value in node.attr.values():
      if tf.bfloat16.as_datatype_enum in (value.type, *value.list.type):
        refused[node.op] = f"{RUNTIME} on a CPU computes nothing in bfloat16; convert to float32"
  # ops that only move elements; other ops name the cause better
  for op in ("Placeholder", "Const", "Identity", "Cast"):
    if len(refused) > 1:
      refused.pop(op, None)
  if refused:
    raise signature.refuse("onnx", RUNTIME, refused)


def _by_tf2onnx(
  signature: Signature,
  graph: Any,
  ops: Mapping[str, str],
  inputs: Mapping[str, str],
  outputs: Mapping[str, str],
  parameters: set[str],
  newer: Mapping[str, Any],
) -> tuple[Any, dict[str, np.ndarray]]:
  """(the onnx.ModelProto of the graph, what `rows.without_selections` returns). tf2onnx only logs
  ops that it cannot translate, and leaves them unchanged."""
  tfonnx = extra("tf2onnx.tfonnx")
  # Not tf2onnx.convert.from_function: it lets Grappler fold (x + 1) - 1, which rounds x on purpose.
  with contextlib.ExitStack() as stack:
    log = stack.enter_context(_log_of("tf2onnx"))
    stack.enter_context(graph.as_default())
    stack.enter_context(warnings.catch_warnings())
    for changed in (order.kept(), passes.selected(), walks.short(), constants.at_once()):
      stack.enter_context(changed)
    warnings.simplefilter("ignore")  # deprecation warnings of newer NumPys in tf2onnx
    last_rows: dict[str, np.ndarray] = {}
    process = functools.partial(
      tfonnx.process_tf_graph,
      graph,
      continue_on_error=True,
      opset=opsets.OLDEST,
      custom_op_handlers={**handlers.HANDLERS, **fused.HANDLERS, **newer},
      input_names=list(inputs),
      output_names=list(outputs),
      tensors_to_rename={**inputs, **outputs},
    )

    def translate() -> Any:
      translated = process()
      last_rows.update(rows.without_selections(translated, parameters))
      return translated

    try:
      translated = translate()
    except Exception as error:
      raise ExportError("onnx", _failure(signature, error, log)) from error
    if not (lacking := dict(_not_translated(log, ops))):
      try:
        proto = passes.optimized(translate, translated).make_model(
          f"signature {signature.name}", graph_name=signature.name, producer_name="jax2tf"
        )
      except Exception as error:
        raise ExportError("onnx", _failure(signature, error, log)) from error
  if lacking:  # raised outside of the graph, because finding the lines traces the function again
    raise signature.refuse("onnx", RUNTIME, lacking)
  if strange := {
    node.op_type: "tf2onnx did not translate it"
    for node in protos.nodes(proto.graph)
    if node.op_type not in _known_ops()
  }:
    raise signature.refuse("onnx", RUNTIME, strange)
  order.renumber(proto.graph)
  return proto, last_rows


@functools.cache
def _known_ops() -> frozenset[str]:
  """The names of ONNX's operators."""
  return frozenset(schema.name for schema in extra("onnx.defs").get_all_schemas())


def _failure(signature: Signature, error: Exception, log: Sequence[logging.LogRecord]) -> str:
  logged = [record.getMessage().splitlines()[0] for record in log[-5:]]
  return "\n  ".join(
    [f"tf2onnx fails on signature {signature.name!r}: {type(error).__name__}: {error}", *logged]
  )


def _not_translated(
  log: Sequence[logging.LogRecord], ops: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
  """(TensorFlow op, why) for each failure in the log."""
  for record in log:
    arguments = record.args if isinstance(record.args, tuple) else ()
    if record.msg.startswith("Tensorflow op [") and len(arguments) == 2:
      yield str(arguments[1]), "tf2onnx has no translation"
    elif record.msg.startswith("Failed to convert node") and arguments:
      why = str(record.exc_info[1]) if record.exc_info and record.exc_info[1] else "no reason given"
      name = str(arguments[0])
      yield (
        ops.get(name, ops.get(re.sub(r"__\d+$", "", name), name)),
        f"tf2onnx: {why.splitlines()[0] if why else 'no reason given'}",
      )


class _Log(logging.Handler):
  """Collects log records."""

  def __init__(self, level: int):
    super().__init__(level)
    self.records: list[logging.LogRecord] = []

  def emit(self, record: logging.LogRecord) -> None:
    self.records.append(record)


@contextlib.contextmanager
def _log_of(name: str) -> Iterator[list[logging.LogRecord]]:
  """Collects the log of a package instead of showing it."""
  log = _Log(logging.WARNING)
  logger = logging.getLogger(name)
  before = logger.propagate, logger.level
  logger.propagate = False
  logger.setLevel(logging.WARNING)
  logger.addHandler(log)
  try:
    yield log.records
  finally:
    logger.removeHandler(log)
    logger.propagate = before[0]
    logger.setLevel(before[1])


def _set_signature(
  proto: Any,
  signature: Signature,
  frozen: freezing.FrozenGraph,
  weights: parameters.Parameters,
  last_rows: Mapping[str, Any],
) -> None:
  """Sets the order of inputs and outputs, their dtypes, their sizes, and the names of symbolic
  dimensions."""
  record = signature.record
  specs_out = {name: Spec.parse(text) for name, text in record.outputs.items()}
  if narrow := [name for name, spec in specs_out.items() if spec.dtype == tf.bfloat16]:
    proto.metadata_props.add(key=bfloat16.OUTPUTS, value=" ".join(narrow))
  if pairs := complex_names(record):
    proto.metadata_props.add(key=COMPLEX, value=" ".join(pairs))
  inputs = [
    _value_info(name, frozen.inputs[name], Spec.parse(text)) for name, text in record.inputs.items()
  ]
  inputs += [_value_info(name, spec) for name, spec in weights.specs.items()]
  for value in inputs:
    if value.name in last_rows:
      value.type.tensor_type.shape.dim[0].dim_value += 1
  outputs = [
    _value_info(name, frozen.outputs[name], Spec.parse(text))
    for name, text in record.outputs.items()
  ]
  del proto.graph.input[:], proto.graph.output[:]
  proto.graph.input.extend(inputs)
  proto.graph.output.extend(outputs)


def _value_info(name: str, tensor: Any, spec: Spec | None = None) -> Any:
  """The ValueInfoProto of a tensor f32[?,784] whose spec is f32[b,784]."""
  onnx = extra("onnx")
  sizes: list[int | str | None] = list(tensor.shape)
  for i, dim in enumerate(spec.dims or () if spec else ()):
    if i < len(sizes) and sizes[i] is None and dim != "?":
      sizes[i] = dim
  dtype = (
    onnx.TensorProto.STRING
    if tensor.dtype == tf.string
    else onnx.helper.np_dtype_to_tensor_dtype(np.dtype(tensor.dtype.as_numpy_dtype))
  )
  return onnx.helper.make_tensor_value_info(name, dtype, sizes)


def _chosen(opset: int | None, oldest: int) -> int:
  """The opset of the file. Raises ArgumentError if it lacks a dtype."""
  if opset is not None and opset < oldest:
    raise ArgumentError(
      "opset",
      opset,
      problem="the model has casts to float8, which are newer",
      advice=f"give {oldest} or a newer one, or leave it out",
    )
  return opset or max(oldest, opsets.OLDEST)


def _at_opset(proto: Any, opset: int) -> Any:
  """The model with the number of a newer opset. Raises ArgumentError if a node would get another
  meaning."""
  changed = {
    node.op_type
    for node in protos.nodes(proto.graph)
    if opset >= opsets.CHANGED.get(node.op_type, opset + 1)
  }
  if changed:
    raise ArgumentError(
      "opset",
      opset,
      problem=f"the model has {min(changed)}, which means something else there",
      advice=f"give {opsets.CHANGED[min(changed)] - 1} or an older one",
    )
  del proto.opset_import[:]
  proto.opset_import.add(domain="", version=opset)
  proto.ir_version = extra("onnx.helper").find_min_ir_version_for(proto.opset_import)
  return proto


def lacking_kernels(model: Translated) -> dict[str, str]:
  """{TensorFlow op: the missing kernel of ONNX Runtime}, found by opening a session for each
  node."""
  onnx, options = extra("onnx"), quiet_options()
  level = extra("onnxruntime").GraphOptimizationLevel
  options.graph_optimization_level = level.ORT_DISABLE_ALL
  inferred = onnx.shape_inference.infer_shapes(model.proto)
  lacking: dict[str, str] = {}
  tried: set[Any] = set()

  def visit(graph: Any, outer: Mapping[str, int]) -> None:
    types = dict(outer) | {t.name: t.data_type for t in graph.initializer}
    types |= {
      v.name: v.type.tensor_type.elem_type for v in (*graph.input, *graph.value_info, *graph.output)
    }
    for node in graph.node:
      bodies = list(protos.bodies(node))
      for body in bodies:
        visit(body, types)
      kinds = (node.op_type, *(types.get(name) for name in (*node.input, *node.output) if name))
      if bodies or kinds in tried or None in kinds:
        continue
      tried.add(kinds)
      ends = [
        [onnx.helper.make_tensor_value_info(n, types[n], None) for n in dict.fromkeys(names) if n]
        for names in (node.input, node.output)
      ]
      alone = onnx.helper.make_model(
        onnx.helper.make_graph([node], "one", *ends),
        opset_imports=inferred.opset_import,
        ir_version=inferred.ir_version,
      )
      try:
        session(alone.SerializeToString(), options)
      except Exception:
        dtype = onnx.TensorProto.DataType.Name(kinds[1]).lower()
        lacking[model.asked_by(node)] = f"no kernel of {node.op_type} for {dtype}"

  visit(inferred.graph, {})
  return lacking
