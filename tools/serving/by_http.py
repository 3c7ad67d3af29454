"""The HTTP side of a proxy: forwards the REST API as bytes, and serves /metrics and the health check."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
import zlib
from typing import Any

import grpc
import uvicorn
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from jax2tf.tools.serving import metrics
from jax2tf.tools.serving.balance import REST, REST_SERVICE, Queue, RefusedError, Replicas
from jax2tf.tools.serving.child import Options

# The second path is TF Serving's.
_METRICS = ("/metrics", "/monitoring/prometheus/metrics")
_METHOD = re.compile(r"/v1/models/[^:]*?(:predict|/metadata|)", re.IGNORECASE)
_GZIP = 16 + zlib.MAX_WBITS


class Application:
  """The ASGI application."""

  def __init__(self, replicas: Replicas, queue: Queue, counted: metrics.Metrics, options: Options):
    self._replicas, self._queue, self._metrics = replicas, queue, counted
    self._options = options

  async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
    request = Request(scope, receive)
    try:
      response = await self._answer(request)
    except ClientDisconnect:
      return
    await response(scope, receive, send)

  async def _answer(self, request: Request) -> Response:
    path = request.scope["raw_path"].decode("ascii")
    if path == "/-/healthz":
      return Response("success") if self._replicas.count else Response("no replica is ready", 503)
    if path in _METRICS:
      return Response(await asyncio.to_thread(self._metrics.text), media_type=metrics.CONTENT_TYPE)
    start = time.monotonic()
    try:
      with self._queue.place():
        response, model = await self._rest(request, path)
    except RefusedError as refusal:
      with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(self._options.client_seconds):
          await _all_of(request)
      response, model = _error(429, refusal.reason, {"retry-after": "1", "connection": "close"}), ""
    known = _METHOD.fullmatch(path)
    method = (known[1][1:].lower() or "status") if known else "other"
    self._metrics.count("rest", method, model, str(response.status_code), time.monotonic() - start)
    return response

  async def _rest(self, request: Request, path: str) -> tuple[Response, str]:
    most, seconds = self._options.max_bytes, self._options.client_seconds
    try:
      async with asyncio.timeout(seconds):
        body = await _all_of(request, most)
      if body is not None and request.headers.get("content-encoding") == "gzip":  # TF Serving accepts gzip too
        body = _decompressed(body, most)
    except TimeoutError:
      return _error(408, f"the body did not arrive within {seconds:g} s", {"connection": "close"}), ""
    except zlib.error as error:
      return _error(400, f"the body is not gzip, although its Content-Encoding says so: {error}"), ""
    if body is None:
      return _error(413, f"the body has more than {most} bytes; send fewer rows"), ""
    try:
      answer, model = await self._replicas.ask(REST_SERVICE, REST, f"{request.method} {path}\n".encode() + body, None)
    except RefusedError as refusal:
      return _error(503 if refusal.code == grpc.StatusCode.UNAVAILABLE else 500, refusal.reason), refusal.model
    status, _, content = answer.partition(b"\n")
    return Response(content, int(status), media_type="application/json"), model


async def _all_of(request: Request, most: int = 0) -> bytes | None:
  """The body of a request; None if it is larger than `most`."""
  body, size = bytearray(), 0
  async for part in request.stream():  # reads to the end, because a client that is disconnected while it sends does not see the answer
    size += len(part)
    if size <= most:
      body += part
  return bytes(body) if size <= most else None


def _decompressed(body: bytes, most: int) -> bytes | None:
  """The decompressed body; None if it is larger than `most`."""
  reader = zlib.decompressobj(_GZIP)
  found = reader.decompress(body, most + 1)
  if len(found) > most:
    return None
  if not reader.eof:
    raise zlib.error("it ends too early")
  return found


def _error(status: int, reason: str, headers: dict[str, str] | None = None) -> Response:
  return Response(json.dumps({"error": reason}), status, headers, media_type="application/json")


class Server(uvicorn.Server):
  """A server without signal handlers, which stops together with gRPC."""

  def capture_signals(self) -> Any:
    return contextlib.nullcontext()


def protocol(client_seconds: float) -> type[H11Protocol]:
  """uvicorn's HTTP/1.1 with time limits for slow clients."""

  class Protocol(H11Protocol):
    """Disconnects a client that is slow to send the head of a request or to read an answer. uvicorn (0.54) has no such limit."""

    _head: asyncio.TimerHandle | None = None
    _answer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
      super().connection_made(transport)
      self._watch_head()

    def data_received(self, data: bytes) -> None:
      super().data_received(data)
      self._watch_head()

    def _watch_head(self) -> None:
      asked = self.cycle is not None and not self.cycle.response_complete
      if asked or not self._head:
        self._head = self._restarted(self._head, not asked)

    def pause_writing(self) -> None:
      super().pause_writing()
      self._answer = self._restarted(self._answer, True)

    def resume_writing(self) -> None:
      super().resume_writing()
      self._answer = self._restarted(self._answer, False)

    def connection_lost(self, exc: Exception | None) -> None:
      super().connection_lost(exc)
      self._head, self._answer = self._restarted(self._head, False), self._restarted(self._answer, False)

    def _restarted(self, timer: asyncio.TimerHandle | None, again: bool) -> asyncio.TimerHandle | None:
      if timer:
        timer.cancel()
      return self.loop.call_later(client_seconds, self.transport.abort) if again else None

  return Protocol
