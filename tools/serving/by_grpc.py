"""The gRPC side of a proxy: forwards TF Serving's services as bytes, and implements gRPC's health service."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any, TypeAlias

import grpc
from google.protobuf import message, wrappers_pb2

from jax2tf.tools.serving.balance import SERVICES, UNKNOWN, Queue, RefusedError, Replicas
from jax2tf.tools.serving.bodies import Bodies
from jax2tf.tools.serving.child import DRAIN_SECONDS
from jax2tf.tools.serving.metrics import Metrics

_FLUSH_SECONDS = 0.2  # time to send the last answers
_HEALTH = "grpc.health.v1.Health"
# HealthCheckResponse.ServingStatus
_SERVING, _NOT_SERVING, _SERVICE_UNKNOWN = 1, 2, 3
_WATCH_SECONDS = 0.5

_Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"


class Service:
  """The services of the gRPC server."""

  def __init__(self, replicas: Replicas, queue: Queue, bodies: Bodies, metrics: Metrics):
    self._replicas, self._queue, self._bodies, self._metrics = replicas, queue, bodies, metrics
    self._ends = False

  async def end(self) -> None:
    """Rejects new calls, and waits until the accepted ones are answered.

    It does not use `stop` of the server: gRPC (1.85) then cancels calls that arrive before clients know of it, and clients do not retry
    cancelled calls. They do retry a call that is rejected or whose connection closes.
    """
    self._ends = True
    end = time.monotonic() + DRAIN_SECONDS
    while self._queue.taken and time.monotonic() < end:
      await asyncio.sleep(0.05)
    await asyncio.sleep(_FLUSH_SECONDS)

  def handlers(self) -> tuple[grpc.GenericRpcHandler, ...]:
    """Handles TF Serving's services and the health service."""
    found = [
      grpc.method_handlers_generic_handler(
        service, {method: grpc.stream_unary_rpc_method_handler(self._answer_for(service, method)) for method in methods}
      )
      for service, methods in SERVICES.items()
    ]
    health = {"Check": grpc.unary_unary_rpc_method_handler(self._check), "Watch": grpc.unary_stream_rpc_method_handler(self._watch)}
    return (*found, grpc.method_handlers_generic_handler(_HEALTH, health))

  def _answer_for(self, service: str, method: str) -> Any:
    # Handled as a stream, which is the same on the wire: a unary handler starts after the whole request, too late for a time limit.
    async def answer(requests: AsyncIterator[bytes], context: _Context) -> bytes:
      start, served, code, reason = time.monotonic(), UNKNOWN, grpc.StatusCode.CANCELLED, ""
      try:
        if self._ends:
          raise RefusedError(grpc.StatusCode.UNAVAILABLE, "the server is shutting down; send it again")
        with self._queue.place(), self._bodies.share() as share:
          async with self._bodies.reading_message():
            request = await anext(aiter(requests), None)
          if request is None:
            raise RefusedError(grpc.StatusCode.INVALID_ARGUMENT, "the call has no request")
          share.take(len(request))
          data, served = await self._replicas.ask(service, method, request, context.time_remaining())
        code = grpc.StatusCode.OK
        return data
      except RefusedError as refusal:
        code, reason, served = refusal.code, refusal.reason, refusal.served
      finally:
        self._metrics.count("grpc", method, served, code.name, time.monotonic() - start)
      return await context.abort(code, reason)  # this raises

    return answer

  def _health(self, request: bytes) -> int:
    # The messages of grpc.health.v1 have one field each, so StringValue and Int32Value have the same bytes.
    try:
      service = wrappers_pb2.StringValue.FromString(request).value
    except message.DecodeError:
      return _SERVICE_UNKNOWN
    if service not in ("", *SERVICES):
      return _SERVICE_UNKNOWN
    return _SERVING if self._replicas.count and not self._ends else _NOT_SERVING

  async def _check(self, request: bytes, context: _Context) -> bytes:
    status = self._health(request)
    if status == _SERVICE_UNKNOWN:
      await context.abort(grpc.StatusCode.NOT_FOUND, f"services are {', '.join(SERVICES)}; the empty name stands for the server")
    return _written(status)

  async def _watch(self, request: bytes, context: _Context) -> AsyncIterator[bytes]:
    del context
    last = None
    while last is None or not self._ends:
      status = self._health(request)
      if status != last:
        yield _written(status)
      last = status
      await asyncio.sleep(_WATCH_SECONDS)


def _written(status: int) -> bytes:
  return wrappers_pb2.Int32Value(value=status).SerializeToString()
