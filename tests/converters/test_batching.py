"""Requests that run together, and parameters kept in fewer bits than they are used in."""

from __future__ import annotations

import importlib
import threading
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from jax2tf.converters import saved_model
from jax2tf.converters.export.source import Source
from jax2tf.converters.onnx.replacements import TABLE
from jax2tf.converters.saved_model import manifest
from jax2tf.converters.saved_model.batching import Batching

PARAMS = {"w": np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3), "steps": np.int32(3)}


def logits(params: Any, x: jax.Array) -> dict[str, jax.Array]:
  # The second result tells how many rows ran together: what no function that is served in batches
  # should do.
  y = x @ params["w"] * params["steps"]
  return {"y": y, "rows": jnp.full(x.shape[:1], x.shape[0], jnp.int32)}


def test_requests_run_together_and_each_gets_its_rows(tmp_path: Path) -> None:
  options = Batching(
    max_batch_size=8,
    batch_timeout_micros=2_000_000,
    num_batch_threads=1,
    allowed_batch_sizes=(4, 8),
  )
  path = (
    saved_model.Model(PARAMS)
    .add(logits, inputs={"x": "f32[b,4]"}, pass_through={"id": "string[b]"}, batching=options)
    .save(tmp_path)
  )
  signature = tf.saved_model.load(str(path)).signatures["serving_default"]
  rng = np.random.default_rng(0)
  requests = [rng.normal(size=(rows, 4)).astype(np.float32) for rows in (1, 2, 1)]
  answers: dict[int, Any] = {}

  def ask(i: int) -> None:
    ids = tf.constant([f"{i}.{row}" for row in range(len(requests[i]))])
    answers[i] = signature(x=tf.constant(requests[i]), id=ids)

  threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(requests))]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  for i, x in enumerate(requests):
    np.testing.assert_allclose(
      answers[i]["y"], jax.jit(logits)(PARAMS, x)["y"], rtol=1e-6, atol=1e-6
    )
    assert answers[i]["id"].numpy().tolist() == [f"{i}.{row}".encode() for row in range(len(x))]
    assert answers[i]["rows"].numpy().tolist() == [4] * len(x)  # the four rows ran as one batch


def test_a_request_above_the_largest_batch_is_split() -> None:
  options = Batching(
    max_batch_size=4, max_request_size=100, batch_timeout_micros=0, allowed_batch_sizes=(2, 4)
  )
  model = saved_model.Model(PARAMS).add(logits, inputs={"x": "f32[b,4]"}, batching=options)
  found = model.signatures["serving_default"](x=tf.ones([6, 4]))
  np.testing.assert_allclose(
    found["y"], jax.jit(logits)(PARAMS, np.ones([6, 4], np.float32))["y"], rtol=1e-6, atol=1e-6
  )
  assert sorted(set(found["rows"].numpy().tolist())) == [2, 4]
  with pytest.raises(tf.errors.InvalidArgumentError, match="101"):
    model.signatures["serving_default"](x=tf.ones([101, 4]))


def test_options_and_priorities_are_in_the_graph() -> None:
  options = Batching(
    max_batch_size=8,
    max_enqueued_batches=7,
    low_priority_max_batch_size=2,
    low_priority_batch_timeout_micros=50,
    low_priority_allowed_batch_sizes=(1, 2),
    low_priority_max_enqueued_batches=9,
    mixed_priority_policy="priority_isolation",
  )
  model = saved_model.Model(PARAMS).add(logits, inputs={"x": "f32[b,4]"}, batching=options)
  (op,) = [
    op
    for op in model.signatures["serving_default"].get_concrete_function().graph.get_operations()
    if op.type == "BatchFunction"
  ]
  for name, value in (vars(options) | {"max_batch_size": 8}).items():
    if name == "max_request_size":  # no attribute of the op
      continue
    found = op.get_attr(name)
    assert (found.decode() if isinstance(found, bytes) else found) == (
      list(value) if isinstance(value, tuple) else value
    )


