"""`jax2tf check`: lists what targets lack for a function."""

from __future__ import annotations

from collections.abc import Sequence

import click

from jax2tf.tools.cli._verb import Answer, Named, takes_function, takes_inputs, takes_sizes, verb


@verb
@takes_function
@takes_inputs
@click.option(
  "--for",
  "targets",
  default="serving",
  show_default=True,
  help="Some of serving, tflite, onnx, tfjs, separated by commas.",
)
@click.option("--quick", is_flag=True, help="Only lower the function, without an export.")
@takes_sizes
def check(
  named: Named, inputs: Sequence[str], targets: str, quick: bool, sizes: Sequence[str]
) -> Answer:
  """Lists what each target lacks for a function, by file and line; writes nothing.

  \b
  Example:
    jax2tf check model:predict --params weights.npz --input "x=f32[b,784]" --for serving,onnx
  """
  from jax2tf.tools.cli import _gaps, _loading  # noqa: PLC0415

  specs = _loading.inputs(inputs, named.polymorphic_constraints)
  model = _loading.model(named, lambda: specs)
  gaps_of_targets = _gaps.gaps(
    model, specs, named.polymorphic_constraints, targets.split(","), quick, _loading.sizes(sizes)
  )
  code = int(any(map(_gaps.missing, gaps_of_targets.values())))
  return (
    {
      "verdict": _gaps.verdict(gaps_of_targets, quick),
      "exported": not quick,
      "targets": gaps_of_targets,
    },
    _gaps.text(gaps_of_targets, quick),
    code,
  )
