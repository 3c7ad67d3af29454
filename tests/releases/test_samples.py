"""Models and files of earlier versions open, and compute what JAX did when they were written."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import jax2tf.keras  # noqa: F401  (registers the layer)
from jax2tf.converters import onnx, tfjs, tflite
from jax2tf.converters.bundle import manifest
from jax2tf.converters.bundle.sessions import Session
from jax2tf.tools.batch import plan
from jax2tf.tools.cli.main import main as command
from tests.support.archives import npz

ARCHIVES = sorted(Path(__file__).parent.glob("*.tar.xz"))
RTOL = 1e-6  # of float32, in another runtime or on another machine


@pytest.fixture(scope="module", params=ARCHIVES, ids=lambda path: path.name.removesuffix(".tar.xz"))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
  place = tmp_path_factory.mktemp("samples")
  with tarfile.open(request.param) as archive:
    archive.extractall(place, filter="data")
  return place


def _lines(path: Path) -> list[dict[str, Any]]:
  return [json.loads(line) for line in path.read_text().splitlines()]


def test_there_are_samples() -> None:
  assert ARCHIVES


def test_a_model_its_gradient_and_its_manifest(folder: Path) -> None:
  expected = npz(folder / "model.npz")
  model = tf.saved_model.load(str(folder / "model" / "1"))
  call = model.signatures["serving_default"]
  x = tf.constant(expected["x"])
  with tf.GradientTape() as tape:
    tape.watch(x)
    y = call(x=x)["y"]
    total = tf.reduce_sum(y**2)
  np.testing.assert_allclose(y, expected["y"], RTOL, RTOL)
  np.testing.assert_allclose(tape.gradient(total, x), expected["dx"], RTOL, 10 * RTOL)
  [signature] = manifest.read(folder / "model" / "1").signatures.values()
  assert (signature.inputs, signature.outputs) == ({"x": "f32[b,4]"}, {"y": "f32[b,3]"})


def test_a_model_with_state(folder: Path) -> None:
  expected = npz(folder / "state.npz")
  model = tf.saved_model.load(str(folder / "state" / "1"))
  call = model.signatures["serving_default"]
  results = [call(x=tf.constant(expected["x"])) for _ in expected["y"]]
  np.testing.assert_allclose([each["y"] for each in results], expected["y"], RTOL, RTOL)
  assert [int(each["n"]) for each in results] == [0, 1, 2]


def test_a_native_model(folder: Path) -> None:
  expected = npz(folder / "model.npz")
  model = tf.saved_model.load(str(folder / "native"))
  np.testing.assert_allclose(model.predict(expected["x"]), expected["y"], RTOL, RTOL)


def test_a_layer_of_keras(folder: Path) -> None:
  expected = npz(folder / "model.npz")
  model = keras.models.load_model(folder / "net.keras", safe_mode=False)
  np.testing.assert_allclose(model(expected["x"]), expected["y"], RTOL, RTOL)


@pytest.mark.parametrize(
  ("name", "run"),
  [("model.onnx", onnx.run), ("model.tflite", tflite.run), ("model_js", tfjs.run)],
  ids=["onnx", "tflite", "tfjs"],
)
def test_files_of_other_runtimes(folder: Path, name: str, run: Callable[..., dict]) -> None:
  expected = npz(folder / "model.npz")
  found = run(folder / name, {"x": expected["x"]})["y"]
  np.testing.assert_allclose(found, expected["y"], RTOL, RTOL)


def test_a_language_model(folder: Path) -> None:
  expected = json.loads((folder / "decoder.json").read_text())
  record = manifest.read(folder / "decoder" / "1").generation
  assert record is not None
  model = tf.saved_model.load(str(folder / "decoder" / "1"))
  session = Session(record, model.signatures, tf.constant)
  tokens, given = [], expected["prompt"]
  for _ in expected["new"]:
    tokens.append(int(np.argmax(session(given))))
    given = tokens[-1:]
  assert tokens == expected["new"]


def test_the_results_of_a_batch_are_known(
  folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
  expected = npz(folder / "model.npz")
  rows = _lines(folder / "results" / "rows.jsonl")
  np.testing.assert_allclose([row["y"] for row in rows], expected["y"], RTOL, RTOL)
  ledger, source = folder / "results" / plan.LEDGER, folder / "rows.jsonl"
  # Unpacking moved the file of rows, which the ledger would refuse.
  moved = {"source": str(source), "changed": source.stat().st_mtime_ns}
  lines = [line | moved if "source" in line else line for line in _lines(ledger)]
  ledger.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
  monkeypatch.chdir(folder)
  with pytest.raises(SystemExit) as ended:
    command(["batch", "model", "rows.jsonl", "results", "--workers=1"])
  assert not ended.value.code
  assert capsys.readouterr().out.startswith("nothing to do: 1 shard")


@pytest.mark.parametrize("name", ["model", "state", "decoder", "model.onnx", "model.tflite"])
def test_the_command_inspects_it(
  folder: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
  with pytest.raises(SystemExit) as ended:
    command(["inspect", str(folder / name)])
  assert not ended.value.code
  assert capsys.readouterr().out
