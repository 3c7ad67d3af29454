"""A replica: answers gRPC messages and REST's JSON with the models, and batches requests.

It imports TensorFlow when a replica starts, so that processes that only manage replicas do not.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import unquote

import grpc
from ray import serve

from jax2tf.tools import gpus
from jax2tf.tools.serving import child, config, deaths, ray_settings, streams, watchdog
from jax2tf.tools.serving.balance import REST, REST_SERVICE, SERVICES, UNLIMITED, Served
from jax2tf.tools.serving.child import Options

if TYPE_CHECKING:
  from jax2tf.tools.serving.model import Arrays, Call, Model, RefusedError

_PATH = re.compile(
  r"/v1/models/(?P<name>[^/:]+)(?:/versions/(?P<version>[0-9]+)|/labels/(?P<label>[^/:]+))?"
  r"(?P<verb>:predict|:classify|:regress|/metadata)?",
  re.IGNORECASE,
)
_MODELS = "/v1/models"  # OpenAI's list
_Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"
_LOG = logging.getLogger("ray.serve")

# The mapping of TF Serving, plus the HTTP status for an oversized request.
_HTTP_STATUS = {
  grpc.StatusCode.INVALID_ARGUMENT: 400,
  grpc.StatusCode.FAILED_PRECONDITION: 400,
  grpc.StatusCode.OUT_OF_RANGE: 400,
  grpc.StatusCode.NOT_FOUND: 404,
  grpc.StatusCode.RESOURCE_EXHAUSTED: 413,
  grpc.StatusCode.UNIMPLEMENTED: 501,
  grpc.StatusCode.UNAVAILABLE: 503,
}
# Python's nested lists take about this many times the bytes of their JSON ("[]," becomes 64);
# arrays take fewer.
_JSON_GROWTH = 24
# The memory budget for parsed requests of a replica, in multiples of the largest request.
_LARGEST_TOGETHER = 32


class Replica:
  """A replica. Ray Serve starts it and checks its health; the proxies send requests through a Unix
  socket."""

  async def __init__(self, options: Options, cluster: int):  # type: ignore[misc]  # Ray awaits it
    """Loads the models. `cluster` is the process that started Ray. Raises the errors of
    `models.Models`."""
    self._options = options
    deaths.enter(options, cluster)
    try:
      ray_settings.listen_on_loopback()
      await self._start(options)
    except Exception as error:
      deaths.fail(options, str(error) or repr(error))  # Ray does not tell it
      raise

  async def _start(self, options: Options) -> None:
    await asyncio.to_thread(self._load)
    child.note(options, "faults", json.dumps(self._models.faults))
    batch: Any = serve.batch(
      max_batch_size=options.max_batch_size,
      batch_wait_timeout_s=options.batch_wait_ms / 1e3,
      max_concurrent_batches=2,
    )
    self._run_batch = batch(self._run_all)
    self._memory = self._model.Memory(_LARGEST_TOGETHER * options.max_bytes)
    methods = {
      "Predict": self._predict,
      "GetModelMetadata": self._metadata,
      "GetModelStatus": self._status,
    }
    served = {
      service: {name: self._unary(methods[name]) for name in names}
      for service, names in SERVICES.items()
    }
    served[REST_SERVICE] = {
      REST: self._unary(self._rest),
      streams.METHOD: grpc.unary_stream_rpc_method_handler(self._stream),
    }
    self._server = grpc.aio.server(options=UNLIMITED)
    self._server.add_generic_rpc_handlers(
      tuple(grpc.method_handlers_generic_handler(*each) for each in served.items())
    )
    self._server.add_insecure_port(f"unix:{Path(options.run, f'{os.getpid()}.sock')}")
    await self._server.start()
    self._health = await watchdog.answer(Path(options.run))

  def _load(self) -> None:
    # They import TensorFlow.
    from jax2tf.tools.serving import generating, model, models, protobuf, rest  # noqa: PLC0415

    if self._options.device == gpus.GPU:
      gpus.required()
    self._json, self._model, self._protobuf = rest, model, protobuf
    self._models = models.Models(lambda: config.read(Path(self._options.run)), self._options.of_all)
    sessions = generating.Sessions(self._options.max_sessions, self._options.max_cache_mb << 20)
    self._generation = generating.Service(self._models.get, sessions)
    self._list_models = generating.listed
    self._started = int(time.time())

  def check_health(self) -> None:
    """Ray Serve calls this every few seconds, and replaces a replica that raises or hangs."""
    if not self._models.healthy:
      reason = "the thread that looks for new versions has ended"
      deaths.fail(self._options, reason)
      raise RuntimeError(reason)

  def _unary(self, method: Callable[[bytes, _Context], Awaitable[bytes]]) -> grpc.RpcMethodHandler:
    async def answer(data: bytes, context: _Context) -> bytes:
      try:
        return await method(data, context)
      except Exception as error:
        return await self._abort(context, error)

    return grpc.unary_unary_rpc_method_handler(answer)

  async def _stream(self, data: bytes, context: _Context) -> None:
    """Answers a request of `streams` with parts."""
    try:
      async with contextlib.aclosing(self._generation.parts(data)) as parts:
        async for part in parts:
          await context.write(part.encoded())
    except Exception as error:
      await self._abort(context, error)

  async def _abort(self, context: _Context, error: Exception) -> Any:
    """Ends a call with the reason for the client. It raises."""
    code, reason = grpc.StatusCode.INTERNAL, "the server failed at this request; its log says why"
    if isinstance(error, self._model.RefusedError):
      code, reason = error.code, error.reason
    else:
      _LOG.error("a request failed", exc_info=error)
    await context.abort(code, reason)

  def _find(self, context: _Context, name: str, version: int | None, label: str) -> Model:
    model = self._models.get(name, version, label)
    self._say_who_answers(context, name, model)
    return model

  def _say_who_answers(
    self, context: _Context, name: str, model: Model, signature: str = ""
  ) -> None:
    # for the proxy's metrics
    context.set_trailing_metadata(Served(name, str(model.version), signature).metadata)

  async def _predict(self, data: bytes, context: _Context) -> bytes:
    """Answers a PredictRequest with a PredictResponse."""
    protobuf = self._protobuf
    request = protobuf.parse_predict(data)
    spec = request.model_spec
    model = self._find(context, *protobuf.asked(spec))
    signature, size = protobuf.check(model, request, self._options.max_bytes)
    self._say_who_answers(context, spec.name, model, signature.name)
    async with self._memory.hold(size):
      call = protobuf.call(signature, request)
      outputs = await self._run(call)
      return protobuf.predict_response(
        spec.name, model, call, outputs, request.output_filter
      ).SerializeToString()

  async def _metadata(self, data: bytes, context: _Context) -> bytes:
    """Answers a GetModelMetadataRequest with a GetModelMetadataResponse."""
    spec = self._protobuf.parse_metadata(data).model_spec
    model = self._find(context, *self._protobuf.asked(spec))
    return self._protobuf.metadata_response(spec.name, model).SerializeToString()

  async def _status(self, data: bytes, context: _Context) -> bytes:
    """Answers a GetModelStatusRequest with a GetModelStatusResponse."""
    del context
    states = self._models.status(
      *self._protobuf.asked(self._protobuf.parse_status(data).model_spec)
    )
    return self._protobuf.status_response(states).SerializeToString()

  async def _rest(self, data: bytes, context: _Context) -> bytes:
    """Answers a request of `streams` with b"200\\n" + body."""
    method, path, body = streams.verb_path_body(data)
    try:
      return b"200\n" + await self._rest_body(method, path, body, context)
    except self._model.RefusedError as refusal:
      return b"%d\n" % _HTTP_STATUS.get(refusal.code, 500) + self._json.error_body(refusal.reason)

  async def _rest_body(self, method: str, path: str, body: bytes, context: _Context) -> bytes:
    if path == _MODELS and method == "GET":
      return self._list_models(self._models.names, self._started)
    refuse = self._model.RefusedError
    match = _PATH.fullmatch(path)
    if match is None:
      reason = (
        f"no such path: {path[:200]}; there are "
        "/v1/models/NAME[/versions/N|/labels/L][:predict|/metadata]"
      )
      raise refuse(
        grpc.StatusCode.INVALID_ARGUMENT
        if path.lower().startswith("/v1/")
        else grpc.StatusCode.NOT_FOUND,
        reason,
      )
    if len(match["version"] or "") > 19:
      raise refuse(
        grpc.StatusCode.INVALID_ARGUMENT, "the version in the path has more than 19 digits"
      )
    verb = (match["verb"] or "").lower()
    expected = "POST" if verb.startswith(":") else "GET"
    if method != expected:
      raise refuse(grpc.StatusCode.INVALID_ARGUMENT, f"{method[:20]} {path[:200]}: send {expected}")
    if verb in (":classify", ":regress"):
      raise refuse(grpc.StatusCode.UNIMPLEMENTED, f"{verb} is not implemented; send :predict")
    requested = (
      unquote(match["name"]),
      int(match["version"]) if match["version"] else None,
      unquote(match["label"] or ""),
    )
    if not verb:
      return self._json.status_body(self._models.status(*requested))
    model = self._find(context, *requested)
    if verb == "/metadata":
      return self._json.metadata_body(requested[0], model)
    async with self._memory.hold(_JSON_GROWTH * len(body)):
      # parsing a large body would block other requests
      parsed = await asyncio.to_thread(self._json.parse_predict, model, body)
      self._say_who_answers(context, requested[0], model, parsed.call.signature.name)
      outputs = await self._run(parsed.call)
      return await asyncio.to_thread(self._json.predict_body, parsed, outputs)

  async def _run(self, call: Call) -> Arrays:
    outcome = await self._run_batch(call)
    if isinstance(outcome, self._model.RefusedError):
      raise outcome
    return outcome

  async def _run_all(self, calls: list[Call]) -> Sequence[Arrays | RefusedError]:
    # In a thread: TensorFlow releases Python's lock, so the replica reads the next requests
    # meanwhile.
    return await asyncio.to_thread(self._model.run, calls, self._options.max_batch_size)
