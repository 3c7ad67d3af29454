"""jax2tf.converters.saved_model: names, versions, and what is on disk when."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

from jax2tf.converters import saved_model
from jax2tf.converters.saved_model import manifest

PARAMS = {
  "dense": [
    {"kernel": np.arange(8, dtype=np.float32).reshape(4, 2), "bias": np.ones(2, np.float32)}
  ]
}
INPUTS = {"x": "f32[b,4]"}


def affine(params: Any, x: jax.Array) -> jax.Array:
  layer = params["dense"][0]
  return jnp.sin(x @ layer["kernel"]) + layer["bias"]


def _inputs(b: int) -> np.ndarray:
  return np.random.default_rng(b).standard_normal((b, 4)).astype(np.float32)


def test_values_and_names_after_reload(tmp_path: Path) -> None:
  path = saved_model.save(affine, PARAMS, tmp_path / "model", inputs=INPUTS, outputs=["y"])
  assert path == tmp_path / "model" / "1"
  loaded = tf.saved_model.load(str(path))
  signature = loaded.signatures["serving_default"]
  assert signature.structured_input_signature == (
    (),
    {"x": tf.TensorSpec([None, 4], tf.float32, name="x")},
  )
  for b in (1, 3, 10):
    x = _inputs(b)
    np.testing.assert_allclose(
      signature(x=tf.constant(x))["y"], affine(PARAMS, x), rtol=1e-5, atol=1e-6
    )
    np.testing.assert_allclose(loaded(tf.constant(x)), affine(PARAMS, x), rtol=1e-5, atol=1e-6)


def test_parameters_are_variables_named_by_their_path(tmp_path: Path) -> None:
  model = saved_model.Model(PARAMS).add(affine, inputs=INPUTS)
  assert {name: tuple(v.shape) for name, v in model.parameters.items()} == {
    "dense/0/bias": (2,),
    "dense/0/kernel": (4, 2),
  }
  assert len(model.trainable_variables) == 2
  path = model.save(tmp_path)
  assert {name for name, _ in tf.train.list_variables(str(path / "variables" / "variables"))} >= {
    f"variables/{i}/.ATTRIBUTES/VARIABLE_VALUE" for i in range(2)
  }


@pytest.mark.parametrize(
  ("fun", "outputs", "names"),
  [
    (lambda p, x: x, None, {"output"}),
    (lambda p, x: {"a": x, "b": {"c": x}}, None, {"a", "b_c"}),
    (lambda p, x: (x, [x]), None, {"output_0", "output_1_0"}),
    (lambda p, x: (x, x), ["left", "right"], {"left", "right"}),
  ],
  ids=["one", "dict", "tuple", "given"],
)
def test_output_names(fun: Any, outputs: list[str] | None, names: set[str]) -> None:
  model = saved_model.Model({}).add(fun, inputs=INPUTS, outputs=outputs)
  assert model.signatures["serving_default"](tf.ones([2, 4])).keys() == names


@pytest.mark.parametrize(
  ("arguments", "words"),
  [
    (
      {"inputs": {"x": "float32"}},
      "inputs['x'] = 'float32'; write its dtype and shape as in 'f32[b,784]'",
    ),
    ({"inputs": {"x": "q9[b]"}}, "inputs['x'] = 'q9[b]'"),
    ({"inputs": {"x y": "f32[b]"}}, "input name 'x y' is not an identifier"),
    ({"inputs": INPUTS, "outputs": ["a", "b"]}, "2 names for 1 results"),
  ],
  ids=["no-shape", "no-dtype", "name", "outputs"],
)
def test_what_cannot_be_a_signature(arguments: dict[str, Any], words: str, tmp_path: Path) -> None:
  with pytest.raises(ValueError, match=re.escape(words)):
    saved_model.save(affine, PARAMS, tmp_path / "model", **arguments)
  assert not (tmp_path / "model").exists() or not list((tmp_path / "model").iterdir())


@pytest.mark.parametrize(
  ("notation", "dtype", "shape"),
  [
    ("f32[b,4]", np.float32, [None, 4]),
    ("bf16[]", jnp.bfloat16, []),
    ("i8[2]", np.int8, [2]),
    ("bool[n]", np.bool_, [None]),
    ("u32[3, 2*n + 1]", np.uint32, [3, None]),
    ("float16[1]", np.float16, [1]),
    ("c64[n]", np.complex64, [None]),
  ],
)
def test_notation_of_inputs(notation: str, dtype: Any, shape: list[int | None]) -> None:
  model = saved_model.Model({}).add(lambda p, n, x: x, inputs={"sizes": "f32[n]", "x": notation})
  [_, spec] = model.signatures["serving_default"].input_signature
  assert (spec.dtype.as_numpy_dtype, spec.shape.as_list()) == (dtype, shape)


def test_next_free_version_and_no_overwriting(tmp_path: Path) -> None:
  def save(**kwargs: Any) -> Path:
    return saved_model.save(affine, PARAMS, tmp_path, inputs=INPUTS, **kwargs)

  assert [save().name, save().name, save(version=7).name, save().name] == ["1", "2", "7", "8"]
  with pytest.raises(FileExistsError, match="overwrite=True"):
    save(version=7)
  before = (tmp_path / "7" / "saved_model.pb").stat().st_ino
  assert save(version=7, overwrite=True).name == "7"
  assert (tmp_path / "7" / "saved_model.pb").stat().st_ino != before
  assert sorted(p.name for p in tmp_path.iterdir()) == ["1", "2", "7", "8"]


def test_a_failed_save_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
  def fail(model: Any, path: str, **kwargs: Any) -> None:
    Path(path).mkdir(parents=True)
    (Path(path) / "saved_model.pb").write_bytes(b"half")
    raise OSError("disk full")

  monkeypatch.setattr(tf.saved_model, "save", fail)
  with pytest.raises(OSError, match="disk full"):
    saved_model.save(affine, PARAMS, tmp_path, inputs=INPUTS)
  assert list(tmp_path.iterdir()) == []


def test_gradient_after_reload(tmp_path: Path) -> None:
  path = saved_model.save(affine, PARAMS, tmp_path, inputs=INPUTS, with_gradient=True)
  loaded = tf.saved_model.load(str(path))
  x = _inputs(3)
  with tf.GradientTape() as tape:
    loss = tf.reduce_sum(tf.square(loaded(tf.constant(x))))
  found = tape.gradient(loss, list(loaded.variables))
  expected = jax.grad(lambda p: jnp.sum(jnp.square(affine(p, x))))(PARAMS)
  for f, e in zip(found, jax.tree.leaves(expected), strict=True):
    np.testing.assert_allclose(f, e, rtol=1e-4, atol=1e-5)


def test_disabled_gradient_is_refused_after_reload_and_nothing_warns_before(
  tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
  path = saved_model.save(affine, PARAMS, tmp_path, inputs=INPUTS)
  with caplog.at_level("WARNING"):
    loaded = tf.saved_model.load(str(path))
  assert "custom gradients" not in caplog.text
  with tf.GradientTape(), pytest.raises(LookupError, match="Gradient explicitly disabled"):
    loaded(tf.constant(_inputs(3)))


def test_polymorphic_constraint_holds_after_reload(tmp_path: Path) -> None:
  path = saved_model.save(
    affine, PARAMS, tmp_path, inputs=INPUTS, polymorphic_constraints=["b <= 4"]
  )
  signature = tf.saved_model.load(str(path)).signatures["serving_default"]
  assert signature(x=tf.ones([4, 4]))
  with pytest.raises(tf.errors.InvalidArgumentError, match="Input shapes do not match"):
    signature(x=tf.ones([5, 4]))


def test_a_model_of_an_earlier_day_still_loads() -> None:
  """Saved on 2026-11-22 from JAX 0.10.2 with TensorFlow 2.21; docs/guide/saved-models.md promises
  that it can be read."""
  directory = Path(__file__).parent / "saved" / "1"
  record = manifest.read(directory)
  assert record.signatures["serving_default"].inputs == {"x": "f32[b,4]"}
  assert record.constraints == ["b<=64"]
  params = {
    "w": np.linspace(-1, 1, 20, dtype=np.float32).reshape(4, 5),
    "b": np.arange(5, dtype=np.float32),
  }

  def forward(params: Any, x: Any) -> dict[str, jax.Array]:
    h = jax.nn.gelu(x @ params["w"] + params["b"])
    return {"probabilities": jax.nn.softmax(h), "order": jnp.argsort(h)}

  loaded = tf.saved_model.load(str(directory))
  x = np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32)
  with tf.GradientTape() as tape:
    found = loaded(tf.constant(x))
    loss = tf.reduce_sum(found["probabilities"] ** 2)
  expected = jax.jit(forward)(params, x)
  np.testing.assert_allclose(
    found["probabilities"], expected["probabilities"], rtol=1e-5, atol=1e-6
  )
  np.testing.assert_array_equal(found["order"], expected["order"])
  gradient = jax.grad(lambda p: (forward(p, x)["probabilities"] ** 2).sum())(params)
  variables = {
    variable.name.removesuffix(":0"): variable for variable in loaded.trainable_variables
  }
  for path, dy in tape.gradient(loss, variables).items():
    np.testing.assert_allclose(dy, gradient[path], rtol=1e-4, atol=1e-6)


def test_python_numbers_among_the_parameters(tmp_path: Path) -> None:
  """They have JAX's default dtypes, as in a call of the function."""
  model = saved_model.Model({"f": 2.0, "i": 3, "b": True}).add(
    lambda p, x: p["f"] * x + p["i"] * p["b"], inputs={"x": "f32[b]"}, outputs=["y"]
  )
  assert model.manifest().parameters == {"b": "bool[]", "f": "f32[]", "i": "i32[]"}
  model.update({"f": 0.5, "i": 4, "b": True})
  served = tf.saved_model.load(str(model.save(tmp_path))).signatures["serving_default"]
  assert served(x=tf.ones(2))["y"].numpy().tolist() == [4.5, 4.5]
  with pytest.raises(
    ValueError,
    match="params: the leaf 'n' = 3000000000 does not fit JAX's int32; set jax_enable_x64, or "
    "pass an array",
  ):
    saved_model.Model({"n": 3_000_000_000})
