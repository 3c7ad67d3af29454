"""Starts the processes of the server. They read their options from standard input and exit when it
ends.

It also ends when the server is killed, so no process outlives the server. `__main__` runs in them.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from jax2tf.tools import gpus
from jax2tf.tools.serving import ray_settings


@dataclass(frozen=True)
class Options:
  """The options of the server; `jax2tf serve` has the defaults.

  Attributes:
    folder: holds the versions of one model, or the folders of several.
    name: the name of the one model, for clients; empty if there are several.
    model_config_file: names the models; then there is no folder.
    replicas: the number of processes that run the models.
    device: as `--device`.
    gpus: the GPUs of the replicas, by the names of CUDA; none of them sees another one.
    host: the address on which the proxies listen.
    grpc_port, http_port: their ports.
    tls_cert, tls_key, tls_client_ca: files in PEM. Without a certificate the ports use plain text;
      without the last one any client may send requests.
    max_batch_size: the largest number of rows in a batch.
    batch_wait_ms: how long the first request of a batch waits for others.
    max_request_mb: the size limit of a request, also decompressed and as arrays.
    max_queued_requests: the limit of requests in progress in a proxy.
    max_sessions: the limit of texts that a replica generates at once.
    max_cache_mb: the limit of their caches together.
    client_seconds: the time limit for a client to send a request.
    allow_ops: ops that models may have although they reach outside of them.
    run: the private folder of the processes' files. PID.server: the server's ports. PID.replica:
      the process of its cluster. PID.sock: the socket of a replica. PID.health: a socket for health
      calls. PID.failed, PID.crash: why a process ended. PID.faults: JSON of what a replica does not
      serve. PID.ready: a proxy is ready. PID.ending: the number of requests that a proxy still
      answers. Also the models, the metrics, and Ray's sockets and logs.
    of_all: the number of replicas in all clusters.
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
  max_sessions: int
  max_cache_mb: int
  client_seconds: float
  allow_ops: list[str]
  device: str
  gpus: list[str]
  run: str
  of_all: int = 1

  @property
  def url_host(self) -> str:
    return f"[{self.host}]" if ":" in self.host else self.host

  @property
  def max_bytes(self) -> int:
    return self.max_request_mb << 20


# When the server ends: the time limit for the answers to accepted requests.
DRAIN_SECONDS = 30.0
# The size of buffers that a proxy returns to the system when it frees them.
_RETURNED_BYTES = 1 << 20


def start(kind: str, options: Options) -> subprocess.Popen[bytes]:
  """Runs a module of this package, in a new session: only the server gets Ctrl-C, and then ends its
  processes in order."""
  # -P: the working directory is not on the module path.
  command = [sys.executable, "-P", "-m", __package__, kind]
  # gRPC (1.85) logs each client whose handshake fails, so any client could fill the log.
  environment = {"GRPC_VERBOSITY": "ERROR", **os.environ}
  if kind == "proxy":
    # glibc keeps the memory of the largest bodies that it has freed. With a fixed threshold it
    # returns those, and any buffer as large, to the system.
    environment = {"MALLOC_MMAP_THRESHOLD_": str(_RETURNED_BYTES), **environment}
  if kind == "cluster":
    environment |= gpus.environment(options.device, options.gpus)
    environment = ray_settings.environment(environment, options.run)
  # Only the server writes to stdout. Ray (2.60) would too, where a replica dies.
  process = subprocess.Popen(
    command,
    stdin=subprocess.PIPE,
    stdout=subprocess.DEVNULL,
    start_new_session=True,
    env=environment,
  )
  assert process.stdin is not None
  process.stdin.write(json.dumps(asdict(options)).encode() + b"\n")
  process.stdin.flush()
  return process


def options() -> Options:
  """The options that `start` got. The started process calls it once."""
  line = b""
  # not sys.stdin, which would read ahead and hide the end of the input
  while not line.endswith(b"\n"):
    line += os.read(0, 1) or b"\n"
  return Options(**json.loads(line))


def note(options: Options, kind: str, text: str) -> None:
  """Writes PID.kind of this process into `Options.run`."""
  file = Path(options.run, f"{os.getpid()}.{kind}")
  file.with_suffix(".writing").write_text(text, encoding="utf-8")
  file.with_suffix(".writing").rename(file)


def is_alive(file: Path) -> bool:
  """Whether the process still runs that a file of `Options.run` is named after."""
  try:
    os.kill(int(file.stem), 0)
  except ProcessLookupError:
    return False
  except PermissionError:  # it belongs to another user
    pass
  return True


def bound(host: str, port: int) -> socket.socket:
  """A bound socket that shares its port (SO_REUSEPORT) and does not listen yet."""
  listener = _socket(host)
  listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
  listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
  listener.bind((host, port))
  return listener


def held(host: str, port: int) -> socket.socket:
  """A socket that reserves a port for sockets of `bound` while it is open. Raises OSError if
  another process has the port.

  If two servers start at once, only one can listen without SO_REUSEPORT. It then sets the option,
  for the sockets of its own processes.
  """
  with _socket(host) as first:
    # else closed connections of an earlier server block it for a minute
    first.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    first.bind((host, port))
    first.listen(0)
    first.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    # Without SO_REUSEADDR, so that another server cannot take the port at the same time.
    listener = _socket(host)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind((host, port))
    return listener


def _socket(host: str) -> socket.socket:
  # Python 3.12: asyncio sets TCP_NODELAY only if the socket names its protocol. Without it the body
  # of an answer waits about 40 ms for the client's acknowledgement of the head.
  return socket.socket(
    socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP
  )
