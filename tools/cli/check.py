"""`jax2tf check`: what of a function a target lacks."""

from __future__ import annotations

from collections.abc import Sequence

import click

from jax2tf.tools.cli._verb import Answer, takes_function, takes_inputs, verb


@verb
@takes_function
@takes_inputs
@click.option("--for", "targets", default="serving", show_default=True, help="Of serving, tflite, onnx, tfjs; with commas between.")
@click.option("--quick", is_flag=True, help="Lower the function, and export to no target.")
def check(
  function: str,
  library: str | None,
  params: str | None,
  state: str | None,
  constraints: Sequence[str],
  inputs: Sequence[str],
  targets: str,
  quick: bool,
) -> Answer:
  """Says what of a function a target lacks, with your lines; writes nothing."""
  from jax2tf.tools.cli import _gaps, _loading  # noqa: PLC0415

  specs = _loading.inputs(inputs, constraints)
  model = _loading.model(function, library, params, state, lambda: specs, constraints)
  found = _gaps.gaps(model.fun, model.params, specs, constraints, targets.split(","), quick, model.state)
  code = int(any(map(_gaps.missing, found.values())))
  return {"verdict": _gaps.verdict(found, quick), "exported": not quick, "targets": found}, _gaps.text(found, quick), code
