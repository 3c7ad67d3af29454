"""The HTTP side of a proxy: forwards the REST API as bytes, and serves /metrics and the health
check."""

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

from jax2tf.tools.serving import bodies, metrics
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

# The second path is TF Serving's.
_METRICS = ("/metrics", "/monitoring/prometheus/metrics")
_METHOD = re.compile(r"/v1/models/[^:]*?(:predict|/metadata|)", re.IGNORECASE)
# RFC 9110, 8.4.1: the names have no case, and x-gzip is another one for gzip.
_PLAIN, _GZIPPED = ("", "identity"), ("gzip", "x-gzip")


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

  async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
    request = Request(scope, receive)
    try:
      response = await self._answer(request)
    except ClientDisconnect:
      return
    await response(scope, receive, send)

  async def _answer(self, request: Request) -> Response:
    path = request.scope["raw_path"].decode("ascii")
    if _has_two_lengths(request):
      return _error(
        400,
        "the request has Content-Length and Transfer-Encoding; send one of them",
        {"connection": "close"},
      )
    if path == "/-/healthz":
      return Response("success") if self._replicas.count else Response("no replica is ready", 503)
    if path in _METRICS:
      return Response(await asyncio.to_thread(self._metrics.text), media_type=metrics.CONTENT_TYPE)
    start = time.monotonic()
    try:
      with self._queue.place():
        response, served = await self._rest(request, path)
    except RefusedError as refusal:
      with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(self._options.client_seconds):
          async for _ in request.stream():
            pass
      response, served = _later(refusal), UNKNOWN
    known = _METHOD.fullmatch(path)
    method = (known[1][1:].lower() or "status") if known else "other"
    self._metrics.count("rest", method, served, str(response.status_code), time.monotonic() - start)
    return response

  async def _rest(self, request: Request, path: str) -> tuple[Response, Served]:
    most, seconds = self._options.max_bytes, self._options.client_seconds
    with self._bodies.share() as share:
      try:
        async with asyncio.timeout(seconds):
          body = await _all_of(request, most, share)
        # TF Serving accepts gzip too
        if body is not None and (coding := _coding(request)) in _GZIPPED:
          body = await asyncio.to_thread(bodies.decompressed, body, most)
          share.take(len(body or b""))
      except TimeoutError:
        return _error(
          408, f"the body did not arrive within {seconds:g} s", {"connection": "close"}
        ), UNKNOWN
      except zlib.error as error:
        return _error(
          400, f"the body is not gzip, although its Content-Encoding says so: {error}"
        ), UNKNOWN
      except RefusedError as refusal:
        return _later(refusal), UNKNOWN
      if body is None:
        return _error(413, f"the body has more than {most} bytes; send fewer rows"), UNKNOWN
      if coding not in (*_PLAIN, *_GZIPPED):
        return _error(
          415, f"the Content-Encoding of the body is {coding[:100]!r}; send gzip, or none"
        ), UNKNOWN
      return await self._asked(request.method, path, body)

  async def _asked(self, method: str, path: str, body: bytes) -> tuple[Response, Served]:
    try:
      answer, served = await self._replicas.ask(
        REST_SERVICE, REST, f"{method} {path}\n".encode() + body, None
      )
    except RefusedError as refusal:
      return _error(
        503 if refusal.code == grpc.StatusCode.UNAVAILABLE else 500, refusal.reason
      ), refusal.served
    status, _, content = answer.partition(b"\n")
    return Response(content, int(status), media_type="application/json"), served


async def _all_of(request: Request, most: int, share: bodies.Share) -> bytes | None:
  """The body of a request; None if it is larger than `most`. Raises RefusedError if the other
  bodies leave too few bytes for it."""
  body, size, refusal = bytearray(), 0, None
  # reads to the end, because a client that is disconnected while it sends does not see the answer
  async for part in request.stream():
    size += len(part)
    try:
      if size <= most and not refusal:
        share.take(len(part))
        body += part
        continue
    except RefusedError as error:
      refusal = error
    share.give_back()
    body.clear()
  if refusal:
    raise refusal
  return bytes(body) if size <= most else None


def _coding(request: Request) -> str:
  return ", ".join(request.headers.getlist("content-encoding")).strip().lower()


def _has_two_lengths(request: Request) -> bool:
  """Whether a proxy before this server may see another end of the body, and so another next request
  (RFC 9112, 6.1)."""
  return "transfer-encoding" in request.headers and "content-length" in request.headers


def _later(refusal: RefusedError) -> Response:
  return _error(429, refusal.reason, {"retry-after": "1", "connection": "close"})


def _error(status: int, reason: str, headers: dict[str, str] | None = None) -> Response:
  return Response(json.dumps({"error": reason}), status, headers, media_type="application/json")


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
