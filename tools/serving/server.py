"""Serves models by gRPC and REST, and restarts processes that die.

It implements TF Serving's interfaces, so clients of TF Serving need no change: tensorflow.serving.PredictionService (Predict,
GetModelMetadata), ModelService (GetModelStatus) and /v1/models/NAME[/versions/N|/labels/L][:predict|/metadata]. Ray Serve keeps the
replicas alive. Two proxies share the ports and two Ray clusters share the replicas, so there is no single point of failure below the
server. On SIGTERM or Ctrl-C it answers the accepted requests and exits. docs/guide/serving.md has more.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import importlib.util
import json
import os
import shutil
import signal
import socket
import ssl
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from jax2tf.tools import outside
from jax2tf.tools.serving import certificates, config
from jax2tf.tools.serving.child import DRAIN_SECONDS, Options, held, is_alive, start

# What the extra brings.
_PACKAGES = ("ray", "tensorflow_serving", "prometheus_client", "uvicorn", "starlette", "grpc")
_PROXIES = 2
_CLUSTERS = 2
_RUN = "jax2tf-serve-"
# Seconds between two lines of progress during the start.
_PROGRESS_SECONDS = 5.0


class _Signals:
  """SIGTERM and SIGINT so far. They are only noted, so that no process is started and forgotten.

  Attributes:
    ended: set by the first one.
    interrupts: the number of SIGINT.
  """

  def __init__(self) -> None:
    self.ended, self.interrupts = threading.Event(), 0

  @contextlib.contextmanager
  def noted(self) -> Iterator[None]:
    """Notes the signals that arrive during the block."""
    before = {number: signal.signal(number, self._note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
      yield
    finally:
      for number, handler in before.items():
        signal.signal(number, handler)

  def _note(self, number: int, _: object) -> None:
    self.interrupts += number == signal.SIGINT
    self.ended.set()

  def pause(self) -> None:
    """Waits for a moment of the start. Raises KeyboardInterrupt after SIGINT, and SystemExit after SIGTERM."""
    if not self.ended.wait(0.1):
      return
    if self.interrupts:
      raise KeyboardInterrupt
    _say("ending before the server is ready")
    raise SystemExit(0)


class _Child:
  """A process that is restarted when it ends."""

  def __init__(self, kind: str, options: Options):
    self.kind, self._options = kind, options
    self._told: set[str] = set()
    self._start()

  def _start(self) -> None:
    self._started = time.monotonic()
    self.process = start(self.kind, self._options)

  def keep_alive(self) -> None:
    if self.process.poll() is not None and time.monotonic() > self._started + 1:  # a process that cannot start must not take all the CPU
      for reason in {*_reasons(self._options)} - self._told:
        self._told.add(reason)
        _say(f"a {self.kind} ended and restarts: {reason}")
      self._start()

  def end(self) -> None:
    assert self.process.stdin is not None
    self.process.stdin.close()

  def wait(self, seconds: float, given_up: Callable[[], bool]) -> None:
    """Waits until the process has ended; kills it after so many seconds, or once `given_up()`."""
    end = time.monotonic() + seconds
    while self.process.poll() is None and time.monotonic() < end and not given_up():
      time.sleep(0.02)
    self.process.kill()
    self.process.wait()


def run(
  directory: str | None, model_name: str | None, model_config_file: str | None, host: str, as_json: bool = False, **rest: Any
) -> None:
  """Serves until SIGTERM or SIGINT. Prints one line when it is ready, JSON with `as_json`.

  Args:
    directory: holds the versions of a model, as `saved_model.save` writes them, or the folders of several models.
    model_name: the name of the one model, for clients; None for the name of the folder.
    model_config_file: names the models in place of `directory`.
    host: the address to listen on.
    as_json: whether the line is JSON.
    rest: the other fields of `Options`.

  Raises:
    ValueError: there is nothing to serve, a port or a certificate cannot be used, or no model can be loaded.
    ModuleNotFoundError: the extra `serving` is not installed.
    KeyboardInterrupt: SIGINT came before the server was ready, or again before the accepted requests were answered.
  """
  missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
  if missing:
    raise ModuleNotFoundError(f"the server needs {' and '.join(missing)}: pip install 'jax2tf[serving]'")
  signals = _Signals()
  place = tempfile.TemporaryDirectory(prefix=_RUN, ignore_cleanup_errors=True)
  with signals.noted(), place as folder, contextlib.ExitStack() as stack:
    rest["allow_ops"] = outside.named(rest["allow_ops"])
    what = _what(directory, model_name, model_config_file)
    given: dict[str, Any] = {name: "" if value is None else value for name, value in rest.items()}
    options = Options(*what, host=_address(host), run=folder, of_all=given["replicas"], **given)
    sources = config.sources(options)
    if not any(config.versions_in(source.folder) for source in sources.values()):
      raise ValueError(f"{directory or model_config_file} has no version to serve; {_where_versions_are(directory)}")
    _check_certificates(options)
    ports = (options.grpc_port, options.http_port)
    for port in ports:
      stack.enter_context(_held(options.host, port, signals))
    Path(options.run, f"{os.getpid()}.server").write_text(json.dumps(ports), encoding="utf-8")
    config.write(Path(options.run), sources)
    _serve(options, signals, as_json)


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


def _where_versions_are(directory: str | None) -> str:
  folder = Path(directory or "").resolve()
  if directory is None or not (folder / "saved_model.pb").is_file():
    return "`jax2tf convert --out DIR` writes DIR/1/"
  if folder.name.isdecimal():
    return f"it is version {int(folder.name)} itself; name the directory of the versions, {os.path.relpath(folder.parent)}"
  return f"it is a SavedModel itself; move its files to {Path(directory, '1')}"


def _address(host: str) -> str:
  try:
    return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
  except OSError as error:
    raise _no_address(host, error) from error


def _no_address(host: str, error: OSError) -> ValueError:
  return ValueError(f"--host {host} is not an address of this machine: {error.strerror}")


def _check_certificates(options: Options) -> None:
  if options.tls_client_ca and not options.tls_cert:
    raise ValueError("TLS needs both --tls_cert and --tls_key")
  files = {"--tls_cert": options.tls_cert, "--tls_key": options.tls_key, "--tls_client_ca": options.tls_client_ca}
  certificates.load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), files, "--tls_client_ca")


def _held(host: str, port: int, signals: _Signals) -> socket.socket:
  # The proxies share their ports, and would silently share them with another server too.
  end, told = time.monotonic() + DRAIN_SECONDS + 5, False
  while True:
    try:
      return held(host, port)
    except OSError as error:
      if error.errno == errno.EADDRNOTAVAIL:
        raise _no_address(host, error) from error
      if port not in _ports_of_killed() or time.monotonic() > end:
        raise ValueError(f"port {port} of {host} cannot be used ({error.strerror}); give --grpc_port and --http_port") from error
    if not told:
      _say(f"waiting for port {port}: a killed server is finishing accepted requests")
      told = True
    signals.pause()


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


def _serve(options: Options, signals: _Signals, as_json: bool) -> None:
  shares = [options.replicas // _CLUSTERS + (i < options.replicas % _CLUSTERS) for i in range(_CLUSTERS)]
  clusters = [dataclasses.replace(options, replicas=share) for share in shares if share]
  # The proxies are first, because they end first.
  children = [_Child("proxy", options) for _ in range(_PROXIES)] + [_Child("cluster", each) for each in clusters]
  ready = False
  try:
    _wait(options, children, signals)
    ready = True
    _report(options, as_json)
    fault, look = "", 0.0
    while not signals.ended.wait(0.1):
      for child in children:
        child.keep_alive()
      if time.monotonic() > look:
        fault, look = _followed(options, fault), time.monotonic() + 1
  finally:
    _end(options, children, ready, signals)


def _end(options: Options, children: Sequence[_Child], ready: bool, signals: _Signals) -> None:
  """Ends the processes. Raises KeyboardInterrupt after one more SIGINT, which kills them."""
  interrupts = signals.interrupts
  for child in children:
    child.end()
  if ready:
    taken = _taken(Path(options.run))
    wait = f": {taken} accepted requests are answered first, for at most {DRAIN_SECONDS:g} s; Ctrl-C ends at once"
    _say(f"ending{wait if taken else ''}")
  # A cluster ends after the proxies, and one that is starting does not look: then nothing waits for it.
  patience = {"proxy": DRAIN_SECONDS + 5, "cluster": 5.0 if ready else 1.0}
  for child in children:
    child.wait(patience[child.kind], lambda: signals.interrupts > interrupts)
  if signals.interrupts > interrupts:
    raise KeyboardInterrupt


def _taken(run: Path) -> int:
  """The number of requests that the ending proxies still have to answer."""
  end = time.monotonic() + 1
  while len(files := list(run.glob("*.ending"))) < _PROXIES and time.monotonic() < end:
    time.sleep(0.02)
  return sum(int(file.read_text(encoding="utf-8")) for file in files)


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


def _report(options: Options, as_json: bool) -> None:
  """Prints one line on stdout with the served models, and a line on stderr for each model that is not served."""
  faults: dict[str, str] = {}
  for file in Path(options.run).glob("*.faults"):
    faults |= json.loads(file.read_text(encoding="utf-8"))
  for name, fault in faults.items():
    _say(f"not served: {name!r}: {fault}")
  names = [name for name in config.read(Path(options.run)) if name not in faults]
  scheme = "https" if options.tls_cert else "http"
  path = f"/v1/models/{names[0] if len(names) == 1 else 'NAME'}"
  grpc, rest = f"{options.url_host}:{options.grpc_port}", f"{scheme}://{options.url_host}:{options.http_port}"
  verdict = f"serving {', '.join(map(repr, names))}: gRPC {grpc}, REST {rest}{path}"
  value = {"verdict": verdict, "models": names, "not served": faults, "grpc": grpc, "rest": rest}
  print(json.dumps(value) if as_json else verdict, flush=True)


def _reasons(options: Options) -> Iterator[str]:
  """Why processes ended: the text of each PID.failed, which is removed."""
  for file in Path(options.run).glob("*.failed"):
    yield " ".join(file.read_text(encoding="utf-8").split())
    file.unlink()


def _wait(options: Options, children: Sequence[_Child], signals: _Signals) -> None:
  """Waits for all processes. Raises ValueError with the reason if one cannot start."""
  run, begin, told = Path(options.run), time.monotonic(), 0.0
  _say(f"starting {_PROXIES} proxies, Ray and {options.replicas} replicas, which load TensorFlow and the models")
  while True:
    proxies, replicas = len(list(run.glob("*.ready"))), len(list(run.glob("*.sock")))
    if replicas >= options.replicas and proxies >= _PROXIES:
      return
    ended = any(child.process.poll() is not None for child in children)
    for reason in _reasons(options):
      raise ValueError(f"the server cannot start: {reason}")
    if ended:
      raise ValueError("the server cannot start: one of its processes ended; the lines above, or Ray's logs in /tmp/ray, say why")
    seconds = time.monotonic() - begin
    if seconds > told + _PROGRESS_SECONDS:
      told = seconds
      _say(f"starting: {seconds:.0f} s, {proxies} of {_PROXIES} proxies, {replicas} of {options.replicas} replicas are ready")
    signals.pause()
