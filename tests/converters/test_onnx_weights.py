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
