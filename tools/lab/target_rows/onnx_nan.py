"""Asks releases of ONNX Runtime for each float op's answers to NaN and infinities."""

from __future__ import annotations

import pathlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

from jax2tf.converters.bundle import calls
from jax2tf.converters.onnx import releases
from jax2tf.tools.lab.target_rows.onnx_releases import Release

_ONE_OPERAND = """Abs Acos Acosh ArgMax ArgMin Asin Asinh Atan Atanh Ceil Cos Cosh Elu Erf Exp Floor
  GlobalAveragePool GlobalMaxPool HardSigmoid HardSwish IsInf IsNaN LeakyRelu Log LogSoftmax Neg
  Reciprocal ReduceL1 ReduceL2 ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum
  ReduceSumSquare Relu Round Selu Sigmoid Sign Sin Sinh Softmax Softplus Softsign Sqrt Tan
  Tanh""".split()  # noqa: SIM905
_TWO_OPERANDS = """Add Div Equal Greater GreaterOrEqual Less LessOrEqual Max Min Mod Mul PRelu Pow
  Sub""".split()  # noqa: SIM905
_ATTRIBUTES: Mapping[str, Mapping[str, Any]] = {"Mod": {"fmod": 1}}
_BOOLS = {"IsInf", "IsNaN", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"}
_DTYPES = {"float": np.float32, "float16": np.float16, "double": np.float64}
# Enough for a vector instruction: Sqrt of ONNX Runtime 1.20 loses an infinity only in one.
_NUMBERS = [np.nan, np.inf, -np.inf, -0.0, 0, 1, -1, 0.3, -2.5, 1e-6, 30, -7.25, 5, 2, np.nan, 3]


def first_right(found: Sequence[Release]) -> Iterator[tuple[tuple[str, str], int]]:
  """((op, dtype), the first release from which on each has the newest one's answers), for the ops
  of which not all releases with opset 18 have them."""
  asked = [release for release in found if release.number >= min(releases.OPSETS.values())]
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder, "model.onnx")
    for op in (*_ONE_OPERAND, *_TWO_OPERANDS, "Clip", "MatMul", "TopK", "Where"):
      for name, dtype in _DTYPES.items():
        inputs = _inputs(op, dtype)
        onnx.save(_model(op, inputs), str(path))
        answers = {r.number: r.answers(path, [inputs])[0] for r in asked}
        newest = answers[max(answers)]
        wrong = [number for number, answer in answers.items() if _differs(answer, newest)]
        if wrong:
          yield (op, name), max(wrong) + 1


def _inputs(op: str, dtype: Any) -> dict[str, np.ndarray]:
  x = np.array(_NUMBERS, dtype).reshape(1, 2, 8)
  reversed_x = np.ascontiguousarray(x[:, :, ::-1])
  others: dict[str, list[Any]] = {
    "Clip": [x, dtype(-1), dtype(2)],
    "MatMul": [x, np.ascontiguousarray(np.swapaxes(x, 1, 2))],
    "TopK": [x, np.array([3])],
    "Where": [x > 0, x, reversed_x],
  }
  ordinary = [x, reversed_x] if op in _TWO_OPERANDS else [x]
  return {f"x{i}": np.asarray(operand) for i, operand in enumerate(others.get(op, ordinary))}


def _model(op: str, inputs: Mapping[str, np.ndarray]) -> Any:
  of_numpy = helper.np_dtype_to_tensor_dtype
  integer, boolean = onnx.TensorProto.INT64, onnx.TensorProto.BOOL
  dtype = boolean if op in _BOOLS else integer if op.startswith("Arg") else None
  results = {"y": dtype or of_numpy(list(inputs.values())[op == "Where"].dtype)}
  if op == "TopK":
    results["positions"] = integer
  node = helper.make_node(op, list(inputs), list(results), **_ATTRIBUTES.get(op, {}))
  graph = helper.make_graph(
    [node],
    op,
    [helper.make_tensor_value_info(k, of_numpy(x.dtype), x.shape) for k, x in inputs.items()],
    [helper.make_tensor_value_info(name, dtype, None) for name, dtype in results.items()],
  )
  opset = min(releases.OPSETS)
  return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def _differs(answer: calls.Answer, newest: calls.Answer) -> bool:
  """Whether both have an answer, and it is not the same. A kernel that is missing is not wrong."""
  if answer["error"] or newest["error"]:
    return False
  return not all(
    np.allclose(answer["outputs"][name], y, rtol=1e-2, atol=1e-3, equal_nan=True)
    for name, y in newest["outputs"].items()
  )
