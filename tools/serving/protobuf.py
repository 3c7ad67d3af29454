"""Converts TF Serving's gRPC messages: PredictRequest to checked inputs, outputs to
PredictResponse."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import grpc
import numpy as np
from google.protobuf import json_format, message

from jax2tf.converters.bundle import files
from jax2tf.tools.serving.model import Arrays, Call, Model, RefusedError, Signature, invalid

# After `model`, which imports TensorFlow without JAX.
import tensorflow as tf  # isort: skip
from tensorflow.core.framework import tensor_pb2  # isort: skip

# isort: skip
from tensorflow_serving.apis import (
  get_model_metadata_pb2,
  get_model_status_pb2,
  model_pb2,
  predict_pb2,
  prediction_log_pb2,
)

# Memory of a string besides its characters: a pointer in NumPy, and TensorFlow's string object (TF
# 2.21: 24 bytes).
_STRING_BYTES = 32


def parse_predict(data: bytes) -> predict_pb2.PredictRequest:
  """Parses a PredictRequest. Raises RefusedError for other bytes."""
  try:
    return predict_pb2.PredictRequest.FromString(data)
  except message.DecodeError as error:
    raise invalid(f"the request is not a tensorflow.serving.PredictRequest: {error}") from error


def parse_metadata(data: bytes) -> get_model_metadata_pb2.GetModelMetadataRequest:
  """Parses a GetModelMetadataRequest. Raises RefusedError for other bytes, or for unknown
  metadata."""
  try:
    request = get_model_metadata_pb2.GetModelMetadataRequest.FromString(data)
  except message.DecodeError as error:
    raise invalid(
      f"the request is not a tensorflow.serving.GetModelMetadataRequest: {error}"
    ) from error
  if list(request.metadata_field) != ["signature_def"]:
    raise invalid(
      f"metadata_field is {list(request.metadata_field)}; there is one: 'signature_def'"
    )
  return request


def asked(spec: model_pb2.ModelSpec) -> tuple[str, int | None, str]:
  """The name, version and label in a model_spec."""
  return spec.name, spec.version.value if spec.HasField("version") else None, spec.version_label


def parse_status(data: bytes) -> get_model_status_pb2.GetModelStatusRequest:
  """Parses a GetModelStatusRequest. Raises RefusedError for other bytes."""
  try:
    return get_model_status_pb2.GetModelStatusRequest.FromString(data)
  except message.DecodeError as error:
    raise invalid(
      f"the request is not a tensorflow.serving.GetModelStatusRequest: {error}"
    ) from error


def status_response(states: list[dict[str, object]]) -> get_model_status_pb2.GetModelStatusResponse:
  """The response for the states of `Versions.status`."""
  return json_format.ParseDict(
    {"model_version_status": states}, get_model_status_pb2.GetModelStatusResponse()
  )


def check(
  model: Model, request: predict_pb2.PredictRequest, max_bytes: int
) -> tuple[Signature, int]:
  """(the requested signature, the size of the inputs in bytes), before any tensor is parsed.

  Raises:
    RefusedError: the model has no such signature, name, dtype or shape, or the inputs are too
      large.
  """
  signature = model.signature(request.model_spec.signature_name)
  unknown = sorted(set(request.output_filter) - signature.outputs.keys())
  if unknown:
    raise invalid(
      f"output_filter names {unknown}; signature {signature.name!r} returns "
      f"{sorted(signature.outputs)}"
    )
  if len({*request.output_filter}) < len(request.output_filter):
    raise invalid(f"output_filter names an output twice: {list(request.output_filter)}")
  signature.check({name: _spec_of(name, proto) for name, proto in request.inputs.items()})
  size = sum(map(_size, request.inputs.values()))
  if size > max_bytes:  # a few bytes of a request can hold one value and a large shape
    raise RefusedError(
      grpc.StatusCode.RESOURCE_EXHAUSTED,
      f"the inputs would have {size} bytes; at most {max_bytes} are served",
    )
  return signature, size


def call(signature: Signature, request: predict_pb2.PredictRequest) -> Call:
  """The inputs of a checked request. Raises RefusedError for a damaged tensor."""
  return Call(
    signature,
    {**signature.defaults, **{name: _array(name, proto) for name, proto in request.inputs.items()}},
  )


def _spec_of(name: str, proto: tensor_pb2.TensorProto) -> tf.TensorSpec:
  """The dtype and shape that a tensor declares."""
  shape = [dim.size for dim in proto.tensor_shape.dim]
  try:
    if proto.tensor_shape.unknown_rank or any(size < 0 for size in shape):
      raise ValueError("its shape is not known")
    return tf.TensorSpec(shape, tf.as_dtype(proto.dtype))
  except (TypeError, ValueError) as error:
    raise _unreadable(name, error) from error


def _size(proto: tensor_pb2.TensorProto) -> int:
  """The size in memory, in bytes. If there are fewer values than elements, the last one is
  repeated, which matters for strings."""
  count = math.prod(dim.size for dim in proto.tensor_shape.dim)
  if proto.dtype != tf.string.as_datatype_enum:
    return count * tf.as_dtype(proto.dtype).size
  strings = proto.string_val
  last = len(strings[-1]) if strings else 0
  return count * _STRING_BYTES + sum(map(len, strings)) + max(0, count - len(strings)) * last


def _array(name: str, proto: tensor_pb2.TensorProto) -> np.ndarray:
  try:
    if proto.tensor_content and len(proto.tensor_content) != _size(proto):
      raise ValueError(
        f"tensor_content has {len(proto.tensor_content)} bytes, its dtype and shape have "
        f"{_size(proto)}"
      )
    return tf.make_ndarray(proto)
  except (TypeError, ValueError, IndexError, OverflowError) as error:
    raise _unreadable(name, error) from error


def _unreadable(name: str, error: Exception) -> RefusedError:
  return invalid(
    f"input {name!r} is not a readable tensor ({error}); make it with tf.make_tensor_proto"
  )


def predict_response(
  name: str, model: Model, call: Call, outputs: Arrays, output_filter: Sequence[str]
) -> predict_pb2.PredictResponse:
  """The response with all outputs, or with those in `output_filter`."""
  chosen = {
    key: tf.make_tensor_proto(array)
    for key, array in outputs.items()
    if not output_filter or key in output_filter
  }
  return predict_pb2.PredictResponse(
    model_spec=_spec(name, model, call.signature.name), outputs=chosen
  )


def metadata_response(name: str, model: Model) -> get_model_metadata_pb2.GetModelMetadataResponse:
  """The response to a request for "signature_def"."""
  response = get_model_metadata_pb2.GetModelMetadataResponse(model_spec=_spec(name, model))
  response.metadata["signature_def"].Pack(signature_def_map(model))
  return response


def signature_def_map(model: Model) -> get_model_metadata_pb2.SignatureDefMap:
  """The stored signatures of a SavedModel."""
  return get_model_metadata_pb2.SignatureDefMap(signature_def=model.signature_defs)


def warm_up_calls(model: Model, directory: Path) -> list[Call]:
  """The Predict requests in `assets.extra/tf_serving_warmup_requests`; an empty list if there is no
  such file."""
  file = directory / files.WARM_UP
  if not file.exists():
    return []
  logs = (
    prediction_log_pb2.PredictionLog.FromString(record.numpy())
    for record in tf.data.TFRecordDataset(str(file))
  )
  requests = [log.predict_log.request for log in logs if log.HasField("predict_log")]
  return [call(check(model, request, 2**31)[0], request) for request in requests]


def _spec(name: str, model: Model, signature_name: str = "") -> model_pb2.ModelSpec:
  spec = model_pb2.ModelSpec(name=name, signature_name=signature_name)
  spec.version.value = model.version
  return spec
