"""Serves models by gRPC and REST, and restarts processes that die.

It implements TF Serving's interfaces, so clients of TF Serving need no change:
tensorflow.serving.PredictionService (Predict, GetModelMetadata), ModelService (GetModelStatus) and
/v1/models/NAME[/versions/N|/labels/L][:predict|/metadata]. This module checks the options before
anything starts; `supervisor.py` starts the processes. docs/guide/operate-a-server.md has more.
"""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import json
import os
import socket
import ssl
import time
from pathlib import Path
from typing import Any

from jax2tf.converters.bundle import versions
from jax2tf.tools import gpus, outside
from jax2tf.tools.serving import certificates, config, connections, place
from jax2tf.tools.serving.child import DRAIN_SECONDS, Options, held
from jax2tf.tools.serving.signals import Signals, say

_REPLICAS = 2  # on CPUs
# What the extra brings.
_PACKAGES = (
  "ray",
  "tensorflow_serving",
  "prometheus_client",
  "uvicorn",
  "starlette",
  "grpc",
  "grpc_health",
  "psutil",
)


def run(
  directory: str | None,
  model_name: str | None,
  model_config_file: str | None,
  host: str,
  as_json: bool = False,
  **rest: Any,
) -> None:
  """Serves until SIGTERM or SIGINT. Prints one line when it is ready, JSON with `as_json`.

  Args:
    directory: holds the versions of a model, as `saved_model.save` writes them, or the folders of
      several models.
    model_name: the name of the one model, for clients; None for the name of the folder.
    model_config_file: names the models in place of `directory`.
    host: the address to listen on.
    as_json: whether the line is JSON.
    rest: the other fields of `Options`.

  Raises:
    ValueError: there is nothing to serve, a port or a certificate cannot be used, or no model can
      be loaded.
    ModuleNotFoundError: the extra `serving` is not installed.
    KeyboardInterrupt: SIGINT came before the server was ready, or again before the accepted
      requests were answered.
  """
  missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
  if missing:
    raise ModuleNotFoundError(
      f"the server needs {' and '.join(missing)}: pip install 'jax2tf[serving]'"
    )
  from jax2tf.tools.serving import supervisor  # noqa: PLC0415  (an extra)

  signals = Signals()
  with signals.noted(), place.private() as folder, contextlib.ExitStack() as stack:
    rest["allow_ops"] = outside.named(rest["allow_ops"])
    rest["gpus"] = gpus.chosen(rest["device"], os.environ)
    rest["replicas"] = rest["replicas"] or len(rest["gpus"]) or _REPLICAS
    what = _what(directory, model_name, model_config_file)
    settings: dict[str, Any] = {
      name: "" if value is None else value for name, value in rest.items()
    }
    options = Options(
      *what, host=_address(host), run=folder, of_all=settings["replicas"], **settings
    )
    sources = config.sources(options)
    if not any(versions.served(source.folder) for source in sources.values()):
      raise ValueError(
        f"{directory or model_config_file} has no version to serve; "
        f"{_where_versions_are(directory)}"
      )
    _check_certificates(options)
    ports = (options.grpc_port, options.http_port)
    for port in ports:
      stack.enter_context(_held(options.host, port, signals))
    Path(options.run, f"{os.getpid()}.server").write_text(json.dumps(ports), encoding="utf-8")
    config.write(Path(options.run), sources)
    connections.raise_limit()
    supervisor.serve(options, signals, as_json)


def _what(
  directory: str | None, model_name: str | None, model_config_file: str | None
) -> tuple[str, str, str]:
  """The first three fields of `Options`."""
  if (directory is None) == (model_config_file is None):
    raise ValueError("name either DIR or --model_config_file")
  folder = Path(directory or "").resolve()
  if directory is not None and not folder.is_dir():
    raise ValueError(
      f"{directory} is not a directory; name the one with the versions of the model, as --out of "
      "`jax2tf convert`"
    )
  if directory is not None and versions.served(folder):
    return str(folder), model_name or folder.name, ""
  if model_name:
    raise ValueError(
      "--model_name is for one model; several have the names of their folders, or those of the file"
    )
  if model_config_file is None:
    return str(folder), "", ""
  file = Path(model_config_file).resolve()
  if not file.is_file():
    raise ValueError(
      f"{model_config_file} is not a file; name a ModelServerConfig file of TF Serving"
    )
  return "", "", str(file)


def _where_versions_are(directory: str | None) -> str:
  folder = Path(directory or "").resolve()
  if directory is None or not versions.is_saved_model(folder):
    return "`jax2tf convert --out DIR` writes DIR/1/"
  if folder.name.isdecimal():
    return (
      f"it is version {int(folder.name)} itself; name the directory of the versions, "
      f"{os.path.relpath(folder.parent)}"
    )
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
  files = {
    "--tls_cert": options.tls_cert,
    "--tls_key": options.tls_key,
    "--tls_client_ca": options.tls_client_ca,
  }
  certificates.load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), files, "--tls_client_ca")


def _held(host: str, port: int, signals: Signals) -> socket.socket:
  # The proxies share their ports, and would silently share them with another server too.
  end, told = time.monotonic() + DRAIN_SECONDS + 5, False
  while True:
    try:
      return held(host, port)
    except OSError as error:
      if error.errno == errno.EADDRNOTAVAIL:
        raise _no_address(host, error) from error
      if port not in place.ports_of_killed() or time.monotonic() > end:
        raise ValueError(
          f"port {port} of {host} cannot be used ({error.strerror}); give --grpc_port and "
          "--http_port"
        ) from error
    if not told:
      say(f"waiting for port {port}: a killed server is finishing accepted requests")
      told = True
    signals.pause()
