"""Releases of ONNX Runtime, each in an environment of its own, and their answers to a model.

An environment has the release and NumPy only. It stays in build/onnx-runtimes for the next run.
"""

from __future__ import annotations

import pathlib
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jax2tf.converters.bundle import calls
from jax2tf.converters.onnx import bfloat16
from jax2tf.tools.lab import environments
from tests.support.runtimes import REPOSITORY

FOLDER = REPOSITORY / "build" / "onnx-runtimes"
# Releases before 1.19 were built against NumPy 1; newer ones run with it too.
_NUMPY = "numpy<2"
_PATIENCE = 120  # seconds for one model; a loop with a wrong condition does not end

# The program of an environment.
_PROGRAM = """
import numpy as np, onnxruntime
options = onnxruntime.SessionOptions()
options.log_severity_level, options.intra_op_num_threads = 4, 1
def opened(model):
  return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
def answers(model, runs):
  session, errors = opened(model), []
  for names, inputs, outputs in runs:
    try:
      with np.load(inputs) as arrays:
        np.savez(outputs, *session.run(None, dict(zip(names, arrays.values()))))
      errors.append("")
    except Exception as error:
      errors.append(f"{type(error).__name__}: {error}")
  return [output.name for output in session.get_outputs()], errors
def kernels():
  state = onnxruntime.capi.onnxruntime_pybind11_state
  return [
    [kernel.op_name, *kernel.version_range, dict(kernel.type_constraints)]
    for kernel in getattr(state, "get_all_opkernel_def", lambda: [])()
    if kernel.provider == "CPUExecutionProvider" and kernel.domain == ""
  ]
def answer(what, *asked):
  return {"answers": answers, "kernels": kernels}[what](*asked)
"""


class Release:
  """A release 1.`number` of ONNX Runtime, in a process that starts when it is first asked."""

  def __init__(self, number: int, python: pathlib.Path):
    self.number = number
    self._program = environments.Program(python, _PROGRAM, seconds=_PATIENCE)

  @classmethod
  def installed(cls, number: int, interpreters: Sequence[str]) -> Release:
    """Installs the newest 1.`number`, unless its environment is there.

    Args:
      number: the release.
      interpreters: Python interpreters to try, in this order.

    Raises:
      RuntimeError: pip has no such release for any of the interpreters. It quotes pip.
    """
    requirements = (f"onnxruntime==1.{number}.*", _NUMPY)
    return cls(number, environments.installed(FOLDER / f"1.{number}", requirements, interpreters))

  def opens(self, model: pathlib.Path) -> bool:
    """Whether the release opens a model."""
    _, error = self._program.ask("answers", str(model), [])
    return not error

  def answers(self, model: pathlib.Path, inputs: Sequence[Mapping[str, Any]]) -> list[calls.Answer]:
    """The answer of the model to each {input: array}. A release that refuses the model, or dies of
    it, answers so."""
    with tempfile.TemporaryDirectory() as place:
      folder = pathlib.Path(place)
      asked = []
      for i, arrays in enumerate(inputs):
        np.savez(folder / f"in_{i}", *map(bfloat16.as_held, map(np.asarray, arrays.values())))
        files = [str(folder / f"{kind}_{i}.npz") for kind in ("in", "out")]
        asked.append([list(arrays), *files])
      result, error = self._program.ask("answers", str(model), asked)
      names, errors = result or ([], [error] * len(inputs))
      return [
        calls.failed(failure) if failure else _answer(names, out)
        for (*_, out), failure in zip(asked, errors, strict=True)
      ]

  def kernels(self) -> list[tuple[str, int, int, Mapping[str, Sequence[str]]]]:
    """(op, first opset, last opset, {type variable: types}) of each CPU kernel. None before 1.16,
    which does not list them."""
    found, error = self._program.ask("kernels")
    if error:
      raise RuntimeError(f"ONNX Runtime 1.{self.number}: {error}")
    return [(op, first, last, types) for op, first, last, types in found]


def _answer(names: Sequence[str], file: Any) -> calls.Answer:
  with np.load(file) as arrays:
    outputs = dict(zip(names, arrays.values(), strict=True))
  return {"outputs": outputs, "error": "", "seconds": None}
