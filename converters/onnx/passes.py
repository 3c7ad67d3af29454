"""tf2onnx's passes over a graph, each only where the graph has ops that it may change.

For a small function tf2onnx 1.17 takes most of its time to look for patterns of ops that are not
there.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from . import moves, patches, transposes
from .runtime import extra

_MERGING = "MergeDuplicatedNodesOptimizer"
# {pass: the ONNX ops without which it changes nothing; None for one that may change any}.
_PASSES: Mapping[str, tuple[str, ...] | None] = {
  "TransposeOptimizer": ("Transpose", "Reshape"),
  "ConstFoldOptimizer": None,
  "LoopOptimizer": ("Loop",),
  _MERGING: None,
  "ReshapeOptimizer": ("Reshape",),
  "IdentityOptimizer": ("Identity",),
  "BackToBackOptimizer": ("Transpose", "BatchNormalization"),
}
# The pairs of ops that its BackToBackOptimizer joins. Not Cast: a Cast to float16 and back rounds.
_JOINED = (("Transpose",), ("Conv", "BatchNormalization"))

_DIAGONALS = ("MatrixDiag", "MatrixSetDiag", "MatrixDiagV3", "MatrixSetDiagV3")
_LOOPS = ("LoopCond",)
_LISTS = ("TensorListGetItem",)
# {rewriter of a TensorFlow graph: ops of which each of its patterns has one}.
_REWRITERS: Mapping[str, tuple[str, ...]] = {
  "rewrite_quantize_and_dequantize": tuple(f"QuantizeAndDequantizeV{i}" for i in (2, 3, 4)),
  "rewrite_fused_ops": ("_FusedConv2D", "_FusedMatMul", "_FusedDepthwiseConv2dNative"),
  "rewrite_transpose": ("Transpose",),
  "rewrite_flatten": ("Pack",),
  "rewrite_random_uniform": ("RandomUniform",),
  "rewrite_random_uniform_fold_const": ("RandomUniform",),
  "rewrite_random_normal": ("RandomStandardNormal",),
  "rewrite_dropout": ("RandomUniform", "RandomUniformLike"),
  "rewrite_conv_dilations": ("BatchToSpaceND",),
  "rewrite_eye": _DIAGONALS,
  "rewrite_leakyrelu": ("Maximum",),
  "rewrite_thresholded_relu": ("Greater",),
  "rewrite_conv2d_with_pad": ("Conv2D",),
  "rewriter_lstm_tf2": _LISTS,
  "rewrite_gru_tf2": _LISTS,
  "rewrite_single_direction_lstm": _LOOPS,
  "rewrite_bi_direction_lstm": ("LSTM",),
  "rewrite_single_direction_gru": _LOOPS,
  "rewrite_bi_direction_gru": ("GRU",),
  "rewrite_custom_rnn_cell": _LOOPS,
  "rewrite_generic_loop": _LOOPS,
  "rewrite_cond": ("Merge",),
  "rewrite_biasadd_with_conv2d": ("BiasAdd",),
  "rewrite_layer_normalization": ("Rsqrt",),
  "rewrite_gemm": ("MatMul",),
  "rewrite_ragged_variant_shape": ("RaggedTensorToVariant",),
}


@contextlib.contextmanager
def selected() -> Iterator[None]:
  """Lets tf2onnx run the rewriters that may change a graph."""
  tfonnx = extra("tf2onnx.tfonnx")
  run = tfonnx.run_rewriters

  def run_selected(graph: Any, rewriters: Any, continue_on_error: bool) -> None:
    for rewriter in rewriters:
      needed = _REWRITERS.get(rewriter.__name__)
      if needed is None or graph.contained_graphs or _has(graph.get_nodes(), needed):
        run(graph, [rewriter], continue_on_error)

  with patches.replaced([(tfonnx, "run_rewriters", run_selected)]):
    yield


def optimized(translate: Callable[[], Any], graph: Any) -> Any:
  """The graph after the passes; `translate` makes it anew.

  tf2onnx copies the whole graph before each pass, to go on without a pass that fails, and all
  constants into messages after it, which nothing reads before the last. A model of 90 MB took 10 s
  and 5 GB.
  """
  optimizer = extra("tf2onnx.optimizer")
  passes = {name: getattr(optimizer, name) for name in _PASSES}
  passes[_MERGING] = _merging(passes[_MERGING])
  # tf2onnx's pass would move some transposes back.
  others = {name: make for name, make in passes.items() if name != "TransposeOptimizer"}
  graph.update_proto = lambda: None
  with _joining():
    try:
      if _has(_all_nodes(graph), ("Transpose",)):
        graph = _repeated(graph, others)  # the cut has to know which operands are constants
        _slice_rows(graph)
        graph = _transposed_less(graph, others)
      graph = _repeated(graph, passes)
      _slice_rows(graph)
      graph = _transposed_less(graph, others)
      _drop_constant_selections(graph)
      _repeat_short_rows(graph)
      graph.topological_sort(graph.get_nodes())
    except Exception:
      return optimizer.optimize_graph(translate(), optimizers=passes)
  del graph.update_proto
  return graph


def _transposed_less(graph: Any, others: Mapping[str, Any]) -> Any:
  """The graph with the fewest transposes; the other passes clean it after each step."""
  while transposes.reduced(graph):
    graph = _repeated(graph, others)
  return graph


def _repeated(graph: Any, passes: Mapping[str, Any]) -> Any:
  """The graph after the passes, until none changes it."""
  changed, iteration = True, 0
  while changed:
    graph, changed = _iterated(graph, passes, iteration)
    iteration += 1
  return graph


def _iterated(graph: Any, passes: Mapping[str, Any], iteration: int) -> tuple[Any, bool]:
  """The graph after each pass once, and whether one changed it."""
  changed = False
  for name, make in passes.items():
    needed = _PASSES[name]
    if needed is None or _has(_all_nodes(graph), needed):
      one = make()
      one.opt_iteration = iteration
      graph = one._optimize(graph)
      graph.delete_unused_nodes(graph.outputs)
      changed |= one.graph_been_opt
  return graph, changed


_ELEMENTWISE = ("Add", "Sub", "Mul", "Div")
_FUSED = ("MatMul", "Gemm", "Conv")  # whose bias ONNX Runtime adds in the same kernel
_SHORT, _LONG = 32, 64  # sizes of rows
_UNKNOWN = -1  # size, in tf2onnx


def _repeat_short_rows(graph: Any) -> None:
  """Repeats constants of few channels, f32[8] beside f32[b,16,16,8], to f32[8,8] ... of which ONNX
  Runtime 1.32 adds many at a time: for 8 channels it takes a tenth of the time."""
  for node in graph.get_nodes():
    if node.type not in _ELEMENTWISE or any(operand.type in _FUSED for operand in node.inputs):
      continue
    shapes = [graph.get_shape(name) for name in node.input]
    if None in shapes:
      continue
    for i, (constant, other) in enumerate(zip(node.inputs, reversed(shapes), strict=True)):
      if constant.is_const() and (shape := _longer(shapes[i], other)):
        value = np.broadcast_to(constant.get_tensor_value(as_list=False), shape)
        name = f"{node.input[i]}__{'x'.join(map(str, shape))}"
        if graph.get_node_by_output(name) is None:
          graph.make_const(name, np.ascontiguousarray(value))
        graph.replace_input(node, node.input[i], name, i)
  graph.delete_unused_nodes(graph.outputs)


def _drop_constant_selections(graph: Any) -> None:
  """Reads in place of a Where the operand that a constant condition chooses for all elements, such
  as the shifts by less than the width."""
  for node in list(_all_nodes(graph)):
    if node.type != "Where" or not node.inputs[0].is_const():
      continue
    condition = node.inputs[0].get_tensor_value(as_list=False)
    if condition.size and condition.all() == condition.any():
      chosen, other = node.input[1:] if condition.all() else node.input[:0:-1]
      if _keeps_shape(graph, chosen, [node.input[0], other]):
        node.graph.replace_all_inputs(node.output[0], chosen)
  graph.delete_unused_nodes(graph.outputs)


def _keeps_shape(graph: Any, name: str, others: Sequence[str]) -> bool:
  """Whether a tensor has the shape of its broadcast with others."""
  shapes = [graph.get_shape(other) for other in others]
  own = graph.get_shape(name)
  if own is None or any(shape is None or len(shape) > len(own) for shape in shapes):
    return False
  pairs = [pair for shape in shapes for pair in zip(reversed(shape), reversed(own), strict=False)]
  return all(size == 1 or size == of_own != _UNKNOWN for size, of_own in pairs)


def _slice_rows(graph: Any) -> None:
  for node in list(_all_nodes(graph)):
    if node.type == "Gather":
      moves.slice_rows(node)
  graph.delete_unused_nodes(graph.outputs)


def _longer(row: Sequence[int], other: Sequence[int]) -> list[int] | None:
  """The shape of a row [..., 1, n] that is repeated along further axes of the other operand, or
  None: it is long enough, or those sizes are not known."""
  size = row[-1] if row else 1
  if not 1 < size <= _SHORT or set(row[:-1]) - {1} or len(other) < 3 or other[-1] != size:
    return None
  shape = [size]
  for known in reversed(other[:-1]):
    if math.prod(shape) >= _LONG or known < 1 or math.prod(shape) * known > _LONG * _SHORT:
      break
    shape.insert(0, known)
  longer = [1] * (len(row) - len(shape)) + shape
  return longer if len(shape) > 1 else None


def _has(nodes: Any, types: Collection[str]) -> bool:
  return any(node.type in types for node in nodes)


def _all_nodes(graph: Any) -> Iterator[Any]:
  """The nodes of a graph, those of loops and branches included."""
  for node in graph.get_nodes():
    yield node
    for body in (node.get_body_graphs() or {}).values():
      yield from _all_nodes(body)


def _merging(optimizer: Any) -> Any:
  """The pass that merges equal nodes, without loops and branches: it compares attributes, to which
  their bodies are added at last."""

  def skips(node: Any) -> bool:
    return bool(node.get_body_graphs()) or optimizer._skip_node_type(node)

  return type(_MERGING, (optimizer,), {"_skip_node_type": staticmethod(skips)})


@contextlib.contextmanager
def _joining() -> Iterator[None]:
  """Limits tf2onnx's BackToBackOptimizer to `_JOINED`. tf2onnx 1.17 keeps its handlers in a table
  of the module."""
  table = extra("tf2onnx.optimizer.back_to_back_optimizer")._func_map
  left_out = {ops: table.pop(ops) for ops in set(table) - set(_JOINED)}
  try:
    yield
  finally:
    table.update(left_out)
