"""Exports of signatures with TensorFlow functions around the JAX function: sizes, captured tensors,
examples."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from jax2tf.converters import saved_model, tflite
from jax2tf.converters.export.source import Source
from jax2tf.converters.saved_model import manifest
from jax2tf.converters.verify.plan import Comparison


def cropped(height: int = 4) -> saved_model.Model:
  """An image u8[1,h,3] of any height of 4 or more, with a preprocess that takes 4 rows."""
  crop = lambda raw: {"x": tf.cast(raw["image"], tf.float32)[:, :height]}  # noqa: E731
  model = saved_model.Model(np.ones(3, np.float32))
  return model.add(
    lambda w, x: x * w,
    inputs={"x": "f32[1,4,3]"},
    outputs=["y"],
    raw_inputs={"image": "u8[1,h,3]"},
    preprocess=crop,
  )


def test_sizes_of_the_inputs_of_a_preprocess(tmp_path: Path) -> None:
  model = cropped()
  assert model.records["serving_default"].declared == {"image": "u8[1,h,3]"}
  assert manifest.read(model.save(tmp_path / "saved")).signatures["serving_default"].declared == {
    "image": "u8[1,h,3]"
  }
  for source in (model, tmp_path / "saved"):
    runs = Source.of(source).runs(Comparison(sizes={"h": [9, 5]}))
    assert [(run.sizes, run.inputs["image"].shape) for run in runs] == [
      ({"h": 9}, (1, 9, 3)),
      ({"h": 5}, (1, 5, 3)),
    ]
    (run,) = Source.of(source).runs(Comparison(examples={"image": np.ones((1, 8, 3), np.uint8)}))
    assert run.sizes == {"h": 8}
    with pytest.raises(
      ValueError, match=r"sizes\['k'\] = .*: the inputs have no such variable, only h"
    ):
      Source.of(source).runs(Comparison(sizes={"k": 9}))
    with pytest.raises(
      ValueError,
      match=r"inputs\['image'\]: it has the shape \(1, 8\), and the signature takes u8\[1,h,3\]",
    ):
      Source.of(source).runs(Comparison(examples={"image": np.ones((1, 8), np.uint8)}))
  assert tflite.save_model(model, tmp_path / "m.tflite", sizes={"h": [9, 5]}).report.ok


def test_what_a_preprocess_gives_has_the_shape_of_the_input(tmp_path: Path) -> None:
  with pytest.raises(
    ValueError,
    match=r"fails in TensorFlow with the inputs image \[1, 3, 3\] \(Shape of tensor .*; give "
    r"ones that it takes",
  ):
    tflite.save_model(cropped(), tmp_path / "m.tflite")
  with pytest.raises(
    tf.errors.InvalidArgumentError,
    match=r"\[1,3,3\] is not compatible with expected shape \[1,4,3\]",
  ):
    cropped().signatures["serving_default"](image=tf.ones([1, 3, 3], tf.uint8))


def test_processors_that_capture_tensors_of_strings_and_large_ones(tmp_path: Path) -> None:
  """TensorFlow makes constants of small tensors of numbers, and keeps others outside of the
  graph."""
  names, large = tf.constant(["a", "b", "c"]), tf.range(300, dtype=tf.int64)
  model = saved_model.Model(np.eye(3, dtype=np.float32))
  model.add(
    lambda w, x: x @ w,
    inputs={"x": "f32[b,3]"},
    outputs=["p"],
    postprocess=lambda t: {
      "name": tf.gather(names, tf.argmax(t["p"], -1)),
      "n": tf.gather(large, tf.argmax(t["p"], -1) + 255),
    },
  )
  assert tflite.save_model(model, tmp_path / "m.tflite").report.ok


def test_integers_that_numpy_draws_are_examples_of_a_narrower_input() -> None:
  source = Source.of(
    saved_model.Model(np.eye(30, dtype=np.float32)).add(
      lambda w, ids: w[ids], inputs={"ids": "i32[b]"}
    )
  )
  for given in (lambda rng, shape, dtype: rng.integers(0, 30, shape), np.array([1, 2, 29])):
    runs = source.runs(Comparison(examples={"ids": given}))
    assert {run.inputs["ids"].dtype.name for run in runs} == {"int32"}
  with pytest.raises(
    ValueError, match=r"inputs\['ids'\]: it is int64\[1\], and the signature takes int32\[1\]"
  ):
    source.runs(Comparison(examples={"ids": np.array([2**40])}))
