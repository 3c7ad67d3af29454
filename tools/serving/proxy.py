"""A proxy: listens on both ports and passes requests on to the replica that has the fewest.

Started by the server. Two proxies share the ports (SO_REUSEPORT), so that clients find one when the other dies. They know neither Ray
nor TensorFlow; a new one is there in a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, TypeAlias

import grpc
import uvicorn
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from jax2tf.tools.serving import child
from jax2tf.tools.serving.child import DRAIN_SECONDS, Options

METHODS = ("Predict", "GetModelMetadata")
SERVICE = "tensorflow.serving.PredictionService"
REST, REST_SERVICE = "Ask", "jax2tf.Rest"
UNLIMITED = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1), ("grpc.max_concurrent_streams", 2**31 - 1)]
_SERVING = b"\x08\x01"  # grpc.health.v1.HealthCheckResponse(status=SERVING)
_POLL_SECONDS = 0.1
# How long a request waits for a replica to start while there is none.
_PATIENCE_SECONDS = 60.0
_FLUSH_SECONDS = 0.2  # for the last answers to leave
_LOST = "the replica that had this request died; send it again"

_Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"


class _RefusedError(Exception):
  """A request that gets no answer."""

  def __init__(self, code: grpc.StatusCode, reason: str):
    super().__init__(reason)
    self.code, self.reason = code, reason


class _Replicas:
  """The replicas that can be reached by their sockets in one folder."""

  def __init__(self, folder: Path):
    self._folder = folder
    self._under_way: dict[grpc.aio.Channel, int] = {}
    self._some = asyncio.Event()
    self._known: dict[Path, asyncio.Task[None]] = {}

  @property
  def some(self) -> bool:
    return self._some.is_set()

  async def look(self) -> None:
    """Follows each socket that appears."""
    while True:
      for path in self._folder.glob("*.sock"):
        if path not in self._known or self._known[path].done():
          self._known[path] = asyncio.create_task(self._follow(path))
      await asyncio.sleep(_POLL_SECONDS)

  async def _follow(self, path: Path) -> None:
    options = [*UNLIMITED, ("grpc.use_local_subchannel_pool", 1)]
    async with contextlib.AsyncExitStack() as stack:
      channel = grpc.aio.insecure_channel(f"unix:{path}", options)
      stack.push_async_callback(channel.close, DRAIN_SECONDS)
      try:
        await asyncio.wait_for(channel.channel_ready(), 5)
      except TimeoutError:
        if not child.is_alive(path):
          path.unlink(missing_ok=True)
        return
      self._under_way[channel] = 0
      self._some.set()
      try:
        await channel.wait_for_state_change(grpc.ChannelConnectivity.READY)
      finally:
        del self._under_way[channel]
        if not self._under_way:
          self._some.clear()

  async def ask(self, service: str, method: str, data: bytes, seconds: float | None) -> bytes:
    """The answer of the replica that has the fewest requests.

    Raises:
      _RefusedError: it refuses, it died, or there is none.
    """
    try:
      await asyncio.wait_for(self._some.wait(), _PATIENCE_SECONDS)
    except TimeoutError:
      raise _RefusedError(grpc.StatusCode.UNAVAILABLE, "no replica is ready; send it again later") from None
    channel = min(self._under_way, key=lambda channel: self._under_way[channel])
    self._under_way[channel] += 1
    try:
      return await channel.unary_unary(f"/{service}/{method}")(data, timeout=seconds)
    except grpc.aio.AioRpcError as error:
      if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):  # killed, or ended by Ray
        raise _RefusedError(grpc.StatusCode.UNAVAILABLE, _LOST) from error
      raise _RefusedError(error.code(), error.details() or "") from error
    finally:
      if channel in self._under_way:
        self._under_way[channel] -= 1


class _Grpc:
  """PredictionService, as bytes."""

  def __init__(self, replicas: _Replicas, client_seconds: float):
    self._replicas = replicas
    self._client_seconds = client_seconds
    self._under_way = 0
    self._ends = False

  async def end(self) -> None:
    """Takes no call any more, and waits for those that were taken.

    Not `stop` of the server: gRPC (1.85) cancels calls that come between it and the news of it, and clients do not send a cancelled call
    again. A call that is refused, or whose connection closes, they do.
    """
    self._ends = True
    end = time.monotonic() + DRAIN_SECONDS
    while self._under_way and time.monotonic() < end:
      await asyncio.sleep(0.05)
    await asyncio.sleep(_FLUSH_SECONDS)

  def handlers(self) -> tuple[grpc.GenericRpcHandler, ...]:
    """The service, and the check of gRPC's own health service."""
    methods = {method: grpc.stream_unary_rpc_method_handler(self._answer_for(method)) for method in METHODS}
    check = {"Check": grpc.unary_unary_rpc_method_handler(self._check)}
    return (grpc.method_handlers_generic_handler(SERVICE, methods), grpc.method_handlers_generic_handler("grpc.health.v1.Health", check))

  def _answer_for(self, method: str) -> Any:
    # Taken as a stream, which looks the same on the wire, for a unary handler begins when the request is there, and has no say before.
    async def answer(requests: AsyncIterator[bytes], context: _Context) -> bytes:
      try:
        async with asyncio.timeout(self._client_seconds):
          request = await anext(aiter(requests), None)
        if request is None:
          raise _RefusedError(grpc.StatusCode.INVALID_ARGUMENT, "the call has no request")
        return await self._ask(method, request, context.time_remaining())
      except TimeoutError:
        code, reason = grpc.StatusCode.DEADLINE_EXCEEDED, f"the request was not here within {self._client_seconds:g} s"
      except _RefusedError as refusal:
        code, reason = refusal.code, refusal.reason
      return await context.abort(code, reason)  # which raises

    return answer

  async def _ask(self, method: str, request: bytes, seconds: float | None) -> bytes:
    if self._ends:
      raise _RefusedError(grpc.StatusCode.UNAVAILABLE, "the server ends; send it again")
    self._under_way += 1
    try:
      return await self._replicas.ask(SERVICE, method, request, seconds)
    finally:
      self._under_way -= 1

  async def _check(self, request: bytes, context: _Context) -> bytes:
    del request
    if self._ends or not self._replicas.some:
      await context.abort(grpc.StatusCode.UNAVAILABLE, "no replica is ready")
    return _SERVING


