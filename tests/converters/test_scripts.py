"""Scripts that call tf2onnx and TFLiteConverter themselves: what they get without our calls, and
with them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnxruntime
import pytest
import tensorflow as tf
import tf2onnx
from ai_edge_litert import interpreter
from jax import lax

import jax2tf
from jax2tf.converters import onnx, saved_model, tflite
from jax2tf.converters.tflite import runtime
from jax2tf.converters.verify import answers

X = np.linspace(-4, 4, 60, dtype=np.float32)
LONG = np.linspace(-1, 1, 100, dtype=np.float32)
IMAGE = np.random.default_rng(0).standard_normal((2, 8, 8, 3)).astype(np.float32)
KERNEL = np.random.default_rng(1).standard_normal((3, 3, 3, 4)).astype(np.float32)


def pooled(x: Any) -> Any:
  return lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")


def transposed(x: Any) -> Any:
  return lax.conv_general_dilated(
    x, KERNEL, (1, 1), [(1, 2)] * 2, (2, 2), dimension_numbers=("NHWC", "HWIO", "NHWC")
  )


def scanned(x: Any, reverse: bool = True) -> Any:
  return lax.scan(lambda c, x: (c * 0.5 + jnp.tanh(x),) * 2, 0.0, x, reverse=reverse)[1]


def summed(x: Any) -> Any:
  return (scanned(x, reverse=False) ** 2).sum()


INPUTS = {"x": X, "rows": LONG, "image": IMAGE, "i": np.arange(-9, 9, dtype=np.int32)}


def of_plain_tools(x: Any, rows: Any, image: Any, i: Any) -> dict[str, Any]:
  """What plain tf2onnx and plain TFLiteConverter make right, by the forms that the rules choose."""
  del x, i
  return {
    "max_pool": pooled(image),
    "min_pool": lax.reduce_window(image, jnp.inf, lax.min, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"),
    "reversed_scan": scanned(rows),
    "gradient_of_scan": jax.grad(summed)(rows),
    "transposed_convolution": transposed(image),
  }


def of_all(x: Any, rows: Any, image: Any, i: Any) -> dict[str, Any]:
  """What needs our calls: one of the tools lacks an op, or has other values. `make targets`
  also draws random numbers."""
  return {
    **of_plain_tools(x, rows, image, i),
    "exact_gelu": jax.nn.gelu(x, approximate=False),
    "log1p": jnp.log1p(jnp.exp(x)),
    "remainder": lax.rem(x, jnp.full_like(x, 0.7)),
    "remainder_of_integers": lax.rem(i, jnp.full_like(i, -3)),
    "selected_infinity": jnp.where(x > 0, jnp.inf, x),
    "selected_beside_nan": jnp.where(x > 0, jnp.log(x), x),
    "rounded_to_float16": x.astype(jnp.float16).astype(jnp.float32),
    "rounded_to_bfloat16": x.astype(jnp.bfloat16).astype(jnp.float32),
  }


def function_of(
  fun: Callable[..., Any], inputs: Mapping[str, np.ndarray] = INPUTS, **options: Any
) -> Any:
  signature = [tf.TensorSpec(x.shape, x.dtype, name) for name, x in inputs.items()]
  return tf.function(jax2tf.convert(fun, **options), autograph=False, input_signature=signature)


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
  caplog.set_level(logging.CRITICAL, "tf2onnx")


def by_onnx(
  function: Any, inputs: Mapping[str, np.ndarray] = INPUTS, handlers: Any = None
) -> dict[str, np.ndarray]:
  """{output: array} of tf2onnx's model."""
  specs = [tf.TensorSpec(x.shape, x.dtype, name) for name, x in inputs.items()]
  model, _ = tf2onnx.convert.from_function(function, specs, opset=18, custom_op_handlers=handlers)
  session = onnxruntime.InferenceSession(
    model.SerializeToString(), providers=["CPUExecutionProvider"]
  )
  given = {tensor.name: inputs[tensor.name] for tensor in session.get_inputs()}
  return dict(
    zip([tensor.name for tensor in session.get_outputs()], session.run(None, given), strict=True)
  )


def by_litert(
  converter: Any, concrete: Any, inputs: Mapping[str, np.ndarray] = INPUTS
) -> dict[str, np.ndarray]:
  """{output: array} of the converter's model, whose outputs are in the order of the function's."""
  with runtime.quiet():
    model = interpreter.Interpreter(model_content=converter.convert())
  model.allocate_tensors()
  for detail in model.get_input_details():
    model.set_tensor(detail["index"], inputs[detail["name"]])
  model.invoke()
  return dict(
    zip(
      sorted(concrete.structured_outputs),
      [model.get_tensor(one["index"]) for one in model.get_output_details()],
      strict=True,
    )
  )


