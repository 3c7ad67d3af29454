"""Slices with strides in ONNX, LiteRT and TF.js: one op each, as the user wrote them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ai_edge_litert import interpreter

from jax2tf.converters import onnx as to_onnx
from jax2tf.converters import tfjs, tflite
from jax2tf.converters.onnx.runtime import extra

SPEC = jax.ShapeDtypeStruct((2, 24, 35), np.float32)


def in_onnx(fun: Callable[..., Any], path: Path) -> list[str]:
  to_onnx.save(fun, {}, path, inputs={"x": SPEC})
  return [node.op_type for node in extra("onnx").load(path).graph.node]


def in_tflite(fun: Callable[..., Any], path: Path) -> list[str]:
  tflite.save(fun, {}, path, inputs={"x": SPEC})
  opened = interpreter.Interpreter(model_path=str(path))
  return [op["op_name"].title().replace("_", "") for op in opened._get_ops_details()]


def in_tfjs(fun: Callable[..., Any], path: Path) -> list[str]:
  tfjs.save(fun, {}, path, inputs={"x": SPEC})
  nodes = json.loads((path / "model.json").read_text())["modelTopology"]["node"]
  return [node["op"] for node in nodes if node["op"] not in ("Const", "Placeholder", "Identity")]


def taken(_: Any, x: jax.Array) -> list[jax.Array]:
  return [x[:, ::2], x[:, :, ::4], x[1:, 3:20:4, 1::2]]


@pytest.mark.parametrize(
  ("ops", "name"), [(in_onnx, "Slice"), (in_tflite, "StridedSlice"), (in_tfjs, "StridedSlice")]
)
def test_a_slice_is_one_op(ops: Callable[..., list[str]], name: str, tmp_path: Path) -> None:
  assert ops(taken, tmp_path / "m") == [name] * 3


def looks_alike(_: Any, x: jax.Array) -> list[jax.Array]:
  """Columns of reshapes: with zeros in front, with zeros that are taken, and of other rows."""
  front = jnp.pad(x, ((0, 0), (0, 0), (1, 0))).reshape(2, 24, 18, 2)[..., 0]
  behind = jnp.pad(x, ((0, 0), (0, 0), (0, 1))).reshape(2, 24, 18, 2)[..., 1]
  more = jnp.pad(x, ((0, 0), (0, 0), (0, 5))).reshape(2, 24, 20, 2)[..., 0]
  return [front, behind, more, x.reshape(2, 4, 6, 35)[:, 1], x.reshape(2, 4, 6, 35)[:, :, 1:3]]


@pytest.mark.parametrize("ops", [in_onnx, in_tflite])
def test_other_columns_keep_their_values(ops: Callable[..., list[str]], tmp_path: Path) -> None:
  """The exporter compares the file with JAX."""
  assert ops(looks_alike, tmp_path / "m")
