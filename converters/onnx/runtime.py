"""ONNX Runtime, and the other optional modules of the export to ONNX."""

from __future__ import annotations

from typing import Any

from .. import extras

RUNTIME = "ONNX Runtime"


def extra(module: str) -> Any:
  """A module of jax2tf[onnx]."""
  return extras.module(module, "onnx", "exporting to ONNX")


def session(model: str | bytes, options: Any = None) -> Any:
  """A model opened in ONNX Runtime on CPU: a file, or the bytes of one. `options` are by default
  `quiet_options`."""
  return extra("onnxruntime").InferenceSession(
    model, quiet_options() if options is None else options, providers=["CPUExecutionProvider"]
  )


def quiet_options() -> Any:
  """Session options without log output. Errors are raised; the warnings only concern
  optimisations."""
  options = extra("onnxruntime").SessionOptions()
  options.log_severity_level = 4
  return options
