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
  help="Some of serving, tflite, onnx, tfjs, separated by commas; serving by default.",
)
@click.option("--quick", is_flag=True, help="Only lower the function, without an export.")
@click.option(
  "--device",
  type=click.Choice(["gpu", "tpu"]),
  help="List which ops do not stay on a device, by TensorFlow's kernels; no device is needed.",
)
@click.option("--run", is_flag=True, help="With --device gpu: also run it there, and show times.")
@click.option("--with_gradient", is_flag=True, help="With --device: include the gradient.")
@takes_sizes
def check(
  named: Named,
  inputs: Sequence[str],
  targets: str | None,
  quick: bool,
  device: str | None,
  run: bool,
  with_gradient: bool,
  sizes: Sequence[str],
) -> Answer:
  """Lists what each target lacks for a function, by file and line; writes nothing.

  \b
  Example:
    jax2tf check model:predict --params weights.npz --input "x=f32[b,784]" --for serving,onnx
    jax2tf check model:predict --params weights.npz --input "x=f32[b,784]" --device gpu
  """
  from jax2tf.tools.cli import _gaps, _loading  # noqa: PLC0415

  if (run or with_gradient) and device is None:
    raise click.UsageError("--run and --with_gradient go with --device")
  if device is not None and (targets is not None or quick):
    raise click.UsageError("--device stands alone: check --for in another call")
  specs = _loading.inputs(inputs, named.polymorphic_constraints)
  model = _loading.model(named, lambda: specs)
  if device is not None:
    from jax2tf.tools.cli import _devices  # noqa: PLC0415

    constraints = named.polymorphic_constraints
    subject = _devices.subject(model, specs, constraints, device, with_gradient)
    found = _devices.of_function(subject, device)
    taken = None
    if run:
      drawn = _devices.drawn(specs, constraints, _loading.sizes(sizes))
      taken = _devices.times(subject, drawn, f"{device.upper()}:0")
    answer = {"verdict": _devices.verdict(found), "device": _devices.as_json(found, taken)}
    return answer, _devices.text(found, taken), int(not found.is_ready)
  gaps_of_targets = _gaps.gaps(
    model,
    specs,
    named.polymorphic_constraints,
    (targets or "serving").split(","),
    quick,
    _loading.sizes(sizes),
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
