"""`jax2tf verify`: compares a SavedModel, or an exported file, with its JAX function."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence

import click

from jax2tf.converters.bundle import paths
from jax2tf.tools.cli._flags import worded
from jax2tf.tools.cli._verb import Answer, Named, takes_function, takes_sizes, verb


@verb
@click.argument("path", metavar="PATH")
@takes_function
@click.option(
  "--report", metavar="FOLDER", help="The folder for the report as text, JSON and HTML."
)
@click.option(
  "--samples",
  type=click.IntRange(1),
  default=3,
  show_default=True,
  help="The number of random inputs for each size.",
)
@click.option(
  "--signature",
  "signatures",
  multiple=True,
  help="A signature to compare; may be repeated. By default all.",
)
@click.option(
  "--hostile",
  is_flag=True,
  help="Differences for NaN, infinities and extreme numbers make the model wrong too.",
)
@click.option(
  "--device",
  type=click.Choice(["cpu", "gpu"]),
  help="Where TensorFlow runs a SavedModel; by default on a GPU if JAX has one.",
)
@takes_sizes
def verify(
  path: str,
  named: Named,
  report: str | None,
  samples: int,
  signatures: Sequence[str],
  hostile: bool,
  device: str | None,
  sizes: Sequence[str],
) -> Answer:
  """Compares a SavedModel with the JAX function, in a process without JAX; or an ONNX or LiteRT
  file, or a folder of TF.js, in its runtime.

  \b
  Example:
    jax2tf verify build/model model:predict --params weights.npz
    jax2tf verify model.onnx model:predict --params weights.npz
  """
  from jax2tf.converters import verify  # noqa: PLC0415
  from jax2tf.tools.cli import _exported, _loading  # noqa: PLC0415

  form = _exported.format_of(path)
  if form is not None:
    if device is not None:
      raise click.BadParameter("TensorFlow runs a SavedModel only", param_hint="--device")
    options = {"samples": samples, "hostile": hostile, "report": report}
    verified = _exported.verified(form, path, named, signatures, _loading.sizes(sizes), options)
    return json.loads(verified.json()), verified.text(), int(not verified.ok)
  model = _loading.model(named, lambda: _inputs_of(path))
  verified = verify.verify(
    path,
    model.fun,
    params=model.params,
    state=model.state,
    sizes=_loading.sizes(sizes),
    samples=samples,
    signatures=signatures or None,
    hostile=hostile,
    report=report,
    polymorphic_constraints=named.polymorphic_constraints,
    device=device,
  )
  verified = dataclasses.replace(
    verified, skipped={name: worded(why) for name, why in verified.skipped.items()}
  )
  return json.loads(verified.json()), verified.text(), int(not verified.ok)


def _inputs_of(path: str) -> Mapping[str, str]:
  """The inputs of the function of the first signature."""
  from jax2tf.converters.bundle import manifest, publish  # noqa: PLC0415

  saved = publish.saved_model_in(paths.of(path))
  record = next(iter(manifest.read(saved).signatures.values()))
  return {name: spec for name, spec in record.inputs.items() if name not in record.passed_through}
