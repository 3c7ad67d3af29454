"""Warm-up requests, which TF Serving runs before a model is ready:
`assets.extra/tf_serving_warmup_requests`.

A TFRecord file of PredictionLog protos (https://www.tensorflow.org/tfx/serving/saved_model_warmup),
of at most 1,000 records.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from ..bundle import files
from . import draws
from .domain import Domain

__all__ = ["from_specs"]

MOST = 1000

Request = Mapping[str, Any]
Requests = Sequence[Request] | Mapping[str, Sequence[Request]]


def prepared(
  requests: Requests, signatures: Mapping[str, Any], stateful: Sequence[str] = ()
) -> list[tuple[str, dict[str, tf.Tensor]]]:
  """Checks the requests: [(signature, {input: tensor})]. A plain list is for serving_default, or
  else for the first signature.

  Raises:
    ValueError: a signature or an input is unknown; an input is missing; a dtype or a shape does not
      fit; there are more than 1,000 requests; a request is for a stateful signature.
  """
  if not isinstance(requests, Mapping):
    name = (
      "serving_default"
      if "serving_default" in signatures or not signatures
      else next(iter(signatures))
    )
    requests = {name: requests} if requests else {}
  named_requests = [
    (name, request) for name, of_signature in requests.items() for request in of_signature
  ]
  if moving := [name for name, _ in named_requests if name in stateful]:
    raise ValueError(
      f"warm-up of signature {moving[0]!r} would change the state before the first request; omit "
      "its requests"
    )
  if len(named_requests) > MOST:
    raise ValueError(f"{len(named_requests)} warm-up requests; TF Serving takes at most {MOST}")
  return [
    (name, _tensors(i, name, request, signatures))
    for i, (name, request) in enumerate(named_requests)
  ]


def _tensors(
  i: int, name: str, request: Request, signatures: Mapping[str, Any]
) -> dict[str, tf.Tensor]:
  where = f"warm-up request {i} of signature {name!r}"
  if name not in signatures:
    raise ValueError(f"{where}: there is no such signature, only {', '.join(signatures)}")
  parameters = signatures[name].function_type.parameters
  specs = dict(zip(parameters, signatures[name].input_signature, strict=True))
  optional = {n for n, p in parameters.items() if p.optional}
  if missing := parameters.keys() - request.keys() - optional:
    raise ValueError(f"{where}: {', '.join(sorted(missing))} is missing")
  tensors = {}
  for key, value in request.items():
    if key not in parameters:
      raise ValueError(f"{where}: {key!r} is not an input; the inputs are {', '.join(parameters)}")
    spec = specs[key]
    tensor = (
      tf.convert_to_tensor(value)
      if hasattr(value, "dtype")
      else tf.convert_to_tensor(value, spec.dtype)
    )
    if tensor.dtype != spec.dtype or not spec.shape.is_compatible_with(tensor.shape):
      raise ValueError(
        f"{where}: {key!r} is {tensor.dtype.name}{tensor.shape}, and "
        f"{spec.dtype.name}{spec.shape} is needed"
      )
    tensors[key] = tensor
  return tensors


def from_specs(model: Any, count: int = 3) -> dict[str, list[dict[str, np.ndarray]]]:
  """Generates `count` warm-up requests for every signature of a model, at several sizes of its
  symbolic dimensions.

  Stateful signatures get none, because a request would change the state.

  Args:
    model: a `saved_model.Model`.
    count: the number of requests per signature.

  Returns:
    {signature: [{input: array}]}, for `warmup_requests` of `Model.save`.

  Raises:
    ValueError: a signature has a preprocessor or passed-through inputs, whose values the specs do
      not define.

  Examples:
    >>> import numpy as np
    >>> from jax2tf.converters import saved_model
    >>> from jax2tf.converters.saved_model import warmup
    >>> model = saved_model.Model(np.eye(2, dtype=np.float32)).add(
    ...   lambda w, x: x @ w, inputs={"x": "f32[b,2]"}
    ... )
    >>> [
    ...   request["x"].dtype.name
    ...   for request in warmup.from_specs(model, count=2)["serving_default"]
    ... ]
    ['float32', 'float32']
  """
  requests: dict[str, list[dict[str, np.ndarray]]] = {}
  for name, signature in model.records.items():
    if signature.stateful:
      continue
    if signature.preprocessed or signature.passed_through:
      raise ValueError(
        f"signature {name!r} has inputs of TensorFlow's own, so requests cannot be generated; "
        "pass some"
      )
    domain, rng = Domain(signature, model.polymorphic_constraints), np.random.default_rng(0)
    sizes = itertools.islice(itertools.cycle(domain.assignments({}, {})), count)
    requests[name] = [
      {
        key: draws.draw(rng, shape, np.dtype(domain.avals[key].dtype), "ordinary", 0)
        for key, shape in domain.shapes(of).items()
      }
      for of in sizes
    ]
  return requests


def write(
  requests: Sequence[tuple[str, dict[str, tf.Tensor]]], directory: Path, model_name: str
) -> None:
  """Writes the file into a SavedModel, if there are requests.

  Raises:
    ModuleNotFoundError: tensorflow-serving-api is not installed.
  """
  if not requests:
    return
  try:
    from tensorflow_serving.apis import predict_pb2, prediction_log_pb2  # noqa: PLC0415  (the serving extra)
  except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
      "warm-up requests need tensorflow-serving-api: pip install 'jax2tf[serving]'"
    ) from error
  file = directory / files.WARM_UP
  file.parent.mkdir(exist_ok=True)
  with tf.io.TFRecordWriter(str(file)) as writer:
    for name, tensors in requests:
      request = predict_pb2.PredictRequest()
      request.model_spec.name, request.model_spec.signature_name = model_name, name
      for key, tensor in tensors.items():
        request.inputs[key].CopyFrom(tf.make_tensor_proto(tensor))
      log = prediction_log_pb2.PredictionLog(
        predict_log=prediction_log_pb2.PredictLog(request=request)
      )
      writer.write(log.SerializeToString())
