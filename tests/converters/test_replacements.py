"""Every replacement of an op, in the runtime of its target, against TensorFlow's own op: a few
exports for each target."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from jax2tf.converters import onnx, tfjs, tflite
from jax2tf.converters.export import freezing, registry
from jax2tf.converters.export.expansion import EXPANSIONS
from jax2tf.converters.onnx.replacements import TABLE as ONNX
from jax2tf.converters.tfjs.dtypes import HELD as HELD_BY_TFJS
from jax2tf.converters.tfjs.names import CONTROL, SUPPORTED
from jax2tf.converters.tfjs.replacements import TABLE as TFJS
from jax2tf.converters.tflite import target as target_of_tflite
from jax2tf.converters.tflite.replacements import TABLE as TFLITE
from tests.support.replacement_rows import Row, packed, rows

ROWS = list(rows())
TABLES: Mapping[str, Any] = {"onnx": ONNX, "tflite": TFLITE, "tfjs": TFJS}
OPS = {
  "onnx": set(ONNX) | EXPANSIONS.keys(),
  "tflite": set(TFLITE) | EXPANSIONS.keys(),
  "tfjs": SUPPORTED | registry.TABLES["tfjs"].keys() | EXPANSIONS.keys(),
}
# Not calls of their own: what every graph is made of.
_STRUCTURE = CONTROL | {"Const", "Identity", "NoOp", "Placeholder"}
# The exports among which the rows are dealt out. Of 180 rows, one export to ONNX took 124 s and 16
# took 44 s, for tf2onnx 1.17 is slow with a large graph; to LiteRT one is faster than four.
EXPORTS = {"onnx": 16, "tflite": 1, "tfjs": 1}


def between(results: Sequence[Any], operands: Sequence[Any]) -> set[str]:
  """The types of the ops by which the results are made of the operands, and not of what these are
  made of."""
  return {op.type for op in behind(results) - behind(operands)}


def behind(values: Sequence[Any]) -> set[Any]:
  """The ops that make tensors."""
  found, todo = set[Any](), [x.op for x in values if isinstance(x, tf.Tensor)]
  while todo:
    if (op := todo.pop()) not in found:
      found.add(op)
      todo += [x.op for x in op.inputs]
  return found


# What replacements emit though it has a replacement itself, which is not applied: for these
# operands the target has it right. To add an op here is to have asked whether that is so.
NOT_REPLACED_AGAIN = {
  "onnx": """
    BatchMatMulV2 BroadcastTo Cast DepthwiseConv2dNative Erf Fill LeftShift MatMul Maximum Minimum
    NotEqual Pad PadV2 Range Reshape RightShift SelectV2 Sign Sum TensorScatterAdd TruncateDiv
    TruncateMod
  """,
  "tflite": """
    Abs AddV2 Atan2 BitwiseXor BroadcastTo Cast ConcatV2 Cos DepthwiseConv2dNative Equal Exp
    ExpandDims Fill Floor FloorMod GatherV2 Greater GreaterEqual IsNan Less Log MatMul Max Maximum
    Minimum Mul Neg Pack Pad PadV2 Prod Range RealDiv Relu ReverseV2 RightShift Round SelectV2 Sin
    Slice Sqrt Square StridedSlice Sub Sum TensorScatterAdd Transpose TruncateDiv Unpack
    UnsortedSegmentMax UnsortedSegmentMin
  """,
  "tfjs": """
    Abs AddV2 Cast Const Cos Equal FloorDiv FloorMod GatherV2 Greater GreaterEqual Less LessEqual
    Max Maximum Minimum Mul Neg NotEqual Prod Range ScatterNd SelectV2 Sin StridedSlice Sub Sum
    TensorScatterUpdate
  """,
}


@pytest.mark.parametrize("target", TABLES)
def test_replacements_equal_tensorflow(
  target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
  table, emitted = registry.TABLES[target], set[str]()

  def watched(replacement: Callable[..., Any]) -> Callable[..., Any]:
    def call(op: tf.Operation, *operands: Any) -> Any:
      results = replacement(op, *operands)
      emitted.update(between(results, operands) - {op.type})
      return results

    return call

  # Nobody asks whether LiteRT has an op of its own for some of them.
  monkeypatch.setattr(target_of_tflite, "FUSED", ())
  for op, replacement in list(table.items()):
    monkeypatch.setitem(table, op, watched(replacement))
  chosen = [row for row in ROWS if row.op in OPS[target]]
  exporter = {"onnx": onnx, "tflite": tflite, "tfjs": tfjs}[target]
  for i in range(EXPORTS[target]):
    source, inputs = packed(chosen[i :: EXPORTS[target]])
    assert exporter.save_model(source, tmp_path / f"model{i}", examples=inputs).report.ok
  assert emitted & table.keys() == set(NOT_REPLACED_AGAIN[target].split())


@pytest.mark.parametrize("target", TABLES)
def test_every_replacement_has_a_row(target: str) -> None:
  assert OPS[target] - {row.op for row in ROWS} - _STRUCTURE == set()


UNKNOWN_FEATURES = {
  # image, kernel, attributes: the last two sizes of the kernel are not known
  "places of the result": ([2, 9, 8, 6], [7, 7, 6, 4], {}),
  "strides, dilations": ([2, 12, 11, 6], [4, 3, 6, 4], {"strides": [2, 1], "dilations": [2, 3]}),
  "groups": ([2, 9, 8, 6], [7, 7, 2, 9], {"padding": "SAME"}),
  "places of the kernel": ([2, 9, 8, 6], [3, 2, 2, 9], {"strides": [2, 2], "padding": "SAME"}),
  "explicit padding": ([2, 9, 8, 6], [3, 2, 3, 4], {"padding": [0, 0, 1, 2, 0, 1, 0, 0]}),
  "nothing to sum": ([2, 9, 8, 0], [7, 7, 0, 4], {}),
  "volumes": ([2, 4, 6, 5, 6], [3, 4, 4, 6, 2], {}),
  "depthwise": ([2, 9, 8, 6], [3, 2, 6, 2], {"strides": [2, 2], "padding": "SAME"}),
}


@pytest.mark.parametrize("name", UNKNOWN_FEATURES)
def test_a_convolution_of_unknown_features_is_a_sum_of_products(name: str) -> None:
  *shapes, options = UNKNOWN_FEATURES[name]
  rank = len(shapes[0]) - 2
  ones, padding = [1] * rank, options.get("padding", "VALID")
  explicit = {"padding": "EXPLICIT", "explicit_paddings": padding}
  attributes = {
    "strides": [1, *options.get("strides", ones), 1],
    "dilations": [1, *options.get("dilations", ones), 1],
    **({"padding": padding} if isinstance(padding, str) else explicit),
  }
  kind = "DepthwiseConv2dNative" if name == "depthwise" else f"Conv{rank}D"

  def call(image: tf.Tensor, kernel: tf.Tensor) -> dict[str, tf.Tensor]:
    return {"y": getattr(tf.raw_ops, kind)(input=image, filter=kernel, **attributes)}

  image, kernel = (np.random.default_rng(0).standard_normal(shape).astype("f") for shape in shapes)
  specs = [
    tf.TensorSpec([*shapes[0][:-1], None], name="image"),
    tf.TensorSpec([*shapes[1][:-2], None, None], name="kernel"),
  ]
  concrete = tf.function(call, autograph=False, input_signature=specs).get_concrete_function()
  expected = np.zeros([2, 3, 2, 4]) if name == "nothing to sum" else call(image, kernel)["y"]
  for table in (ONNX, TFLITE):
    frozen = freezing.frozen(concrete, {kind: table[kind]})
    assert kind not in [op.type for op in frozen.graph.get_operations()]
    found = frozen(image=tf.constant(image), kernel=tf.constant(kernel))["y"]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)  # sums of up to 294 products


@pytest.mark.parametrize(("epsilon", "divides"), [(1e-6, False), (0.0, True), (-1e-6, True)])
def test_litert_divides_by_no_variance(epsilon: float, divides: bool) -> None:
  def normalized(x: tf.Tensor) -> dict[str, tf.Tensor]:
    return {"y": tf.math.rsqrt(tf.reduce_mean(tf.square(x), -1, keepdims=True) + epsilon)}

  function = tf.function(normalized, autograph=False).get_concrete_function(
    x=tf.TensorSpec([2, 3], name="x")
  )
  assert (
    "RealDiv" in [op.type for op in freezing.frozen(function, TFLITE).graph.get_operations()]
  ) == divides


# The ops whose replacements need the rank of an operand.
_GRADIENTS = (
  "Conv2DBackpropFilter Conv3DBackpropFilterV2 DepthwiseConv2dNativeBackpropFilter "
  "DepthwiseConv2dNativeBackpropInput MaxPoolGrad "
)
NEEDS_RANK = {
  "onnx": _GRADIENTS
  + "Prod TensorScatterAdd TensorScatterMax TensorScatterMin TensorScatterSub TensorScatterUpdate",
  "tflite": _GRADIENTS
  + (
    "Cumprod TensorScatterAdd TensorScatterMax TensorScatterMin TensorScatterSub "
    "TensorScatterUpdate"
  ),
  "tfjs": "GatherV2 MatMul MaxPool3D OneHot TensorScatterAdd TensorScatterSub TensorScatterUpdate",
}


def unknown(x: tf.Tensor) -> tf.Tensor:
  return tf.raw_ops.PlaceholderWithDefault(input=x, shape=None)


def without_ranks(row: Row) -> Any:
  """A function of the op whose operands have an unknown rank. Raises ValueError or TypeError if
  TensorFlow asks for the rank."""

  def call(**tensors: tf.Tensor) -> dict[str, tf.Tensor]:
    results = row.call(*map(unknown, tensors.values()))
    return {f"y{i}": y for i, y in enumerate(tf.nest.flatten(results))}

  specs = {f"x{i}": tf.TensorSpec(x.shape, x.dtype, f"x{i}") for i, x in enumerate(row.operands)}
  return tf.function(call, autograph=False).get_concrete_function(**specs)


@functools.cache
def functions_without_ranks() -> dict[str, Any]:
  found = {}
  for op, row in {row.op: row for row in ROWS}.items():  # the last row of each op
    with contextlib.suppress(ValueError, TypeError):
      found[op] = without_ranks(row)
  return found


@pytest.mark.parametrize("target", TABLES)
def test_an_operand_of_unknown_rank_is_kept_or_refused(target: str) -> None:
  refused, table = set(), {op: TABLES[target][op] for op in TABLES[target] if op in TABLES[target]}
  table["PlaceholderWithDefault"] = lambda op, x: [unknown(x)]
  for op, function in functions_without_ranks().items():
    try:
      freezing.frozen_graph(function, table, HELD_BY_TFJS if target == "tfjs" else None)
    except ValueError as error:
      assert str(error).endswith(
        "has an operand of unknown rank; set it by tf.ensure_shape in the TensorFlow code"
      ), op
      refused.add(op)
  assert refused == set(NEEDS_RANK[target].split())
