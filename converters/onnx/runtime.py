"""ONNX Runtime, and the other optional modules of the export to ONNX."""

from __future__ import annotations

from typing import Any

from .. import extras

RUNTIME = "ONNX Runtime"


def extra(module: str) -> Any:
  """A module of jax2tf[onnx]."""
  return extras.module(module, "onnx", "exporting to ONNX")


def session(model: str | bytes, options: Any = None, *, without_copies: bool = False) -> Any:
  """A model opened in ONNX Runtime on CPU.

  Args:
    model: a file, or the bytes of one.
    options: those of the session, by default `quiet_options`.
    without_copies: hold no copies of weights, neither for faster products nor in a wider dtype.
  """
  options = quiet_options() if options is None else options
  if without_copies:
    options.add_session_config_entry("session.disable_prepacking", "1")
  return extra("onnxruntime").InferenceSession(
    model,
    options,
    providers=["CPUExecutionProvider"],
    disabled_optimizers=["ConstantFolding"] if without_copies else None,
  )


def quiet_options() -> Any:
  """Session options without log output, and with float32 activations at quantised weights.

  Errors are raised; the warnings only concern optimisations. ONNX Runtime 1.32 makes one op of
  DequantizeLinear and MatMul, which by default quantises its activations to int8.
  """
  options = extra("onnxruntime").SessionOptions()
  options.log_severity_level = 4
  options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
  return options
