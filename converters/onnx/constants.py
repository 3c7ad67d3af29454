"""What tf2onnx computes from constants, computed for a whole graph at once.

tf2onnx 1.17 opens a session of TensorFlow for each op of constants, and describes a whole graph
once more to see which functions it calls: a third of the time of an export with indices.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from . import composites, patches
from .runtime import extra

Operations: TypeAlias = Sequence[tf.Operation]
# {name of a tensor: its value}, {name of a tensor: its dtype}
Known: TypeAlias = tuple[dict[str, Any], dict[str, tf.DType]]

# Ops that tf2onnx leaves as they are, and what stands for a node of ONNX.
_KEPT = (
  *("PlaceholderWithDefault", "Switch", "Merge", "Enter", "Exit", "NextIteration"),
  composites.STAND_IN,
)
_KEPT_BEGINNINGS = ("QuantizeAndDequantizeV", "Random")
_FEW = 64  # ops
_SMALL, _HUGE = 1_000, 1_000_000  # elements


@contextlib.contextmanager
def at_once() -> Iterator[None]:
  """Lets tf2onnx compute what is known of a graph in one session, read constants without elements,
  and look for functions only in a graph that has some."""
  tfonnx, tf_utils = extra("tf2onnx.tfonnx"), extra("tf2onnx.tf_utils")
  read = tf_utils.get_tf_tensor_data
  compute, resolve = tfonnx.compute_const_folding_using_tf, tfonnx.resolve_functions

  def resolved(graph: Any) -> list[Any]:
    return list(resolve(graph)) if graph.as_graph_def().library.function else []

  def known(graph: Any, values: Any, outputs: Sequence[str]) -> Known:
    in_one = None if values else _known(graph.get_operations(), outputs)
    return in_one or compute(graph, values, outputs)

  def value(tensor: Any) -> np.ndarray:
    # TF 2.21 cannot read an array without elements that has a number
    shape = [axis.size for axis in tensor.tensor_shape.dim]
    dtype = tf.as_dtype(tensor.dtype).as_numpy_dtype
    return np.zeros(shape, dtype) if 0 in shape else read(tensor)

  changed = (
    (tfonnx, "compute_const_folding_using_tf", known),
    (tfonnx, "resolve_functions", resolved),
    (tf_utils, "get_tf_tensor_data", value),
  )
  with patches.replaced(changed):
    yield


def _known(ops: Operations, outputs: Collection[str]) -> Known | None:
  """What tf2onnx's function of this contract returns: what ops compute from constants, as far as
  other ops read it. None if one op after the other has to say."""
  sizes = _known_sizes(ops)
  constants = {op.outputs[0].name for op in ops if op.type == "Const"}
  folded = _of_constants(ops, constants | set(sizes), outputs)
  if any(op.type == "StridedSlice" and op.inputs[0].op.type == "Shape" for op in folded):
    return None  # perhaps a size at an index that is computed
  dtypes = {op.outputs[0].name: op.outputs[0].dtype for op in folded}
  known = constants | set(sizes) | set(dtypes)
  others = [op for op in ops if len(op.outputs) != 1 or op.outputs[0].name not in known]
  read = {x.name for op in others for x in op.inputs}
  values: dict[str, Any] = {name: size for name, size in sizes.items() if name in read}
  if wanted := [name for name in dtypes if name in read]:
    computed = _computed(folded, sizes, wanted)
    if computed is None:
      return None
    values |= computed
  dtypes |= {name: tf.as_dtype(size.dtype) for name, size in sizes.items()}
  return values, {name: dtypes[name] for name in values}


def _known_sizes(ops: Operations) -> dict[str, np.ndarray]:
  """The sizes that ops read from known elements of shapes."""
  index_of = extra("tf2onnx.tf_utils").get_index_from_strided_slice_of_shape
  sizes = {}
  for op in ops:
    if op.type != "StridedSlice" or op.inputs[0].op.type != "Shape":
      continue
    shape = op.inputs[0].op.inputs[0].shape
    indices = [x for x in op.inputs[1:] if x.op.type == "Const"]
    index = index_of(op, {x.name: tf.make_ndarray(x.op.get_attr("value")) for x in indices})
    if index is None or shape.rank is None or not 0 <= index < shape.rank:
      continue
    if shape[index] is not None:
      result = op.outputs[0]
      sizes[result.name] = np.array(shape[index], result.dtype.as_numpy_dtype)
  return sizes


def _of_constants(
  ops: Operations, tensors: Collection[str], outputs: Collection[str]
) -> list[tf.Operation]:
  """The ops that tf2onnx computes from these tensors, in their order."""
  known = set(tensors)
  folded = []
  for op in ops:
    if not op.inputs or len(op.outputs) != 1 or op.type in _KEPT:
      continue
    (result,) = op.outputs
    if result.name in known or result.name in outputs or op.type.startswith(_KEPT_BEGINNINGS):
      continue
    if result.dtype == tf.string:  # of which tf2onnx asks for the size, and fails
      continue
    if all(x.name in known for x in op.inputs) and not (op.control_inputs or _calls(op)):
      known.add(result.name)
      folded.append(op)
  return folded


def scalar(x: tf.Tensor) -> Any:
  """The value of a scalar of a graph that is being built, if few ops compute it from constants, or
  None."""
  folded: set[tf.Operation] = set()
  waiting = [x.op]
  while waiting:
    op = waiting.pop()
    if op.type == "Const" or op in folded:
      continue
    is_kept = op.type in _KEPT or op.type.startswith(_KEPT_BEGINNINGS) or _calls(op)
    if is_kept or not op.inputs or len(op.outputs) != 1 or len(folded) == _FEW:
      return None
    folded.add(op)
    waiting.extend(y.op for y in op.inputs)
  if not folded:
    return tf.get_static_value(x)
  values = _computed([*folded], {}, [x.name])
  return None if values is None else values[x.name]


def _calls(op: tf.Operation) -> bool:
  return any(a.HasField("func") or a.list.func for a in op.node_def.attr.values())


def _computed(
  folded: Operations, sizes: Mapping[str, Any], wanted: Sequence[str]
) -> dict[str, Any] | None:
  """{name of a tensor: its value} for the wanted results of ops of constants. None if one fails, or
  if a result may be so large that tf2onnx leaves the op as it is."""
  definition = tf.compat.v1.GraphDef()
  inside = {op.outputs[0].name for op in folded}
  outside = {x.name: x.op for op in folded for x in op.inputs if x.name not in inside}
  with tf.Graph().as_default() as graph:
    for name, op in outside.items():
      if name in sizes:
        tf.constant(sizes[name], op.outputs[0].dtype, name=op.name)
    definition.CopyFrom(graph.as_graph_def())
  definition.node.extend(op.node_def for name, op in outside.items() if name not in sizes)
  definition.node.extend(op.node_def for op in folded)
  try:
    with tf.Graph().as_default() as graph:
      tf.graph_util.import_graph_def(definition, name="")
      if not all(_is_small_enough(graph.get_operation_by_name(op.name)) for op in folded):
        return None
      with tf.compat.v1.Session(graph=graph, config=_as_written()) as session:
        return dict(zip(wanted, session.run(list(wanted)), strict=True))
  except (tf.errors.OpError, ValueError):
    return None


def _is_small_enough(op: tf.Operation) -> bool:
  """Whether tf2onnx keeps the result: no huge one of small operands."""
  counts = [x.shape.num_elements() for x in (*op.outputs, *op.inputs)]
  result, *operands = [math.inf if count is None else count for count in counts]
  return result < _HUGE or any(_SMALL < count < math.inf for count in operands)


def _as_written() -> tf.compat.v1.ConfigProto:
  """Options of a session on the CPU that runs each op as in a session of its own."""
  config = tf.compat.v1.ConfigProto(device_count={"GPU": 0})
  config.graph_options.optimizer_options.opt_level = -1  # L0
  config.graph_options.rewrite_options.disable_meta_optimizer = True
  return config
