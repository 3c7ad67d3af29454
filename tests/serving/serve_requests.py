"""Requests for `encoder` of serve_models, right and wrong ones, with what `jax2tf serve` says to
them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import grpc
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2, tensor_shape_pb2
from tensorflow_serving.apis import predict_pb2

from tests.serving.serve_models import inputs_of

MAX_BYTES = 4 << 20


def request_of(
  inputs: dict[str, np.ndarray], name: str = "encoder", **spec: Any
) -> predict_pb2.PredictRequest:
  made = predict_pb2.PredictRequest(
    inputs={key: tf.make_tensor_proto(value) for key, value in inputs.items()}
  )
  made.model_spec.name = name
  for key, value in spec.items():
    if key == "version":
      made.model_spec.version.value = value
    else:
      setattr(made.model_spec, key, value)
  return made


def is_answered(stub: Any, request: predict_pb2.PredictRequest) -> bool:
  try:
    stub.Predict(request, timeout=30)
  except grpc.RpcError:
    return False
  return True


def refusal(call: Callable[[], object]) -> tuple[grpc.StatusCode, str]:
  """How a call ends that gets no answer."""
  with pytest.raises(grpc.RpcError) as caught:
    call()
  return caught.value.code(), caught.value.details()  # type: ignore[attr-defined]


def _changed(**changes: Any) -> Callable[[], predict_pb2.PredictRequest]:
  return lambda: request_of({**inputs_of(2, 3), **changes})


def _without_ids() -> predict_pb2.PredictRequest:
  return request_of({"x": inputs_of(2, 3)["x"]})


def _damaged(change: Callable[[Any], object]) -> Callable[[], predict_pb2.PredictRequest]:
  def make() -> predict_pb2.PredictRequest:
    made = request_of(inputs_of(2, 3))
    change(made)
    return made

  return make


def _without_content(dtype: int) -> Callable[[], predict_pb2.PredictRequest]:
  shape = tensor_shape_pb2.TensorShapeProto(dim=[{"size": 2}, {"size": 8}])
  return _damaged(
    lambda r: r.inputs["x"].CopyFrom(tensor_pb2.TensorProto(dtype=dtype, tensor_shape=shape))
  )


INVALID, NOT_FOUND, EXHAUSTED = (
  grpc.StatusCode.INVALID_ARGUMENT,
  grpc.StatusCode.NOT_FOUND,
  grpc.StatusCode.RESOURCE_EXHAUSTED,
)
BAD_REQUESTS: dict[str, tuple[Callable[[], predict_pb2.PredictRequest], grpc.StatusCode, str]] = {
  "shape": (
    _changed(x=np.ones((2, 7), np.float32)),
    INVALID,
    "input 'x' is float32[2,7]; signature 'serving_default' takes",
  ),
  "rank": (_changed(x=np.ones(8, np.float32)), INVALID, "input 'x' is float32[8]"),
  "dtype": (_changed(x=np.ones((2, 8))), INVALID, "input 'x' is float64[2,8]"),
  "unknown input": (_changed(z=np.ones(1)), INVALID, "the request has 'z'"),
  "missing input": (_without_ids, INVALID, "the request misses 'ids'"),
  "two sizes of b": (_changed(ids=np.ones((3, 2), np.int32)), INVALID, "dimension b is"),
  "constraint": (lambda: request_of(inputs_of(101, 2)), INVALID, "b <= 100"),
  "no rows": (
    lambda: request_of(inputs_of(0, 2)),
    INVALID,
    "Expected value >= 1 for dimension variable",
  ),
  "model": (
    lambda: request_of(inputs_of(1, 1), name="other"),
    NOT_FOUND,
    "no model 'other' here; this server has 'encoder'",
  ),
  "version": (
    lambda: request_of(inputs_of(1, 1), version=7),
    NOT_FOUND,
    "version 7 of 'encoder' is not served; version 1 is",
  ),
  "label": (
    lambda: request_of(inputs_of(1, 1), version_label="stable"),
    INVALID,
    "no version_label 'stable'; it has ['first', 'next']",
  ),
  "early label": (
    lambda: request_of(inputs_of(1, 1), version_label="next"),
    NOT_FOUND,
    "version 3 of 'encoder' is not served; version 1 is",
  ),
  "signature": (
    lambda: request_of(inputs_of(1, 1), signature_name="train"),
    grpc.StatusCode.FAILED_PRECONDITION,
    "signature_name is 'train'; version 1 has",
  ),
  "filter twice": (
    _damaged(lambda r: r.output_filter.extend("yy")),
    INVALID,
    "output_filter names an output twice: ['y', 'y']",
  ),
  "filter": (_damaged(lambda r: r.output_filter.append("q")), INVALID, "output_filter names ['q']"),
  "too large": (
    lambda: request_of({"x": np.ones((MAX_BYTES // 32 + 1, 8), np.float32)}),
    EXHAUSTED,
    "larger than max",
  ),
  "content": (
    _damaged(lambda r: setattr(r.inputs["x"], "tensor_content", b"123")),
    INVALID,
    "tensor_content has 3 bytes",
  ),
  "no dtype": (_damaged(lambda r: setattr(r.inputs["x"], "dtype", 0)), INVALID, "input 'x'"),
  "resource": (_without_content(20), INVALID, "input 'x' is resource[2,8]"),
  "variant": (_without_content(21), INVALID, "input 'x' is variant[2,8]"),
  "quantized": (_without_content(121), INVALID, "input 'x'"),
  "unknown dtype": (_without_content(99), INVALID, "input 'x'"),
  "negative size": (
    _damaged(lambda r: setattr(r.inputs["x"].tensor_shape.dim[0], "size", -5)),
    INVALID,
    "its shape is not known",
  ),
}


ROW = {"x": [0.5] * 8, "ids": [1]}
BAD_BODIES: dict[str, tuple[str, str | None, int, str]] = {
  "no JSON": (":predict", '{"x"', 400, "the body is not JSON"),
  "deep JSON": (":predict", "[" * 100_000, 400, "the body is not JSON"),
  "nested": (":predict", '{"inputs": ' + "[" * 800 + "]" * 800 + "}", 400, "2 inputs; name them"),
  "nested name": (
    ":predict",
    '{"inputs": {"x": 1}, "signature_name": ' + "[" * 800 + "]" * 800 + "}",
    400,
    "signature_name is",
  ),
  "nested input": (
    ":predict",
    '{"inputs": {"ids": [[1]], "x": ' + "[" * 800 + "]" * 800 + "}}",
    400,
    "input 'x' is no tensor",
  ),
  "no form": (":predict", "{}", 400, 'either "instances"'),
  "no rows": (":predict", '{"instances": []}', 400, "at least one row"),
  "key": (":predict", json.dumps({"instances": [ROW], "sig": 1}), 400, "the body has ['sig']"),
  "signature": (
    ":predict",
    json.dumps({"instances": [ROW], "signature_name": "a"}),
    400,
    "signature_name is 'a'",
  ),
  "ragged": (
    ":predict",
    json.dumps({"instances": [ROW, {**ROW, "ids": [1, 2]}]}),
    400,
    "input 'ids' is no tensor",
  ),
  "names": (
    ":predict",
    json.dumps({"instances": [ROW, {"x": 1}]}),
    400,
    "instance 1 must be an object",
  ),
  "unnamed": (":predict", json.dumps({"instances": [1]}), 400, "has 2 inputs; name them"),
  "shape": (
    ":predict",
    json.dumps({"instances": [{**ROW, "x": [1]}]}),
    400,
    "input 'x' is float32[1,1]",
  ),
  "fraction": (
    ":predict",
    json.dumps({"instances": [{**ROW, "ids": [1.5]}]}),
    400,
    "a tensor of int32; the JSON holds numbers with",
  ),
  "range": (
    ":predict",
    json.dumps({"instances": [{**ROW, "ids": [2**31]}]}),
    400,
    "outside of its range",
  ),
  "string": (
    ":predict",
    json.dumps({"instances": [{**ROW, "x": ["a"] * 8}]}),
    400,
    "the JSON holds strings",
  ),
  "null": (
    ":predict",
    json.dumps({"instances": [{**ROW, "x": [None] * 8}]}),
    400,
    "the JSON holds null or objects",
  ),
  "float32": (
    ":predict",
    json.dumps({"instances": [{**ROW, "x": [1e39] * 8}]}),
    400,
    "a finite value is outside",
  ),
  "float64": (
    ":predict",
    json.dumps({"instances": [{**ROW, "x": [0] * 8}]}).replace("[0,", "[1e400,"),
    400,
    "1e400 is outside",
  ),
  "large": (":predict", " " * (MAX_BYTES + 1), 413, "send fewer rows"),
  "verb": (":classify", "{}", 501, ":classify is not implemented; send :predict"),
  "method of a verb": (":regress", None, 400, "send POST"),
  "path": ("/other", None, 400, "no such path"),
  "path outside": ("/../../../v2", None, 404, "no such path"),
  "version": ("/versions/9:predict", "{}", 404, "version 9 of 'encoder' is not served"),
  "digits": (f"/versions/{'9' * 5000}:predict", "{}", 400, "19 digits"),
  "method": (":predict", None, 400, "send POST"),
  "model": ("s", None, 404, "no model 'encoders' here"),
}
