"""What does one replica of serve_ray.py do? Answers gRPC's bytes and REST's JSON from one model, and puts requests together.

TensorFlow is imported where a replica starts, so that the processes that only pass requests on do without it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import grpc
from ray import serve
from ray.serve.grpc_util import RayServegRPCContext
from starlette.requests import Request
from starlette.responses import Response

if TYPE_CHECKING:
  from serve_ray_model import Arrays, Call, RefusedError

_PATH = re.compile(r"/v1/models/(?P<name>[^/:]+)(?:/versions/(?P<version>\d+))?(?P<verb>:predict|/metadata)?")

# As TF Serving maps them; an oversized request has an HTTP status of its own.
_HTTP_STATUS = {
  grpc.StatusCode.INVALID_ARGUMENT: 400,
  grpc.StatusCode.FAILED_PRECONDITION: 400,
  grpc.StatusCode.OUT_OF_RANGE: 400,
  grpc.StatusCode.NOT_FOUND: 404,
  grpc.StatusCode.RESOURCE_EXHAUSTED: 413,
  grpc.StatusCode.UNIMPLEMENTED: 501,
  grpc.StatusCode.UNAVAILABLE: 503,
}


@dataclass(frozen=True)
class Options:
  """What is served, and how.

  Attributes:
    folder: holds the versions.
    name: of the model, for clients.
    max_batch_size: rows that run together at most.
    batch_wait_seconds: how long the first request of a batch waits for others.
    max_bytes: of a request, and of each of its tensors.
  """

  folder: Path
  name: str
  max_batch_size: int
  batch_wait_seconds: float
  max_bytes: int


class _Message:
  """Bytes that Ray Serve may ask to serialise themselves, as it does with a message of protobuf."""

  def __init__(self, data: bytes):
    self._data = data

  def SerializeToString(self) -> bytes:  # noqa: N802  (protobuf's name)
    return self._data


class PredictionService:
  """One replica. Ray Serve calls the methods of the gRPC service by their names, and `__call__` for HTTP."""

  def __init__(self, options: Options):
    """Loads the newest version; raises as `serve_ray_versions.Versions` does."""
    import serve_ray_json  # noqa: PLC0415  (TensorFlow's, as are the next three)
    import serve_ray_model  # noqa: PLC0415
    import serve_ray_protobuf  # noqa: PLC0415
    import serve_ray_versions  # noqa: PLC0415

    self._json, self._model, self._protobuf = serve_ray_json, serve_ray_model, serve_ray_protobuf
    self._options = options
    self._versions = serve_ray_versions.Versions(options.folder, options.name)
    batch: Any = serve.batch(
      max_batch_size=options.max_batch_size, batch_wait_timeout_s=options.batch_wait_seconds, max_concurrent_batches=2
    )
    self._run_batch = batch(self._run_all)

  def check_health(self) -> None:
    """Ray Serve calls this every few seconds, and replaces a replica that raises or does not answer."""
    if not self._versions.healthy:
      raise RuntimeError("the thread that looks for new versions has ended")

  async def Predict(self, data: bytes, grpc_context: RayServegRPCContext) -> Any:  # noqa: N802  (TF Serving's name)
    """PredictRequest -> PredictResponse, both as bytes or able to become them."""
    protobuf = self._protobuf
    try:
      request = protobuf.parse_predict(data)
      spec = request.model_spec
      model = self._versions.get(spec.name, protobuf.version_asked(spec))
      call = protobuf.call(model, request, self._options.max_bytes)
      outputs = await self._run(call)
      return protobuf.predict_response(spec.name, model, call, outputs, request.output_filter)
    except self._model.RefusedError as refusal:
      return _refuse(grpc_context, refusal)

  async def GetModelMetadata(self, data: bytes, grpc_context: RayServegRPCContext) -> Any:  # noqa: N802
    """GetModelMetadataRequest -> GetModelMetadataResponse."""
    try:
      spec = self._protobuf.parse_metadata(data).model_spec
      return self._protobuf.metadata_response(spec.name, self._versions.get(spec.name, self._protobuf.version_asked(spec)))
    except self._model.RefusedError as refusal:
      return _refuse(grpc_context, refusal)

  async def __call__(self, request: Request) -> Response:
    """The REST API."""
    try:
      return _json_response(200, await self._rest(request))
    except self._model.RefusedError as refusal:
      return _json_response(_HTTP_STATUS.get(refusal.code, 500), self._json.error_body(refusal.reason))

  async def _rest(self, request: Request) -> bytes:
    refuse = self._model.RefusedError
    match = _PATH.fullmatch(request.url.path)
    if match is None:
      reason = f"no such path: {request.url.path[:200]}; there are /v1/models/NAME[/versions/N][:predict|/metadata]"
      raise refuse(grpc.StatusCode.NOT_FOUND, reason)
    expected = "POST" if match["verb"] == ":predict" else "GET"
    if request.method != expected:
      raise refuse(grpc.StatusCode.INVALID_ARGUMENT, f"{request.method} {request.url.path[:200]}: send {expected}")
    name, version = unquote(match["name"]), int(match["version"]) if match["version"] else None
    if match["verb"] is None:
      return self._json.status_body(self._versions.status(name, version))
    model = self._versions.get(name, version)
    if match["verb"] == "/metadata":
      return self._json.metadata_body(name, model)
    body = await self._body(request)
    parsed = await asyncio.to_thread(self._json.parse_predict, model, body)  # a large body takes long, and others wait
    outputs = await self._run(parsed.call)
    return await asyncio.to_thread(self._json.predict_body, parsed, outputs)

  async def _body(self, request: Request) -> bytes:
    body = bytearray()
    async for part in request.stream():
      body += part
      if len(body) > self._options.max_bytes:
        reason = f"the body has more than {self._options.max_bytes} bytes; send fewer rows"
        raise self._model.RefusedError(grpc.StatusCode.RESOURCE_EXHAUSTED, reason)
    return bytes(body)

  async def _run(self, call: Call) -> Arrays:
    outcome = await self._run_batch(call)
    if isinstance(outcome, self._model.RefusedError):
      raise outcome
    return outcome

  async def _run_all(self, calls: list[Call]) -> Sequence[Arrays | RefusedError]:
    # In a thread: TensorFlow leaves Python's lock, and the next requests are read meanwhile.
    return await asyncio.to_thread(self._model.run, calls, self._options.max_batch_size)


def _refuse(context: RayServegRPCContext, refusal: RefusedError) -> _Message:
  # A status that is set is sent; an exception would be logged with its traceback.
  context.set_code(refusal.code)
  context.set_details(refusal.reason)
  return _Message(b"")


def _json_response(status: int, body: bytes) -> Response:
  return Response(body, status, media_type="application/json")