def test_exporters_see_the_function_and_not_the_queue() -> None:
  model = saved_model.Model(PARAMS).add(
    logits, inputs={"x": "f32[b,4]"}, batching=Batching(max_batch_size=4)
  )
  frozen = Source.of(model).signatures["serving_default"].frozen(TABLE)
  assert "BatchFunction" not in {op.type for op in frozen.graph.get_operations()}
  np.testing.assert_allclose(
    frozen(x=tf.ones([6, 4]))["y"],
    jax.jit(logits)(PARAMS, np.ones([6, 4], np.float32))["y"],
    rtol=1e-6,
  )


@pytest.mark.parametrize(
  ("inputs", "fun", "words"),
  [
    (
      {"x": "f32[4]"},
      lambda p, x: x,
      r"signature 's' has x: f32\[4\], output: f32\[4\]; to run requests together",
    ),
    ({"x": "f32[b,4]"}, lambda p, x: x.sum(), "each must begin with one dimension variable"),
    ({"x": "f32[b,b]"}, lambda p, x: x, "no other dimension may hold it"),
    ({"x": "f32[b,max(b, 2)]"}, lambda p, x: x, "no other dimension may hold it"),
    ({"x": "f32[2*b]"}, lambda p, x: x, "each must begin with one dimension variable"),
  ],
)
def test_rows_that_cannot_be_put_together(inputs: Any, fun: Any, words: str) -> None:
  with pytest.raises(ValueError, match=words):
    saved_model.Model({}).add(
      fun, inputs=inputs, signatures="s", batching=Batching(max_batch_size=2)
    )


@pytest.mark.parametrize(
  ("options", "words"),
  [
    ({"max_batch_size": 0}, "max_batch_size = 0; at least 1"),
    (
      {"max_batch_size": 8, "allowed_batch_sizes": (2, 4)},
      r"allowed_batch_sizes = \(2, 4\) must grow, and end with max_batch_size = 8",
    ),
    (
      {"max_batch_size": 8, "max_request_size": 9},
      "max_request_size = 9; requests are split only with allowed_batch_sizes",
    ),
    ({"max_batch_size": 8, "allowed_batch_sizes": (8, 4)}, "must grow"),
    (
      {"max_batch_size": 8, "low_priority_allowed_batch_sizes": (4,)},
      "end with low_priority_max_batch_size = 0",
    ),
  ],
)
def test_options_that_do_not_fit(options: Any, words: str) -> None:
  with pytest.raises(ValueError, match=words):
    Batching(**options)


@pytest.mark.parametrize("stored", [jnp.bfloat16, jnp.float16])
def test_parameters_kept_in_fewer_bits(stored: Any, tmp_path: Path) -> None:
  rng = np.random.default_rng(0)
  params = {
    "w": rng.normal(size=(256, 256)).astype(np.float32),
    "narrow": np.ones(3, ml_dtypes.bfloat16),
    "steps": np.int32(3),
  }

  def fun(p: Any, x: jax.Array) -> jax.Array:
    return x @ p["w"] * p["steps"] + p["narrow"].sum().astype(jnp.float32)

  x = rng.normal(size=(5, 256)).astype(np.float32)
  wide = saved_model.save(fun, params, tmp_path / "wide", inputs={"x": "f32[b,256]"})
  model = saved_model.Model(params, stored_dtype=stored).add(fun, inputs={"x": "f32[b,256]"})
  half = model.save(tmp_path / "half")

  def size(path: Path) -> int:
    return sum(file.stat().st_size for file in (path / "variables").iterdir())

  assert size(half) < 0.55 * size(wide)
  name = np.dtype(stored).name
  short = {"bfloat16": "bf16", "float16": "f16"}[name]
  assert manifest.read(half).parameters == {
    "w": f"{short}[256,256]",
    "narrow": "bf16[3]",
    "steps": "i32[]",
  }
  loaded = tf.saved_model.load(str(half))
  rounded = params | {"w": params["w"].astype(stored).astype(np.float32)}
  answer = loaded.signatures["serving_default"](x=tf.constant(x))["output"]
  # sums of 256 products about 3
  np.testing.assert_allclose(answer, jax.jit(fun)(rounded, x), rtol=1e-5, atol=1e-4)
  # and it is not the function of the wide ones
  assert np.abs(answer - jax.jit(fun)(params, x)).max() > 1e-3
  model.update(params | {"w": 2 * params["w"]})
  assert model.values()["w"].dtype == np.float32
  np.testing.assert_array_equal(
    model.values()["w"], (2 * params["w"]).astype(stored).astype(np.float32)
  )


