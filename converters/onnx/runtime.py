"""ONNX Runtime, and the other optional modules of the export to ONNX."""

from __future__ import annotations

from typing import Any

from .. import extras

RUNTIME = "ONNX Runtime"


def extra(module: str) -> Any:
  """A module of jax2tf[onnx]."""
  return extras.module(module, "onnx", "exporting to ONNX")


# Options of a session that holds no copies of weights, neither packed for faster products nor in a
# wider dtype. A call takes longer.
WITHOUT_COPIES = {
  "session.disable_prepacking": "1",
  "optimization.disable_specified_optimizers": "ConstantFolding",
}


def session(model: str | bytes, options: Any = None) -> Any:
  """A model opened in ONNX Runtime on CPU: a file, or the bytes of one. `options` are by default
  `quiet_options`."""
  return extra("onnxruntime").InferenceSession(
    model, quiet_options() if options is None else options, providers=["CPUExecutionProvider"]
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
