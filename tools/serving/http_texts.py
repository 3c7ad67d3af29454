"""The routes of a proxy that answer in parts, in the form of OpenAI's API."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any

import grpc
from starlette.requests import ClientDisconnect, Request
from starlette.types import Send

from jax2tf.tools.serving import bodies, http_bodies, streams
from jax2tf.tools.serving.balance import UNKNOWN, Queue, RefusedError, Replicas, Served
from jax2tf.tools.serving.child import Options
from jax2tf.tools.serving.http_bodies import HttpError
from jax2tf.tools.serving.metrics import Metrics
from jax2tf.tools.serving.streams import Part

_STATUS = {
  grpc.StatusCode.INVALID_ARGUMENT: 400,
  grpc.StatusCode.FAILED_PRECONDITION: 400,
  grpc.StatusCode.NOT_FOUND: 404,
  grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
  grpc.StatusCode.UNAVAILABLE: 503,
}
_CODES = {404: "model_not_found", 429: "rate_limit_exceeded"}
_JSON, _EVENTS = "application/json", "text/event-stream"
# For the metrics, as other servers have it: the client left before the end.
_CLIENT_LEFT = 499


class Texts:
  """Forwards a request to a replica, and its parts to the client as they come."""

  def __init__(
    self, replicas: Replicas, queue: Queue, held: bodies.Bodies, counted: Metrics, options: Options
  ):
    self._replicas, self._queue, self._bodies, self._metrics = replicas, queue, held, counted
    self._options = options

  async def __call__(self, request: Request, send: Send) -> None:
    """Answers a request of one of `streams.PATHS`. Raises ClientDisconnect."""
    start, path = time.monotonic(), request.scope["path"]
    answer = _Answer(send)
    try:
      await self._answer(request, path, answer, start)
    except HttpError as error:
      await answer.fail(error)
    except RefusedError as refusal:
      headers = {"retry-after": "1"} if _STATUS.get(refusal.code) == 429 else None
      await answer.fail(HttpError(_STATUS.get(refusal.code, 500), refusal.reason, headers))
    finally:
      seconds = time.monotonic() - start
      method = streams.PATHS[path]
      self._metrics.count("rest", method, answer.served, str(answer.status), seconds)

  async def _answer(self, request: Request, path: str, answer: _Answer, start: float) -> None:
    http_bodies.check_lengths(request)
    if request.method != "POST":
      raise HttpError(405, f"{request.method[:20]} {path}: send POST", {"allow": "POST"})
    with contextlib.ExitStack() as stack:
      try:
        stack.enter_context(self._queue.place())
      except RefusedError as refusal:
        await http_bodies.discard(request, self._options.client_seconds)
        raise http_bodies.later(refusal) from refusal
      note = stack.enter_context(self._metrics.session(start))
      with self._bodies.share() as share:
        body = await http_bodies.read(request, share, self._options)
      asked = streams.request(streams.OVER_HTTP, path, body)
      sending = self._send(self._replicas.stream(asked, None), answer, note)
      await _while_connected(request, sending)

  async def _send(
    self, parts: AsyncGenerator[Part], answer: _Answer, note: Callable[[Part], None]
  ) -> None:
    async with contextlib.aclosing(parts):
      async for part in parts:
        note(part)
        await answer.add(part)  # which waits while the client does not read
    await answer.end()


async def _while_connected(request: Request, work: Coroutine[Any, Any, None]) -> None:
  """Cancels `work` when the client leaves, and raises ClientDisconnect then."""
  leaving = asyncio.create_task(_left(request))
  working = asyncio.create_task(work)
  try:
    await asyncio.wait({leaving, working}, return_when=asyncio.FIRST_COMPLETED)
    if not working.done():
      raise ClientDisconnect
    working.result()
  finally:
    leaving.cancel()
    working.cancel()
    await asyncio.gather(leaving, working, return_exceptions=True)


async def _left(request: Request) -> None:
  while (await request.receive())["type"] != "http.disconnect":
    pass


class _Answer:
  """The answer to one request, of which the head goes out with the first part of a stream, or with
  the whole JSON.

  Attributes:
    status: of the head; `_CLIENT_LEFT` before it.
    served: what answers.
  """

  def __init__(self, send: Send):
    self._send = send
    self._media_type = _JSON
    self.status = _CLIENT_LEFT
    self.served = UNKNOWN

  async def add(self, part: Part) -> None:
    if part.model:
      self.served, self._media_type = Served(part.model, part.version), part.media_type
      if self._media_type == _EVENTS:
        await self._head(200, {"cache-control": "no-cache", "x-accel-buffering": "no"})
    if part.data and self._media_type == _JSON:
      await self._head(200, {"content-length": str(len(part.data))})
    if part.data:
      await self._send({"type": "http.response.body", "body": part.data, "more_body": True})

  async def end(self) -> None:
    await self._send({"type": "http.response.body", "body": b"", "more_body": False})

  async def fail(self, error: HttpError) -> None:
    """Says why there is no answer, or no more of it."""
    content = json.dumps({"error": _fields(error)}).encode()
    if self.status == _CLIENT_LEFT:
      self._media_type = _JSON
      await self._head(error.status, {"content-length": str(len(content)), **(error.headers or {})})
    else:
      content = b"data: " + content + b"\n\n"
    await self._send({"type": "http.response.body", "body": content, "more_body": False})

  async def _head(self, status: int, headers: dict[str, str]) -> None:
    self.status = status
    fields = {"content-type": self._media_type, **headers}
    encoded = [(name.encode(), value.encode()) for name, value in fields.items()]
    await self._send({"type": "http.response.start", "status": status, "headers": encoded})


def _fields(error: HttpError) -> dict[str, str | None]:
  kind = "server_error" if error.status >= 500 else "invalid_request_error"
  code = _CODES.get(error.status)
  return {"message": error.reason, "type": kind, "param": None, "code": code}
