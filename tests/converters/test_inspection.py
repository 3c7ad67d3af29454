"""What exported files have inside, where two of them differ, and whether they are the function."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax2tf.converters import onnx, tfjs, tflite
from jax2tf.converters.export import layers, verified
from jax2tf.converters.onnx import inspection as of_onnx
from jax2tf.converters.tfjs import inspection as of_tfjs
from jax2tf.converters.tflite import inspection as of_tflite
from jax2tf.tools.cli.main import main

FORMS = {"onnx": of_onnx, "tflite": of_tflite, "tfjs": of_tfjs}
RNG = np.random.default_rng(0)
PARAMS = {
  "kernel": RNG.standard_normal((3, 3, 2, 4)).astype("f"),
  "dense": (RNG.standard_normal((6 * 5 * 4, 3)) / 50).astype("f"),  # no saturated softmax
}


def net(params: Mapping[str, Any], image: jax.Array) -> jax.Array:
  with jax.named_scope("stem"):
    lines = ("NHWC", "HWIO", "NHWC")
    x = jax.lax.conv_general_dilated(
      image, params["kernel"], (1, 1), "SAME", dimension_numbers=lines
    )
    x = jnp.tanh(x)
  with jax.named_scope("head"):
    return jax.nn.softmax(jnp.cumsum(x, 1).reshape(x.shape[0], -1) @ params["dense"])


def saved(folder: Path, params: Any) -> dict[str, str]:
  inputs, options = {"image": "f32[b,6,5,2]"}, {"outputs": ["p"], "samples": 1}
  fixed = {"image": "f32[2,6,5,2]"}
  onnx.save(net, params, folder / "m.onnx", inputs=inputs, **options)
  tflite.save(net, params, folder / "m.tflite", inputs=fixed, **options)
  tfjs.save(net, params, folder / "m", inputs=inputs, backends=["wasm"], **options)
  return {name: str(folder / f"m.{name}") for name in ("onnx", "tflite")} | {
    "tfjs": str(folder / "m")
  }


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
  return saved(tmp_path_factory.mktemp("files"), PARAMS)


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
  """With one number of the last layer that is another."""
  dense = PARAMS["dense"].copy()
  dense[0, 0] += 3
  return saved(tmp_path_factory.mktemp("others"), {**PARAMS, "dense": dense})


@pytest.mark.parametrize("name", FORMS)
def test_ops_and_weights(name: str, files: dict[str, str]) -> None:
  contents = FORMS[name].inspect(files[name])
  content = contents.as_json()
  ops = {op.lower().replace("_", ""): row for op, row in content["ops"].items()}
  assert ops["tanh"]["count"] == 1
  assert ops["tanh"]["dtypes"] == ["float32"]
  [convolution] = [row for op, row in ops.items() if op.startswith("conv")]
  assert convolution["bytes"] >= PARAMS["kernel"].nbytes
  by_size = {value.size: value for value in contents.weights.values()}
  np.testing.assert_array_equal(
    np.sort(by_size[PARAMS["dense"].size], None), np.sort(PARAMS["dense"], None)
  )
  [signature] = content["signatures"].values()
  assert list(signature["inputs"]) == ["image"]
  assert list(signature["outputs"]) == ["p"]
  assert contents.size > PARAMS["dense"].nbytes


def test_what_delegates_take(files: dict[str, str]) -> None:
  content = of_tflite.inspect(files["tflite"]).as_json()
  assert content["ops"]["TANH"]["taken"] == {"XNNPACK": 1, "GPU delegate": 1}
  # as the documents of both delegates say
  assert content["ops"]["CUMSUM"]["taken"] == {"XNNPACK": 0, "GPU delegate": 1}


def test_the_time_of_ops(files: dict[str, str]) -> None:
  inputs = verified.drawn(of_onnx.inspect(files["onnx"]), {"b": 4})
  assert inputs["image"].shape == (4, 6, 5, 2)
  seconds = of_onnx.seconds_by_op(files["onnx"], inputs)
  assert {"CumSum", "Softmax"} <= seconds.keys()
  assert all(0 <= t < 1 for t in seconds.values())
  assert list(seconds.values()) == sorted(seconds.values(), reverse=True)


@pytest.mark.parametrize("name", FORMS)
def test_a_file_and_its_function(name: str, files: dict[str, str], others: dict[str, str]) -> None:
  assert FORMS[name].verify(files[name], net, params=PARAMS, samples=1).ok
  report = FORMS[name].verify(others[name], net, params=PARAMS, samples=1)
  assert not report.ok
  assert {row.output for row in report.rows if not row.ok} == {"p"}


@pytest.mark.parametrize("pair", ["onnx onnx", "onnx tflite", "tflite tfjs", "tfjs tfjs"])
def test_the_first_layer_that_differs(
  pair: str, files: dict[str, str], others: dict[str, str]
) -> None:
  one, other = pair.split()
  image = RNG.standard_normal((2, 6, 5, 2)).astype("f")
  before = FORMS[one].values_inside(files[one], {"image": image})
  same = FORMS[other].values_inside(files[other], {"image": image})
  rows = layers.compared(before, same)
  assert layers.first_difference(rows, ["p"], 1e-4) is None
  assert any("stem" in row.name for row in rows)
  changed = FORMS[other].values_inside(others[other], {"image": image})
  first = layers.first_difference(layers.compared(before, changed), ["p"], 1e-4)
  assert first is not None
  assert "stem" not in first.name


def test_channels_at_another_place_and_values_that_are_not_finite() -> None:
  x = np.arange(24.0).reshape(2, 3, 4)
  x[0, 0] = [np.nan, np.inf, -np.inf, -0.0]
  assert layers.compared({"a/x:0": x}, {"a/x1": np.moveaxis(x, 1, -1)})[0].difference == 0
  y = np.where(np.isnan(x), 1, x)
  [row] = layers.compared({"x": x}, {"x": y})
  assert row.difference == np.inf
  assert layers.compared({"x": x}, {"x": x[0], "y": x}) == []


def test_weights_in_another_file(tmp_path: Path) -> None:
  path = tmp_path / "large.onnx"
  options = {"inputs": {"image": "f32[b,6,5,2]"}, "outputs": ["p"], "samples": 1}
  onnx.save(net, PARAMS, path, external_data_threshold=0, **options)
  contents = of_onnx.inspect(path)
  assert contents.size == sum(file.stat().st_size for file in tmp_path.iterdir())
  assert PARAMS["kernel"].size in {value.size for value in contents.weights.values()}


def test_complex_inputs_and_outputs(tmp_path: Path) -> None:
  def rotated(_: None, z: jax.Array) -> jax.Array:
    return z * jnp.exp(1j * jnp.abs(z))

  options = {"inputs": {"z": "c64[3]"}, "outputs": ["w"], "samples": 1}
  for name, module in (("z.onnx", onnx), ("z.tflite", tflite), ("z", tfjs)):
    module.save(rotated, None, tmp_path / name, **options)
    [signature] = module.inspect(tmp_path / name).signatures.values()
    assert signature == {"inputs": {"z": "c64[3]"}, "outputs": {"w": "c64[3]"}}
    assert module.verify(tmp_path / name, lambda z: rotated(None, z), samples=1).ok
  inputs = verified.drawn(onnx.inspect(tmp_path / "z.onnx"), {})
  assert of_onnx.seconds_by_op(tmp_path / "z.onnx", inputs)
  before = of_onnx.values_inside(tmp_path / "z.onnx", inputs)
  rows = layers.compared(before, of_tflite.values_inside(tmp_path / "z.tflite", inputs))
  assert layers.first_difference(rows, ["w"], 1e-5) is None
  assert "w" in [row.name for row in rows]


def test_no_file_of_the_format(tmp_path: Path) -> None:
  for name, form in (("m.onnx", of_onnx), ("m.tflite", of_tflite)):
    with pytest.raises(FileNotFoundError):
      form.inspect(tmp_path / name)
    (tmp_path / name).write_bytes(b"x" * 99)
    with pytest.raises(ValueError, match=name):
      form.inspect(tmp_path / name)
  with pytest.raises(FileNotFoundError):
    of_tfjs.inspect(tmp_path)
  (tmp_path / "model.json").write_text("{}")
  with pytest.raises(ValueError, match="no graph model"):
    of_tfjs.inspect(tmp_path)


def test_on_the_command_line(
  files: dict[str, str], others: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
  def run(*words: str) -> tuple[Any, Any]:
    with pytest.raises(SystemExit) as ended:
      main([*words, "--json"])
    return ended.value.code, json.loads(capsys.readouterr().out)

  code, content = run("inspect", files["onnx"], "--time", "--size", "b=2")
  assert code == 0
  assert content["seconds"].keys() >= {"CumSum"}
  code, found = run("diff", files["tflite"], others["tflite"])
  assert (code, [row["what"].partition("/")[0] for row in found["differences"]]) == (1, ["weights"])
  assert run("diff", files["onnx"], files["onnx"])[1]["verdict"] == "no difference"
  code, found = run("diff", files["onnx"], others["tflite"], "--layers", "--size", "b=2")
  assert code == 1
  assert "is the first of" in found["verdict"]
