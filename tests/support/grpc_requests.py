"""Random gRPC requests of a server, with what has to come back; see `server_requests`."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2

from tests.support.server_requests import DTYPES, Arrays, Case, answer, drawn


def by_grpc(seed: int) -> Case:
  """A request by gRPC."""
  draw = random.Random(f"grpc {seed}")
  return draw.choice(
    [
      _grpc_valid,
      _grpc_valid,
      _grpc_texts,
      _grpc_linear,
      _grpc_refused,
      _grpc_refused,
      _grpc_mutated,
    ]
  )(draw)


def _request(model: str, signature: str, **inputs: Any) -> predict_pb2.PredictRequest:
  made = predict_pb2.PredictRequest(
    inputs={name: tf.make_tensor_proto(value) for name, value in inputs.items()}
  )
  made.model_spec.name, made.model_spec.signature_name = model, signature
  return made


def _grpc_valid(draw: random.Random) -> Case:
  signature = draw.choice([*DTYPES])
  _, x = drawn(draw, signature, draw.randint(1, 3), draw.randint(1, 3))
  request, expected = _request("types", signature, x=x), answer("types", x)
  if draw.random() < 0.3:
    request.model_spec.version.value = 1
  if draw.random() < 0.3:
    request.output_filter.append("twice")
    expected = {"twice": expected["twice"]}
  data = request.SerializeToString()
  if draw.random() < 0.2:
    data += bytes([0xFA, 0x7F, 3, 1, 2, 3])  # an unknown field, which every reader skips
  return Case(f"values of {signature}", "types", signature, data, expected)


def _grpc_texts(draw: random.Random) -> Case:
  texts = np.array([draw.randbytes(draw.randint(0, 20)) for _ in range(draw.randint(1, 5))], object)
  return Case(
    "texts",
    "strings",
    "",
    _request("strings", "", text=texts).SerializeToString(),
    answer("strings", texts),
  )


def _grpc_linear(draw: random.Random) -> Case:
  x = np.array(
    [[draw.uniform(-3, 3) for _ in range(4)] for _ in range(draw.randint(1, 40))], np.float32
  )
  return Case(
    "a product", "linear", "", _request("linear", "", x=x).SerializeToString(), answer("linear", x)
  )


def _grpc_refused(draw: random.Random) -> Case:
  """A request for f32[b,n] with one fault."""
  request = _request("types", "f32", x=np.ones((2, 3), np.float32))
  tensor, spec = request.inputs["x"], request.model_spec
  faults: dict[str, Callable[[], object]] = {
    "another model": lambda: setattr(
      spec, "name", draw.choice(["", "none", "types\0", "../types", "TYPES", "é", "a" * 5000])
    ),
    "another version": lambda: setattr(spec.version, "value", draw.choice([0, 2, -1, 2**63 - 1])),
    "another label": lambda: setattr(spec, "version_label", draw.choice(["none", "\0", "é"])),
    "another signature": lambda: setattr(
      spec, "signature_name", draw.choice(["", "f31", "\0", "__saved_model_init_op"])
    ),
    "another output": lambda: request.output_filter.extend(
      draw.choice([["y"], ["same", "same"], [""]])
    ),
    "another input": lambda: request.inputs["y"].CopyFrom(tensor),
    "no input": request.inputs.clear,
    "another dtype": lambda: setattr(
      tensor, "dtype", draw.choice([0, 2, 3, 7, 9, 14, 20, 21, 101, 9999])
    ),
    "another rank": lambda: tensor.tensor_shape.dim.add(size=1),
    "an unknown rank": lambda: setattr(tensor.tensor_shape, "unknown_rank", True),
    "a negative size": lambda: setattr(tensor.tensor_shape.dim[0], "size", -draw.randint(1, 9)),
    "a size without values": lambda: setattr(
      tensor.tensor_shape.dim[0], "size", draw.choice([3, 2**31, 2**62, 2**63 - 1])
    ),
    "half of the content": lambda: setattr(
      tensor, "tensor_content", tensor.tensor_content[: draw.randrange(1, 23)]
    ),
  }
  kind = draw.choice(["no message", *faults])
  if kind == "no message":
    return Case(kind, "types", "f32", b"\xff" + draw.randbytes(draw.randint(1, 99)), None)
  faults[kind]()
  return Case(kind, "types", "f32", request.SerializeToString(), None)


def _grpc_mutated(draw: random.Random) -> Case:
  data = bytearray(_request("types", "f32", x=drawn(draw, "f32", 2, 2)[1]).SerializeToString())
  for _ in range(draw.randint(1, 3)):
    data[draw.randrange(len(data))] = draw.randrange(256)
  return Case("changed bytes", "types", "f32", bytes(data), _of_message)


def _of_message(body: bytes) -> Arrays | None:
  """What the message asks for, by a parser of its own."""
  try:
    request = predict_pb2.PredictRequest.FromString(body)
    [(name, tensor)] = request.inputs.items()
    if name != "x" or request.model_spec.name not in ("types", "linear"):
      return None
    found = answer(request.model_spec.name, tf.make_ndarray(tensor))
    return {key: found[key] for key in request.output_filter} or found
  except Exception:
    return None
