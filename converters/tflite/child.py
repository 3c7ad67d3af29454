"""Runs the signatures of a .tflite file in a process of its own, because some kernels end theirs.

It is a script, not a module of the package: LiteRT and NumPy are all that it imports.
"""

from __future__ import annotations

import pickle
import statistics
import sys
import timeit
from pathlib import Path
from typing import Any

import numpy as np
from ai_edge_litert import interpreter


def main(request_file: str, response_file: str) -> None:
  """The request is {"model": path, "runs": [{"signature", "inputs", "timed"}]}; the response the list of their answers, in order."""
  request = pickle.loads(Path(request_file).read_bytes())
  answers: list[dict[str, Any]] = []
  try:
    model = interpreter.Interpreter(model_path=request["model"])
    runners = {name: model.get_signature_runner(name) for name in model.get_signature_list()}
    for run in request["runs"]:
      answers.append(_answer(runners[run["signature"]], run["inputs"], run["timed"]))
      print("done", flush=True)
  except Exception as error:  # the file itself cannot be opened
    answers = [_failed(error)] * len(request["runs"])
  Path(response_file).write_bytes(pickle.dumps(answers))


def _answer(runner: Any, inputs: dict[str, np.ndarray], timed: bool) -> dict[str, Any]:
  try:
    outputs = runner(**inputs)
    seconds = statistics.median(timeit.repeat(lambda: runner(**inputs), number=1, repeat=5)) if timed else None
  except Exception as error:
    return _failed(error)
  return {"outputs": outputs, "error": "", "seconds": seconds}


def _failed(error: Exception) -> dict[str, Any]:
  return {"outputs": {}, "error": " ".join(f"{type(error).__name__}: {error}".split()), "seconds": None}


if __name__ == "__main__":
  main(*sys.argv[1:])
