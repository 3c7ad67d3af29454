"""onnx.save(precision="float16"): what computes in float16, what stays, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx as onnx_library
import pytest

from jax2tf.converters import onnx

RNG = np.random.default_rng(0)
WEIGHTS = {
  "first": RNG.standard_normal((64, 64)).astype("f") / 8,
  "second": RNG.standard_normal((64, 64)).astype("f") / 8,
  "bias": RNG.standard_normal(64).astype("f"),
}
FLOAT, FLOAT16 = onnx_library.TensorProto.FLOAT, onnx_library.TensorProto.FLOAT16


def saved(path: Path, fun: Callable[..., Any], **options: Any) -> tuple[onnx.Exported, Any]:
  made = onnx.save(
    fun, WEIGHTS, path, inputs={"x": "f32[b,64]"}, precision="float16", samples=1, **options
  )
  proto = onnx_library.load_model(str(path))
  return made, proto


def dtypes(proto: Any) -> dict[str, int]:
  """{type of op: the dtype of its first result}, of the last op of each type."""
  graph = onnx_library.shape_inference.infer_shapes(proto).graph
  known = {v.name: v.type.tensor_type.elem_type for v in (*graph.value_info, *graph.output)}
  return {node.op_type: known[node.output[0]] for node in graph.node if node.op_type != "Cast"}


def layers(params: Any, x: jax.Array) -> jax.Array:
  hidden = jnp.tanh(x @ params["first"] + params["bias"])
  return jax.nn.softmax(hidden @ params["second"]) * 2


@pytest.mark.parametrize("threshold", [2**30, 16], ids=["inside", "beside"])
def test_products_are_float16_and_softmax_is_float32(tmp_path: Path, threshold: int) -> None:
  made, proto = saved(tmp_path / "model.onnx", layers, external_data_threshold=threshold)
  found = dtypes(proto)
  assert found.pop("Gemm" if "Gemm" in found else "MatMul") == FLOAT16
  assert found["Tanh"] == FLOAT16
  assert found["Softmax"] == FLOAT
  assert found["Mul"] == FLOAT  # it follows softmax
  ends = (*proto.graph.input, *proto.graph.output)
  assert {value.type.tensor_type.elem_type for value in ends} == {FLOAT}
  large = [t.data_type for t in proto.graph.initializer if np.prod(t.dims) >= 1024]
  assert large == [FLOAT16, FLOAT16]
  x = RNG.standard_normal((3, 64)).astype("f")
  (y,) = onnx.run(made.path, {"x": x}).values()
  # the precision of float16 is 2**-11, of products of 64 terms that sum up in float32
  np.testing.assert_allclose(y, layers(WEIGHTS, x), rtol=2e-2, atol=1e-4)


def scaled(params: Any, x: jax.Array) -> jax.Array:
  return jnp.tanh((x @ params["first"]) * 1e-12)


def masked(params: Any, x: jax.Array) -> jax.Array:
  return jax.nn.softmax(jnp.where(x > 0, x @ params["first"], -1e9))


@pytest.mark.parametrize(("fun", "op"), [(scaled, "Mul"), (masked, "Where")])
def test_an_op_with_a_number_that_float16_does_not_hold_is_float32(
  tmp_path: Path, fun: Callable[..., Any], op: str
) -> None:
  _, proto = saved(tmp_path / "model.onnx", fun)
  assert dtypes(proto)[op] == FLOAT


def test_loops_and_random_bits_are_float32(tmp_path: Path) -> None:
  def function(params: Any, x: jax.Array) -> jax.Array:
    noise = jax.random.uniform(jax.random.wrap_key_data(x[0, :2].astype(jnp.uint32)), (64,))
    y = x @ params["first"]

    def body(i: Any, carry: jax.Array) -> jax.Array:
      return jnp.sin(carry) + i

    return jax.lax.fori_loop(0, x.shape[0] + 3, body, y) + noise

  made, proto = saved(tmp_path / "model.onnx", function)
  (loop,) = (node for node in proto.graph.node if node.op_type == "Loop")
  (body,) = (attribute.g for attribute in loop.attribute if attribute.name == "body")
  assert FLOAT16 not in {value.type.tensor_type.elem_type for value in (*body.input, *body.output)}
  assert made.report.ok


def test_numbers_beyond_float16_are_refused_by_the_name_of_their_op(tmp_path: Path) -> None:
  def function(params: Any, x: jax.Array) -> jax.Array:
    with jax.named_scope("logits"):
      return (x @ params["first"]) * 30_000

  with pytest.raises(onnx.ExportError, match=r"up to 65504.*\n.*logits"):
    saved(tmp_path / "model.onnx", function)
  assert not list(tmp_path.iterdir())


def test_a_difference_of_almost_equal_products_is_refused(tmp_path: Path) -> None:
  def function(params: Any, x: jax.Array) -> jax.Array:
    return (jnp.tanh(x @ params["first"]) - jnp.tanh(x @ (params["first"] * 1.001))) * 1e3

  with pytest.raises(onnx.ExportError, match="different outputs"):
    saved(tmp_path / "model.onnx", function)


def test_an_unknown_precision_is_refused(tmp_path: Path) -> None:
  with pytest.raises(ValueError, match=re.escape("float32, float16")):
    onnx.save(layers, WEIGHTS, tmp_path / "m.onnx", inputs={"x": "f32[b,64]"}, precision="bfloat16")


def test_inputs_and_outputs_in_float16(tmp_path: Path) -> None:
  def fun(params: Any, x: jax.Array, mask: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    kept = jax.lax.cond(x.sum() > 0, lambda: x, lambda: -x)  # a branch reads the input
    return layers(params, x), jnp.where(mask, kept, 0.0), mask

  path = tmp_path / "model.onnx"
  made = onnx.save(
    fun,
    WEIGHTS,
    path,
    inputs={"x": "f32[b,64]", "mask": "bool[b,64]"},
    outputs=["p", "kept", "same"],
    precision="float16",
    keep_io_types=False,
    samples=1,
  )
  ends = onnx.inspect(path).signatures["model"]
  assert ends["inputs"] == {"x": "f16[b,64]", "mask": "bool[b,64]"}
  assert ends["outputs"] == {"p": "f16[b,64]", "kept": "f16[b,64]", "same": "bool[b,64]"}
  x = RNG.standard_normal((3, 64)).astype(np.float16)
  found = onnx.run(made.path, {"x": x, "mask": np.ones((3, 64), bool)})
  assert found["p"].dtype == np.float16
  # the precision of float16 is 2**-11
  np.testing.assert_allclose(found["p"], layers(WEIGHTS, x.astype("f")), rtol=2e-2, atol=1e-3)
  with pytest.raises(ValueError, match="keep_io_types = False: a float32 model"):
    onnx.save(fun, WEIGHTS, path, inputs={"x": "f32[b,64]"}, keep_io_types=False, overwrite=True)