def problems(found: Mapping[str, np.ndarray], fun: Callable[..., Any]) -> dict[str, str]:
  expected = jax.jit(fun)(*INPUTS.values())
  assert found.keys() == expected.keys()
  return {
    name: problem
    for name, y in expected.items()
    if (problem := answers.problem(found[name], np.asarray(y)))
  }


def test_plain_tools_translate_the_forms_of_the_rules() -> None:
  function = function_of(of_plain_tools)
  concrete = function.get_concrete_function()
  assert problems(by_onnx(function), of_plain_tools) == {}
  assert (
    problems(
      by_litert(tf.lite.TFLiteConverter.from_concrete_functions([concrete], function), concrete),
      of_plain_tools,
    )
    == {}
  )


def test_with_our_calls_both_tools_have_the_values_of_jax() -> None:
  function = function_of(of_all, with_gradient=False)  # which plain tf2onnx does not translate
  concrete = function.get_concrete_function()
  assert (
    problems(by_onnx(onnx.prepared(function), handlers=onnx.custom_op_handlers()), of_all) == {}
  )
  assert problems(by_litert(tflite.converter([concrete]), concrete), of_all) == {}


class Module(tf.Module):
  """y = w x, and the sum of x, which counts its calls if it is asked to."""

  def __init__(self) -> None:
    self.w, self.calls = tf.Variable(2.0), tf.Variable(0)

  @tf.function(
    input_signature=[tf.TensorSpec([None], tf.float32, "x"), tf.TensorSpec([], tf.bool, "negative")]
  )
  def __call__(self, x: tf.Tensor, negative: tf.Tensor) -> Any:
    return tf.where(negative, -self.w, self.w) * x, {"sum": tf.reduce_sum(x), "none": None}

  @tf.function(input_signature=[tf.TensorSpec([2], tf.float32, "x")])
  def counted(self, x: tf.Tensor) -> tf.Tensor:
    self.calls.assign_add(1)
    return x


PAIR = {"x": np.array([1, 2], np.float32), "negative": np.array(True)}


def test_arguments_and_results_keep_their_names_and_structure() -> None:
  module = Module()
  before = module.__call__.get_concrete_function()
  after = onnx.prepared(module.__call__).get_concrete_function()
  assert [(x.name, x.shape.as_list(), x.dtype) for x in after.inputs] == [
    (x.name, x.shape.as_list(), x.dtype) for x in before.inputs[:2]
  ]
  assert [y.name for y in after.outputs] == [y.name for y in before.outputs]
  assert tf.nest.map_structure(str, after.structured_outputs) == tf.nest.map_structure(
    str, before.structured_outputs
  )
  assert not after.graph.variables
  found = by_onnx(onnx.prepared(module.__call__), PAIR, onnx.custom_op_handlers())
  assert [y.tolist() for y in found.values()] == [[-2, -4], 3]


def test_a_signature_of_a_saved_model(tmp_path: Path) -> None:
  directory = saved_model.save(
    lambda w, x: jnp.log1p(w * x), 2.0, tmp_path / "model", inputs={"x": "f32[b]"}, outputs=["y"]
  )
  loaded = tf.saved_model.load(str(directory))
  signature = loaded.signatures["serving_default"]
  expected = np.log1p(2 * PAIR["x"])
  concrete = onnx.prepared(signature).get_concrete_function()
  model, _ = tf2onnx.convert.from_function(
    onnx.prepared(signature), [], opset=18, custom_op_handlers=onnx.custom_op_handlers()
  )
  session = onnxruntime.InferenceSession(
    model.SerializeToString(), providers=["CPUExecutionProvider"]
  )
  np.testing.assert_allclose(session.run(["y"], {"x": PAIR["x"]})[0], expected, rtol=1e-6)
  assert list(concrete.structured_outputs) == ["y"]
  with runtime.quiet():
    made = interpreter.Interpreter(
      model_content=tflite.converter([signature], tf.Module()).convert()
    )
  np.testing.assert_allclose(made.get_signature_runner()(x=PAIR["x"])["y"], expected, rtol=1e-6)


def test_a_model_made_without_the_handlers_is_refused() -> None:
  module = Module()
  with pytest.raises(Exception, match="needs_custom_op_handlers_of_jax2tf_converters_onnx"):
    by_onnx(onnx.prepared(module.__call__), PAIR)


def test_what_tools_cannot_keep_is_refused() -> None:
  module = Module()
  counted = module.counted
  for prepare in (
    lambda: onnx.prepared(counted).get_concrete_function(),
    lambda: tflite.converter([counted.get_concrete_function()]),
  ):
    with pytest.raises(ValueError, match=r"it writes variables \(AssignAddVariableOp\)"):
      prepare()
  with pytest.raises(
    ValueError,
    match="input 'x' is bfloat16, which ONNX Runtime does not take; convert to float32 in the "
    "function",
  ):
    onnx.prepared(lambda x: x).get_concrete_function(tf.TensorSpec([2], tf.bfloat16, "x"))
