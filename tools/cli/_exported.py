"""Exported files on the command line: ONNX, LiteRT, and folders of TF.js."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jax2tf.converters.bundle.notation import Spec
from jax2tf.converters.export import layers as inside
from jax2tf.converters.export.contents import Contents
from jax2tf.converters.verify.report import Report, check_writable
from jax2tf.tools.cli import _loading
from jax2tf.tools.cli._inspection import table
from jax2tf.tools.cli._verb import Named

TOLERANCE = 1e-4  # of `--layers`, relative to the largest magnitude of a value


def format_of(path: str) -> Any:
  """The module that reads the file or folder; None for a SavedModel, or what is none of them."""
  if path.endswith(".onnx"):
    from jax2tf.converters.onnx import inspection as onnx  # noqa: PLC0415  (only one is needed)

    return onnx
  if path.endswith(".tflite"):
    from jax2tf.converters.tflite import inspection as tflite  # noqa: PLC0415

    return tflite
  if Path(path, "model.json").is_file():
    from jax2tf.converters.tfjs import inspection as tfjs  # noqa: PLC0415

    return tfjs
  return None


def verified(
  form: Any,
  path: str,
  named: Named,
  signatures: Sequence[str],
  sizes: Mapping[str, Sequence[int]],
  options: Mapping[str, Any],
) -> Report:
  """The report on a file.

  Args:
    form: from `format_of`.
    path: of the file.
    named: the function.
    signatures: to compare; all if it is empty.
    sizes: {dimension variable: sizes}.
    options: of `jax2tf.converters.verify.verify`.

  Raises:
    UsageError: the format has no such thing.
  """
  accepted = inspect.signature(form.verify).parameters
  given = {
    "--signature": ("signatures", list(signatures)),
    "--size": ("sizes", dict(sizes)),
    "--constraint": ("constraints", list(named.polymorphic_constraints)),
    "--state": ("state", named.state),
  }
  if strange := [flag for flag, (name, value) in given.items() if value and name not in accepted]:
    raise _loading.UsageError(f"{strange[0]} is of no use for {path}; leave it out")
  chosen = {name: value for name, value in given.values() if value}
  folder = options["report"]
  if folder is not None:
    check_writable(folder)
  model = _loading.model(
    named, lambda: next(iter(form.inspect(path).signatures.values()))["inputs"]
  )
  report: Report = form.verify(
    path,
    model.fun,
    params=model.params,
    samples=options["samples"],
    hostile=options["hostile"],
    **chosen,
  )
  if folder is not None:
    report.write(folder)
  return report


def text(contents: Contents, seconds: Mapping[str, float]) -> str:
  """The contents as tables for a terminal.

  Args:
    contents: of a file.
    seconds: {type of op: seconds of a call}; empty if they were not measured.
  """
  notes = "".join(f", {what} {note}" for what, note in contents.notes.items() if note)
  head = f"{contents.path}: {contents.format}, {contents.size / 2**20:.1f} MB{notes}"
  ends = [
    (name, key, end.removesuffix("s"), spec)
    for name, signature in contents.signatures.items()
    for end, specs in signature.items()
    for key, spec in specs.items()
  ]
  weights = sorted(contents.weights.items(), key=lambda item: -item[1].nbytes)
  shown = [(name, str(Spec(x.dtype, x.shape)), f"{x.nbytes:,}") for name, x in weights]
  parts = [
    head,
    table(("signature", "tensor", "", "dtype and shape"), ends),
    _ops(contents),
    table((f"{len(shown)} weights", "dtype and shape", "bytes"), shown),
  ]
  if seconds:
    total = sum(seconds.values())
    times = [(op, f"{1e6 * t:.0f}", f"{100 * t / total:.0f} %") for op, t in seconds.items()]
    parts.append(table(("op", "microseconds", "share"), times))
  return "\n\n".join(parts)


def _ops(contents: Contents) -> str:
  rows = []
  for op, row in contents.ops().items():
    taken = [f"{number} of {row['count']}" for number in row["taken"].values()]
    rows.append((op, str(row["count"]), ", ".join(row["dtypes"]), f"{row['bytes']:,}", *taken))
  return table(("op", "count", "dtypes", "bytes of weights", *contents.delegates), rows)


def layers_text(rows: Sequence[inside.Layer]) -> str:
  """The values that two files have, in order, for a terminal."""
  cells = [
    (row.name, "x".join(map(str, row.shape)), f"{row.largest:.3g}", f"{row.relative:.1e}")
    for row in rows
  ]
  return table(("value", "shape", "largest", "relative difference"), cells)
