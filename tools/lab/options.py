"""Shared options of the laboratory."""

from __future__ import annotations

import click


def commas(context: click.Context, parameter: click.Parameter, value: str) -> list[str]:
  """The callback of a list option: converts `a,b` to ["a", "b"]."""
  del context, parameter
  return [part for part in value.split(",") if part]
