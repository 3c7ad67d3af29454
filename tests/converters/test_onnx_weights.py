"""Weights of large models, which are inputs while tf2onnx works, and in the file in the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx as onnx_format
import pytest
from jax import lax

from jax2tf.converters import onnx
from jax2tf.converters.onnx import inline, target

RNG = np.random.default_rng(0)
PARAMS = {
  "embed": RNG.standard_normal((300, 64)).astype(np.float32),
  "kernel": RNG.standard_normal((3, 3, 1, 4)).astype(np.float32),
  "int8": RNG.integers(-9, 9, (64, 64)).astype(np.int8),
}


def fun(params: Any, tokens: jax.Array) -> jax.Array:
  """A tied embedding, a convolution, a branch, and a narrow weight."""
  x = params["embed"][tokens]
  image = x.reshape(-1, 8, 8, 1)
  numbers = ("NHWC", "HWIO", "NHWC")
  y = lax.conv_general_dilated(image, params["kernel"], (1, 1), "SAME", dimension_numbers=numbers)
  x = lax.cond(x[0, 0] > 0, lambda z: z @ params["int8"].astype(jnp.float32), jnp.tanh, x)
  return (x + y.mean(-1).reshape(-1, 64)) @ params["embed"].T


@pytest.mark.parametrize("options", [{}, {"functions": "modules"}, {"precision": "float16"}])
def test_weights_are_inside_and_once(
  options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
  monkeypatch.setattr(target, "_CONSTANTS", 0)
  made = onnx.save(
    fun, PARAMS, tmp_path / "m.onnx", inputs={"tokens": "i32[3]"}, outputs=["y"], **options
  )
  assert [file.name for file in tmp_path.iterdir()] == ["m.onnx"]
  assert made.size == made.path.stat().st_size
  assert made.size < PARAMS["embed"].nbytes + 64 * 64 * 4 + 20_000
  onnx_format.checker.check_model(onnx_format.load(str(made.path)), full_check=True)
  tokens = np.array([0, 7, 299], np.int32)
  tolerance = 0.05 if options.get("precision") else 1e-4  # float16 has 11 bits, of values of 30
  np.testing.assert_allclose(
    onnx.run(made.path, {"tokens": tokens})["y"], fun(PARAMS, tokens), tolerance, 30 * tolerance
  )


@pytest.mark.parametrize("number", [0, 127, 128, 300, 2**35 + 1])
def test_lengths_are_those_of_protobuf(number: int) -> None:
  message = onnx_format.ModelProto(model_version=number)
  assert message.SerializeToString()[1:] == inline._varint(number)


def in_bfloat16(params: Any, tokens: jax.Array) -> jax.Array:
  """A tied embedding, whose rows a loop takes too, and a convolution."""
  x = params["embed"][tokens]
  x = lax.scan(lambda c, token: (c + params["embed"][token], None), x, tokens)[0]
  image = x.reshape(-1, 8, 8, 1)
  numbers = ("NHWC", "HWIO", "NHWC")
  y = lax.conv_general_dilated(image, params["kernel"], (1, 1), "SAME", dimension_numbers=numbers)
  return (x + y.mean(-1).reshape(-1, 64) * params["scale"]) @ params["embed"].T


@pytest.mark.parametrize("threshold", [2**30, 0], ids=["inside", "beside"])
def test_weights_of_bfloat16_stay_so(threshold: int, tmp_path: Path) -> None:
  shapes = {"embed": (300, 64), "kernel": (9, 9, 1, 16), "scale": (64,)}
  params = {
    name: jnp.asarray(RNG.standard_normal(shape), jnp.bfloat16) for name, shape in shapes.items()
  }
  path = tmp_path / "m.onnx"
  onnx.save(
    in_bfloat16,
    params,
    path,
    inputs={"tokens": "i32[b]"},
    outputs=["y"],
    external_data_threshold=threshold,
  )
  model = onnx_format.load(str(path))
  large = {t.name: t for t in model.graph.initializer if np.prod(t.dims) > 1024}
  assert sorted(large) == ["embed", "kernel"]
  assert {t.data_type for t in large.values()} == {onnx_format.TensorProto.BFLOAT16}
  # Rows are taken before they are widened.
  (gather,) = (node for node in model.graph.node if node.op_type == "Gather")
  assert gather.input[0] == "embed"
  tokens = np.array([0, 7, -1, 299], np.int32)
  found = onnx.run(path, {"tokens": tokens})["y"]
  expected = jax.jit(in_bfloat16)(params, tokens)
  assert found.dtype == expected.dtype
  # XLA leaves out some of the roundings to 8 bits within a fusion; the values are up to 500.
  np.testing.assert_allclose(found.astype("f"), expected.astype("f"), 2**-6, 8)


def test_a_scaled_weight_of_bfloat16_is_no_quantized_one(tmp_path: Path) -> None:
  weight = jnp.asarray(RNG.standard_normal((64, 64)), jnp.bfloat16)

  def scaled(params: Any, x: jax.Array) -> jax.Array:
    return x @ (params["w"].astype(jnp.float32) * np.float32(0.5))

  path = tmp_path / "m.onnx"
  onnx.save(scaled, {"w": weight}, path, inputs={"x": "f32[b,64]"}, outputs=["y"])
  assert "DequantizeLinear" not in {n.op_type for n in onnx_format.load(str(path)).graph.node}
  x = RNG.standard_normal((3, 64)).astype(np.float32)
  np.testing.assert_allclose(onnx.run(path, {"x": x})["y"], scaled({"w": weight}, x), 1e-5, 1e-5)
