"""The oldest ONNX Runtime that an exported file states; `make targets` runs files in each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import onnx as onnx_library
import pytest
from onnx import TensorProto, helper

from jax2tf.converters import onnx
from jax2tf.converters.onnx import releases


@pytest.mark.parametrize(
  ("op", "dtypes", "opset", "expected"),
  [
    ("Add", [TensorProto.FLOAT] * 2, 18, ("1.14", "1.14")),
    ("Add", [TensorProto.FLOAT] * 2, 21, ("1.18", "1.18")),
    ("Add", [TensorProto.UINT32] * 2, 18, ("1.21", "1.21")),
    ("Add", [TensorProto.UINT32] * 2, 23, ("1.23", "1.23")),
    ("Where", [TensorProto.BOOL, *[TensorProto.INT64] * 2], 18, ("1.14", "1.14")),
    ("Where", [TensorProto.BOOL, *[TensorProto.UINT32] * 2], 18, ("1.31", "1.31")),
    ("Erf", [TensorProto.FLOAT], 18, ("1.14", "1.27")),
  ],
)
def test_opset_and_kernels_decide(
  op: str, dtypes: list[int], opset: int, expected: tuple[str, str]
) -> None:
  names = [f"x{i}" for i in range(len(dtypes))]
  inputs = [
    helper.make_tensor_value_info(name, dtype, [2])
    for name, dtype in zip(names, dtypes, strict=True)
  ]
  outputs = [helper.make_tensor_value_info("y", dtypes[-1], [2])]
  graph = helper.make_graph([helper.make_node(op, names, ["y"])], "one", inputs, outputs)
  model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
  assert releases.oldest(model) == expected


def loop(x: jax.Array) -> jax.Array:
  return jax.lax.fori_loop(0, x[0].astype(int) % 5, lambda i, y: y + x, x)


@pytest.mark.parametrize(
  ("fun", "inputs", "expected"),
  [
    (lambda x: jax.nn.softmax(x @ x.T), {"x": "f32[b,4]"}, ("1.14", "1.14")),
    (jnp.where, {"c": "bool[3]", "x": "u32[3]", "y": "u32[3]"}, ("1.14", "1.14")),
    (loop, {"x": "u8[3]"}, ("1.21", "1.21")),
    (lambda x: jnp.arange(3.0), {"x": "f32[b]"}, ("1.14", "1.14")),  # a graph without nodes
  ],
  ids=["softmax", "where", "loop", "constant"],
)
def test_a_file_states_its_oldest_runtime(
  fun: Callable[..., Any], inputs: Mapping[str, str], expected: tuple[str, str], tmp_path: Path
) -> None:
  path = tmp_path / "model.onnx"
  made = onnx.save(lambda _, *xs: fun(*xs), None, path, inputs=inputs, samples=1)
  assert (made.oldest_runtime, made.oldest_runtime_for_nan) == expected
  metadata = {entry.key: entry.value for entry in onnx_library.load(path).metadata_props}
  keys = ("jax2tf.oldest_runtime", "jax2tf.oldest_runtime_for_nan")
  assert tuple(metadata[key] for key in keys) == expected
