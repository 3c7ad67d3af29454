"""The process that `verify` starts: runs a SavedModel with TensorFlow and NumPy, and prevents
imports of JAX. See `bundle/children.py`.
"""

from __future__ import annotations

import functools
import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

_BUNDLE = Path(__file__).parents[1] / "bundle"
_calls, _graphs = (runpy.run_path(str(_BUNDLE / name)) for name in ("calls.py", "graphs.py"))
# Packages that the model must not need.
ABSENT = ("jax", "jaxlib", "jax2tf")


def main(request: dict[str, Any]) -> dict[str, Any]:
  """Loads the model and runs the request. A failure of the model is an answer too."""
  # the `__main__` block hides JAX first: TensorFlow imports it where it finds it
  import tensorflow as tf  # noqa: PLC0415

  response: dict[str, Any] = {"error": "", "signatures": [], "runs": []}
  try:
    model = tf.saved_model.load(request["directory"])
    response["signatures"] = sorted(model.signatures)
    response["runs"] = list(_answers(tf, model, request["runs"]))
  except Exception as error:
    response["error"] = _calls["sentence"](error)
  packages = {name.partition(".")[0] for name, module in sys.modules.items() if module is not None}
  return response | {
    "packages": sorted(packages),
    "versions": {
      "python": sys.version.split()[0],
      "tensorflow": tf.__version__,
      "device": "gpu" if tf.config.list_physical_devices("GPU") else "cpu",
    },
  }


def _answers(tf: Any, model: Any, runs: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
  saved = [(variable, variable.numpy()) for variable in _written(model)]
  for run in runs:
    if not run["continues"]:
      for variable, value in saved:  # as if the model were loaded again
        variable.assign(value)
    yield _calls["answered"](functools.partial(_prepared, tf, model, run), run["timed"])
    _calls["done"]()


def _prepared(tf: Any, model: Any, run: dict[str, Any]) -> Callable[[], dict[str, Any]]:
  tensors = {name: tf.constant(array) for name, array in run["inputs"].items()}
  state = dict(zip(run["state"], model.state_variables, strict=True)) if run["state"] else {}
  return functools.partial(_outputs, model.signatures[run["signature"]], tensors, state)


def _outputs(signature: Any, tensors: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
  outputs = {name: tensor.numpy() for name, tensor in signature(**tensors).items()}
  return outputs | {f"state/{path}": variable.numpy() for path, variable in state.items()}


def _written(model: Any) -> list[Any]:
  """The variables of a model whose signatures write variables, such as a training step."""
  for signature in model.signatures.values():
    if _graphs["writers"](signature.graph.as_graph_def()):
      return list(
        {v.handle.ref(): v for s in model.signatures.values() for v in s.variables}.values()
      )
  return []


if __name__ == "__main__":
  for package in ABSENT:
    sys.modules[package] = None  # type: ignore[assignment]
  _calls["respond"](main)
