"""`jax2tf verify`: compares a SavedModel with its JAX function."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import click

from jax2tf.tools.cli._verb import Answer, Named, takes_function, verb


@verb
@click.argument("directory", metavar="DIR")
@takes_function
@click.option("--report", metavar="FOLDER", help="The folder for the report as text, JSON and HTML.")
@click.option("--samples", type=click.IntRange(1), default=3, show_default=True, help="The number of random inputs for each size.")
def verify(directory: str, named: Named, report: str | None, samples: int) -> Answer:
  """Compares a SavedModel with the JAX function, in a process without JAX.

  \b
  Example:
    jax2tf verify build/model model:predict --params weights.npz
  """
  from jax2tf.converters import verify  # noqa: PLC0415
  from jax2tf.tools.cli import _loading  # noqa: PLC0415

  model = _loading.model(named, lambda: _inputs_of(Path(directory)))
  found = verify.verify(
    directory, model.fun, params=model.params, state=model.state, samples=samples, polymorphic_constraints=named.constraints, report=report
  )
  return json.loads(found.json()), found.text(), int(not found.ok)


def _inputs_of(directory: Path) -> Mapping[str, str]:
  """The inputs of the function of the first signature."""
  from jax2tf.converters.saved_model import manifest, publish  # noqa: PLC0415

  record = next(iter(manifest.read(publish.saved_model_in(directory) or directory).signatures.values()))
  return {name: spec for name, spec in record.inputs.items() if name not in record.passed_through}
