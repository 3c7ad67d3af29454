"""`jax2tf verify`: a SavedModel against its JAX function."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from jax2tf.tools.cli._verb import Answer, takes_function, verb


@verb
@click.argument("directory", metavar="DIR")
@takes_function
@click.option("--report", metavar="FOLDER", help="Write the report there: text, JSON and HTML.")
@click.option("--samples", type=click.IntRange(1), default=3, show_default=True, help="Draws for each size.")
def verify(
  directory: str,
  function: str,
  library: str | None,
  params: str | None,
  state: str | None,
  constraints: Sequence[str],
  report: str | None,
  samples: int,
) -> Answer:
  """Compares a SavedModel with the JAX function, in a process without JAX."""
  from jax2tf.converters import verify  # noqa: PLC0415
  from jax2tf.tools.cli import _loading  # noqa: PLC0415

  model = _loading.model(function, library, params, state, lambda: _inputs_of(Path(directory)), constraints)
  found = verify.verify(
    directory, model.fun, params=model.params, state=model.state, samples=samples, polymorphic_constraints=constraints, report=report
  )
  return json.loads(found.json()), found.text(), int(not found.ok)


def _inputs_of(directory: Path) -> Mapping[str, str]:
  """Those of the function behind the first signature."""
  from jax2tf.converters.saved_model import manifest, publish  # noqa: PLC0415

  record = next(iter(manifest.read(publish.saved_model_in(directory) or directory).signatures.values()))
  return {name: spec for name, spec in record.inputs.items() if name not in record.passed_through}
