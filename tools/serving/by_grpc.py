"""The gRPC side of a proxy: forwards TF Serving's services, and the one that streams text, and says
by gRPC's health service whether replicas are there."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any, TypeAlias

import grpc
from grpc_health.v1 import health, health_pb2

from jax2tf.tools.serving import streams
from jax2tf.tools.serving.balance import SERVICES, UNKNOWN, Queue, RefusedError, Replicas, Served
from jax2tf.tools.serving.bodies import Bodies, Share
from jax2tf.tools.serving.child import DRAIN_SECONDS
from jax2tf.tools.serving.metrics import Metrics

_FLUSH_SECONDS = 0.2  # time to send the last answers
_WATCH_SECONDS = 0.1

_Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"


class Service:
  """The services of the gRPC server.

  Attributes:
    health: gRPC's health service, for the server (the empty name) and for each service.
  """

  def __init__(self, replicas: Replicas, queue: Queue, bodies: Bodies, metrics: Metrics):
    self._replicas, self._queue, self._bodies, self._metrics = replicas, queue, bodies, metrics
    self._ends = False
    self.health = health.aio.HealthServicer()

  async def end(self) -> None:
    """Rejects new calls, and waits until the accepted ones are answered.

    It does not use `stop` of the server: gRPC (1.85) then cancels calls that arrive before clients
    know of it, and clients do not retry cancelled calls. They do retry a call that is rejected or
    whose connection closes.
    """
    self._ends = True
    await self.health.enter_graceful_shutdown()
    end = time.monotonic() + DRAIN_SECONDS
    while self._queue.taken and time.monotonic() < end:
      await asyncio.sleep(0.05)
    await asyncio.sleep(_FLUSH_SECONDS)

  def handlers(self) -> tuple[grpc.GenericRpcHandler, ...]:
    """Handles TF Serving's services, and `streams.SERVICE`."""
    generation = grpc.method_handlers_generic_handler(
      streams.SERVICE,
      {
        method: grpc.stream_stream_rpc_method_handler(self._stream_for(method, path))
        for method, path in streams.METHODS.items()
      },
    )
    return generation, *(
      grpc.method_handlers_generic_handler(
        service,
        {
          method: grpc.stream_unary_rpc_method_handler(self._answer_for(service, method))
          for method in methods
        },
      )
      for service, methods in SERVICES.items()
    )

  def _answer_for(self, service: str, method: str) -> Any:
    # Handled as a stream, which is the same on the wire: a unary handler starts after the whole
    # request, too late for a time limit.
    async def answer(requests: AsyncIterator[bytes], context: _Context) -> bytes:
      start, served, code, reason = time.monotonic(), UNKNOWN, grpc.StatusCode.CANCELLED, ""
      try:
        self._refuse_at_end()
        with self._queue.place(), self._bodies.share() as share:
          request = await self._read(requests, share)
          data, served = await self._replicas.ask(
            service, method, request, context.time_remaining()
          )
        code = grpc.StatusCode.OK
        return data
      except RefusedError as refusal:
        code, reason, served = refusal.code, refusal.reason, refusal.served
      finally:
        self._metrics.count("grpc", method, served, code.name, time.monotonic() - start)
      return await context.abort(code, reason)  # this raises

    return answer

  def _stream_for(self, method: str, path: str) -> Any:
    # `write` waits while the client does not read, and gRPC cancels this where the client leaves.
    async def answer(requests: AsyncIterator[bytes], context: _Context) -> None:
      start, served, code, reason = time.monotonic(), UNKNOWN, grpc.StatusCode.CANCELLED, ""
      try:
        self._refuse_at_end()
        with self._queue.place(), self._metrics.session(start) as note:
          with self._bodies.share() as share:
            body = await self._read(requests, share)
          asked = streams.request(streams.OVER_GRPC, path, body)
          parts = self._replicas.stream(asked, context.time_remaining())
          async with contextlib.aclosing(parts):
            async for part in parts:
              note(part)
              served = Served(part.model, part.version, "") if part.model else served
              if part.data:
                await context.write(part.data)
        code = grpc.StatusCode.OK
      except RefusedError as refusal:
        code, reason = refusal.code, refusal.reason
      finally:
        self._metrics.count("grpc", method, served, code.name, time.monotonic() - start)
      if code != grpc.StatusCode.OK:
        await context.abort(code, reason)  # this raises

    return answer

  def _refuse_at_end(self) -> None:
    if self._ends:
      raise RefusedError(grpc.StatusCode.UNAVAILABLE, "the server is shutting down; send it again")

  async def _read(self, requests: AsyncIterator[bytes], share: Share) -> bytes:
    """The one message of a call. Raises RefusedError if there is none, or no room for it."""
    async with self._bodies.reading_message():
      request = await anext(aiter(requests), None)
    if request is None:
      raise RefusedError(grpc.StatusCode.INVALID_ARGUMENT, "the call has no request")
    share.take(len(request))
    return request

  async def watch_health(self) -> None:
    """Keeps the status of the health service: the services are there while a replica is ready."""
    last = None
    while True:
      status = (
        health_pb2.HealthCheckResponse.SERVING
        if self._replicas.count
        else health_pb2.HealthCheckResponse.NOT_SERVING
      )
      if status != last:
        for service in ("", *SERVICES, streams.SERVICE):
          await self.health.set(service, status)
      last = status
      await asyncio.sleep(_WATCH_SECONDS)
