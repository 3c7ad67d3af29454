"""Attributes of tf2onnx's modules and classes, replaced for a while."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any


@contextlib.contextmanager
def replaced(attributes: Iterable[tuple[Any, str, Any]]) -> Iterator[None]:
  """Sets each (owner, name, value), and the values before at the end."""
  attributes = list(attributes)
  before = [(owner, name, getattr(owner, name)) for owner, name, _ in attributes]
  try:
    for owner, name, value in attributes:
      setattr(owner, name, value)
    yield
  finally:
    for owner, name, value in before:
      setattr(owner, name, value)
