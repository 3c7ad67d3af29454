"""onnx.save(quantization=): what is quantised, how it is compared, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx as onnx_library
import pytest

from jax2tf.converters import onnx, saved_model

RNG = np.random.default_rng(0)
WEIGHTS = {
  "kernel": RNG.standard_normal((3, 3, 3, 32)).astype("f") / 3,
  "first": RNG.standard_normal((32, 64)).astype("f"),
  "last": RNG.standard_normal((64, 4)).astype("f") / 4,
}
IMAGES = {"image": "f32[b,8,8,3]"}


def classes(params: Any, image: jax.Array) -> dict[str, jax.Array]:
  features = jax.lax.conv_general_dilated(
    image, params["kernel"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
  )
  hidden = jnp.tanh(jax.nn.relu(features).mean((1, 2)) @ params["first"])
  return {"p": jax.nn.softmax(hidden @ params["last"])}


def images(count: int) -> list[dict[str, np.ndarray]]:
  rng = np.random.default_rng(1)
  return [{"image": rng.standard_normal((2, 8, 8, 3)).astype("f")} for _ in range(count)]


def ops(path: Path) -> list[str]:
  return [node.op_type for node in onnx_library.load_model(str(path)).graph.node]


@pytest.mark.parametrize("threshold", [2**30, 16], ids=["inside", "beside"])
@pytest.mark.parametrize("scheme", ["dynamic_int8", "int8"])
def test_products_are_quantised(tmp_path: Path, scheme: str, threshold: int) -> None:
  path = tmp_path / "model.onnx"
  made = onnx.save(
    classes,
    WEIGHTS,
    path,
    inputs=IMAGES,
    quantization=scheme,
    representative_dataset=images(10),
    external_data_threshold=threshold,
  )
  how = {
    "dynamic_int8": "on 10 representative samples",
    "int8": "on 2 representative samples, which were held back from the calibration",
  }
  assert made.report.verdict.endswith(how[scheme])
  found = ops(path)
  if scheme == "int8":
    # one for each operand and weight of a convolution and two products
    assert found.count("DequantizeLinear") >= 6
  else:
    assert found.count("MatMulInteger") == 2 and "Conv" in found
  stored = {t.name: t for t in onnx_library.load_model(str(path)).graph.initializer}
  (large,) = (t for t in stored.values() if sorted(t.dims) == [32, 64])
  assert large.data_type == onnx_library.TensorProto.UINT8
  assert len([*tmp_path.glob("*.data")]) == (threshold == 16)
  image = images(1)[0]
  # the step of eight bits, 2**-8 of the largest number
  np.testing.assert_allclose(
    onnx.run(path, image)["p"], classes(WEIGHTS, image["image"])["p"], atol=0.05
  )


def test_too_little_agreement_writes_nothing(tmp_path: Path) -> None:
  path = tmp_path / "model.onnx"
  with pytest.raises(onnx.ExportError, match=r"(?s)too far from the reference, .*cosine with the"):
    onnx.save(
      classes,
      WEIGHTS,
      path,
      inputs=IMAGES,
      quantization="dynamic_int8",
      least_cosine=1 - 1e-9,
      samples=1,
    )
  assert not [*tmp_path.iterdir()]


# sums of extreme numbers, in another order
@pytest.mark.filterwarnings("ignore:ONNX Runtime computes different outputs")
def test_the_report_has_size_and_agreement_of_each_scheme(tmp_path: Path) -> None:
  model = saved_model.Model(WEIGHTS).add(classes, inputs=IMAGES)
  report = onnx.quantization_report(
    model, tmp_path, representative_dataset=iter(images(10)), sizes={"b": 2}, samples=1
  )
  rows = {row.scheme: row for row in report.rows}
  assert list(rows) == ["None", "dynamic_int8", "int8"]
  assert rows["None"].cosine is rows["None"].top_1 is None
  for scheme, least in onnx.LEAST_COSINE.items():
    row = rows[scheme]
    assert row.problem == "" and row.size < rows["None"].size  # type: ignore[operator]
    assert least < row.cosine <= 1 + 1e-12 and onnx.LEAST_TOP_1[scheme] <= row.top_1 <= 1  # type: ignore[operator]
    assert 1 - 10 * (1 - least) < row.variation <= 1 + 1e-12  # type: ignore[operator]
  assert "top-1" in report.text()
  assert {file.name for file in tmp_path.iterdir()} == {
    f"{name}.onnx" for name in ("float32", "dynamic_int8", "int8")
  }


@pytest.mark.parametrize(
  ("options", "message"),
  [
    ({"quantization": "int4"}, "quantization = 'int4'; give one of: dynamic_int8, int8"),
    ({"quantization": "int8"}, "representative_dataset = None"),
    ({"quantization": "dynamic_int8", "precision": "float16"}, "made of the float32 model"),
    ({"quantization": "dynamic_int8", "atol": 1.0}, "least_cosine"),
    ({"least_cosine": 0.5}, "rtol and atol"),
  ],
)
def test_options_that_do_not_fit(tmp_path: Path, options: dict[str, Any], message: str) -> None:
  with pytest.raises(ValueError, match=message):
    onnx.save(classes, WEIGHTS, tmp_path / "model.onnx", inputs=IMAGES, **options)


def test_complex_inputs_are_refused(tmp_path: Path) -> None:
  with pytest.raises(onnx.ExportError, match="cannot take complex 'x'"):
    onnx.save(
      lambda _, x: x.real,
      None,
      tmp_path / "model.onnx",
      inputs={"x": "c64[b]"},
      quantization="dynamic_int8",
    )
