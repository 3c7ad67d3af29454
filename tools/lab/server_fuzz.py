"""Random requests against `jax2tf serve`, by REST and by gRPC.

Each valid request has to be answered with JAX's values, and each invalid one refused as such.
"""

from __future__ import annotations

import collections
import concurrent.futures
import http.client
import json
import pathlib
import threading
from collections.abc import Callable, Mapping
from typing import Any

import grpc
import jax
import tensorflow as tf
from rich.progress import track
from tensorflow_serving.apis import predict_pb2

from jax2tf.tools.lab import bounds
from tests.support import clients, grpc_requests, server_requests
from tests.support.server_requests import Arrays, Case

_CLIENTS = 8
_REQUESTS = 4000
_PREDICT = "/tensorflow.serving.PredictionService/Predict"
_SECONDS = 60.0
_REFUSALS = {400, 404, 413, 415, 501}
_REFUSED = {
  grpc.StatusCode.INVALID_ARGUMENT,
  grpc.StatusCode.NOT_FOUND,
  grpc.StatusCode.FAILED_PRECONDITION,
  grpc.StatusCode.RESOURCE_EXHAUSTED,
}


class _LostError(Exception):
  """Neither an answer nor a refusal."""


class _Rest:
  """A client of the REST API, with a connection for each thread."""

  def __init__(self, port: int):
    self._port = port
    self._local = threading.local()

  def ask(self, case: Case) -> Arrays | None:
    """The outputs; None if the request is refused. Raises _LostError."""
    status, body = self.send(f"/v1/models/{case.model}{case.path}", case.body, case.headers)
    if status == 200:
      return server_requests.read(case, body)
    if status not in _REFUSALS or set(json.loads(body)) != {"error"}:
      raise _LostError(f"{status}: {body[:200]!r}")
    return None

  def send(self, path: str, body: bytes, headers: Mapping[str, str]) -> tuple[int, bytes]:
    """The status and the body of the answer."""
    connection = getattr(self._local, "connection", None) or http.client.HTTPConnection(
      "127.0.0.1", self._port, timeout=_SECONDS
    )
    self._local.connection = connection
    try:
      chunked = "Transfer-Encoding" in headers
      parts: Any = (
        iter([body[:7], body[7:]] if len(body) > 7 else [body] if body else []) if chunked else body
      )
      connection.request("POST", path, parts, dict(headers), encode_chunked=chunked)
      response = connection.getresponse()
      return response.status, response.read()
    except (OSError, http.client.HTTPException) as error:
      connection.close()
      self._local.connection = None
      raise _LostError(f"{type(error).__name__}: {error}") from error


class _Grpc:
  """A client of the gRPC API."""

  def __init__(self, channel: grpc.Channel):
    self._predict = channel.unary_unary(_PREDICT)

  def ask(self, case: Case) -> Arrays | None:
    """The outputs; None if the request is refused. Raises _LostError."""
    try:
      response = predict_pb2.PredictResponse.FromString(self._predict(case.body, timeout=_SECONDS))
    except grpc.RpcError as error:
      if error.code() not in _REFUSED:
        raise _LostError(f"{error.code().name}: {error.details()}") from error
      return None
    return {name: tf.make_ndarray(proto) for name, proto in response.outputs.items()}


def _run(
  make: Callable[[int], Case], ask: Callable[[Case], Arrays | None], seeds: range
) -> dict[str, dict[str, Any]]:
  """{kind: numbers of requests, answers, refusals, wrong and lost ones}, with the first faults."""
  found: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
  faults: list[str] = []

  def one(seed: int) -> tuple[str, str, str]:
    case = make(seed)
    try:
      outputs = ask(case)
    except (_LostError, KeyError, ValueError, TypeError) as error:
      return case.kind, "lost", f"seed {seed}, {case.kind}: {type(error).__name__}: {error}"
    fault = case.fault(outputs)
    return (
      case.kind,
      "wrong" if fault else "refused" if outputs is None else "answered",
      fault and f"seed {seed}, {case.kind}: {fault}",
    )

  with concurrent.futures.ThreadPoolExecutor(_CLIENTS) as pool:
    for kind, what, fault in track(pool.map(one, seeds), "requests", total=len(seeds)):
      found[kind].update(["requests", what])
      faults += [fault] * bool(fault)
  for fault in faults[:20]:
    print(fault)
  names = ("requests", "answered", "refused", "wrong", "lost")
  return {kind: {name: numbers[name] for name in names} for kind, numbers in sorted(found.items())}


def measure(folder: pathlib.Path, share: float) -> tuple[dict[str, Any], list[str]]:
  """The numbers, and wrong and lost answers.

  Args:
    folder: where the models are saved.
    share: of the requests.
  """
  before_x64 = jax.config.jax_enable_x64
  jax.config.update("jax_enable_x64", True)  # in all threads
  try:
    report = _measured(folder, range(int(share * _REQUESTS)))
  finally:
    jax.config.update("jax_enable_x64", before_x64)
  return report, [*bounds.of_requests(report)]


def _measured(folder: pathlib.Path, seeds: range) -> dict[str, Any]:
  server_requests.save(folder)
  options = ("--replicas=2", f"--max_request_mb={server_requests.MAX_REQUEST_MB}")
  with (
    clients.serving(folder, *options) as server,
    grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel,
  ):
    return {
      "REST": _run(server_requests.rest, _Rest(server.http_port).ask, seeds),
      "gRPC": _run(grpc_requests.by_grpc, _Grpc(channel).ask, seeds),
    }
