"""Packages that not everybody has: each exporter and report asks for its own when it needs it."""

from __future__ import annotations

import importlib
from typing import Any


def module(name: str, extra: str, purpose: str) -> Any:
  """A module of the extra jax2tf[extra], imported when it is asked for.

  Raises:
    ImportError: it is not installed; one line says what for and how to get it.
  """
  try:
    return importlib.import_module(name)
  except ImportError as error:
    raise ImportError(f"{purpose} needs {name.partition('.')[0]}: pip install 'jax2tf[{extra}]'") from error
