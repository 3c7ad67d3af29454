"""`jax2tf query`: sends one request to a server and prints the answer as a table."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import click

from jax2tf.tools.cli._failures import failures
from jax2tf.tools.cli._progress import Progress
from jax2tf.tools.cli._verb import takes_debug

_FILE = click.Path(exists=True, dir_okay=False)
_SHOWN = 6  # values in a row of the table


@click.command(context_settings={"show_default": True})
@click.argument("model")
@click.argument("inputs", metavar="INPUTS")
@click.option("--rest", default="127.0.0.1:8501", help="HOST:PORT of the REST API.")
@click.option("--grpc", "grpc_address", help="HOST:PORT of PredictionService, to use gRPC in place of REST.")
@click.option("--version", type=click.IntRange(0), help="The version of the model; the newest if neither this nor --label is given.")
@click.option("--label", help="The label of a version.")
@click.option("--signature", default="serving_default", help="The signature of the model to call.")
@click.option("--tls_ca", type=_FILE, help="The authority behind the server's certificate, in PEM; encrypts the request.")
@click.option("--tls_cert", type=_FILE, help="The client's certificate, in PEM, for a server that requires one.")
@click.option("--tls_key", type=_FILE, help="The key of --tls_cert, in PEM.")
@click.option("--seconds", type=click.FloatRange(0.001), default=60.0, help="The time limit for the answer.")
@click.option("--out", type=click.Path(dir_okay=False), help="An .npz file to write the outputs to.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, also for a failure.")
@takes_debug
def query(model: str, inputs: str, rest: str, grpc_address: str | None, out: str | None, as_json: bool, debug: bool, **options: Any) -> int:
  """Sends a request for MODEL to a server, by REST or gRPC, and prints the outputs.

  INPUTS is an .npz file with an array for each input, a .json file, or - for JSON on standard input. The JSON is an object with a value
  for each input, or a body of the REST API with "inputs" or "instances".

  \b
  Example:
    jax2tf query model inputs.npz --rest 127.0.0.1:8501
  """
  progress = Progress("jax2tf query")
  with failures(debug=debug), progress.shown():
    given = _read(inputs)
    if options["version"] is not None and options["label"]:
      raise ValueError("--version and --label exclude each other; give one")
    if bool(options["tls_cert"]) != bool(options["tls_key"]) or (options["tls_cert"] and not options["tls_ca"]):
      raise ValueError("--tls_cert and --tls_key go together, and with --tls_ca")
    from jax2tf.tools.cli import _clients  # noqa: PLC0415  (NumPy)

    tls = {name: options.pop(f"tls_{name}") for name in ("ca", "cert", "key")}
    target = _clients.Target(grpc_address or rest, model, **tls, **options)
    begin = time.monotonic()
    with progress.stage("wait for the server"):
      outputs = (_clients.by_grpc if grpc_address else _clients.by_rest)(target, given)
    seconds = time.monotonic() - begin
    if out:
      _write(out, outputs)
  click.echo(_json(outputs, seconds) if as_json else _table(outputs))
  return 0


def _read(inputs: str) -> dict[str, Any]:
  """Values by the names of the inputs: arrays or JSON values. A value without a name in a body of the REST API gets the name ""."""
  if inputs.endswith(".npz"):
    import numpy as np  # noqa: PLC0415

    try:
      with np.load(inputs, allow_pickle=False) as found:
        return dict(found)
    except Exception as error:  # zipfile, zlib, pickle and NumPy have their own errors
      raise ValueError(f"{inputs} is not a readable .npz file: {error}") from error
  try:
    found = json.load(sys.stdin) if inputs == "-" else json.loads(Path(inputs).read_text(encoding="utf-8"))
  except (UnicodeDecodeError, json.JSONDecodeError) as error:
    raise ValueError(f"{inputs} is neither .npz nor JSON: {error}") from error
  if not isinstance(found, dict) or not found:
    raise ValueError(f'{inputs} must have an object with a value for each input, such as {{"x": [[0.5, 1.0]]}}')
  if found.keys() == {"instances"}:
    return _columns(found["instances"])
  if found.keys() == {"inputs"}:
    return found["inputs"] if _is_named(found["inputs"]) else {"": found["inputs"]}
  return found


def _is_named(value: Any) -> bool:
  return isinstance(value, dict) and value.keys() != {"b64"}


def _columns(rows: Any) -> dict[str, Any]:
  if not isinstance(rows, list) or not any(map(_is_named, rows)):
    return {"": rows}
  if not all(_is_named(row) and row.keys() == rows[0].keys() for row in rows):
    raise ValueError('each of "instances" must be an object with the same names')
  return {name: [row[name] for row in rows] for name in rows[0]}


def _write(out: str, outputs: dict[str, Any]) -> None:
  import numpy as np  # noqa: PLC0415

  try:
    np.savez(out, **{name: array.astype(bytes) if array.dtype.kind == "O" else array for name, array in outputs.items()})
  except OSError as error:
    raise ValueError(f"{out} cannot be written: {error.strerror}") from error


def _json(outputs: dict[str, Any], seconds: float) -> str:
  shown = {
    name: {"dtype": _type(array), "shape": list(array.shape), "values": json.loads(json.dumps(array.tolist(), default=repr))}
    for name, array in outputs.items()
  }
  return json.dumps({"outputs": shown, "seconds": round(seconds, 4)}, indent=2)


def _type(array: Any) -> str:
  return "string" if array.dtype.kind in "OSU" else str(array.dtype)


def _table(outputs: dict[str, Any]) -> str:
  from rich import box, console, table  # noqa: PLC0415

  found = table.Table("output", "type", "values", box=box.SIMPLE_HEAD)
  for name, array in outputs.items():
    values = ", ".join(f"{value:.6g}" if array.dtype.kind == "f" else repr(value) for value in array.ravel()[:_SHOWN].tolist())
    found.add_row(name, f"{_type(array)}[{','.join(map(str, array.shape))}]", values + (", ..." if array.size > _SHOWN else ""))
  screen = console.Console(width=140, color_system=None)
  with screen.capture() as captured:
    screen.print(found)
  return "\n".join(line.rstrip() for line in captured.get().splitlines()).strip("\n")
