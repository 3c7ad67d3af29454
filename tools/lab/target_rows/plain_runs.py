"""A model of the zoo in plain tf2onnx and plain TFLiteConverter, as a script calls them, without
and with our published calls."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import tensorflow as tf

import jax2tf
from jax2tf.converters import onnx, tflite
from jax2tf.converters.bundle import calls
from jax2tf.converters.bundle.notation import Spec
from jax2tf.converters.export.source import Runner
from jax2tf.converters.saved_model.arguments import tensor_specs
from jax2tf.converters.saved_model.draws import HOSTILE, SUBNORMAL
from jax2tf.converters.tflite import runtime
from jax2tf.converters.verify import answers, plan
from jax2tf.tools.lab.pages.targets import REFUSED, RIGHT, WRONG
from tests.support.runtimes import Case, in_turn

Verdict = tuple[str, str]  # one of these, and why


class Asked:
  """A model of the zoo, converted once, with the runs and the answers of jax.jit.

  Attributes:
    entry: its entry in the zoo.
  """

  def __init__(self, case: Case):
    self._case, self.entry = case, case.entry

  @functools.cached_property
  def function(self) -> Any:
    """The model as a tf.function with its input signature, with variables for its parameters."""
    fun, params = self._case.built
    specs = {name: Spec.parse(text) for name, text in self.entry.inputs.items()}
    shapes = [f"({', '.join(map(str, spec.dims or ()))})" for spec in specs.values()]
    convert = jax2tf.convert(
      fun, polymorphic_shapes=[None, *shapes], polymorphic_constraints=self.entry.constraints
    )
    variables = jax.tree.map(lambda x: tf.Variable(np.asarray(x)), params)
    names = list(self._case.signature.record.outputs)

    specs = tensor_specs(self.entry.inputs, "inputs")

    @tf.function(autograph=False, input_signature=list(specs.values()))  # type: ignore[untyped-decorator]
    def function(*inputs: tf.Tensor) -> dict[str, tf.Tensor]:
      return dict(zip(names, jax.tree.leaves(convert(variables, *inputs)), strict=True))

    return function

  @functools.cached_property
  def answers(self) -> tuple[list[plan.Run], list[answers.Expected]]:
    """Runs on ordinary inputs at two sizes of each dimension, and the answers of jax.jit."""
    options = plan.Comparison(samples=1, examples=self.entry.examples, **self._case.comparison)
    runs = [
      replace(run, timed=False)
      for run in self._case.source.runs(options)
      if run.values not in (HOSTILE, SUBNORMAL)
    ]
    return runs, list(answers.reference_answers(runs, ()))


def verdict(model: Asked, tool: str, with_call: bool) -> Verdict:
  """What a tool makes of a model: whether its file agrees with jax.jit.

  Args:
    model: the model.
    tool: a key of `TOOLS`.
    with_call: whether the script has our published call.
  """
  try:
    answer = TOOLS[tool](model.function, with_call)
  except Exception as error:  # whatever the tool raises
    return REFUSED, calls.sentence(error).replace(f"{os.getcwd()}/", "")  # of whoever runs it
  runs, expected = model.answers
  found = answer(runs)
  if errors := [one["error"] for one in found if one["error"]]:
    return REFUSED, errors[0]
  rows = answers.rows(runs, found, expected, model.entry.rtol, model.entry.atol)
  problems = [f"{row.place}: {row.problem}" for row in rows if row.problem]
  return (WRONG, problems[0]) if problems else (RIGHT, "")


def _tf2onnx(function: Any, with_call: bool) -> Runner:
  import onnxruntime  # noqa: PLC0415  (an extra, whose import takes seconds)
  import tf2onnx  # noqa: PLC0415

  with _silent("tf2onnx"):
    if with_call:
      prepared, handlers = onnx.prepared(function), onnx.custom_op_handlers()
      model, _ = tf2onnx.convert.from_function(
        prepared, function.input_signature, opset=18, custom_op_handlers=handlers
      )
    else:
      model, _ = tf2onnx.convert.from_function(function, function.input_signature, opset=18)
  session = onnxruntime.InferenceSession(
    model.SerializeToString(), providers=["CPUExecutionProvider"]
  )
  names = [output.name for output in session.get_outputs()]

  return in_turn(lambda inputs: dict(zip(names, session.run(names, dict(inputs)), strict=True)))


def _tflite(function: Any, with_call: bool) -> Runner:
  from ai_edge_litert import interpreter  # noqa: PLC0415  (an extra)

  concrete = function.get_concrete_function()
  made = tflite.converter if with_call else tf.lite.TFLiteConverter.from_concrete_functions
  converter = made([concrete], function)
  with runtime.quiet():
    contents = converter.convert()

  names = (
    [tensor.op.name for tensor in concrete.inputs if tensor.dtype != tf.resource],
    sorted(concrete.structured_outputs),
  )
  return in_turn(
    functools.partial(_interpreted, interpreter.Interpreter(model_content=contents), *names)
  )


def _interpreted(
  model: Any, inputs: Sequence[str], outputs: Sequence[str], given: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
  places = [detail["index"] for detail in model.get_input_details()]
  for place, name in zip(places, inputs, strict=True):
    model.resize_tensor_input(place, given[name].shape)
  model.allocate_tensors()
  for place, name in zip(places, inputs, strict=True):
    model.set_tensor(place, given[name])
  model.invoke()
  return {
    name: model.get_tensor(detail["index"])
    for name, detail in zip(outputs, model.get_output_details(), strict=True)
  }


@contextlib.contextmanager
def _silent(name: str) -> Iterator[None]:
  logger = logging.getLogger(name)
  before, logger.disabled = logger.disabled, True
  try:
    yield
  finally:
    logger.disabled = before


TOOLS: Mapping[str, Callable[[Any, bool], Runner]] = {
  "tf2onnx": _tf2onnx,
  "TFLiteConverter": _tflite,
}
