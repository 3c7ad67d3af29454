"""Shared code for the pictures of the gallery: their files and their style."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # draws to files, without a display
import matplotlib.pyplot as plt

BUILD = Path("build", "gallery")


def parser(description: str, name: str) -> argparse.ArgumentParser:
  """A parser with the option --picture, whose default is build/gallery/NAME.png."""
  made = argparse.ArgumentParser(
    description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
  )
  made.add_argument(
    "--picture", type=Path, default=BUILD / f"{name}.png", help="the picture to make"
  )
  return made


def subplots(*grid: int, size: tuple[float, float] = (9, 4), **options: Any) -> tuple[Any, Any]:
  """A figure of `size` inches, and its axes without upper and right spines."""
  with plt.rc_context(
    {
      "axes.spines.top": False,
      "axes.spines.right": False,
      "legend.frameon": False,
      "axes.titlesize": "medium",
    }
  ):
    return plt.subplots(*grid, figsize=size, layout="constrained", **options)


def save(figure: Any, file: Path) -> None:
  file.parent.mkdir(parents=True, exist_ok=True)
  figure.savefig(file, dpi=110)
  plt.close(figure)
  print(f"picture: {file}")
