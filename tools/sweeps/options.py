"""What the options of the sweeps share."""

from __future__ import annotations

import click


def commas(context: click.Context, parameter: click.Parameter, value: str) -> list[str]:
  """The callback of an option that is a list: `a,b` -> ["a", "b"]."""
  del context, parameter
  return [part for part in value.split(",") if part]
