"""int8 models of LiteRT: what calibrates them is checked first, and they are compared on what the
user gave."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from ai_edge_litert import interpreter

from jax2tf.converters import saved_model, tflite
from jax2tf.converters.bundle.manifest import SignatureRecord
from jax2tf.converters.export.calibration import Dataset
from jax2tf.converters.verify.agreement import Agreement

PARAMS = {"w1": np.eye(3, 16, dtype=np.float32), "w2": np.eye(16, 3, dtype=np.float32)}
SPEC = {"image": "u8[1,8,8,3]"}


def predict(params: Any, image: jax.Array) -> dict[str, jax.Array]:
  """Three classes, by the dominating channel."""
  x = image.astype(jnp.float32) / 255.0
  logits = 20 * (jax.nn.relu(jnp.mean(x, (1, 2)) @ params["w1"]) @ params["w2"])
  return {"p": jax.nn.softmax(logits), "label": jnp.argmax(logits, -1)}


def images(count: int, seed: int = 5) -> Iterator[dict[str, np.ndarray]]:
  rng = np.random.default_rng(seed)
  for i in range(count):
    image = rng.integers(0, 120, (1, 8, 8, 3))
    image[..., i % 3] += 100
    yield {"image": image.astype(np.uint8)}


def scaled(by: float, dtype: Any) -> list[dict[str, np.ndarray]]:
  return [{"image": (sample["image"] * np.float64(by)).astype(dtype)} for sample in images(6)]


@pytest.fixture(scope="module")
def model() -> saved_model.Model:
  return saved_model.Model(PARAMS).add(predict, inputs=SPEC)


BAD: dict[str, tuple[Any, str]] = {
  "black": (
    scaled(0, np.uint8),
    "has one value in all samples of signature 'serving_default', 0 in 'image'; give typical "
    "inputs",
  ),
  "dark": (
    scaled(1 / 30, np.uint8),
    r"has values from 0 to 7 in input 'image', whose uint8 has 0 to 255; "
    r".*narrow_inputs=\['image'\]",
  ),
  "floats for integers": (
    scaled(1 / 255, np.float32),
    "sample 0, 'image' is float32.*and the input is u8.*such as pixels from 0 to 255",
  ),
  "integers that wrap": (
    scaled(3, np.int32),
    r"sample 0, 'image' is int32\[1, 8, 8, 3\], and the input is u8",
  ),
  "no axis of the batch": (
    [{"image": s["image"][0]} for s in images(2)],
    r"has the shape \[8, 8, 3\].* add or remove the axis of the batch",
  ),
  "tuples": (
    [(s["image"], 1) for s in images(2)],
    r"sample 0 is a tuple of 2, not a mapping; give \[\{input: array\}",
  ),
  "lists, as TFLiteConverter takes": (
    lambda: ([s["image"]] for s in images(2)),
    "sample 0 is a list of 1, not a mapping",
  ),
  "arrays": (
    [s["image"] for s in images(2)],
    r"sample 0 is a ndarray of .*uint8\[1, 8, 8, 3\]|sample 0 is a ndarray, uint8",
  ),
  "one array": (
    np.zeros((20, 8, 8, 3), np.uint8),
    r"representative_dataset: it is a ndarray, uint8\[20, 8, 8, 3\], not an iterable",
  ),
  "one sample": (
    next(images(1)),
    "representative_dataset: it is one mapping of arrays, with 'image'",
  ),
  "a path": ("images.npz", "representative_dataset: it is a str, not an iterable"),
  "nothing": ([], "has no sample"),
  "an exhausted iterator": (iter(()), "has no sample"),
  "other names": (
    [{"x": s["image"]} for s in images(2)],
    "has a sample of x, and signature 'serving_default' takes image",
  ),
  "another signature": ({"serve": [*images(2)]}, "is not for the signatures serving_default"),
  "tf.data of tuples": (
    tf.data.Dataset.from_tensors((np.zeros((1, 8, 8, 3), np.uint8), 1)),
    "sample 0 is a tuple of 2",
  ),
  "tf.data without an end": (
    tf.data.Dataset.from_tensors({"image": 1}).repeat(),
    r"without an end; .*dataset\.take\(200\)",
  ),
}


@pytest.mark.parametrize("name", BAD)
def test_data_that_calibrate_nothing_are_refused_before_the_conversion(
  name: str, model: saved_model.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
  monkeypatch.setattr(
    "jax2tf.converters.tflite.runtime.converted", lambda *_: pytest.fail("converts")
  )
  data, words = BAD[name]
  with pytest.raises(
    ValueError, match=f"representative_dataset.*{words.removeprefix('representative_dataset')}"
  ):
    tflite.save_model(
      model, tmp_path / "m.tflite", quantization="int8", representative_dataset=data
    )


@pytest.mark.parametrize("data", [[("x", 1)], "x.npz", []])
def test_data_of_another_structure_are_refused_before_the_function_is_traced(
  data: Any, tmp_path: Path
) -> None:
  with pytest.raises(ValueError, match="representative_dataset"):
    tflite.save(
      lambda *_: pytest.fail("traced"),
      {},
      tmp_path / "m",
      inputs=SPEC,
      quantization="int8",
      representative_dataset=data,
    )


def test_which_inputs_may_be_constant_or_narrow() -> None:
  record = {"s": SignatureRecord({"x": "f32[b,2]", "ids": "i32[b]", "mask": "u8[b,2,2]"}, {})}
  rng = np.random.default_rng(0)
  sample = {
    "x": np.float64([[1, 1]]),
    "ids": np.int64([3]),
    "mask": rng.integers(0, 2, (1, 2, 2), np.uint8),
  }
  with pytest.warns(
    UserWarning,
    match="has one value in all samples of input 'x', 1.0, and other values would be outside",
  ):
    (found,) = Dataset.of([sample]).checked(record, ["mask"]).samples["s"]
  assert {name: array.dtype.name for name, array in found.items()} == {
    "x": "float32",
    "ids": "int32",
    "mask": "uint8",
  }
  with pytest.raises(ValueError, match="narrow_inputs"):
    Dataset.of([sample | {"x": np.float64([[1, 2]])}]).checked(record)
  with pytest.raises(ValueError, match="has NaN or an infinity in input 'x'"):
    Dataset.of([sample | {"x": np.float64([[1, np.nan]])}]).checked(record, ["mask"])
  with pytest.raises(ValueError, match=r"'ids' has the shape \[2\]"):  # b is 1 in x
    Dataset.of([sample | {"ids": np.int64([3, 4])}]).checked(record, ["mask"])


def test_every_fifth_sample_is_held_back() -> None:
  data = Dataset({"s": [{"x": np.float32(i)} for i in range(12)]})
  assert [int(x["x"]) for _, x in data.calibrating()] == [0, 1, 2, 3, 5, 6, 7, 8, 10, 11]
  assert [int(x["x"]) for x in data.compared(calibrated=True)["s"]] == [4, 9]
  assert len(data.compared(calibrated=False)["s"]) == 12 and data.how(True).endswith(
    "which were held back from the calibration"
  )
  few = Dataset({"s": [{"x": np.float32(i)} for i in range(4)]})
  assert len([*few.calibrating()]) == len(few.compared(calibrated=True)["s"]) == 4
  assert "calibrated it, because fewer than 5 were given" in few.how(True)


def test_agreement_on_what_was_held_back(model: saved_model.Model, tmp_path: Path) -> None:
  made = tflite.save_model(
    model,
    tmp_path / "m.tflite",
    quantization="int8",
    representative_dataset=tf.data.Dataset.from_generator(
      lambda: images(20), output_signature={"image": tf.TensorSpec((1, 8, 8, 3), tf.uint8)}
    ),
  )
  rows = {row.output: row for row in made.report.rows}
  assert {(row.values, row.samples) for row in rows.values()} == {("representative", 4)}
  assert (
    rows["p"].cosine > 0.99
    and rows["p"].variation > 0.99
    and rows["p"].top_1 == rows["label"].top_1 == 1
  )  # type: ignore[attr-defined]
  assert (
    "label: cosine 1.0000, top-1 100.0% of 4; p: cosine 1.0000, top-1 100.0% of 4 on 4 "
    "representative samples" in made.report.verdict
  )
  assert "representative" in made.report.text() and '"top_1": 1.0' in made.report.json()
  right = sum(
    tflite.run(made.path, x)["p"].argmax() == np.argmax(predict(PARAMS, x["image"])["p"])
    for x in images(4, seed=9)
  )
  assert right == 4


def clipped(tmp_path: Path, **options: Any) -> Any:
  """Calibrated on small numbers, with large ones held back."""
  w = np.random.default_rng(0).standard_normal((16, 4)).astype(np.float32)
  rng = np.random.default_rng(1)
  data = [
    {"x": ((8 if i % 5 == 4 else 0.05) * rng.standard_normal((2, 16)) + 0.01).astype(np.float32)}
    for i in range(20)
  ]
  given: dict[str, Any] = {
    "inputs": {"x": "f32[2,16]"},
    "quantization": "int8",
    "representative_dataset": data,
    **options,
  }
  return tflite.save(
    lambda w, x: jax.nn.softmax(x @ w), w, tmp_path / "m.tflite", outputs=["p"], **given
  )


def test_too_little_agreement_is_refused_and_can_be_accepted(tmp_path: Path) -> None:
  with pytest.raises(
    tflite.ExportError,
    match=r"(?s)too far from the reference, .*least_cosine= and least_top_1= set.*cosine with the",
  ):
    clipped(tmp_path)
  assert not [*tmp_path.iterdir()]
  made = clipped(tmp_path, least_cosine=0, least_top_1=0)
  (row,) = made.report.rows
  assert made.report.ok and row.cosine < 0.98 and row.top_1 < 0.95


def test_integer_inputs_and_outputs(tmp_path: Path) -> None:
  model = saved_model.Model(PARAMS).add(predict, inputs={"image": "f32[1,8,8,3]"})
  types = {"inference_input_type": "uint8", "inference_output_type": "int8"}
  made = tflite.save_model(
    model,
    tmp_path / "m.tflite",
    quantization="int8",
    representative_dataset=lambda: images(10),
    **types,
  )
  assert {row.output: row.dtype for row in made.report.rows} == {"label": "int32", "p": "float32"}
  runner = interpreter.Interpreter(model_path=str(made.path)).get_signature_runner(
    "serving_default"
  )
  taken, given = runner.get_input_details()["image"], runner.get_output_details()["p"]
  assert (taken["dtype"], given["dtype"]) == (np.uint8, np.int8)
  scale, zero_point = taken["quantization"]
  image = next(images(1, seed=9))["image"]
  found = tflite.run(made.path, {"image": (np.round(image / scale) + zero_point).astype(np.uint8)})[
    "p"
  ]
  dequantized = given["quantization"][0] * (found.astype(np.float32) - given["quantization"][1])
  np.testing.assert_allclose(dequantized, predict(PARAMS, image)["p"], atol=0.02)


def test_agreement() -> None:
  rng = np.random.default_rng(0)
  y = [rng.standard_normal((3, 4)) for _ in range(5)]
  right = Agreement.of(y, y, scores=None)
  assert (right.cosine, right.variation, right.top_1) == (pytest.approx(1), pytest.approx(1), None)
  assert Agreement.of(y, y, scores=True).top_1 == 1 and Agreement.of(y, y, True).rows == 15
  probabilities = [np.exp(x) / np.exp(x).sum(-1, keepdims=True) for x in y]
  flipped = [x[..., ::-1] for x in probabilities]
  assert (
    Agreement.of(flipped, probabilities, None).top_1 == 0
    and Agreement.of(flipped, probabilities, False).top_1 is None
  )
  assert "0.0% of 15 rows have the reference's first class" in Agreement.of(
    flipped, probabilities, None
  ).problem(0, 0.9)
  far = [1000 + x for x in y]
  mean = [np.full_like(x, np.mean(far)) for x in far]
  collapsed = Agreement.of(mean, far, None)  # always answers the mean
  assert (
    collapsed.cosine > 0.99999
    and "vary otherwise" in collapsed.problem(0.98, 0.9)
    and not right.problem(0.98, 0.9)
  )
  still = Agreement.of(far[:1] * 2, far[:1] * 2, None)
  assert not still.problem(0.98, 0.9)
  labels = [np.arange(10)]
  assert Agreement.of([np.arange(10) % 9], labels, None).top_1 == 0.9
  assert Agreement(1.0, None, 0.75, 4).problem(0.98, 0.9) == "", "one of four may differ"


OPTIONS = [
  (
    {"quantization": "int8", "representative_dataset": None},
    "representative_dataset = None: int8 needs",
  ),
  (
    {"quantization": None, "representative_dataset": []},
    "a representative_dataset is for a scheme; .*examples=",
  ),
  (
    {"quantization": "float16", "inference_input_type": "int8"},
    "inference_input_type = 'int8': the scheme is 'float16'; give 'int8'",
  ),
  (
    {"quantization": "int8", "inference_output_type": "float32"},
    "inference_output_type = 'float32': the scheme is 'int8'; give 'int8'",
  ),
  ({"quantization": "int8", "least_top_1": 90}, "least_top_1 = 90; give a number from 0 to 1"),
  ({"quantization": None, "least_top_1": 0.5}, "least_top_1 = 0.5: it is for a quantised model"),
  ({"quantization": "int8", "scores": "p"}, r"scores = 'p': a string.*scores=\['p'\]"),
  (
    {"quantization": "int8", "scores": ["logits"]},
    "there is no output 'logits'; choose from label, p",
  ),
]


@pytest.mark.parametrize(("options", "words"), OPTIONS)
def test_options_that_do_not_fit(
  options: dict[str, Any], words: str, model: saved_model.Model, tmp_path: Path
) -> None:
  data = [*images(2)] if options["quantization"] else None
  given: dict[str, Any] = {"representative_dataset": data, **options}
  with pytest.raises(ValueError, match=words):
    tflite.save_model(model, tmp_path / "m.tflite", **given)


def test_other_schemes_are_compared_on_the_same_data(
  model: saved_model.Model, tmp_path: Path
) -> None:
  made = tflite.save_model(
    model,
    tmp_path / "m.tflite",
    quantization="dynamic_int8",
    representative_dataset=images(6),
    samples=1,
  )
  assert {
    (row.output, row.values, row.samples) for row in made.report.rows if row.output == "p"
  } >= {("p", "representative", 6)}
  assert "on 6 representative samples" in made.report.verdict


def test_the_path_is_checked_before_samples_are_read(
  model: saved_model.Model, tmp_path: Path
) -> None:
  def samples() -> Iterator[dict[str, np.ndarray]]:
    pytest.fail("reading samples may take minutes")
    yield {}

  (tmp_path / "m.tflite").touch()
  with pytest.raises(FileExistsError, match="exists already"):
    tflite.save_model(
      model, tmp_path / "m.tflite", quantization="int8", representative_dataset=samples
    )
