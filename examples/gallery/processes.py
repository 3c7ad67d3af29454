"""Starts and ends the servers of the examples."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def started(*arguments: str) -> Iterator[str]:
  """Starts a process of this Python. Yields it with the first line that it prints, and ends it
  afterwards."""
  command = [sys.executable, *arguments]
  with subprocess.Popen(
    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
  ) as process:
    assert process.stdout
    try:
      if not (line := process.stdout.readline()):
        raise RuntimeError(f"{' '.join(command)} did not start")
      yield line.strip()
    finally:
      process.terminate()


def free_ports() -> tuple[int, int]:
  """Two free ports."""
  with (
    socket.create_server(("127.0.0.1", 0)) as one,
    socket.create_server(("127.0.0.1", 0)) as other,
  ):
    return one.getsockname()[1], other.getsockname()[1]
