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
  if None not in forms:
    if weights:
      raise click.BadParameter("it is for two SavedModels", param_hint="--weights")
    return _of_files(before, after, forms, layers, sizes)
  if layers:
    raise click.BadParameter(
      "it is for two files of ONNX or LiteRT, or folders of TF.js", param_hint="--layers"
    )
  changes, values = _inspection.diff(before, after)
  verdict = f"{len(changes)} differences" if changes else "no difference"
  text = _inspection.diff_text(changes) + (
    f"\n{_inspection.weights_text(values)}" if weights and values else ""
  )
  return (
    {"verdict": verdict, "differences": changes} | ({"weights": values} if weights else {}),
    text,
    int(bool(changes)),
  )


def _of_files(
  before: str, after: str, forms: Sequence[Any], layers: bool, sizes: Sequence[str]
) -> Answer:
  from jax2tf.tools.cli import _exported, _inspection  # noqa: PLC0415

  old, new = (form.inspect(path) for form, path in zip(forms, (before, after), strict=True))
  if layers:
    from jax2tf.converters.export import layers as inside  # noqa: PLC0415
    from jax2tf.converters.export import verified  # noqa: PLC0415
    from jax2tf.tools.cli import _loading  # noqa: PLC0415

    inputs = verified.drawn(old, _loading.sizes(sizes))
    one, other = (
      form.values_inside(path, inputs) for form, path in zip(forms, (before, after), strict=True)
    )
    rows = inside.compared(one, other)
    if not rows:
      raise ValueError(f"{before} and {after} have no value of a common name and size")
    outputs = {name for ends in old.signatures.values() for name in ends["outputs"]}
    first = inside.first_difference(rows, outputs, _exported.TOLERANCE)
    verdict = f"the outputs agree, of {len(rows)} values"
    if first is not None:
      place = f"{first.name!r} is the first of {len(rows)} values that differs"
      verdict = f"{place}, by {first.relative:.1e} of the largest"
    answer = {"verdict": verdict, "layers": [vars(row) for row in rows]}
    return answer, f"{_exported.layers_text(rows)}\n{verdict}", int(first is not None)
  contents = [each.as_json() for each in (old, new)]
  for content in contents:
    del content["path"]
  changes = list(_inspection.differences("", *contents))
  verdict = f"{len(changes)} differences" if changes else "no difference"
  return (
    {"verdict": verdict, "differences": changes},
    _inspection.diff_text(changes),
    int(bool(changes)),
  )
