"""The HTTP side of a proxy: forwards the REST API as bytes, and serves /metrics and the health
check. `http_texts.py` has the routes that answer in parts."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from typing import Any

import grpc
import uvicorn
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from jax2tf.tools.serving import bodies, http_bodies, http_texts, metrics, streams
from jax2tf.tools.serving.balance import (
  REST,
  REST_SERVICE,
  UNKNOWN,
  Queue,
  RefusedError,
  Replicas,
  Served,
)
from jax2tf.tools.serving.child import Options
from jax2tf.tools.serving.http_bodies import HttpError

# The second path is TF Serving's.
_METRICS = ("/metrics", "/monitoring/prometheus/metrics")
_METHOD = re.compile(r"/v1/models/[^:]*?(:predict|/metadata|)", re.IGNORECASE)


class Application:
  """The ASGI application."""

  def __init__(
    self,
    replicas: Replicas,
    queue: Queue,
    held: bodies.Bodies,
    counted: metrics.Metrics,
    options: Options,
  ):
    self._replicas, self._queue, self._bodies, self._metrics = replicas, queue, held, counted
    self._options = options
    self._texts = http_texts.Texts(replicas, queue, held, counted, options)

  async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
    request = Request(scope, receive)
    with contextlib.suppress(ClientDisconnect):
      if scope["path"] in streams.PATHS:
        await self._texts(request, send)
        return
      response = await self._answer(request)
      await response(scope, receive, send)

  async def _answer(self, request: Request) -> Response:
    path = request.scope["raw_path"].decode("ascii")
    try:
      http_bodies.check_lengths(request)
    except HttpError as error:
      return _error(error)
    if path == "/-/healthz":
      return Response("success") if self._replicas.count else Response("no replica is ready", 503)
    if path in _METRICS:
      return Response(await asyncio.to_thread(self._metrics.text), media_type=metrics.CONTENT_TYPE)
    start = time.monotonic()
    try:
      with self._queue.place():
        response, served = await self._rest(request, path)
    except RefusedError as refusal:
      await http_bodies.discard(request, self._options.client_seconds)
      response, served = _error(http_bodies.later(refusal)), UNKNOWN
    known = _METHOD.fullmatch(path)
    method = (known[1][1:].lower() or "status") if known else "other"
    self._metrics.count("rest", method, served, str(response.status_code), time.monotonic() - start)
    return response

  async def _rest(self, request: Request, path: str) -> tuple[Response, Served]:
    with self._bodies.share() as share:
      try:
        body = await http_bodies.read(request, share, self._options)
      except HttpError as error:
        return _error(error), UNKNOWN
      return await self._asked(request.method, path, body)

  async def _asked(self, method: str, path: str, body: bytes) -> tuple[Response, Served]:
    try:
      answer, served = await self._replicas.ask(
        REST_SERVICE, REST, streams.request(method, path, body), None
      )
    except RefusedError as refusal:
      code = 503 if refusal.code == grpc.StatusCode.UNAVAILABLE else 500
      return _error(HttpError(code, refusal.reason)), refusal.served
    status, _, content = answer.partition(b"\n")
    return Response(content, int(status), media_type="application/json"), served


def _error(error: HttpError) -> Response:
  content = json.dumps({"error": error.reason})
  return Response(content, error.status, error.headers, media_type="application/json")


class Server(uvicorn.Server):
  """A server without signal handlers, which stops together with gRPC."""

  def capture_signals(self) -> Any:
    return contextlib.nullcontext()


def protocol(client_seconds: float) -> type[H11Protocol]:
  """uvicorn's HTTP/1.1 with time limits for slow clients."""

  class Protocol(H11Protocol):
    """Disconnects a client that is slow to send the head of a request or to read an answer. uvicorn
    (0.54) has no such limit."""

    _head: asyncio.TimerHandle | None = None
    _answer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
      super().connection_made(transport)
      self._watch_head()

    def data_received(self, data: bytes) -> None:
      super().data_received(data)
      self._watch_head()

    def _watch_head(self) -> None:
      is_in_request = self.cycle is not None and not self.cycle.response_complete
      if is_in_request or not self._head:
        self._head = self._restarted(self._head, not is_in_request)

    def pause_writing(self) -> None:
      super().pause_writing()
      self._answer = self._restarted(self._answer, True)

    def resume_writing(self) -> None:
      super().resume_writing()
      self._answer = self._restarted(self._answer, False)

    def connection_lost(self, exc: Exception | None) -> None:
      super().connection_lost(exc)
      self._head, self._answer = (
        self._restarted(self._head, False),
        self._restarted(self._answer, False),
      )

    def _restarted(
      self, timer: asyncio.TimerHandle | None, again: bool
    ) -> asyncio.TimerHandle | None:
      if timer:
        timer.cancel()
      return self.loop.call_later(client_seconds, self.transport.abort) if again else None

  return Protocol
