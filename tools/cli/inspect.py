"""`jax2tf inspect`: shows the contents of a SavedModel."""

from __future__ import annotations

import click

from jax2tf.tools.cli._verb import Answer, verb


@verb
@click.argument("path", metavar="DIR")
def inspect(path: str) -> Answer:
  """Shows the contents of a SavedModel.

  \b
  Example:
    jax2tf inspect build/model
  """
  from jax2tf.tools.cli import _inspection  # noqa: PLC0415

  content = _inspection.inspect(path)
  return {"verdict": "read"} | content, _inspection.text(content), 0
