"""What the exporters share: one frozen graph with replacements, lines of what is refused, and the
comparison with JAX."""

from __future__ import annotations

import collections
import dataclasses
import pickle
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax.scipy.linalg import solve_triangular

from jax2tf import _tf_compat, survey
from jax2tf.converters import onnx, saved_model, tfjs, tflite
from jax2tf.converters.export import freezing, pipeline, registry, replay
from jax2tf.converters.export.source import ExportError, Runner, Signature, Source
from jax2tf.converters.onnx.replacements import TABLE
from jax2tf.converters.tfjs import files
from jax2tf.converters.verify.plan import Comparison

PARAMS = {
  "w": np.linspace(-1, 1, 20, dtype=np.float32).reshape(4, 5),
  "v": np.eye(5, dtype=np.float32) * 0.5,
}


def network(params: Any, x: jax.Array, n: jax.Array) -> dict[str, jax.Array]:
  """All that nests: a scan with parameters in its body, a switch in a while loop, a cond."""
  y = jnp.tanh(x @ params["w"])

  def step(carry: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
    carry = jax.lax.cond(
      carry[0] > row[0], lambda c: c @ params["v"], lambda c: jax.scipy.special.erfc(c), carry
    )
    return carry, carry.sum()

  last, sums = jax.lax.scan(step, jnp.ones(5, x.dtype), y)
  branches = [lambda v: v + 1, lambda v: v * 2, lambda v: v - params["v"][1]]
  _, turned = jax.lax.while_loop(
    lambda state: state[0] < n,
    lambda state: (state[0] + 1, jax.lax.switch(state[0] - 1, branches, state[1])),
    (jnp.int32(0), last),
  )
  return {"sums": sums, "turned": turned, "same": x}


INPUTS = {"x": "f32[b,4]", "n": "i32[]"}


def test_a_function_to_export_is_one_graph_without_checks_of_sizes() -> None:
  """The replay would inline the calls and drop the checks."""
  made = pipeline.source_of(
    lambda _, x, y: x + y, None, inputs={"x": "f32[b]", "y": "f32[b]"}, idioms="exact"
  )
  types = set(replay.op_types(made.signatures["serving_default"].function))
  assert types == {"Placeholder", "AddV2", "Identity", "PreventGradient"}


def source(tmp_path: Path, kind: str) -> Source:
  model = saved_model.Model(PARAMS).add(network, inputs=INPUTS)
  if kind == "builder":
    return Source.of(model)
  path = model.save(tmp_path)
  return (
    Source.of(path) if kind == "directory" else Source.of(path, reference=network, params=PARAMS)
  )


def in_tensorflow(signature: Signature, replacements: Any = None) -> Runner:
  function = freezing.frozen(signature.function, replacements or {})

  def answer(runs: Any) -> Any:
    def one(run: Any) -> Any:
      outputs = function(**{name: tf.constant(array) for name, array in run.inputs.items()})
      return {
        "outputs": {name: y.numpy() for name, y in outputs.items()},
        "error": "",
        "seconds": None,
      }

    return [one(run) for run in runs]

  return answer


@pytest.mark.parametrize("kind", ["builder", "directory", "directory with its function"])
def test_the_frozen_graph_computes_the_same(tmp_path: Path, kind: str) -> None:
  found = source(tmp_path, kind)
  signature = found.signatures["serving_default"]
  frozen = signature.frozen(TABLE)
  assert sorted(frozen.structured_input_signature[1]) == ["n", "x"]
  assert sorted(frozen.structured_outputs) == ["same", "sums", "turned"]
  types = set(replay.op_types(frozen))
  assert types.isdisjoint(
    {
      "ReadVariableOp",
      "VarHandleOp",
      "PartitionedCall",
      "StatefulPartitionedCall",
      "Case",
      "StatelessCase",
      "Assert",
    }
  )
  assert not frozen.graph.captures
  examples = {"n": np.int32(5)}
  report = found.compared(
    in_tensorflow(signature), "onnx", "TensorFlow", Comparison(examples=examples), versions={}
  )
  assert {row.sizes["b"] for row in report.rows} == {1, 3, 7, 32}
  assert all(row.of_tolerance is not None for row in report.rows)


@pytest.mark.parametrize("index", [-2, -1, 0, 1, 2, 3, 2**31 - 1])
def test_case_becomes_nested_ifs_of_the_same_branches(index: int) -> None:
  # JAX clamps before it switches; TensorFlow's own Case sends every index that is out of range to
  # the last branch.
  @tf.function(input_signature=[tf.TensorSpec([], tf.int32, "i")])
  def function(i: tf.Tensor) -> dict[str, tf.Tensor]:
    return {
      "y": tf.switch_case(i, [lambda: 2 * i, lambda: tf.constant(10), lambda: tf.constant(20)])
    }

  concrete = function.get_concrete_function()
  assert "StatelessCase" in {op.type for op in concrete.graph.get_operations()}
  assert (
    freezing.frozen(concrete, {})(i=tf.constant(index))["y"].numpy()
    == concrete(i=tf.constant(index))["y"].numpy()
  )


def test_a_target_takes_what_xla_compiles() -> None:
  """Lu and DeviceIndex are not in the new graph."""
  model = saved_model.Model({})
  model.add(lambda params, x: jax.lax.linalg.lu(x)[0], inputs={"x": "f32[3,3]"})
  [signature] = Source.of(model).signatures.values()
  found = freezing.frozen(signature.function, {})
  assert not {"Lu", "DeviceIndex", "Case", "StatelessCase"} & set(replay.op_types(found))
  x = np.array([[1, 2, 3], [4, 5, 6], [7, 8, 10]], np.float32)
  np.testing.assert_allclose(
    next(iter(found(x=tf.constant(x)).values())), jax.lax.linalg.lu(x)[0], rtol=1e-6
  )


def test_a_parameter_is_one_constant_however_deep_it_is_used(tmp_path: Path) -> None:
  frozen = source(tmp_path, "builder").signatures["serving_default"].frozen(TABLE)
  constants = collections.Counter(
    op.get_attr("value").tensor_shape.dim.__len__()
    for op in frozen.graph.get_operations()
    if op.type == "Const" and op.outputs[0].shape == (5, 5)
  )
  assert sum(constants.values()) == 1


@pytest.mark.parametrize("kind", ["builder", "directory"])
def test_inputs_keep_their_capitals(tmp_path: Path, kind: str) -> None:
  """TF 2.21: "x_K" becomes "x_k" in a spec, and in a placeholder of a loaded function."""
  model = saved_model.Model({}).add(
    lambda _, x: x["K"] - 2 * x["aB"], inputs={"x": {"K": "f32[b]", "aB": "f32[b]"}}
  )
  start = Source.of(model if kind == "builder" else model.save(tmp_path / "saved"))
  signature = start.signatures["serving_default"]
  assert set(signature.record.inputs) == {"x_K", "x_aB"}
  frozen = signature.frozen({})
  graph = freezing.frozen_graph(signature.function, {})
  assert set(files.definition(graph)[1]["inputs"]) == {"x_K", "x_aB"}
  inputs = {"x_K": np.float32([5, 7]), "x_aB": np.float32([1, 2])}
  exported = onnx.save_model(start, tmp_path / "m.onnx", samples=1).path
  for found in (frozen(**inputs), onnx.run(exported, inputs)):
    np.testing.assert_array_equal(found["output"], [3, 3])


def test_a_padding_by_sizes_keeps_the_number_of_channels() -> None:
  def grouped(_: Any, x: jax.Array) -> jax.Array:
    dims = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(
      x, jnp.ones((3, 3, 2, 4)), (1, 1), "VALID", dimension_numbers=dims, feature_group_count=2
    )

  model = saved_model.Model({}).add(grouped, inputs={"x": "f32[b,h,w,4]"})
  signature = Source.of(model).signatures["serving_default"]
  found = {}
  for target in ("onnx", "tfjs"):
    graph = signature.frozen(registry.TABLES[target]).graph
    convolutions = [op for op in graph.get_operations() if op.type == "Conv2D"]
    found[target] = [op.inputs[0].shape[-1] for op in convolutions]
  assert found == {"onnx": [4], "tfjs": [2, 2]}  # TF.js has no groups


def test_a_loop_that_writes_rows_keeps_the_sizes_it_knows(tmp_path: Path) -> None:
  def fun(_: Any, cache: Any, x: Any) -> Any:
    def body(cache: Any, row: Any) -> Any:
      i, new = row
      return jax.lax.dynamic_update_slice(cache, new[:, None], (0, i, 0)), new.sum()

    return jax.lax.scan(body, cache, (jnp.arange(x.shape[1]), jnp.moveaxis(x, 1, 0)))

  inputs = {"cache": "f32[b,n,4]", "x": "f32[b,s,4]"}
  path, constraints = tmp_path / "model.onnx", ["n >= s"]
  made = onnx.save(fun, None, path, inputs=inputs, polymorphic_constraints=constraints, samples=1)
  assert made.report.ok


def test_an_output_may_have_any_name() -> None:
  names = ["<!--", "_hidden", "a b"]
  model = saved_model.Model({}).add(lambda _, x: [x, x, x], inputs={"x": "f32[2]"}, outputs=names)
  frozen = Source.of(model).signatures["serving_default"].frozen(TABLE)
  assert sorted(frozen.structured_outputs) == names


def test_a_replacement_is_used_inside_of_loops_and_branches(tmp_path: Path) -> None:
  found = source(tmp_path, "builder")
  signature = found.signatures["serving_default"]
  replacements = {"Erfc": lambda op, x: [1 - tf.math.erf(x)]}
  assert "Erfc" not in set(replay.op_types(freezing.frozen(signature.function, replacements)))
  found.compared(
    in_tensorflow(signature, replacements),
    "onnx",
    "TensorFlow",
    Comparison(examples={"n": np.int32(2)}),
    versions={},
  )


def test_an_answer_that_differs_is_an_error(tmp_path: Path) -> None:
  found = source(tmp_path, "builder")
  wrong = in_tensorflow(
    found.signatures["serving_default"], {"Erfc": lambda op, x: [tf.math.erfc(x) * 1.001]}
  )
  with pytest.raises(
    ExportError,
    match=r"(?s)TensorFlow computes different outputs than the reference, so nothing was "
    r"written.*sums",
  ) as caught:
    found.compared(
      wrong, "onnx", "TensorFlow", Comparison(examples={"n": np.int32(2)}), versions={}
    )
  assert caught.value.target == "onnx"


def test_an_error_of_an_export_passes_from_one_process_to_another() -> None:
  error = ExportError("onnx", "refused", [survey.Use("Erf", "erf", "line 1")], {"Erf": "why"})
  copy = pickle.loads(pickle.dumps(error))
  assert (str(copy), copy.target, copy.uses) == (str(error), "onnx", error.uses)
  assert copy.gaps[0].reason == "why"


def test_an_answer_that_differs_for_hostile_numbers_is_a_warning() -> None:
  found = Source.of(
    saved_model.Model({}).add(lambda p, x: jnp.maximum(x, 0), inputs={"x": "f32[b]"})
  )
  wrong = in_tensorflow(
    found.signatures["serving_default"],
    {"Maximum": lambda op, x, y: [tf.where(tf.math.is_nan(x), 0.0, tf.maximum(x, y))]},
  )
  with pytest.warns(
    UserWarning,
    match=r"(?s)computes different outputs than JAX for NaN, infinities or extreme numbers.*NaN "
    r"at other places",
  ):
    found.compared(wrong, "onnx", "TensorFlow", versions={})


def test_what_is_refused_has_its_line(tmp_path: Path) -> None:
  signature = source(tmp_path, "builder").signatures["serving_default"]
  error = signature.refuse("tflite", "LiteRT", {"Erfc": "no kernel", "Tanh": "no kernel"})
  assert [use.op for use in error.uses] == ["Tanh", "Erfc"]
  lines = str(error).splitlines()
  assert lines[0] == "LiteRT cannot take signature 'serving_default' (no kernel), which needs"
  assert "Tanh (of 'tanh') at " in lines[1]
  assert f"{Path(__file__).name}:" in lines[1]
  unknown = (
    source(tmp_path, "directory")
    .signatures["serving_default"]
    .refuse("tflite", "LiteRT", {"Erfc": ""})
  )
  assert "an unknown line" in str(unknown)


# {op: the equation that needs it, and its line after that of the scan's function}.
WHOSE = {
  "Sin": ("sin", 0),
  "MatrixTriangularSolve": ("triangular_solve", 0),
  "MatrixBandPart": ("triangular_solve", 0),
  "TensorListGetItem": ("scan", 3),
}


def test_ops_of_a_function_that_a_rule_makes_have_its_line() -> None:
  """As those of a solver, or of a loop around the user's own equations."""

  def step(carry: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return jnp.sin(carry), solve_triangular(x, x, lower=True)

  found = survey.ops_of(
    lambda x: jax.lax.scan(step, x[0, 0], x), jax.ShapeDtypeStruct((99, 2, 2), jnp.float32)
  )
  first = step.__code__.co_firstlineno + 1
  for op, (primitive, line) in WHOSE.items():
    (use,) = (use for use in found if use.op == op)
    assert use.primitive == primitive
    assert f"{Path(__file__).name}:{first + line}:" in use.where


def test_conditions_on_sizes_are_left_out() -> None:
  model = saved_model.Model({}).add(lambda p, x: jnp.sin(x), inputs={"x": "f32[b,b]"})
  signature = Source.of(model).signatures["serving_default"]
  assert {"Assert", "Range"} <= set(replay.op_types(signature.function))
  assert set(replay.op_types(freezing.frozen(signature.function, {}))) == {
    "Placeholder",
    "Sin",
    "Identity",
  }


def test_what_cannot_be_a_source(tmp_path: Path) -> None:
  model = saved_model.Model({}).add(lambda p, x: x, inputs={"x": "f32[b]"}, signatures=["a", "b"])
  with pytest.raises(ValueError, match="the model has no 'c'; choose from a, b"):
    Source.of(model, signatures=["c"])
  with pytest.raises(ValueError, match="it is for a saved model"):
    Source.of(model, params={})
  with pytest.raises(FileNotFoundError, match="holds neither"):
    Source.of(tmp_path)
  path = model.save(tmp_path)
  with pytest.raises(ValueError, match=r"reference\['z'\]: the signatures to export"):
    Source.of(path, reference={"z": lambda x: x})
  assert list(Source.of(path).signatures) == ["a"]  # one function, though it has two names
  assert list(Source.of(path, signatures=["b"]).signatures) == ["b"]


def test_the_reference_is_asked_once_for_what_is_the_same() -> None:
  asked = []
  found = Source.of(saved_model.Model({}).add(lambda p, x: x + 1, inputs={"x": "f32[2]"}))
  signature = dataclasses.replace(
    found.signatures["serving_default"], reference=lambda x: asked.append(x) or x + 1
  )
  found = dataclasses.replace(found, signatures={"serving_default": signature})
  x = np.ones(2, np.float32)
  examples = {"x": x}

  def compared(**options: Any) -> Any:
    return found.compared(
      in_tensorflow(signature),
      "onnx",
      "TensorFlow",
      Comparison(**options),
      versions={},
      timed=False,
    ).rows

  compared(examples=examples)
  count = len(asked)
  compared(examples={"x": x.copy()}, rtol=0.5)
  assert len(asked) == count
  x[:] = 5  # the same object, of other contents
  assert all(row.ok for row in compared(examples=examples)) and len(asked) > count
  assert float(asked[count][0]) == 5


def test_a_replay_keeps_the_marks_of_ops_that_an_optimizer_must_not_change() -> None:
  x = np.array([0.3, 1.7, -2.4, 1e8], np.float32)
  found = Source.of(
    saved_model.Model({}).add(lambda _, x: (x + 12582912.0) - 12582912.0, inputs={"x": "f32[4]"})
  )
  function = freezing.frozen(found.signatures["serving_default"].function, {})
  np.testing.assert_array_equal(
    function(x=tf.constant(x))["output"], (x + np.float32(12582912)) - np.float32(12582912)
  )
  marked = {
    op.type
    for op in function.graph.get_operations()
    if any(name in op.node_def.attr for name in _tf_compat.AS_WRITTEN)
  }
  assert marked == {"Sub"}


@pytest.mark.parametrize(
  "given", [{"examples": [np.ones(4)]}, {"sizes": ["b=4"]}], ids=["examples", "sizes"]
)
def test_a_comparison_takes_mappings(given: Any) -> None:
  (name,) = given
  with pytest.raises(ValueError, match=rf"{name} = \[.*\]; give a mapping \{{"):
    Comparison(**given)


WRONG_KINDS = {
  "inputs as a list": (
    {"inputs": ["f32[b]"]},
    ValueError,
    r"inputs = \['f32\[b\]'\]; give a mapping \{input: spec\}",
  ),
  "no inputs": ({"inputs": None}, ValueError, "inputs = None; give a mapping"),
  "outputs as a string": (
    {"outputs": "scores"},
    ValueError,
    r"outputs = 'scores': a string .*letter by letter; give a list: outputs=\['scores'\]",
  ),
  "outputs of numbers": ({"outputs": [1]}, ValueError, r"outputs = \[1\]; give a list of strings"),
  "constraints as a string": (
    {"polymorphic_constraints": "b >= 1"},
    ValueError,
    r"polymorphic_constraints=\['b >= 1'\]",
  ),
  "no samples": ({"samples": 0}, ValueError, "samples = 0; at least one draw"),
  "an unknown option": (
    {"quantisation": "int8"},
    TypeError,
    r"save\(\) got an unexpected keyword argument 'quantisation'",
  ),
}


@pytest.mark.parametrize(
  "module", [onnx, tflite, tfjs], ids=lambda module: module.__name__.split(".")[-1]
)
@pytest.mark.parametrize("kind", WRONG_KINDS)
def test_arguments_of_a_wrong_kind_are_named_before_any_work(
  module: Any, kind: str, tmp_path: Path
) -> None:
  def untraced(params: Any, x: Any) -> Any:
    raise AssertionError("the function is traced")

  wrong, error, words = WRONG_KINDS[kind]
  with pytest.raises(error, match=words):
    module.save(untraced, {}, tmp_path / "made", **{"inputs": {"x": "f32[b]"}, **wrong})


def test_names_are_not_taken_letter_by_letter(tmp_path: Path) -> None:
  model = saved_model.Model({}).add(lambda p, x: x, inputs={"x": "f32[b]"}, signatures="a")
  with pytest.raises(
    ValueError, match=r"signatures = 'a': a string.*give a list: signatures=\['a'\]"
  ):
    Source.of(model, signatures="a")
  for name in ("raw_inputs", "pass_through", "defaults", "input_names"):
    wrong: Any = {name: ["x"]}
    with pytest.raises(ValueError, match=rf"{name} = \['x'\]; give a mapping"):
      model.add(lambda p, x: x, inputs={"x": "f32[b]"}, signatures="b", **wrong)
  with pytest.raises(ValueError, match="a signature needs a name"):
    model.add(lambda p, x: x, inputs={"x": "f32[b]"}, signatures=[])


@pytest.mark.parametrize("inputs", [{"x": "f32[b]"}, {"x": "f32[b]", "y": "f32[b]"}])
def test_a_function_without_params(inputs: dict[str, str]) -> None:
  functions: dict[int, Any] = {1: lambda image: image, 2: lambda left, right: left + right}
  with pytest.raises(ValueError, match=r"if it takes no params, pass lambda params, x.*: fun\(x"):
    saved_model.Model({}).add(functions[len(inputs)], inputs=inputs)
