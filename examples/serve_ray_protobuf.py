"""How do TF Serving's gRPC messages become arrays and back? PredictRequest -> checked inputs, outputs -> PredictResponse."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import grpc
import numpy as np
from google.protobuf import message

from serve_ray_model import Arrays, Call, Model, RefusedError, invalid, tf

# After TensorFlow, without JAX, which these import.
from tensorflow.core.framework import tensor_pb2  # isort: skip
from tensorflow_serving.apis import get_model_metadata_pb2, model_pb2, predict_pb2, prediction_log_pb2  # isort: skip

WARM_UP = Path("assets.extra", "tf_serving_warmup_requests")


def parse_predict(data: bytes) -> predict_pb2.PredictRequest:
  """Raises RefusedError for bytes that are no PredictRequest."""
  try:
    return predict_pb2.PredictRequest.FromString(data)
  except message.DecodeError as error:
    raise invalid(f"the request is no tensorflow.serving.PredictRequest: {error}") from error


def parse_metadata(data: bytes) -> get_model_metadata_pb2.GetModelMetadataRequest:
  """Raises RefusedError for bytes that are no GetModelMetadataRequest, or ask for more than there is."""
  try:
    request = get_model_metadata_pb2.GetModelMetadataRequest.FromString(data)
  except message.DecodeError as error:
    raise invalid(f"the request is no tensorflow.serving.GetModelMetadataRequest: {error}") from error
  if list(request.metadata_field) != ["signature_def"]:
    raise invalid(f"metadata_field is {list(request.metadata_field)}; there is one: 'signature_def'")
  return request


def version_asked(spec: model_pb2.ModelSpec) -> int | None:
  """Raises RefusedError for a label: a folder of versions gives none."""
  if spec.version_label:
    raise invalid(f"model_spec.version_label is {spec.version_label!r}; versions have no labels here, ask for model_spec.version")
  return spec.version.value if spec.HasField("version") else None


def call(model: Model, request: predict_pb2.PredictRequest, max_bytes: int) -> Call:
  """The checked inputs of a request.

  Raises:
    RefusedError: a signature, name, dtype or shape that the model does not have, or a tensor that is damaged or too large.
  """
  signature = model.signature(request.model_spec.signature_name)
  unknown = sorted(set(request.output_filter) - signature.outputs.keys())
  if unknown:
    raise invalid(f"output_filter names {unknown}; signature {signature.name!r} returns {sorted(signature.outputs)}")
  given = {name: _array(name, proto, max_bytes) for name, proto in request.inputs.items()}
  return Call(signature, signature.complete(given))


def _array(name: str, proto: tensor_pb2.TensorProto, max_bytes: int) -> np.ndarray:
  shape = [dim.size for dim in proto.tensor_shape.dim]
  try:
    dtype = tf.as_dtype(proto.dtype)
    if proto.tensor_shape.unknown_rank or any(size < 0 for size in shape):
      raise ValueError("its shape is not known")
    size = math.prod(shape) * dtype.size
    if size > max_bytes:  # before it is made: one value and a large shape are few bytes of a request
      raise RefusedError(grpc.StatusCode.RESOURCE_EXHAUSTED, f"input {name!r} would have {size} bytes; at most {max_bytes} are served")
    if proto.tensor_content and len(proto.tensor_content) != size:
      raise ValueError(f"tensor_content has {len(proto.tensor_content)} bytes, its dtype and shape have {size}")
    return tf.make_ndarray(proto)
  except (TypeError, ValueError, IndexError, OverflowError) as error:
    raise invalid(f"input {name!r} is no tensor that can be read ({error}); make it with tf.make_tensor_proto") from error


def predict_response(name: str, model: Model, call: Call, outputs: Arrays, output_filter: Sequence[str]) -> predict_pb2.PredictResponse:
  """The outputs, or those that `output_filter` names."""
  kept = {key: tf.make_tensor_proto(array) for key, array in outputs.items() if not output_filter or key in output_filter}
  return predict_pb2.PredictResponse(model_spec=_spec(name, model, call.signature.name), outputs=kept)


def metadata_response(name: str, model: Model) -> get_model_metadata_pb2.GetModelMetadataResponse:
  """The answer to a request for "signature_def"."""
  response = get_model_metadata_pb2.GetModelMetadataResponse(model_spec=_spec(name, model))
  response.metadata["signature_def"].Pack(signature_def_map(model))
  return response


def signature_def_map(model: Model) -> get_model_metadata_pb2.SignatureDefMap:
  """The signatures of the SavedModel, as they are stored."""
  return get_model_metadata_pb2.SignatureDefMap(signature_def=model.signature_defs)


def warm_up_calls(model: Model, directory: Path) -> list[Call]:
  """The Predict requests of `assets.extra/tf_serving_warmup_requests`; none if there is no such file."""
  file = directory / WARM_UP
  if not file.exists():
    return []
  logs = (prediction_log_pb2.PredictionLog.FromString(record.numpy()) for record in tf.data.TFRecordDataset(str(file)))
  return [call(model, log.predict_log.request, 2**31) for log in logs if log.HasField("predict_log")]


def _spec(name: str, model: Model, signature_name: str = "") -> model_pb2.ModelSpec:
  spec = model_pb2.ModelSpec(name=name, signature_name=signature_name)
  spec.version.value = model.version
  return spec
