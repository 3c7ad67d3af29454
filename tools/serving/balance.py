"""Balances the load of a proxy: each request goes to the replica with the fewest requests, and the
number in progress is limited."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import grpc

from jax2tf.tools.serving import child, streams
from jax2tf.tools.serving.child import DRAIN_SECONDS
from jax2tf.tools.serving.streams import Part

# The gRPC methods that proxies forward without parsing.
SERVICES = {
  "tensorflow.serving.PredictionService": ("Predict", "GetModelMetadata"),
  "tensorflow.serving.ModelService": ("GetModelStatus",),
}
REST, REST_SERVICE = "Ask", "jax2tf.Rest"
UNLIMITED = [
  ("grpc.max_send_message_length", -1),
  ("grpc.max_receive_message_length", -1),
  ("grpc.max_concurrent_streams", 2**31 - 1),
]
_POLL_SECONDS = 0.1
# How long a request waits for a replica while none is ready.
_PATIENCE_SECONDS = 60.0
_LOST = "the replica that had this request died; send it again"


@dataclass(frozen=True)
class Served:
  """What answered a request, for the metrics. The fields are empty unless this server has it:
  clients could make up any number of names.

  Attributes:
    model, version, signature: their names.
  """

  model: str = ""
  version: str = ""
  signature: str = ""

  @property
  def metadata(self) -> tuple[tuple[str, bytes], ...]:
    """Trailing metadata of an answer; in bytes, because a name may be any Unicode."""
    return tuple((f"{name}-bin", value.encode()) for name, value in vars(self).items())

  @classmethod
  def of(cls, metadata: grpc.aio.Metadata | None) -> Served:
    """The reverse of `metadata`."""
    names = (
      {field.name: metadata.get(f"{field.name}-bin", b"") for field in fields(cls)}
      if metadata
      else {}
    )
    return cls(
      **{
        name: value.decode(errors="replace")
        for name, value in names.items()
        if isinstance(value, bytes)
      }
    )


UNKNOWN = Served()


class RefusedError(Exception):
  """A rejected request."""

  def __init__(self, code: grpc.StatusCode, reason: str, served: Served = UNKNOWN):
    super().__init__(reason)
    self.code, self.reason, self.served = code, reason, served


class Queue:
  """Counts the accepted requests without an answer, at most `limit`."""

  def __init__(self, limit: int):
    self._limit = limit
    self.taken = 0

  @contextlib.contextmanager
  def place(self) -> Iterator[None]:
    """Counts one request during the block. Raises RefusedError at the limit."""
    if self.taken >= self._limit:
      raise RefusedError(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        f"{self._limit} requests are in progress, which is the limit; send it later",
      )
    self.taken += 1
    try:
      yield
    finally:
      self.taken -= 1


class Replicas:
  """The replicas whose sockets are in one folder."""

  def __init__(self, folder: Path):
    self._folder = folder
    self._under_way: dict[grpc.aio.Channel, int] = {}
    self._some = asyncio.Event()
    self._known: dict[Path, asyncio.Task[None]] = {}

  @property
  def count(self) -> int:
    return len(self._under_way)

  async def look(self) -> None:
    """Connects to each new socket."""
    while True:
      with contextlib.suppress(OSError):  # such as no free descriptor, for a while
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

  async def ask(
    self, service: str, method: str, data: bytes, seconds: float | None
  ) -> tuple[bytes, Served]:
    """Sends a request to the replica with the fewest requests. Returns the answer, and what
    answered.

    Raises:
      RefusedError: the replica rejects the request or dies, or no replica is ready.
    """
    with self._chosen(await self._ready()) as channel:
      try:
        call = channel.unary_unary(f"/{service}/{method}")(data, timeout=seconds)
        return await call, Served.of(await call.trailing_metadata())
      except grpc.aio.AioRpcError as error:
        raise _refusal(error) from error

  async def stream(self, data: bytes, seconds: float | None) -> AsyncGenerator[Part]:
    """Sends a request of `streams` to the replica with the fewest requests, and to the next one
    where that has no room for another session. The parts come as fast as the caller takes them;
    where it ends, the replica stops.

    Raises:
      RefusedError: the replica rejects the request or dies, all have no room, or none is ready.
    """
    tried: list[grpc.aio.Channel] = []
    channels = await self._ready()
    while True:
      with self._chosen(channels) as channel:
        tried.append(channel)
        call = channel.unary_stream(f"/{REST_SERVICE}/{streams.METHOD}")(data, timeout=seconds)
        begun = False
        try:
          async for message in call:
            begun = True
            yield Part.decoded(message)
          return
        except grpc.aio.AioRpcError as error:
          refusal = _refusal(error)
          channels = [each for each in self._under_way if each not in tried]
          is_full = refusal.code == grpc.StatusCode.RESOURCE_EXHAUSTED
          if begun or not is_full or not channels:
            raise refusal from error
        finally:
          call.cancel()  # of no effect on a call that has ended

  async def _ready(self) -> list[grpc.aio.Channel]:
    """The replicas, once there is one."""
    try:
      await asyncio.wait_for(self._some.wait(), _PATIENCE_SECONDS)
    except TimeoutError:
      raise RefusedError(
        grpc.StatusCode.UNAVAILABLE, "no replica is ready; send it again later"
      ) from None
    return list(self._under_way)

  @contextlib.contextmanager
  def _chosen(self, channels: list[grpc.aio.Channel]) -> Iterator[grpc.aio.Channel]:
    """Counts a request of the one with the fewest requests during the block."""
    channel = min(channels, key=lambda channel: self._under_way[channel])
    # last of those that have as many, so that they take turns
    self._under_way[channel] = self._under_way.pop(channel) + 1
    try:
      yield channel
    finally:
      if channel in self._under_way:
        self._under_way[channel] -= 1


def _refusal(error: grpc.aio.AioRpcError) -> RefusedError:
  """The error for the client of a call that failed."""
  served = Served.of(error.trailing_metadata())
  # killed, or ended by Ray
  if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
    return RefusedError(grpc.StatusCode.UNAVAILABLE, _LOST, served)
  return RefusedError(error.code(), error.details() or "", served)