def test_a_dtype_that_parameters_cannot_be_kept_in() -> None:
  with pytest.raises(
    ValueError, match=r"stored_dtype = .*int8.*: it is not a floating point dtype"
  ):
    saved_model.Model({}, stored_dtype=np.int8)


@pytest.mark.usefixtures("tfjs_packages")
@pytest.mark.parametrize("target", ["onnx", "tflite", "tfjs"])
def test_exporters_leave_the_queue_out(target: str, tmp_path: Path) -> None:
  exporter = importlib.import_module(f"jax2tf.converters.{target}")
  model = saved_model.Model(PARAMS)
  model.add(
    lambda params, x: {"y": x @ params["w"]},
    inputs={"x": "f32[b,4]"},
    batching=Batching(max_batch_size=8),
  )
  assert exporter.save_model(model, tmp_path / "m").report.ok


class Words:
  """{"text": string[b]} -> {"x": f32[b,4]}; a text of a number that is none fails."""

  def __call__(self, raw: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    return {"x": tf.tile(tf.strings.to_number(raw["text"])[:, None], [1, 4])}


def asked_together(signature: Any, requests: list[dict[str, tf.Tensor]]) -> list[Any]:
  """The answer of each request, or the error that it got."""
  answers: list[Any] = [None] * len(requests)

  def ask(i: int) -> None:
    try:
      answers[i] = signature(**requests[i])
    except tf.errors.OpError as error:
      answers[i] = error

  threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(requests))]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  return answers


def test_preprocessed_requests_run_together_and_a_bad_one_fails_alone(tmp_path: Path) -> None:
  options = Batching(max_batch_size=3, batch_timeout_micros=3_000_000, num_batch_threads=1)
  names = tf.constant(["zero", "more"])
  model = saved_model.Model(PARAMS).add(
    logits,
    inputs={"x": "f32[b,4]"},
    raw_inputs={"text": "string[b]"},
    preprocess=Words(),
    postprocess=lambda found: (
      found | {"name": tf.gather(names, tf.cast(found["rows"] > 0, tf.int32))}
    ),
    batching=options,
  )
  model.add(
    logits, inputs={"x": "f32[b,4]"}, signatures="examples", examples=True, batching=options
  )
  loaded = tf.saved_model.load(str(model.save(tmp_path)))
  one, bad, two = asked_together(
    loaded.signatures["serving_default"],
    [{"text": tf.constant(t)} for t in (["1"], ["no"], ["2", "3"])],
  )
  assert isinstance(bad, tf.errors.InvalidArgumentError)
  for answer, rows in ((one, [1.0]), (two, [2.0, 3.0])):
    np.testing.assert_allclose(
      answer["y"],
      np.repeat(np.float32(rows)[:, None], 4, 1) @ PARAMS["w"] * 3,
      rtol=1e-6,
      atol=1e-6,
    )
    assert answer["rows"].numpy().tolist() == [3] * len(rows)  # both ran in one batch
    assert answer["name"].numpy().tolist() == [b"more"] * len(rows)
  row = tf.train.Feature(float_list=tf.train.FloatList(value=[1.0, 2.0, 3.0, 4.0]))
  example = tf.train.Example(features=tf.train.Features(feature={"x": row})).SerializeToString()
  first, second = asked_together(
    loaded.signatures["examples"], [{"examples": tf.constant([example] * n)} for n in (1, 2)]
  )
  assert first["rows"].numpy().tolist() == [3] and second["rows"].numpy().tolist() == [3, 3]


def test_what_preprocess_gives_to_a_batch_is_checked() -> None:
  wrong = {
    "raw_inputs": {"text": "string[b]"},
    "preprocess": lambda raw: {"x": tf.strings.length(raw["text"])[:, None]},
  }
  with pytest.raises((TypeError, ValueError), match=r"f(loa)?t?32|shape"):
    saved_model.Model(PARAMS).add(
      logits, inputs={"x": "f32[b,4]"}, batching=Batching(max_batch_size=4), **wrong
    )