class _Rest:
  """The ASGI application."""

  def __init__(self, replicas: _Replicas, options: Options):
    self._replicas = replicas
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
      return Response("success") if self._replicas.some else Response("no replica is ready", 503)
    try:
      async with asyncio.timeout(self._options.client_seconds):
        body = await self._body(request)
    except TimeoutError:
      return _error(408, f"the body was not here within {self._options.client_seconds:g} s", {"connection": "close"})
    if body is None:
      return _error(413, f"the body has more than {self._options.max_bytes} bytes; send fewer rows")
    try:
      answer = await self._replicas.ask(REST_SERVICE, REST, f"{request.method} {path}\n".encode() + body, None)
    except _RefusedError as refusal:
      return _error(503 if refusal.code == grpc.StatusCode.UNAVAILABLE else 500, refusal.reason)
    status, _, content = answer.partition(b"\n")
    return Response(content, int(status), media_type="application/json")

  async def _body(self, request: Request) -> bytes | None:
    body, size = bytearray(), 0
    async for part in request.stream():  # to its end, for a client that is cut while it sends sees no answer
      size += len(part)
      if size <= self._options.max_bytes:
        body += part
    return bytes(body) if size <= self._options.max_bytes else None


def _error(status: int, reason: str, headers: dict[str, str] | None = None) -> Response:
  return Response(json.dumps({"error": reason}), status, headers, media_type="application/json")


class _Server(uvicorn.Server):
  """Ends when it is told, not by signals: gRPC ends with it."""

  def capture_signals(self) -> Any:
    return contextlib.nullcontext()


def _protocol(client_seconds: float) -> type[H11Protocol]:
  class Protocol(H11Protocol):
    """Cuts a client that is slow to send the head of a request or to take an answer; uvicorn (0.54) would wait for ever."""

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


async def _serve(options: Options) -> None:
  replicas = _Replicas(Path(options.run))
  looking = asyncio.create_task(replicas.look())
  by_grpc = grpc.aio.server(
    maximum_concurrent_rpcs=options.max_queued_requests,
    options=[
      ("grpc.so_reuseport", 1),
      ("grpc.max_receive_message_length", options.max_bytes),
      ("grpc.max_send_message_length", -1),
      ("grpc.server_handshake_timeout_ms", int(1e3 * options.client_seconds)),
    ],
  )
  service = _Grpc(replicas, options.client_seconds)
  by_grpc.add_generic_rpc_handlers(service.handlers())
  by_grpc.add_insecure_port(f"127.0.0.1:{options.grpc_port}")
  # Web pages that call themselves 127.0.0.1 (DNS rebinding) give their own name as the host.
  application = TrustedHostMiddleware(_Rest(replicas, options), ["127.0.0.1", "localhost"], www_redirect=False)
  by_http = _Server(
    uvicorn.Config(
      application,
      http=_protocol(options.client_seconds),
      ws="none",
      lifespan="off",
      log_config=None,
      access_log=False,
      server_header=False,
      limit_concurrency=options.max_queued_requests,
      timeout_graceful_shutdown=int(DRAIN_SECONDS),
    )
  )
  listener = socket.socket()
  listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
  listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
  listener.bind(("127.0.0.1", options.http_port))
  loop, stop = asyncio.get_running_loop(), asyncio.Event()
  loop.add_reader(0, stop.set)
  loop.add_signal_handler(signal.SIGTERM, stop.set)
  await by_grpc.start()
  http = asyncio.create_task(by_http.serve([listener]))
  ready = Path(options.run, f"{os.getpid()}.ready")
  ready.touch()
  looking.add_done_callback(lambda _: stop.set())  # without it the proxy would know no new replica, and is better started again
  await stop.wait()
  loop.remove_reader(0)
  by_http.should_exit = True
  await asyncio.gather(service.end(), http)
  ready.unlink(missing_ok=True)
  os._exit(0)  # at once: asyncio would cancel the calls that came since


if __name__ == "__main__":
  logging.disable(logging.ERROR)
  asyncio.run(_serve(child.options()))
