"""Serves models by gRPC and REST, and restarts processes that die.

It implements TF Serving's interfaces, so clients of TF Serving need no change: tensorflow.serving.PredictionService (Predict,
GetModelMetadata), ModelService (GetModelStatus) and /v1/models/NAME[/versions/N|/labels/L][:predict|/metadata]. Ray Serve keeps the
replicas alive. Two proxies share the ports and two Ray clusters share the replicas, so there is no single point of failure below the
server. On SIGTERM it answers the accepted requests and exits. docs/guide/serving.md has more.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jax2tf.tools.serving import config
from jax2tf.tools.serving.child import DRAIN_SECONDS, Options, held, is_alive, start

_PROXIES = 2
_CLUSTERS = 2
_RUN = "jax2tf-serve-"
# Seconds between two lines of progress during the start.
_PROGRESS_SECONDS = 5.0


class _Child:
  """A process that is restarted when it ends."""

  def __init__(self, kind: str, options: Options):
    self._kind, self._options = kind, options
    self._start()

  def _start(self) -> None:
    self._started = time.monotonic()
    self.process = start(self._kind, self._options)

  def keep_alive(self) -> None:
    if self.process.poll() is not None and time.monotonic() > self._started + 1:  # a process that cannot start must not take all the CPU
      self._start()

  def end(self) -> None:
    assert self.process.stdin is not None
    self.process.stdin.close()


def run(directory: str | None, model_name: str | None, model_config_file: str | None, host: str, **rest: Any) -> None:
  """Serves until SIGTERM or SIGINT. Prints one line when it is ready.

  Args:
    directory: holds the versions of a model, as `saved_model.save` writes them, or the folders of several models.
    model_name: the name of the one model, for clients; None for the name of the folder.
    model_config_file: names the models in place of `directory`.
    host: the address to listen on.
    rest: the other fields of `Options`.

  Raises:
    ValueError: there is nothing to serve, a port or a certificate cannot be used, or no model can be loaded.
    ModuleNotFoundError: the extra `serving` is not installed.
  """
  if not all(map(importlib.util.find_spec, ("ray", "tensorflow_serving"))):
    raise ModuleNotFoundError("the server needs more packages: pip install 'jax2tf[serving]'")
  stop = threading.Event()
  for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda *_: stop.set())
  with tempfile.TemporaryDirectory(prefix=_RUN, ignore_cleanup_errors=True) as place, contextlib.ExitStack() as stack:
    what = _what(directory, model_name, model_config_file)
    given: dict[str, Any] = {name: "" if value is None else value for name, value in rest.items()}
    options = Options(*what, host=_address(host), run=place, of_all=given["replicas"], **given)
    sources = config.sources(options)
    if not any(config.versions_in(source.folder) for source in sources.values()):
      raise ValueError(f"{directory or model_config_file} has no version to serve; `jax2tf convert --out DIR` writes DIR/1/")
    _check_certificates(options)
    ports = (options.grpc_port, options.http_port)
    for port in ports:
      stack.enter_context(_held(options.host, port, stop))
    Path(options.run, f"{os.getpid()}.server").write_text(json.dumps(ports), encoding="utf-8")
    config.write(Path(options.run), sources)
    _serve(options, stop)


def _what(directory: str | None, model_name: str | None, model_config_file: str | None) -> tuple[str, str, str]:
  """The first three fields of `Options`."""
  if (directory is None) == (model_config_file is None):
    raise ValueError("name either DIR or --model_config_file")
  folder = Path(directory or "").resolve()
  if directory is not None and not folder.is_dir():
    raise ValueError(f"{directory} is not a directory; name the one with the versions of the model, as --out of `jax2tf convert`")
  if directory is not None and config.versions_in(folder):
    return str(folder), model_name or folder.name, ""
  if model_name:
    raise ValueError("--model_name is for one model; several have the names of their folders, or those of the file")
  if model_config_file is None:
    return str(folder), "", ""
  file = Path(model_config_file).resolve()
  if not file.is_file():
    raise ValueError(f"{model_config_file} is not a file; name a ModelServerConfig file of TF Serving")
  return "", "", str(file)


def _address(host: str) -> str:
  try:
    return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
  except OSError as error:
    raise ValueError(f"--host {host} is not an address of this machine: {error.strerror}") from error


def _check_certificates(options: Options) -> None:
  if bool(options.tls_cert) != bool(options.tls_key) or (options.tls_client_ca and not options.tls_cert):
    raise ValueError("TLS needs both --tls_cert and --tls_key")
  context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
  try:
    if options.tls_cert:
      context.load_cert_chain(options.tls_cert, options.tls_key, password=lambda: "")  # otherwise OpenSSL would ask for it on the terminal
    if options.tls_client_ca:
      context.load_verify_locations(options.tls_client_ca)
  except OSError as error:  # includes SSLError
    raise ValueError(f"the certificate cannot be used: {error}; give files in PEM, and a key without a password") from error


def _held(host: str, port: int, stop: threading.Event) -> socket.socket:
  # The proxies share their ports, and would silently share them with another server too.
  end, told = time.monotonic() + DRAIN_SECONDS + 5, False
  while True:
    try:
      return held(host, port)
    except OSError as error:
      if port not in _ports_of_killed() or time.monotonic() > end or stop.wait(0.1):
        raise ValueError(f"port {port} of {host} cannot be used ({error.strerror}); give --grpc_port and --http_port") from error
      if not told:
        _say(f"waiting for port {port}: a killed server is finishing accepted requests")
        told = True


def _ports_of_killed() -> set[int]:
  """The ports of killed servers. Their proxies listen until they have answered the accepted requests; then their files are removed."""
  ports: set[int] = set()
  for file in Path(tempfile.gettempdir()).glob(f"{_RUN}*/*.server"):
    with contextlib.suppress(FileNotFoundError):  # another server may remove it at the same time
      if not is_alive(file):
        ports |= {*json.loads(file.read_text(encoding="utf-8"))}
        if not any(is_alive(proxy) for proxy in file.parent.glob("*.ready")):
          shutil.rmtree(file.parent, ignore_errors=True)
  return ports


def _serve(options: Options, stop: threading.Event) -> None:
  shares = [options.replicas // _CLUSTERS + (i < options.replicas % _CLUSTERS) for i in range(_CLUSTERS)]
  clusters = [dataclasses.replace(options, replicas=share) for share in shares if share]
  # The proxies are first, because they end first.
  children = [_Child("proxy", options) for _ in range(_PROXIES)] + [_Child("cluster", each) for each in clusters]
  ready = False
  try:
    ready = _wait(options, children, stop)
    if ready:
      _report(options)
    fault, look = "", 0.0
    while not stop.wait(0.1):
      for child in children:
        child.keep_alive()
      if time.monotonic() > look:
        fault, look = _followed(options, fault), time.monotonic() + 1
  finally:
    for child in children:
      child.end()
    for child, seconds in zip(children, [DRAIN_SECONDS + 5] * _PROXIES + [5.0 if ready else 1.0] * len(clusters), strict=True):
      try:
        child.process.wait(seconds)
      except subprocess.TimeoutExpired:  # such as a cluster that is starting; the proxies have ended, so nothing waits for it
        child.process.kill()
        child.process.wait()


def _followed(options: Options, before: str) -> str:
  """Writes the current models for the replicas. Returns the error if they cannot be found, and reports it once."""
  try:
    found, run = config.sources(options), Path(options.run)
    if found != config.read(run):
      config.write(run, found)
  except (ValueError, OSError) as error:
    if str(error) != before:
      _say(f"still serving the earlier models: {error}")
    return str(error)
  return ""


def _say(line: str) -> None:
  print(line, file=sys.stderr, flush=True)


def _report(options: Options) -> None:
  """Prints one line on stdout with the served models, and a line on stderr for each model that is not served."""
  faults: dict[str, str] = {}
  for file in Path(options.run).glob("*.faults"):
    faults |= json.loads(file.read_text(encoding="utf-8"))
  for name, fault in faults.items():
    _say(f"not served: {name!r}: {fault}")
  names = [name for name in config.read(Path(options.run)) if name not in faults]
  scheme = "https" if options.tls_cert else "http"
  path = f"/v1/models/{names[0] if len(names) == 1 else 'NAME'}"
  address = f"gRPC {options.url_host}:{options.grpc_port}, REST {scheme}://{options.url_host}:{options.http_port}{path}"
  print(f"serving {', '.join(map(repr, names))}: {address}", flush=True)


def _wait(options: Options, children: Sequence[_Child], stop: threading.Event) -> bool:
  """Waits for all processes. Returns False if the server has to stop first. Raises ValueError with the reason if it cannot start."""
  run, begin, told = Path(options.run), time.monotonic(), 0.0
  _say(f"starting {_PROXIES} proxies, Ray and {options.replicas} replicas, which load TensorFlow and the models")
  while True:
    proxies, replicas = len(list(run.glob("*.ready"))), len(list(run.glob("*.sock")))
    if replicas >= options.replicas and proxies >= _PROXIES:
      return True
    for file in run.glob("*.failed"):
      raise ValueError(f"the server cannot start: {' '.join(file.read_text(encoding='utf-8').split())}")
    if any(child.process.poll() is not None for child in children):
      raise ValueError("the server cannot start: one of its processes ended; the lines above, or Ray's logs in /tmp/ray, say why")
    seconds = time.monotonic() - begin
    if seconds > told + _PROGRESS_SECONDS:
      told = seconds
      _say(f"starting: {seconds:.0f} s, {proxies} of {_PROXIES} proxies, {replicas} of {options.replicas} replicas are ready")
    if stop.wait(0.1):
      return False
