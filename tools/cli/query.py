"""`jax2tf query`: sends one request to a server and prints the answer as a table."""

from __future__ import annotations

import base64
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from jax2tf.converters.bundle import durable, paths, tables
from jax2tf.tools.cli._failures import failures, say
from jax2tf.tools.cli._json import dumps
from jax2tf.tools.cli._progress import Progress
from jax2tf.tools.cli._verb import takes_debug

_FILE = click.Path(exists=True, dir_okay=False)
_SHOWN = 6  # values in a row of the table


@click.command(context_settings={"show_default": True})
@click.argument("model")
@click.argument("inputs", metavar="INPUTS")
@click.option("--rest", default="127.0.0.1:8501", help="HOST:PORT of the REST API.")
@click.option(
  "--grpc", "grpc_address", help="HOST:PORT of PredictionService, to use gRPC instead of REST."
)
@click.option(
  "--version",
  type=click.IntRange(0),
  help="The version of the model; by default the newest, or the version of --label.",
)
@click.option("--label", help="The label of a version.")
@click.option("--signature", default="serving_default", help="The signature of the model to call.")
@click.option(
  "--tls_ca",
  type=_FILE,
  help="The authority of the server's certificate, in PEM; encrypts the request.",
)
@click.option(
  "--tls_cert", type=_FILE, help="The client's certificate, in PEM, for a server that requires one."
)
@click.option("--tls_key", type=_FILE, help="The key of --tls_cert, in PEM.")
@click.option(
  "--seconds", type=click.FloatRange(0.001), default=60.0, help="The time limit for the answer."
)
@click.option(
  "--out", type=click.Path(dir_okay=False), help="An .npz file to write the outputs to."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, also for a failure.")
@takes_debug
def query(
  model: str,
  inputs: str,
  rest: str,
  grpc_address: str | None,
  out: str | None,
  as_json: bool,
  debug: bool,
  **options: Any,
) -> int:
  """Sends a request for MODEL to a server, by REST or gRPC, and prints the outputs.

  INPUTS is an .npz file with an array for each input, a .json file, or - for JSON on standard
  input. The JSON is an object with a value for each input, or a body of the REST API with "inputs"
  or "instances".

  \b
  Example:
    jax2tf query model inputs.npz --rest 127.0.0.1:8501
  """
  progress = Progress("jax2tf query")
  with failures(debug=debug), progress.shown():
    arrays = _read(inputs)
    if options["version"] is not None and options["label"]:
      raise ValueError("--version and --label exclude each other; give one")
    if options["tls_cert"] and not options["tls_ca"]:
      raise ValueError("--tls_cert and --tls_key go together, and with --tls_ca")
    from jax2tf.tools.cli import _clients  # noqa: PLC0415  (NumPy)

    tls = {name: options.pop(f"tls_{name}") for name in ("ca", "cert", "key")}
    target = _clients.Target(grpc_address or rest, model, **tls, **options)
    target.context()  # a certificate that cannot be used is said first
    if grpc_address:
      with progress.stage("import TensorFlow"):
        _clients.import_tensorflow()
    with _appearing(out) as written:
      begin = time.monotonic()
      with progress.stage("wait for the server"):
        outputs = (_clients.by_grpc if grpc_address else _clients.by_rest)(target, arrays)
      seconds = time.monotonic() - begin
      if written:
        _write(written, outputs)
    say(dumps(_described(model, outputs, seconds)) if as_json else _table(outputs))
  return 0


def _read(inputs: str) -> dict[str, Any]:
  """Values by the names of the inputs: arrays or JSON values. A value without a name in a body of
  the REST API gets the name ""."""
  if inputs.endswith(".npz"):
    import numpy as np  # noqa: PLC0415

    try:
      with np.load(inputs, allow_pickle=False) as archive:
        return dict(archive)
    except Exception as error:  # zipfile, zlib, pickle and NumPy have their own errors
      raise ValueError(f"{inputs} is not a readable .npz file: {error}") from error
  try:
    body = (
      json.load(sys.stdin)
      if inputs == "-"
      else json.loads(Path(inputs).read_text(encoding="utf-8"))
    )
  except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
    raise ValueError(f"{inputs} is neither .npz nor JSON: {error}") from error
  if not isinstance(body, dict) or not body:
    raise ValueError(
      f'{inputs} must have an object with a value for each input, such as {{"x": [[0.5, 1.0]]}}'
    )
  if body.keys() == {"instances"}:
    return _columns(body["instances"])
  if body.keys() == {"inputs"}:
    return body["inputs"] if _is_named(body["inputs"]) else {"": body["inputs"]}
  return body


def _is_named(value: Any) -> bool:
  return isinstance(value, dict) and value.keys() != {"b64"}


def _columns(rows: Any) -> dict[str, Any]:
  if not isinstance(rows, list) or not any(map(_is_named, rows)):
    return {"": rows}
  if not all(_is_named(row) and row.keys() == rows[0].keys() for row in rows):
    raise ValueError('each of "instances" must be an object with the same names')
  return {name: [row[name] for row in rows] for name in rows[0]}


@contextlib.contextmanager
def _appearing(out: str | None) -> Iterator[Path | None]:
  """The name of a file that is renamed to `out` after the block."""
  if not out:
    yield None
    return
  path = paths.local(out if out.endswith(".npz") else f"{out}.npz", "out")  # as NumPy names it
  try:
    with tempfile.TemporaryDirectory(prefix=".writing-", dir=path.parent) as folder:
      yield Path(folder, path.name)
      durable.move(Path(folder, path.name), path)
  except OSError as error:
    raise ValueError(f"{out} cannot be written: {error.strerror or error}") from error


def _write(path: Path, outputs: dict[str, Any]) -> None:
  import numpy as np  # noqa: PLC0415

  np.savez(path, **{name: _storable(name, array) for name, array in outputs.items()})


def _storable(name: str, array: Any) -> Any:
  """The array with strings of one length, because .npz needs pickle for others."""
  if array.dtype.kind != "O":
    return array
  stored = array.astype(bytes)
  if (stored != array).any():
    raise ValueError(
      f"output {name!r} has a string that ends in a zero byte, which .npz cannot store; use --json"
    )
  return stored


def _described(model: str, outputs: dict[str, Any], seconds: float) -> dict[str, Any]:
  description = {
    name: {"dtype": _type(array), "shape": array.shape, "values": _shown(array.tolist())}
    for name, array in outputs.items()
  }
  return {
    "verdict": f"{model!r} answered in {seconds:.3g} s",
    "outputs": description,
    "seconds": round(seconds, 4),
  }


def _shown(value: Any) -> Any:
  """Text in place of bytes, or {"b64": ...} if they are not UTF-8."""
  if isinstance(value, list):
    return [*map(_shown, value)]
  if not isinstance(value, bytes):
    return value
  try:
    return value.decode()
  except UnicodeDecodeError:
    return {"b64": base64.b64encode(value).decode()}


def _type(array: Any) -> str:
  return "string" if array.dtype.kind == "O" else str(array.dtype)


def _table(outputs: dict[str, Any]) -> str:
  rows = []
  for name, array in outputs.items():
    first = _shown(array.ravel()[:_SHOWN].tolist())
    values = ", ".join(
      f"{value:.6g}" if array.dtype.kind == "f" else repr(value) for value in first
    )
    of_type = f"{_type(array)}[{','.join(map(str, array.shape))}]"
    rows.append((name, of_type, values + (", ..." if array.size > _SHOWN else "")))
  return tables.text(("output", "type", "values"), rows, width=140)
