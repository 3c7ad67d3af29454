"""onnx.save(inputs_as_nchw=, outputs_as_nchw=): channels first in the file, not in JAX."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import onnx as onnx_library
import pytest

from jax2tf.converters import onnx

RNG = np.random.default_rng(0)
KERNEL = RNG.standard_normal((3, 3, 3, 5)).astype("f") / 3
OPTIONS: dict[str, Any] = {
  "inputs": {"image": "f32[b,6,8,3]", "shift": "f32[b,6,8,5]"},
  "outputs": ["features", "mean"],
  "inputs_as_nchw": ["image"],
  "outputs_as_nchw": ["features"],
}


def model(kernel: Any, image: jax.Array, shift: jax.Array) -> tuple[jax.Array, jax.Array]:
  features = jax.lax.conv_general_dilated(
    image, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
  )
  return jax.nn.relu(features), (features + shift).mean((1, 2))


def test_the_file_has_the_channels_first(tmp_path: Path) -> None:
  made = onnx.save(model, KERNEL, tmp_path / "model.onnx", **OPTIONS, samples=1)
  ends = onnx.inspect(made.path).signatures["model"]
  assert ends["inputs"] == {"image": "f32[b,3,6,8]", "shift": "f32[b,6,8,5]"}
  assert ends["outputs"] == {"features": "f32[b,5,6,8]", "mean": "f32[b,5]"}
  image, shift = (RNG.standard_normal((2, 6, 8, n)).astype("f") for n in (3, 5))
  found = onnx.run(made.path, {"image": image.transpose(0, 3, 1, 2), "shift": shift})
  features, mean = model(KERNEL, image, shift)
  np.testing.assert_allclose(found["features"].transpose(0, 2, 3, 1), features, atol=1e-5)
  np.testing.assert_allclose(found["mean"], mean, atol=1e-5)
  assert onnx.verify(made.path, lambda x, y: model(KERNEL, x, y), samples=1).ok


def test_no_transpose_is_left(tmp_path: Path) -> None:
  made = onnx.save(
    lambda kernel, image: model(kernel, image, image[..., :1])[0],
    KERNEL,
    tmp_path / "model.onnx",
    inputs={"image": "f32[b,6,8,3]"},
    outputs=["features"],
    inputs_as_nchw=["image"],
    outputs_as_nchw=["features"],
    samples=1,
  )
  nodes = onnx_library.load_model(str(made.path)).graph.node
  assert [node.op_type for node in nodes] == ["Conv", "Relu"]


@pytest.mark.parametrize(
  "options",
  [
    {"precision": "float16"},
    {
      "quantization": "int8",
      "representative_dataset": [
        {
          "image": RNG.standard_normal((2, 6, 8, 3)).astype("f"),
          "shift": RNG.standard_normal((2, 6, 8, 5)).astype("f"),
        }
        for _ in range(5)
      ],
    },
  ],
  ids=["float16", "int8"],
)
def test_with_other_precisions(tmp_path: Path, options: dict[str, Any]) -> None:
  assert onnx.save(model, KERNEL, tmp_path / "model.onnx", **OPTIONS, **options).report.ok


def test_what_is_no_image_is_refused(tmp_path: Path) -> None:
  options = OPTIONS | {"outputs_as_nchw": ["mean"]}
  with pytest.raises(ValueError, match=r"outputs_as_nchw = \['mean'\].*choose from features"):
    onnx.save(model, KERNEL, tmp_path / "model.onnx", **options)
  options = OPTIONS | {"inputs_as_nchw": "image"}
  with pytest.raises(ValueError, match="inputs_as_nchw = 'image': a string would be taken letter"):
    onnx.save(model, KERNEL, tmp_path / "model.onnx", **options)
  assert not [*tmp_path.iterdir()]
