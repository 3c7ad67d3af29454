"""Ports of this machine for servers that tests start."""

from __future__ import annotations

import fcntl
import os
import pathlib
import socket
import tempfile
from typing import IO

# Below the ports that Linux gives to outgoing connections (32768 and above).
_PORTS = range(20_000, 32_000)
_locks: list[IO[bytes]] = []  # of this process


def free_ports(count: int) -> list[int]:
  """Free ports, which no other process that asks here gets while this one runs."""
  folder = pathlib.Path(tempfile.gettempdir(), f"jax2tf-ports-{os.getuid()}")
  folder.mkdir(exist_ok=True)
  found: list[int] = []
  for port in _PORTS:
    if len(found) < count and _lock(folder / str(port)) and _can_listen(port):
      found.append(port)
  assert len(found) == count, f"all ports of {_PORTS} are taken"
  return found


def _lock(file: pathlib.Path) -> bool:
  """Locks a file until this process ends; False if a process has the lock, this one included."""
  lock = file.open("wb")
  try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except OSError:
    lock.close()
    return False
  _locks.append(lock)
  return True


def _can_listen(port: int) -> bool:
  with socket.socket() as probe:
    try:
      probe.bind(("127.0.0.1", port))
    except OSError:
      return False
  return True
