"""Names that a test file imports and this JAX lacks: the tests may be of a neighbouring commit."""

from __future__ import annotations

import ast
import importlib
import pathlib
import unittest
from collections.abc import Iterator
from typing import Any


class Missing:
  """Stands for a name; a test that calls it is skipped."""

  def __init__(self, name: str):
    self._name = name

  def __call__(self, *args: Any, **kwargs: Any) -> Any:
    """
    Raises:
      unittest.SkipTest: always.
    """
    raise unittest.SkipTest(f"this JAX has no {self._name}")


def define(file: pathlib.Path) -> list[str]:
  """Defines the names that a file imports from modules of JAX without them, and returns them."""
  defined = []
  for module_name, name in _imported(file):
    try:
      module = importlib.import_module(module_name)
    except ImportError:
      continue
    if not hasattr(module, name) and not _is_module(f"{module_name}.{name}"):
      setattr(module, name, Missing(f"{module_name}.{name}"))
      defined.append(f"{module_name}.{name}")
  return defined


def _imported(file: pathlib.Path) -> Iterator[tuple[str, str]]:
  """(module, name) for each `from jax... import name` at the level of the module."""
  for node in ast.parse(file.read_text(encoding="utf-8")).body:
    if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "jax":
      yield from ((str(node.module), alias.name) for alias in node.names)


def _is_module(name: str) -> bool:
  try:
    importlib.import_module(name)
  except ImportError:
    return False
  return True
