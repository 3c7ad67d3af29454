"""`jax2tf diff`: how two SavedModels differ."""

from __future__ import annotations

import click

from jax2tf.tools.cli._verb import Answer, verb


@verb
@click.argument("before", metavar="DIR")
@click.argument("after", metavar="DIR")
def diff(before: str, after: str) -> Answer:
  """Says how two SavedModels differ."""
  from jax2tf.tools.cli import _inspection  # noqa: PLC0415

  found = _inspection.diff(before, after)
  return found, _inspection.diff_text(found), int(bool(found))
