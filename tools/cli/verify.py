"""`jax2tf verify`: a SavedModel against its JAX function."""

from __future__ import annotations

import json
from collections.abc import Sequence

import click

from jax2tf.tools.cli._verb import Answer, takes_function, verb


@verb
@click.argument("directory", metavar="DIR")
@takes_function
@click.option("--report", metavar="FOLDER", help="Write the report there: text, JSON and HTML.")
@click.option("--samples", type=click.IntRange(1), default=3, show_default=True, help="Draws for each size.")
def verify(
  directory: str, function: str, params: str | None, state: str | None, constraints: Sequence[str], report: str | None, samples: int
) -> Answer:
  """Compares a SavedModel with the JAX function, in a process without JAX."""
  from jax2tf.converters import verify  # noqa: PLC0415
  from jax2tf.tools.cli import _loading  # noqa: PLC0415

  found = verify.verify(
    directory,
    _loading.function(function),
    params=_loading.parameters(params),
    state=_loading.state(state),
    samples=samples,
    polymorphic_constraints=constraints,
    report=report,
  )
  return json.loads(found.json()), found.text(), int(not found.ok)
