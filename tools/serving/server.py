"""Serves a folder of versions by gRPC and REST, with processes that are started again when they die.

Speaks TF Serving's two interfaces, so clients of TF Serving need no change: tensorflow.serving.PredictionService (Predict,
GetModelMetadata) and /v1/models/NAME[/versions/N][:predict|/metadata]. Ray Serve keeps the replicas alive. Two proxies share the ports, and
two clusters of Ray the replicas, so that no process is the only one of its kind. SIGTERM ends it, once the requests that it took are
answered. Serves this machine only. docs/serving.md says more.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jax2tf.tools.serving.child import DRAIN_SECONDS, Options, start

_PROXIES = 2
_CLUSTERS = 2


class _Child:
  """A process that is started again when it ends."""

  def __init__(self, kind: str, options: Options):
    self._kind, self._options = kind, options
    self._start()

  def _start(self) -> None:
    self._started = time.monotonic()
    self.process = start(self._kind, self._options)

  def keep_alive(self) -> None:
    if self.process.poll() is not None and time.monotonic() > self._started + 1:  # one that cannot start shall not take all the CPU
      self._start()

  def end(self) -> None:
    assert self.process.stdin is not None
    self.process.stdin.close()


def run(directory: str, model_name: str | None, **limits: Any) -> None:
  """Serves until SIGTERM or SIGINT; prints one line when it is ready.

  Args:
    directory: holds the versions, as `saved_model.save` writes them.
    model_name: the name that clients give; the folder's own if None.
    limits: the other fields of `Options`.

  Raises:
    ValueError: no such folder, no version in it, or a port that is taken.
    ModuleNotFoundError: the extra `serving` is not installed.
    SystemExit: the model cannot be served.
  """
  if not all(map(importlib.util.find_spec, ("ray", "tensorflow_serving"))):
    raise ModuleNotFoundError("the server needs more packages: pip install 'jax2tf[serving]'")
  folder = Path(directory).resolve()
  if not folder.is_dir():
    raise ValueError(f"{directory} is no folder; name the one that holds the versions of the model, as --out of `jax2tf convert`")
  if not any(file.parent.name.isdecimal() for file in folder.glob("*/saved_model.pb")):
    raise ValueError(f"{directory} has no version to serve; `jax2tf convert --out {directory}` writes {directory}/1/")
  _check_ports(limits["grpc_port"], limits["http_port"])
  stop = threading.Event()
  for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda *_: stop.set())
  with tempfile.TemporaryDirectory(prefix="jax2tf-serve-", ignore_cleanup_errors=True) as place:
    _serve(Options(folder=str(folder), name=model_name or folder.name, run=place, of_all=limits["replicas"], **limits), stop)


def _check_ports(*ports: int) -> None:
  # The proxies share their ports, and would share them with another server without a word.
  for port in ports:
    with socket.socket() as probe:
      probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
      try:
        probe.bind(("127.0.0.1", port))
      except OSError as error:
        raise ValueError(f"port {port} of 127.0.0.1 cannot be had ({error.strerror}); give --grpc_port and --http_port") from error


def _serve(options: Options, stop: threading.Event) -> None:
  shares = [options.replicas // _CLUSTERS + (i < options.replicas % _CLUSTERS) for i in range(_CLUSTERS)]
  clusters = [dataclasses.replace(options, replicas=share) for share in shares if share]
  # The proxies first: they end first.
  children = [_Child("proxy", options) for _ in range(_PROXIES)] + [_Child("cluster", each) for each in clusters]
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
      raise SystemExit(f"jax2tf serve: {options.folder} cannot be served; the reason stands above")
    if stop.wait(0.1):
      return False
  return True
