"""Runs the signatures of a .tflite file in a separate process, because some LiteRT kernels abort
the process. See `bundle/children.py`.

It is a script that needs only LiteRT and NumPy.
"""

from __future__ import annotations

import functools
import runpy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from ai_edge_litert import interpreter

_calls = runpy.run_path(str(Path(__file__).parents[1] / "bundle" / "calls.py"))


def main(request: Mapping[str, Any]) -> list[dict[str, Any]]:
  """{"model": path, "runs": [{"signature", "inputs", "timed", "anew", "floats"}]} -> the list of
  answers, in order."""
  answers: list[dict[str, Any]] = []
  try:
    runners = _opened(request["model"])
    for run in request["runs"]:
      if run["anew"]:
        runners = _opened(request["model"])
      prepared = functools.partial(_prepared, runners.get(run["signature"]), run)
      answers.append(_calls["answered"](prepared, run["timed"]))
      _calls["done"]()
  except Exception as error:  # the file cannot be opened
    return [_calls["failed"](_calls["sentence"](error))] * len(request["runs"])
  return answers


def _prepared(runner: Any, run: Mapping[str, Any]) -> Callable[[], Mapping[str, Any]]:
  if run["floats"] is None:
    return functools.partial(runner, **run["inputs"])
  takes, gives = runner.get_input_details(), runner.get_output_details()
  inputs = {
    name: _quantized(x, takes[name]) if name in run["floats"] else x
    for name, x in run["inputs"].items()
  }

  def call() -> dict[str, Any]:
    return {
      name: _dequantized(y, gives[name]) if name in run["floats"] else y
      for name, y in runner(**inputs).items()
    }

  return call


def _quantized(x: Any, tensor: Mapping[str, Any]) -> Any:
  scale, zero_point = tensor["quantization"]
  if not scale or tensor["dtype"] not in (np.int8, np.uint8):
    return x
  limits = np.iinfo(tensor["dtype"])
  return np.clip(np.round(x / np.float32(scale)) + zero_point, limits.min, limits.max).astype(
    tensor["dtype"]
  )


def _dequantized(y: Any, tensor: Mapping[str, Any]) -> Any:
  scale, zero_point = tensor["quantization"]
  return (
    np.float32(scale) * (y.astype(np.float32) - zero_point)
    if scale and y.dtype in (np.int8, np.uint8)
    else y
  )


def _opened(path: str) -> dict[str, Any]:
  model = interpreter.Interpreter(model_path=path)
  return {name: model.get_signature_runner(name) for name in model.get_signature_list()}


if __name__ == "__main__":
  _calls["respond"](main)
