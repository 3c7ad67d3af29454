"""Bounds the connections of a proxy by the number of files that it may open."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
  from uvicorn.protocols.http.h11_impl import H11Protocol

# More than a proxy can serve, and no more: each open connection costs memory.
_MOST_FILES = 1 << 15
# What a proxy opens beside connections of clients: Python's files, gRPC's, the sockets of replicas,
# metrics.
_OWN_FILES = 128


def raise_limit() -> None:
  """Raises the soft limit of open files of this process and of those that it starts, as far as the
  hard limit allows."""
  soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
  limit = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
  if soft != resource.RLIM_INFINITY and soft < limit:
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def most() -> int:
  """The number of connections that each port of a proxy may have at once."""
  soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
  files = _MOST_FILES if soft == resource.RLIM_INFINITY else min(soft, _MOST_FILES)
  return max((files - _OWN_FILES) // 2, 1)


def bounded(protocol: type[H11Protocol], most: int) -> type[H11Protocol]:
  """`protocol` for at most so many connections. A new one takes the place of the one that has been
  without a whole request for longest."""
  idle: dict[Any, None] = {}  # in the order in which they became idle
  count = 0

  class Bounded(protocol):  # type: ignore[misc, valid-type]  # a base class that is a variable
    def connection_made(self, transport: Any) -> None:
      nonlocal count
      super().connection_made(transport)
      count += 1
      idle[self] = None
      if count > most:
        oldest = next(iter(idle))  # the new one itself, if all others have requests
        del idle[oldest]
        oldest.transport.abort()

    def data_received(self, data: bytes) -> None:
      super().data_received(data)
      self._sort()

    def on_response_complete(self) -> None:
      super().on_response_complete()
      self._sort()

    def _sort(self) -> None:
      is_asked = self.cycle is not None and not (
        self.cycle.more_body or self.cycle.response_complete
      )
      if is_asked or self.transport.is_closing():
        idle.pop(self, None)
      else:
        idle.setdefault(self)

    def connection_lost(self, exc: Exception | None) -> None:
      nonlocal count
      super().connection_lost(exc)
      count -= 1
      idle.pop(self, None)

  return Bounded
