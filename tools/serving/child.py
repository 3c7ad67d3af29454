"""How the server speaks with the processes that it starts: options on their standard input, whose end tells them to end.

The end comes too when the server is killed, so no process outlives it.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Options:
  """What is served, and how; `jax2tf serve` has the defaults.

  Attributes:
    folder: holds the versions of one model, or the folders of several.
    name: of the one model, for clients; empty if there are several.
    model_config_file: names the models, and then there is no folder.
    replicas: how many processes run the models.
    host: the address on which the proxies listen.
    grpc_port, http_port: their ports.
    tls_cert, tls_key, tls_client_ca: files in PEM; without a certificate the ports speak plain text, and without the
      last one any client may ask.
    max_batch_size: rows that run together at most.
    batch_wait_ms: how long the first request of a batch waits for others.
    max_request_mb: of a request, and of what it becomes.
    max_queued_requests: under way in one proxy; more are refused.
    client_seconds: how long a client may take to send a request.
    run: a folder where each replica has its socket, PID.sock, and a file, PID.failed, with the reason if it does not start or
      PID.faults with JSON of what it does not serve; each proxy that is ready has a file PID.ready; and the models and metrics are there.
    of_all: how many replicas there are in all clusters.
  """

  folder: str
  name: str
  model_config_file: str
  replicas: int
  host: str
  grpc_port: int
  http_port: int
  tls_cert: str
  tls_key: str
  tls_client_ca: str
  max_batch_size: int
  batch_wait_ms: float
  max_request_mb: int
  max_queued_requests: int
  client_seconds: float
  run: str
  of_all: int = 1

  @property
  def url_host(self) -> str:
    return f"[{self.host}]" if ":" in self.host else self.host

  @property
  def max_bytes(self) -> int:
    return self.max_request_mb << 20


# How long requests that were taken may need to be answered when the server ends.
DRAIN_SECONDS = 30.0


def start(kind: str, options: Options) -> subprocess.Popen[bytes]:
  """Runs a module beside this one. In a session of its own: Ctrl-C is meant for the server, which ends it in order."""
  # -P: files of the working directory stay out of it.
  command = [sys.executable, "-P", "-m", f"{__package__}.{kind}"]
  # gRPC (1.85) tells of clients that cannot shake hands, which anyone may do as often as they like.
  environment = {"GRPC_VERBOSITY": "ERROR", **os.environ}
  process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True, env=environment)
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


def bound(host: str, port: int) -> socket.socket:
  """A socket that shares its port with others that say so, and does not listen yet."""
  found = _socket(host)
  found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
  found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
  found.bind((host, port))
  return found


def held(host: str, port: int) -> socket.socket:
  """A socket that keeps a port from all but `bound`, as long as it is open; raises OSError if another process has the port.

  Of two servers that start at once, one alone may listen without SO_REUSEPORT; then it lets the sockets of its own processes in.
  """
  with _socket(host) as first:
    first.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # or the closed connections of a server before keep it for a minute
    first.bind((host, port))
    first.listen(0)
    first.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    # Without SO_REUSEADDR, so that the next server cannot have the port beside it.
    found = _socket(host)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    found.bind((host, port))
    return found


def _socket(host: str) -> socket.socket:
  return socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
