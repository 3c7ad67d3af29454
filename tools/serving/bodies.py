"""The request bodies that a proxy holds: a budget of bytes for all of them, limits for slow
clients, and compressed bodies."""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from collections.abc import AsyncIterator, Iterator

import grpc

from jax2tf.tools.serving.balance import RefusedError

# The budget of a proxy, in multiples of the largest request.
_LARGEST_TOGETHER = 16
# The first bytes of a body are free, so that slow clients with large bodies do not keep out small
# ones. The limit of requests in progress bounds their sum.
_FREE_BYTES = 64 << 10
# How long a client may take to send a request by gRPC before it counts as slow.
_SLOW_SECONDS = 0.5
_GZIP = 16 + zlib.MAX_WBITS
# A body of many tiny members would take time out of proportion to its size.
_MOST_MEMBERS = 1000
_PIECE_BYTES = 64 << 10


class Bodies:
  """The bodies of the requests in progress.

  Attributes:
    held: their bytes, without the free ones of each.
  """

  def __init__(self, max_bytes: int, client_seconds: float):
    """`max_bytes` is the size limit of one request, and `client_seconds` the time limit for a
    client to send it."""
    self._limit = _LARGEST_TOGETHER * max_bytes
    self._seconds = client_seconds
    self._slow = 0
    self.held = 0

  @contextlib.contextmanager
  def share(self) -> Iterator[Share]:
    """The bytes of one request, which are given back at the end of the block."""
    share = Share(self)
    try:
      yield share
    finally:
      share.give_back()

  def take(self, size: int) -> None:
    """Counts bytes. Raises RefusedError if they are more than what is left."""
    if self.held + size > self._limit:
      raise refused(
        f"the bodies of the requests in progress have {self.held} bytes, and the limit is "
        f"{self._limit}"
      )
    self.held += size

  @contextlib.asynccontextmanager
  async def reading_message(self) -> AsyncIterator[None]:
    """Limits the time and the memory for reading a message by gRPC, which does not tell how much of
    it has arrived.

    Fast clients need no memory for long. So many slow ones may be read at once that their largest
    messages fit into the budget.

    Raises:
      RefusedError: the message did not arrive in time, or too many clients are slow.
    """
    loop, slow, crowded = asyncio.get_running_loop(), False, False

    def late() -> None:
      nonlocal slow, crowded
      slow = self._slow < _LARGEST_TOGETHER
      crowded = not slow
      self._slow += slow
      if crowded:
        limit.reschedule(loop.time())

    timer = loop.call_later(_SLOW_SECONDS, late)
    try:
      async with asyncio.timeout(self._seconds) as limit:
        yield
    except TimeoutError:
      if crowded:
        raise refused(
          f"{_LARGEST_TOGETHER} clients are slow to send a request, and that is the limit"
        ) from None
      reason = f"the request did not arrive within {self._seconds:g} s"
      raise RefusedError(grpc.StatusCode.DEADLINE_EXCEEDED, reason) from None
    finally:
      timer.cancel()
      self._slow -= slow


class Share:
  """The bytes of one request.

  Attributes:
    counted: those that count against the budget.
  """

  def __init__(self, bodies: Bodies):
    self._bodies = bodies
    self._size = 0
    self.counted = 0

  def take(self, size: int) -> None:
    """Counts bytes of the request. Raises RefusedError as `Bodies.take`."""
    self._size += size
    more = max(0, self._size - _FREE_BYTES) - self.counted
    self._bodies.take(more)
    self.counted += more

  def give_back(self) -> None:
    """Counts none of them any more."""
    self._bodies.held -= self.counted
    self._size = self.counted = 0


def refused(reason: str) -> RefusedError:
  """The error for a request that may be sent again."""
  return RefusedError(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{reason}; send it later")


def decompressed(body: bytes, most: int) -> bytes | None:
  """The decompressed body, of all its gzip members; None if it is larger than `most` bytes. Raises
  zlib.error for other bytes."""
  reader, data, members = zlib.decompressobj(_GZIP), bytearray(), 1
  # the rest after a member is copied, so it has to be short
  for start in range(0, len(body), _PIECE_BYTES):
    piece = body[start : start + _PIECE_BYTES]
    while piece:
      if reader.eof:
        reader, members = zlib.decompressobj(_GZIP), members + 1
      if members > _MOST_MEMBERS:
        raise zlib.error(f"it has more than {_MOST_MEMBERS} members")
      data += reader.decompress(piece, most + 1 - len(data))
      if len(data) > most:
        return None
      piece = reader.unused_data
  if not reader.eof:
    raise zlib.error("it ends too early")
  return bytes(data)
