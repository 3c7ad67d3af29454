"""What becomes of one closed model."""

from __future__ import annotations

import dataclasses
import functools
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tensorflow as tf

import jax2tf
from jax2tf import stablehlo
from jax2tf.converters import onnx, opened, tfjs, tflite
from jax2tf.converters.opened import files, rewriting
from jax2tf.tools.lab import measure
from tests.support import stored_artifacts as stored
from tests.support.archives import npz

_SECONDS = 3.0  # of a measurement
_ROWS = 64  # of a batch
_EXPORTERS = {"onnx": onnx, "tflite": tflite, "tfjs": tfjs}
# What TensorFlow removes before it runs a graph.
_NO_WORK = {
  "Const",
  "Identity",
  "NoOp",
  "Placeholder",
  "PartitionedCall",
  "StatefulPartitionedCall",
}


@dataclasses.dataclass(frozen=True)
class Row:
  """What became of a model.

  Attributes:
    opened: how the opened model compares with the closed one.
    onnx, tflite, tfjs: the verdicts of the exporters, or why they refuse.
    nodes: of the opened model over those of the same function converted directly.
    speed: the time of a call of the opened model over that of the direct one.
    seconds: that it takes to open the model without the comparison.
  """

  model: str
  opened: str
  onnx: str = ""
  tflite: str = ""
  tfjs: str = ""
  nodes: float | None = None
  speed: float | None = None
  seconds: float | None = None


def run(name: str) -> Row:
  """One model, with everything that is measured of it."""
  with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
    warnings.simplefilter("ignore")
    if name.startswith("torch-"):
      return _of_module(name, Path(folder))
    [source] = [path for path in stored.closed_models(Path(folder)) if path.name == name]
    began = time.perf_counter()
    files.copied(source, Path(folder, "copy"), rewriting.opened)
    seconds = time.perf_counter() - began
    model = Path(folder, "opened")
    verdict = _verdict(functools.partial(opened.save, source), model)
    if not model.exists():
      return Row(name, verdict)
    saves = {
      to: functools.partial(each.save_model, model, signatures=["serving_default"])
      for to, each in _EXPORTERS.items()
    }
    row = _row(name, verdict, saves, Path(folder), seconds)
    direct = _direct(name, Path(folder, "direct"))
    nodes, speed = _against_direct(model, direct, source)
    return dataclasses.replace(row, nodes=nodes, speed=speed)


def _row(
  name: str, verdict: str, saves: Mapping[str, Callable[..., Any]], folder: Path, seconds: float
) -> Row:
  """The row of a model that is read, with the exports by these functions of a path."""
  in_onnx, in_litert, in_tfjs = (_verdict(saves[to], folder / to) for to in _EXPORTERS)
  return Row(name, verdict, in_onnx, in_litert, in_tfjs, seconds=seconds)


def _verdict(export: Callable[..., Any], path: Path) -> str:
  try:
    return str(export(path).report.verdict)
  except (NotImplementedError, ValueError, RuntimeError) as error:
    return "refused: " + " ".join(str(error).split())[:150]


def _of_module(name: str, folder: Path) -> Row:
  """A module of PyTorch, which is no SavedModel: it is read, and exported with its weights."""
  module, arrays = stored.torch_modules()[name.removeprefix("torch-")]
  began = time.perf_counter()
  function = stablehlo.load(module)
  seconds = time.perf_counter() - began
  weights = [arrays[f"w{index}"] for index in range(sum(key[0] == "w" for key in arrays))]

  def predict(weights: Any, x: Any) -> Any:
    operands = [*weights, x]
    return function(*(operands[index] for index in arrays["kept"]))

  aval = function.in_avals[-1]  # the input, without which there would be no result
  x = arrays["x"].astype(aval.dtype)
  np.testing.assert_allclose(jax.tree.leaves(predict(weights, x))[0], arrays["y"], 1e-4, 1e-5)
  inputs = {"x": jax.ShapeDtypeStruct(x.shape, x.dtype)}
  saves = {
    to: functools.partial(each.save, predict, weights, inputs=inputs)
    for to, each in _EXPORTERS.items()
  }
  return _row(name, "PyTorch's values", saves, folder, seconds)


def _direct(name: str, folder: Path) -> Path:
  """The SavedModel of the same function, converted directly."""
  from tests.support import write_closed  # noqa: PLC0415  (sets the backend of Keras)

  folder.mkdir()
  way, _, model = name.split("-", 2)
  if way == "keras":
    with jax2tf.install():
      write_closed.keras(str(folder), [model], native_serialization=False)
    return next(path for path in folder.iterdir() if path.is_dir())

  def convert(function: Any, native_serialization: bool = False, **options: Any) -> Any:
    del native_serialization
    return jax2tf.convert(function, **options)

  if model == "loop":
    write_closed.save_loop(convert, str(folder), model)
  else:
    write_closed.save(convert, model, str(folder), model)
  return folder / model


def _against_direct(opened_model: Path, direct: Path, source: Path) -> tuple[float, float]:
  """(ratio of the nodes, ratio of the times of a call)."""
  models = {"opened": opened_model, "direct": direct}
  loaded = {name: tf.saved_model.load(str(path)) for name, path in models.items()}
  calls, counts = {}, {}
  for name, model in loaded.items():
    signature = model.signatures["serving_default"]
    counts[name] = sum(op not in _NO_WORK for op in _ops(signature.graph.as_graph_def()))
    calls[name] = functools.partial(signature, **_batch(signature, source))
  times = measure.milliseconds(calls, _SECONDS)
  return counts["opened"] / counts["direct"], times["opened"] / times["direct"]


def _ops(definition: Any) -> Iterator[str]:
  """The ops of a graph and of the functions that a call of it runs; not those of gradients, which
  only attributes of other ops name."""
  functions = {function.signature.name: function for function in definition.library.function}
  waiting: list[Any] = [definition.node]
  seen: set[str] = set()
  while waiting:
    for node in waiting.pop():
      yield node.op
      called = [attribute.func.name for attribute in node.attr.values()]
      called += [each.name for attribute in node.attr.values() for each in attribute.list.func]
      new = {name for name in called if name in functions} - seen
      seen |= new
      waiting += [functions[name].node_def for name in sorted(new)]


def _batch(signature: Any, source: Path) -> dict[str, tf.Tensor]:
  """The stored input, repeated along a first axis of unknown size."""
  [(name, spec)] = signature.structured_input_signature[1].items()
  x = npz(f"{source}.npz")["x"]
  if spec.shape[0] is None:
    x = np.concatenate([x] * -(-_ROWS // len(x)))[:_ROWS]
  return {name: tf.constant(x)}
