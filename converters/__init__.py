"""Saves converted functions as SavedModels, and exports them to other formats.

The packages are imported on first access (PEP 562): servers and batches read SavedModels by way of
`bundle`, and load neither TensorFlow's converters nor JAX.
"""

import importlib
from typing import Any

__all__ = ["generation", "onnx", "opened", "saved_model", "tfjs", "tflite", "verify"]


def __getattr__(name: str) -> Any:
  """A public package."""
  if name in __all__:
    return importlib.import_module(f"{__name__}.{name}")
  raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
  return sorted({*globals(), *__all__})
