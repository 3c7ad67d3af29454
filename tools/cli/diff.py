"""`jax2tf diff`: how two SavedModels differ."""

from __future__ import annotations

import click

from jax2tf.tools.cli._verb import Answer, verb


@verb
@click.argument("before", metavar="DIR")
@click.argument("after", metavar="DIR")
@click.option("--weights", is_flag=True, help="Show the variables whose values differ most.")
def diff(before: str, after: str, weights: bool) -> Answer:
  """Says how two SavedModels differ, the values of their variables too."""
  from jax2tf.tools.cli import _inspection  # noqa: PLC0415

  found, values = _inspection.diff(before, after)
  verdict = f"{len(found)} differences" if found else "no difference"
  text = _inspection.diff_text(found) + (f"\n{_inspection.weights_text(values)}" if weights and values else "")
  return {"verdict": verdict, "differences": found} | ({"weights": values} if weights else {}), text, int(bool(found))
