"""How the server speaks with the processes that it starts: options on their standard input, whose end tells them to end.

The end comes too when the server is killed, so no process outlives it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Options:
  """What is served, and how; `jax2tf serve` has the defaults.

  Attributes:
    folder: holds the versions.
    name: of the model, for clients.
    replicas: how many run the model.
    grpc_port, http_port: where the proxies listen, on 127.0.0.1.
    max_batch_size: rows that run together at most.
    batch_wait_ms: how long the first request of a batch waits for others.
    max_request_mb: of a request, and of what it becomes.
    max_queued_requests: under way in one proxy.
    client_seconds: how long a client may take to send a request.
    run: a folder where each replica has its socket, PID.sock, and each proxy that is ready a file, PID.ready.
    of_all: how many replicas there are in all clusters.
  """

  folder: str
  name: str
  replicas: int
  grpc_port: int
  http_port: int
  max_batch_size: int
  batch_wait_ms: float
  max_request_mb: int
  max_queued_requests: int
  client_seconds: float
  run: str
  of_all: int = 1

  @property
  def max_bytes(self) -> int:
    return self.max_request_mb << 20


# How long requests that were taken may need to be answered when the server ends.
DRAIN_SECONDS = 30.0


def start(kind: str, options: Options) -> subprocess.Popen[bytes]:
  """Runs a module beside this one. In a session of its own: Ctrl-C is meant for the server, which ends it in order."""
  # -P: files of the working directory stay out of it.
  command = [sys.executable, "-P", "-m", f"{__package__}.{kind}"]
  process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
  assert process.stdin is not None
  process.stdin.write(json.dumps(asdict(options)).encode() + b"\n")
  process.stdin.flush()
  return process


def options() -> Options:
  """What `start` was given; called once, in the process that it started."""
  line = b""
  while not line.endswith(b"\n"):  # not sys.stdin, which would read on and hide the end of the input
    line += os.read(0, 1) or b"\n"
  return Options(**json.loads(line))


def is_alive(file: Path) -> bool:
  """Whether the process still is after which this file of `Options.run` is named."""
  try:
    os.kill(int(file.stem), 0)
  except ProcessLookupError:
    return False
  return True
