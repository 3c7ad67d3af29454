"""Random requests for `jax2tf serve`, by REST and by gRPC, without a server: the parsers and the
models of a replica."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import jax
import numpy as np
import pytest
import tensorflow as tf

from jax2tf.tools.serving import bodies, model, protobuf, rest
from tests.support import grpc_requests, server_requests

MAX_BYTES = server_requests.MAX_REQUEST_MB << 20


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, model.Model]]:
  """The models by name."""
  folder = tmp_path_factory.mktemp("models")
  with jax.enable_x64(True):
    server_requests.save(folder)
    yield {name: model.Model(folder / name / "1") for name in ("types", "linear", "strings")}


def _rest(
  models: Mapping[str, model.Model], case: server_requests.Case
) -> Mapping[str, np.ndarray] | None:
  body = case.body
  try:
    if coding := case.headers.get("Content-Encoding", ""):
      body = bodies.decompressed(body, MAX_BYTES) or b"" if coding != "br" else b""
    request = rest.parse_predict(models[case.model], body)
    [outcome] = model.run([request.call], 1)
    if isinstance(outcome, model.RefusedError):
      return None
    return server_requests.read(case, rest.predict_body(request, outcome))
  except (model.RefusedError, bodies.zlib.error):
    return None


def _grpc(
  models: Mapping[str, model.Model], case: server_requests.Case
) -> Mapping[str, np.ndarray] | None:
  try:
    request = protobuf.parse_predict(case.body)
    name, version, label = protobuf.asked(request.model_spec)
    if name not in models or version not in (None, 1) or label:
      return None
    call = protobuf.call(protobuf.check(models[name], request, MAX_BYTES)[0], request)
    [outcome] = model.run([call], 1)
    if isinstance(outcome, model.RefusedError):
      return None
    response = protobuf.predict_response(name, models[name], call, outcome, request.output_filter)
    return {key: tf.make_ndarray(proto) for key, proto in response.outputs.items()}
  except model.RefusedError:
    return None


# TF 2.21 does, for float16
@pytest.mark.filterwarnings("ignore:Setting the dtype on a NumPy array")
@pytest.mark.parametrize("interface", ["rest", "grpc"])
def test_random_requests(models: Mapping[str, model.Model], interface: str) -> None:
  made, asked = {"rest": (server_requests.rest, _rest), "grpc": (grpc_requests.by_grpc, _grpc)}[
    interface
  ]
  faults, answered, count = [], 0, 100
  for seed in range(count):
    case = made(seed)
    if (
      case.path.lower().endswith(":predict")
      and "/versions/7" not in case.path
      and "/labels" not in case.path
      and len(case.path) < 40
    ):
      outputs = asked(models, case)
      answered += outputs is not None
      if fault := case.fault(outputs):
        faults.append(f"{seed}: {case.kind}, {case.signature}: {fault}: {case.body[:200]!r}")
  assert faults == []
  assert count / 4 < answered < count
