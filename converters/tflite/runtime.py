"""LiteRT's converter and interpreter, without their log output."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from jax2tf import _tf_compat

from .. import extras
from ..bundle import children, graphs
from ..bundle.calls import Answer, failed
from ..bundle.manifest import SignatureRecord
from ..bundle.notation import Spec
from ..export.ends import in_parts, of_parts
from ..export.source import ExportError
from ..verify import plan
from . import flatbuffer, loops

TARGET, RUNTIME = "tflite", "LiteRT"
_LARGE = 2**28  # bytes of files
# Matches the ops without a kernel, and the types of their operands, in the last lines of the
# converter's error.
_LACKING = re.compile(r"^\s*tf\.(\w+)\((.*?)\) -> ", re.MULTILINE)


def extra(module: str) -> Any:
  """A module of jax2tf[tflite]."""
  return extras.module(module, "tflite", "exporting to TFLite")


def converted(
  functions: Mapping[str, Any],
  configure: Callable[[Any], None],
  refuse: Callable[[Mapping[str, str]], Exception],
  module: tf.Module | None = None,
) -> bytes:
  """A .tflite model of builtin ops.

  Args:
    functions: {signature: ConcreteFunction of named tensors}.
    configure: sets the options of the tf.lite.TFLiteConverter.
    refuse: makes the error from {op without a kernel: why}.
    module: holds the variables of the functions.

  Raises:
    ExportError: an op has no kernel, or the converter fails otherwise.
  """
  with tempfile.TemporaryDirectory(prefix="jax2tf-tflite-") as folder, quiet():
    tf.saved_model.save(module or tf.Module(), folder, signatures=dict(functions))
    _number_functions(Path(folder) / "saved_model.pb")
    converter = tf.lite.TFLiteConverter.from_saved_model(folder, signature_keys=list(functions))
    # Otherwise an infinity becomes the largest finite number: a comparison with it is folded to
    # False, and 0 * inf to 0.
    converter.canonicalizing_inf_as_min_max_float = False
    _tf_compat.edit_models(converter, loops.with_copies)
    configure(converter)
    try:
      return bytes(converter.convert())
    except Exception as error:
      if lacking := {
        op: f"no kernel for {op} of {types}" for op, types in _LACKING.findall(str(error))
      }:
        raise refuse(lacking) from error
      raise ExportError(
        TARGET, f"TensorFlow's TFLite converter fails: {_complaint(str(error))}"
      ) from error


def _number_functions(file: Path) -> None:
  """See `graphs.number_functions`: the .tflite file has these names."""
  model = saved_model_pb2.SavedModel.FromString(file.read_bytes())
  graphs.number_functions(model.meta_graphs[0].graph_def)
  file.write_bytes(model.SerializeToString(deterministic=True))


def with_variables(converter: Any) -> None:
  """Makes the converter keep variables; see `converted`."""
  converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
  converter.experimental_enable_resource_variables = True


def concrete(function: Callable[..., Any], specs: Mapping[str, tf.TensorSpec]) -> Any:
  """The ConcreteFunction of named tensors."""
  return tf.function(function, autograph=False).get_concrete_function(**specs)


def _complaint(message: str) -> str:
  """MLIR's first error, or else the first line. Drops MLIR's locations, which refer to the graph
  and not to the user's program."""
  lines = message.splitlines() or ["no message"]
  errors = [line.partition("error:")[2].strip() for line in lines if "error:" in line]
  return re.sub(r"^loc\(.*\): ", "", (errors or lines)[0])


def answers(
  model: Path, runs: Sequence[plan.Run], *, dequantized: bool = False
) -> Sequence[Answer]:
  """The answers of the file to the runs, in order, in a separate process that keeps variables
  between runs.

  A run of a stateful signature that does not continue the previous run starts from the variables of
  the file. `dequantized`: quantise floats for integer inputs of the file, and dequantise its
  integer outputs that are floats in the signature.
  """
  signatures = {run.subject.name for run in runs}
  is_large = model.stat().st_size > _LARGE
  if len(signatures) > 1 and is_large and not flatbuffer.has_variables(model):
    return _one_by_one(model, runs, dequantized)
  return _answers(model, runs, dequantized)


def _one_by_one(model: Path, runs: Sequence[plan.Run], dequantized: bool) -> Sequence[Answer]:
  """The answers, of one signature after the other, so that the weights are in memory once."""
  found: dict[str, Iterator[Answer]] = {}
  for name in dict.fromkeys(run.subject.name for run in runs):
    # not in the folder for temporary files, which may be in memory
    with tempfile.TemporaryDirectory(prefix=".jax2tf-", dir=model.parent) as folder:
      alone = Path(folder, model.name)
      flatbuffer.with_one_signature(model, name, alone)
      of_one = [run for run in runs if run.subject.name == name]
      found[name] = iter(_answers(alone, of_one, dequantized))
  return [next(found[run.subject.name]) for run in runs]


def _answers(model: Path, runs: Sequence[plan.Run], dequantized: bool) -> Sequence[Answer]:
  requests = [
    {
      "signature": run.subject.name,
      "inputs": {name: in_parts(np.asarray(x)) for name, x in run.inputs.items()},
      "timed": run.timed,
      "anew": bool(run.subject.paths) and not run.continues,
      "floats": _floats(run.subject.record) if dequantized else None,
    }
    for run in runs
  ]
  request = {"model": str(model), "runs": requests}
  ended = children.script(Path(__file__).with_name("child.py"), request, patience=children.PATIENCE)
  if ended.late:
    return [failed(f"{RUNTIME} did not answer within {children.PATIENCE} s")] * len(runs)
  if ended.response is not None:
    pairs = flatbuffer.complex_names(model)
    return [
      _whole(answer, pairs.get(run.subject.name, ()))
      for run, answer in zip(runs, ended.response, strict=True)
    ]
  last = runs[min(ended.runs, len(runs) - 1)]
  where = f"run {ended.runs} of signature {last.subject.name!r}"
  problem = f"{RUNTIME} ended its process with {ended.code} in {where}: {ended.reason}"
  return [failed(problem)] * len(runs)


def _whole(answer: Answer, names: Sequence[str]) -> Answer:
  """The answer with complex outputs of these names in place of their parts."""
  outputs = {name: of_parts(y) for name, y in answer["outputs"].items() if name in names}
  answer["outputs"] |= outputs
  return answer


def _floats(record: SignatureRecord) -> list[str]:
  """The names of floating point inputs and outputs."""
  specs = {**record.inputs, **record.outputs}
  return [
    name for name, text in specs.items() if jnp.issubdtype(Spec.parse(text).dtype, np.floating)
  ]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
  """Silences C++ libraries, which log to the stderr of the process, and Python's warnings."""
  stderr = os.dup(2)
  with (
    tempfile.TemporaryFile() as log,
    warnings.catch_warnings(),
    contextlib.redirect_stdout(io.StringIO()),
  ):
    warnings.simplefilter("ignore")
    sys.stderr.flush()
    os.dup2(log.fileno(), 2)
    try:
      yield
    finally:
      os.dup2(stderr, 2)
      os.close(stderr)
