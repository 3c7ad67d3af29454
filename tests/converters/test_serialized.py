"""Signatures that take serialized tf.train.Examples, as TFX hands them over."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from jax2tf.converters import saved_model

PARAMS = {"w": np.arange(12, dtype=np.float32).reshape(4, 3)}
X, IDS = np.arange(-4, 4, dtype=np.float32).reshape(2, 4), np.array([1, 2], np.int32)
INPUTS = {"x": "f32[b,4]", "ids": "i32[b]"}


def predict(params: Any, x: Any, ids: Any) -> Any:
  return x @ params["w"] + ids[:, None]


def serialized(**features: Any) -> bytes:
  def feature(value: Any) -> tf.train.Feature:
    value = np.ravel(value)
    if value.dtype.kind == "f":
      return tf.train.Feature(float_list=tf.train.FloatList(value=value))
    if value.dtype.kind == "S":
      return tf.train.Feature(bytes_list=tf.train.BytesList(value=value))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=value))

  return tf.train.Example(
    features=tf.train.Features(feature={k: feature(v) for k, v in features.items()})
  ).SerializeToString()


def test_examples_beside_tensors(tmp_path):
  model = saved_model.Model(PARAMS).add(predict, inputs=INPUTS, outputs=["y"])
  model.add(predict, inputs=INPUTS, outputs=["y"], signatures="examples", examples=True)
  loaded = tf.saved_model.load(str(model.save(tmp_path)))
  rows = [serialized(x=x, ids=i) for x, i in zip(X, IDS, strict=True)]
  np.testing.assert_array_equal(
    loaded.signatures["examples"](examples=tf.constant(rows))["y"], predict(PARAMS, X, IDS)
  )
  assert model.records["examples"].inputs == {"examples": "string[?]"}
  with pytest.raises(tf.errors.InvalidArgumentError, match="feature ids is not int32"):
    loaded.signatures["examples"](examples=tf.constant([serialized(x=X[0], ids=2**40)]))


@pytest.mark.parametrize(
  ("dtype", "wrong"), [("bool", 2), ("f16", 1e5), ("bf16", 3.4e38), ("u8", -1)]
)
def test_what_the_dtype_of_an_input_does_not_have_fails_the_request(dtype, wrong):
  model = saved_model.Model(np.float32(0)).add(
    lambda params, x: x, inputs={"x": f"{dtype}[b]"}, examples=True
  )
  call = model.signatures["serving_default"]
  one = type(wrong)(1)
  assert call(examples=tf.constant([serialized(x=one)]))["output"].numpy().tolist() == [1]
  with pytest.raises(tf.errors.InvalidArgumentError, match="feature x is not"):
    call(examples=tf.constant([serialized(x=one), serialized(x=wrong)]))


def test_examples_go_through_the_preprocessing():
  def lengths(raw: dict[str, Any]) -> dict[str, Any]:
    return {"x": raw["x"], "ids": tf.strings.length(raw["text"])}

  raw = {"x": "f32[b,4]", "text": "string[b]"}
  model = saved_model.Model(PARAMS).add(
    predict, inputs=INPUTS, raw_inputs=raw, preprocess=lengths, examples=True
  )
  given = tf.constant([serialized(x=X[1], text=np.bytes_("abc"))])
  np.testing.assert_array_equal(
    model.signatures["serving_default"](examples=given)["output"],
    predict(PARAMS, X[1:], np.array([3])),
  )


@pytest.mark.parametrize(
  ("inputs", "options", "words"),
  [
    ({"x": "f32[b,t]"}, {}, "'x' is float32.*one row of known shape"),
    ({"x": "f32[4]"}, {}, "one row of known shape"),
    ({"x": "c64[b]"}, {}, "'x' is complex64, but an Example holds only float32, int64 and bytes"),
    (
      {"x": "f32[b]"},
      {"pass_through": {"id": "string[b]"}},
      "one input, 'examples', so it excludes id",
    ),
  ],
)
def test_what_no_example_holds_is_refused(inputs, options, words):
  with pytest.raises(ValueError, match=words):
    saved_model.Model(PARAMS).add(lambda params, x: x, inputs=inputs, examples=True, **options)
