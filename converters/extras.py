"""Optional packages. Each exporter and report imports its own on first use."""

from __future__ import annotations

import importlib
from typing import Any


def module(name: str, extra: str, purpose: str) -> Any:
  """Imports a module of the extra jax2tf[extra].

  Raises:
    ImportError: it is not installed. The message says what needs it and how to install it.
  """
  try:
    return importlib.import_module(name)
  except ImportError as error:
    raise ImportError(
      f"{purpose} needs {name.partition('.')[0]}: pip install 'jax2tf[{extra}]'"
    ) from error
