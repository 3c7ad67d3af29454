"""Runs the signatures of a .tflite file in a separate process, because some LiteRT kernels abort the process.

It is a script that needs only LiteRT and NumPy.
"""

from __future__ import annotations

import functools
import pickle
import runpy
import sys
from pathlib import Path
from typing import Any

from ai_edge_litert import interpreter

_calls = runpy.run_path(str(Path(__file__).parents[1] / "comparison" / "calls.py"))


def main(request_file: str, response_file: str) -> None:
  """{"model": path, "runs": [{"signature", "inputs", "timed", "anew"}]} -> the list of answers, in order."""
  request = pickle.loads(Path(request_file).read_bytes())
  answers: list[dict[str, Any]] = []
  try:
    runners = _opened(request["model"])
    for run in request["runs"]:
      if run["anew"]:
        runners = _opened(request["model"])
      runner = runners.get(run["signature"])
      answers.append(_calls["answered"](lambda run=run, runner=runner: functools.partial(runner, **run["inputs"]), run["timed"]))
      print("done", flush=True)
  except Exception as error:  # the file cannot be opened
    answers = [_calls["failed"](_calls["sentence"](error))] * len(request["runs"])
  Path(response_file).write_bytes(pickle.dumps(answers))


def _opened(path: str) -> dict[str, Any]:
  model = interpreter.Interpreter(model_path=path)
  return {name: model.get_signature_runner(name) for name in model.get_signature_list()}


if __name__ == "__main__":
  main(*sys.argv[1:])
