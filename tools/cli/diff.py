"""`jax2tf diff`: lists the differences of two SavedModels, or of two exported files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from jax2tf.tools.cli._verb import Answer, takes_sizes, verb


@verb
@click.argument("before", metavar="PATH")
@click.argument("after", metavar="PATH")
@click.option("--weights", is_flag=True, help="Show the variables with the largest differences.")
@click.option(
  "--layers",
  is_flag=True,
  help="Run both files on the same inputs, and show where their values inside first differ.",
)
@takes_sizes
def diff(before: str, after: str, weights: bool, layers: bool, sizes: Sequence[str]) -> Answer:
  """Lists the differences of two SavedModels, including the values of their variables, or of two
  ONNX or LiteRT files or folders of TF.js, also of different formats.

  \b
  Example:
    jax2tf diff build/model/1 build/model/2
    jax2tf diff model.onnx model.tflite --layers --size "b=2"
  """
  from jax2tf.tools.cli import _exported, _inspection  # noqa: PLC0415

  forms = [_exported.format_of(path) for path in (before, after)]
  values: list[Any] = []
  if None in forms:
    if layers:
      raise click.BadParameter(
        "it is for two files of ONNX or LiteRT, or folders of TF.js", param_hint="--layers"
      )
    changes, values = _inspection.diff(before, after)
  else:
    if weights:
      raise click.BadParameter("it is for two SavedModels", param_hint="--weights")
    files = list(zip((before, after), forms, strict=True))
    if layers:
      return _layers(files, sizes)
    contents = [form.inspect(path).as_json() | {"path": ""} for path, form in files]
    changes = list(_inspection.differences("", *contents))
  verdict = f"{len(changes)} differences" if changes else "no difference"
  text = _inspection.diff_text(changes) + (
    f"\n{_inspection.weights_text(values)}" if weights and values else ""
  )
  return (
    {"verdict": verdict, "differences": changes} | ({"weights": values} if weights else {}),
    text,
    int(bool(changes)),
  )


def _layers(files: Sequence[tuple[str, Any]], sizes: Sequence[str]) -> Answer:
  """Where the values inside of two files first differ; `files`: (path, module of its format)."""
  from jax2tf.converters.export import layers, verified  # noqa: PLC0415
  from jax2tf.tools.cli import _exported, _loading  # noqa: PLC0415

  (before, form), (after, _) = files
  contents = form.inspect(before)
  inputs = verified.drawn(contents, _loading.sizes(sizes))
  one, other = (each.values_inside(path, inputs) for path, each in files)
  rows = layers.compared(one, other)
  if not rows:
    raise ValueError(f"{before} and {after} have no value of a common name and size")
  outputs = {name for ends in contents.signatures.values() for name in ends["outputs"]}
  first = layers.first_difference(rows, outputs, _exported.TOLERANCE)
  verdict = f"the outputs agree, of {len(rows)} values"
  if first is not None:
    place = f"{first.name!r} is the first of {len(rows)} values that differs"
    verdict = f"{place}, by {first.relative:.1e} of the largest"
  answer = {"verdict": verdict, "layers": [vars(row) for row in rows]}
  return answer, f"{_exported.layers_text(rows)}\n{verdict}", int(first is not None)
