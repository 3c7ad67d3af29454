"""Caches with a bound, which say when they forget."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class BoundedCache(Generic[Key, Value]):
  """A thread-safe cache that forgets the least recently used entry; each value is made once.
  Pickled, it is empty.

  Args:
    maxsize: the number of entries.
    when_full: called once, when an entry is forgotten for the first time.
  """

  def __init__(self, maxsize: int, when_full: Callable[[], None] | None = None):
    self._maxsize = maxsize
    self._given = self._when_full = when_full
    self._lock = threading.RLock()
    self._entries: OrderedDict[Key, Value] = OrderedDict()

  def get(self, key: Key, make: Callable[[], Value]) -> Value:
    """The value of `key`, made by `make` when missing; an exception of `make` leaves no entry."""
    with self._lock:
      if key in self._entries:
        self._entries.move_to_end(key)
        return self._entries[key]
      value = self._entries[key] = make()
      while len(self._entries) > self._maxsize:
        self._entries.popitem(last=False)
        if self._when_full:
          when_full, self._when_full = self._when_full, None
          when_full()
      return value

  def __reduce__(self) -> tuple[type, tuple[object, ...]]:
    return BoundedCache, (self._maxsize, self._given)

  def __len__(self) -> int:
    return len(self._entries)
