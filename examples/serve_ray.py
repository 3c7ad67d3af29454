"""How do I serve a SavedModel by gRPC and REST without TF Serving?

Usage: serve_ray.py MODEL_DIR [--replicas=2] [--grpc_port=8500] [--http_port=8501]

Speaks TF Serving's two interfaces, so clients of TF Serving need no change: tensorflow.serving.PredictionService (Predict,
GetModelMetadata) and /v1/models/NAME[/versions/N][:predict|/metadata]. MODEL_DIR holds numbered versions, as saved_model.save writes
them. Ray Serve keeps the replicas alive. Two proxies share the ports, and two clusters of Ray the replicas, so that no process is the only
one of its kind; what dies is started again. Prints one line when it is ready. SIGTERM ends it, once the requests that it took are answered.
Serves this machine only. docs/serving.md says more.
"""

from __future__ import annotations

import dataclasses
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from absl import app, flags

import serve_ray_child
from serve_ray_child import DRAIN_SECONDS, Options

_REPLICAS = flags.DEFINE_integer("replicas", 2, "How many processes run the model.", lower_bound=1)
_GRPC_PORT = flags.DEFINE_integer("grpc_port", 8500, "Where PredictionService listens.", lower_bound=1, upper_bound=65535)
_HTTP_PORT = flags.DEFINE_integer("http_port", 8501, "Where the REST API listens.", lower_bound=1, upper_bound=65535)
_MODEL_NAME = flags.DEFINE_string("model_name", None, "The name that clients give; the folder's own if not given.")
_MAX_BATCH = flags.DEFINE_integer("max_batch_size", 256, "Rows that run together at most; 1 batches nothing.", lower_bound=1)
_BATCH_WAIT = flags.DEFINE_float("batch_wait_ms", 2.0, "How long the first request of a batch waits for others.", lower_bound=0.0)
_MAX_MEGABYTES = flags.DEFINE_integer("max_request_mb", 64, "Larger requests are refused.", lower_bound=1, upper_bound=2047)
_MAX_QUEUED = flags.DEFINE_integer("max_queued_requests", 10_000, "With more under way in a proxy, requests are refused.", lower_bound=1)
_CLIENT_SECONDS = flags.DEFINE_float("client_seconds", 30.0, "A client that takes longer to send a request is cut.", lower_bound=0.1)

_PROXIES = 2
_CLUSTERS = 2


class _Child:
  """A process that is started again when it ends."""

  def __init__(self, script: str, options: Options):
    self._script, self._options = script, options
    self._start()

  def _start(self) -> None:
    self._started = time.monotonic()
    self.process = serve_ray_child.start(self._script, self._options)

  def keep_alive(self) -> None:
    if self.process.poll() is not None and time.monotonic() > self._started + 1:  # one that cannot start shall not take all the CPU
      self._start()

  def end(self) -> None:
    assert self.process.stdin is not None
    self.process.stdin.close()


def main(argv: Sequence[str]) -> None:
  """Serves until SIGTERM or SIGINT."""
  if len(argv) != 2:
    raise app.UsageError("name one folder of versions: serve_ray.py MODEL_DIR")
  folder = Path(argv[1]).resolve()
  if not any(file.parent.name.isdecimal() for file in folder.glob("*/saved_model.pb")):
    raise app.UsageError(f"MODEL_DIR is {folder}, which has no version to serve; saved_model.save(..., {argv[1]!r}) writes {argv[1]}/1/")
  _check_ports(_GRPC_PORT.value, _HTTP_PORT.value)
  stop = threading.Event()
  for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda *_: stop.set())
  with tempfile.TemporaryDirectory(prefix="serve_ray-", ignore_cleanup_errors=True) as run:
    options = Options(
      folder=str(folder),
      name=_MODEL_NAME.value or folder.name,
      replicas=_REPLICAS.value,
      grpc_port=_GRPC_PORT.value,
      http_port=_HTTP_PORT.value,
      max_batch_size=_MAX_BATCH.value,
      batch_wait_seconds=_BATCH_WAIT.value / 1e3,
      max_bytes=_MAX_MEGABYTES.value << 20,
      max_queued_requests=_MAX_QUEUED.value,
      client_seconds=_CLIENT_SECONDS.value,
      run=run,
    )
    _serve(options, stop)


def _check_ports(*ports: int) -> None:
  # The proxies share their ports, and would share them with another server without a word.
  for port in ports:
    with socket.socket() as probe:
      probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
      try:
        probe.bind(("127.0.0.1", port))
      except OSError as error:
        raise app.UsageError(f"port {port} of 127.0.0.1 cannot be had ({error.strerror}); give --grpc_port and --http_port") from error


def _serve(options: Options, stop: threading.Event) -> None:
  shares = [options.replicas // _CLUSTERS + (i < options.replicas % _CLUSTERS) for i in range(_CLUSTERS)]
  clusters = [dataclasses.replace(options, replicas=share) for share in shares if share]
  # The proxies first: they end first.
  children = [_Child("serve_ray_proxy.py", options) for _ in range(_PROXIES)] + [_Child("serve_ray_cluster.py", each) for each in clusters]
  try:
    if _is_ready(options, children, stop):
      rest = f"http://127.0.0.1:{options.http_port}/v1/models/{options.name}"
      print(f"serving {options.name!r}: gRPC 127.0.0.1:{options.grpc_port}, REST {rest}", flush=True)
    while not stop.wait(0.1):
      for child in children:
        child.keep_alive()
  finally:
    for child in children:
      child.end()
    for child, seconds in zip(children, [DRAIN_SECONDS + 5] * _PROXIES + [5.0] * len(clusters), strict=True):
      try:
        child.process.wait(seconds)
      except subprocess.TimeoutExpired:  # a cluster that was about to start, say; the proxies are gone, so nobody waits for it
        child.process.kill()
        child.process.wait()


def _is_ready(options: Options, children: Sequence[_Child], stop: threading.Event) -> bool:
  run = Path(options.run)
  while len(list(run.glob("*.sock"))) < options.replicas or len(list(run.glob("*.ready"))) < _PROXIES:
    if any(child.process.poll() is not None for child in children):
      raise SystemExit(f"{options.folder} cannot be served; the reason stands above")
    if stop.wait(0.1):
      return False
  return True


if __name__ == "__main__":
  app.run(main)
