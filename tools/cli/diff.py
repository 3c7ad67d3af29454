"""`jax2tf diff`: lists the differences of two SavedModels."""

from __future__ import annotations

import click

from jax2tf.tools.cli._verb import Answer, verb


@verb
@click.argument("before", metavar="DIR")
@click.argument("after", metavar="DIR")
@click.option("--weights", is_flag=True, help="Show the variables with the largest differences.")
def diff(before: str, after: str, weights: bool) -> Answer:
  """Lists the differences of two SavedModels, including the values of their variables.

  \b
  Example:
    jax2tf diff build/model/1 build/model/2
  """
  from jax2tf.tools.cli import _inspection  # noqa: PLC0415

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
