"""The process that `verify` starts: runs a SavedModel with TensorFlow and NumPy, and prevents
imports of JAX.

Usage: python -P child.py REQUEST RESPONSE

Both files are pickles of plain containers and NumPy arrays. The process prints a line on stdout
after each run.
"""

from __future__ import annotations

import functools
import pickle
import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

_calls = runpy.run_path(str(Path(__file__).parents[1] / "comparison" / "calls.py"))
# Packages that the model must not need.
ABSENT = ("jax", "jaxlib", "jax2tf")


def main(request_file: str, response_file: str) -> None:
  """Loads the model, runs the request, and writes the answers. A failure of the model is an answer
  too."""
  for package in ABSENT:
    sys.modules[package] = None  # type: ignore[assignment]
  import tensorflow as tf  # noqa: PLC0415  (behind the lines that hide JAX: TensorFlow imports it where it finds it)

  request = pickle.loads(Path(request_file).read_bytes())
  response: dict[str, Any] = {"error": "", "signatures": [], "runs": []}
  try:
    model = tf.saved_model.load(request["directory"])
    response["signatures"] = sorted(model.signatures)
    response["runs"] = list(_answers(tf, model, request["runs"]))
  except Exception as error:
    response["error"] = _calls["sentence"](error)
  packages = {name.partition(".")[0] for name, module in sys.modules.items() if module is not None}
  response |= {
    "packages": sorted(packages),
    "versions": {"python": sys.version.split()[0], "tensorflow": tf.__version__},
  }
  Path(response_file).write_bytes(pickle.dumps(response))


def _answers(tf: Any, model: Any, runs: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
  saved = [(variable, variable.numpy()) for variable in _written(model)]
  for run in runs:
    if not run["continues"]:
      for variable, value in saved:  # as if the model were loaded again
        variable.assign(value)
    yield _calls["answered"](functools.partial(_prepared, tf, model, run), run["timed"])
    print("done", flush=True)


def _prepared(tf: Any, model: Any, run: dict[str, Any]) -> Callable[[], dict[str, Any]]:
  tensors = {name: tf.constant(array) for name, array in run["inputs"].items()}
  state = dict(zip(run["state"], model.state_variables, strict=True)) if run["state"] else {}
  return functools.partial(_outputs, model.signatures[run["signature"]], tensors, state)


def _outputs(signature: Any, tensors: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
  found = {name: tensor.numpy() for name, tensor in signature(**tensors).items()}
  return found | {f"state/{path}": variable.numpy() for path, variable in state.items()}


def _written(model: Any) -> list[Any]:
  """The variables of a model whose signatures write variables, such as a training step."""
  for signature in model.signatures.values():
    if _calls["writers"](signature.graph.as_graph_def()):
      return list(
        {v.handle.ref(): v for s in model.signatures.values() for v in s.variables}.values()
      )
  return []


if __name__ == "__main__":
  main(*sys.argv[1:])
