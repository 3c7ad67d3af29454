"""ONNX files in tests: a session of ONNX Runtime without the exporter's own code, and the nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import onnxruntime


def opened(path: Path, options: Any = None) -> Any:
  """A session on a CPU."""
  return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def nodes(path: Path) -> list[str]:
  """The types of the nodes of the outermost graph."""
  return [node.op_type for node in onnx.load(path).graph.node]
