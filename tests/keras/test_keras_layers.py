"""jax2tf.keras: layers that train as optax does, whose files need no JAX; and Keras' own layers of
JAX functions."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import keras
import numpy as np
import optax
import pytest
import tensorflow as tf
from flax import traverse_util
from keras.src.saving import serialization_lib

import jax2tf
import jax2tf.keras
from jax2tf.converters import saved_model
from tests.support.case import xla_ops

# Keras 3.15 copies variables by np.array, which asks them for more than they offer.
pytestmark = pytest.mark.filterwarnings(
  "ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"
)

RNG = np.random.default_rng(0)
X = RNG.standard_normal((48, 4)).astype(np.float32)
Y = np.sin(X.sum(1, keepdims=True))


class Net(nn.Module):
  """With BatchNorm and Dropout."""

  @nn.compact
  def __call__(self, x, training):
    x = nn.BatchNorm(use_running_average=not training, momentum=0.9)(nn.Dense(8, use_bias=False)(x))
    return nn.Dense(1)(nn.Dropout(0.25, deterministic=not training)(jnp.tanh(x)))


NET = Net()
VARIABLES = NET.init(jax.random.key(0), X[:1], False)
STATE = {"batch_stats": VARIABLES["batch_stats"]}


def apply(params, state, x, training, key):
  y, state = NET.apply(
    {"params": params, **state},
    x,
    training,
    mutable=[*state],
    rngs={"dropout": key} if training else None,
  )
  return state, y


def layer(**options: Any) -> jax2tf.keras.Layer:
  return jax2tf.keras.Layer(
    apply, VARIABLES["params"], state=STATE, inputs={"x": "f32[b,4]"}, seed=3, name="net", **options
  )


def fit(
  layers: list[Any], epochs: int = 1, *, optimizer: Any = None, **options: Any
) -> tuple[keras.Model, list[float]]:
  model = keras.Sequential([keras.Input((4,)), *layers])
  model.compile(optimizer or keras.optimizers.SGD(0.1, momentum=0.9), "mse", **options)
  return model, losses(model, epochs)


def losses(model: Any, epochs: int = 1) -> list[float]:
  return model.fit(X, Y, batch_size=16, epochs=epochs, shuffle=False, verbose=0).history["loss"]


@pytest.fixture(scope="module")
def by_optax() -> tuple[list[float], Any]:
  """(the loss of each of two epochs, the model after them)."""

  @jax.jit
  def step(params, state, optimiser_state, key, x, y):
    def loss(params):
      after, out = apply(params, state, x, True, jax.random.wrap_key_data(key))
      return jnp.mean((out - y) ** 2), after

    (value, state), gradient = jax.value_and_grad(loss, has_aux=True)(params)
    updates, optimiser_state = optimiser.update(gradient, optimiser_state)
    return optax.apply_updates(params, updates), state, optimiser_state, value

  optimiser = optax.sgd(0.1, momentum=0.9)
  now = VARIABLES["params"], STATE, optimiser.init(VARIABLES["params"])
  found = []
  for n in range(6):
    *now, value = step(
      *now, jnp.array([3, n], jnp.uint32), X[n % 3 * 16 :][:16], Y[n % 3 * 16 :][:16]
    )
    found.append(value)
  return np.reshape(found, (2, 3)).mean(1), apply(now[0], now[1], X, False, None)[1]


@pytest.fixture(scope="module")
def trained() -> tuple[keras.Model, list[float]]:
  return fit([layer()], 2, jit_compile=False)


def test_epochs_have_the_losses_of_optax(trained, by_optax):
  np.testing.assert_allclose(trained[1], by_optax[0], rtol=5e-5)
  np.testing.assert_allclose(trained[0].predict(X, verbose=0), by_optax[1], rtol=0, atol=5e-5)


def test_jit_compile(by_optax):
  np.testing.assert_allclose(fit([layer()], 1, jit_compile=True)[1], by_optax[0][:1], rtol=5e-5)


@pytest.mark.parametrize(("dtype", "bits"), [("bfloat16", 8), ("float16", 11)])
def test_mixed_precision(dtype, bits, by_optax):
  """The function computes in a dtype that rounds to so many bits; weights and statistics are
  float32."""
  optimizer = keras.optimizers.LossScaleOptimizer(
    keras.optimizers.SGD(0.1, momentum=0.9), initial_scale=2.0**8
  )
  model, [loss] = fit([layer(dtype=f"mixed_{dtype}")], optimizer=optimizer, jit_compile=False)
  assert {w.dtype for w in model.weights} == {"float32"}
  assert model(X).dtype == dtype
  np.testing.assert_allclose(loss, by_optax[0][0], rtol=2.0**-bits)


def test_weights_are_the_leaves_by_their_paths():
  found = layer(trainable=lambda path: "Dense" in path)
  assert [w.path for w in found.trainable_weights] == [
    f"net/Dense_{i}/{name}" for i, name in ((0, "kernel"), (1, "bias"), (1, "kernel"))
  ]
  assert [w.path for w in found.non_trainable_weights] == [
    *(f"net/BatchNorm_0/{name}" for name in ("bias", "scale")),
    *(f"net/state/batch_stats/BatchNorm_0/{name}" for name in ("mean", "var")),
  ]
  assert [w.path for w in found.variables][-1].endswith("seed_generator_state")


def test_values_are_those_that_training_left(trained):
  model, _ = trained
  values = model.layers[-1].values()
  assert set(values) == {
    *("BatchNorm_0/bias", "BatchNorm_0/scale", "Dense_0/kernel", "Dense_1/bias", "Dense_1/kernel"),
    *("state/batch_stats/BatchNorm_0/mean", "state/batch_stats/BatchNorm_0/var"),
  }
  nested = traverse_util.unflatten_dict(values, sep="/")
  state = nested.pop("state")
  y = apply(nested, state, X, False, None)[1]
  np.testing.assert_allclose(model.predict(X, verbose=0), y, rtol=1e-5, atol=1e-6)


def test_statistics_are_written_in_training_only(trained):
  before = [w.numpy() for w in trained[0].non_trainable_weights]
  trained[0].predict(X, verbose=0)
  for x, weight in zip(before, trained[0].non_trainable_weights, strict=True):
    np.testing.assert_array_equal(x, weight.numpy())


LOADS = """
import sys
del sys.modules["jax2tf"]  # where JAX still cannot be imported
import json, keras, numpy as np, tensorflow as tf
import jax2tf.keras
folder = sys.argv[1]
x, y = (np.load(f"{folder}/{name}.npy") for name in "xy")
model = keras.models.load_model(f"{folder}/net.keras", safe_mode=False)
predicted = model.predict(x, verbose=0)
model.layers[0].seed_generator.state.assign([3, 6])
losses = model.fit(x, y, batch_size=16, shuffle=False, verbose=0).history["loss"]
model.export(f"{folder}/again", verbose=False)
again = tf.saved_model.load(f"{folder}/again")
assert sys.modules["jax"] is None
print(json.dumps([predicted.tolist(), losses, np.abs(again.serve(x) - model(x)).max().tolist()]))
"""


def test_a_file_is_loaded_and_trained_further_without_jax(trained, without_jax, tmp_path):
  model = trained[0]
  model.save(tmp_path / "net.keras")
  model.export(str(tmp_path / "exported"), verbose=False)
  exported = tf.saved_model.load(str(tmp_path / "exported"))
  assert not xla_ops(exported.signatures["serving_default"].graph)
  np.testing.assert_allclose(exported.serve(X[:5]), model.predict(X[:5], verbose=0), rtol=1e-6)
  np.save(tmp_path / "x.npy", X)
  np.save(tmp_path / "y.npy", Y)
  run = subprocess.run(
    [without_jax, "-c", LOADS, str(tmp_path)],
    capture_output=True,
    text=True,
    check=False,
    timeout=120,
  )
  assert run.returncode == 0, run.stderr[-2000:]
  predicted, further, difference = json.loads(run.stdout.splitlines()[-1])
  np.testing.assert_array_equal(np.float32(predicted), model.predict(X, verbose=0))
  assert difference < 1e-6
  start = model.get_weights(), [v.numpy() for v in model.optimizer.variables]
  np.testing.assert_allclose(further, losses(model), rtol=1e-6)
  model.set_weights(start[0])
  for variable, value in zip(model.optimizer.variables, start[1], strict=True):
    variable.assign(value)


def test_keras_safe_mode_takes_no_graphs(tmp_path):
  model = keras.Sequential(
    [keras.Input((4,)), jax2tf.keras.Layer(lambda _, x: jnp.tanh(x), inputs={"x": "f32[b,4]"})]
  )
  model.save(tmp_path / "m.keras")
  with pytest.raises(ValueError, match="safe_mode=False"):
    keras.models.load_model(tmp_path / "m.keras")
  np.testing.assert_array_equal(
    keras.models.load_model(tmp_path / "m.keras", safe_mode=False)(X), model(X)
  )


def masked(params, ids, mask):
  return {"rows": params["~t"]["_w"][ids] * mask[..., None], "count": mask.sum(1)}


# names that TensorFlow cannot make scopes of
TABLE = {"~t": {"_w": np.arange(30, dtype=np.float32).reshape(10, 3)}}


def test_several_inputs_and_outputs_of_unknown_sizes(tmp_path):
  table = jax2tf.keras.Layer(masked, TABLE, inputs={"ids": "i32[b,t]", "mask": "f32[b,t]"})
  ids, mask = keras.Input((None,), dtype="int64"), keras.Input((None,))
  model = keras.Model([ids, mask], table({"ids": ids, "mask": mask}))
  assert {name: tuple(x.shape) for name, x in model.output.items()} == {
    "rows": (None, None, 3),
    "count": (None,),
  }
  model.compile("adam", {"rows": "mse"}, jit_compile=False)
  given = [np.arange(6).reshape(2, 3), np.float32([[1, 1, 0], [1, 0, 0]])]
  model.fit(given, {"rows": np.zeros((2, 3, 3))}, verbose=0)
  model.save(tmp_path / "m.keras")
  again = keras.models.load_model(tmp_path / "m.keras", safe_mode=False)
  for name, x in model.predict(given, verbose=0).items():
    np.testing.assert_array_equal(x, again.predict(given, verbose=0)[name])
    np.testing.assert_array_equal(x, masked({"~t": {"_w": table.weights[0].numpy()}}, *given)[name])
  with pytest.raises(TypeError, match="input 'ids' is float32, and the function takes int32"):
    table([np.float32(given[0]), given[1]])
  with pytest.raises(ValueError, match="takes ids, mask, and is given ids"):
    table(given[:1])


def test_a_layer_without_its_weights_says_so_by_nan():
  made = jax2tf.keras.Layer(
    lambda w, x: x @ w, np.ones((4, 2), np.float32), inputs={"x": "f32[b,4]"}
  )
  config = json.loads(json.dumps(made.get_config()))
  with serialization_lib.SafeModeScope(False):
    # which leaves the caller's config as it is
    again, _ = (jax2tf.keras.Layer.from_config(config) for _ in range(2))
  assert np.isnan(again(X)).all()
  again.set_weights(made.get_weights())
  np.testing.assert_array_equal(again(X), made(X))


@pytest.mark.parametrize(
  ("fun", "options", "words"),
  [
    (lambda p, x: x, {"inputs": {"x": "f32[b,4]", "y": "f32[b]"}}, "takes"),
    (lambda p, s, x: x, {"inputs": {"x": "f32[b,4]"}, "state": {"n": np.zeros(2)}}, "stateful"),
    (lambda p, x: x, {"inputs": {"x": "f32[b,4]"}, "trainable": {"q": True}}, "prefix"),
  ],
)
def test_what_does_not_fit_is_said(fun, options, words):
  with pytest.raises(ValueError, match=words):
    jax2tf.keras.Layer(fun, {"p": np.zeros(2, np.float32)}, **options)(X)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: Any) -> str:
  params = {"dense": {"kernel": np.ones((4, 1), np.float32), "bias": np.zeros(1, np.float32)}}
  model = saved_model.Model(params, with_gradient=True)
  model.add(lambda p, x: x @ p["dense"]["kernel"] + p["dense"]["bias"], inputs={"x": "f32[b,4]"})
  return str(model.save(tmp_path_factory.mktemp("saved") / "model"))


def test_adam_trains_a_saved_model(directory):
  around = jax2tf.keras.TFSMLayer(directory, call_endpoint="__call__")
  assert {w.name for w in around.trainable_weights} == {"dense_kernel", "dense_bias"}
  first, last = fit([around], 2, optimizer="adam", jit_compile=False)[1]
  assert last < first


@pytest.mark.xfail(
  raises=ValueError,
  strict=True,
  reason="Keras 3.15 names a slot of Adam 'kernel:0_momentum', no name to TensorFlow",
)
def test_adam_trains_it_in_the_layer_of_keras(directory):
  fit(
    [keras.layers.TFSMLayer(directory, call_endpoint="__call__")],
    optimizer="adam",
    jit_compile=False,
  )


class TestLayersOfKeras:
  """FlaxLayer and JaxLayer, unmodified, on the TensorFlow backend."""

  def layers(self) -> list[Any]:
    return [
      keras.layers.FlaxLayer(NET, seed=3),
      keras.layers.JaxLayer(lambda params, inputs: inputs * params, params=jnp.ones(1)),
    ]

  def test_they_fit_after_install(self, tmp_path):
    with jax2tf.install():
      model, [first, last] = fit(self.layers(), 2, jit_compile=False)
      model.export(str(tmp_path), verbose=False)
    assert last < first
    assert not xla_ops(tf.saved_model.load(str(tmp_path)).signatures["serving_default"].graph)

  @pytest.mark.filterwarnings("ignore::DeprecationWarning")
  @pytest.mark.xfail(
    jax.__version_info__ >= (0, 12),
    strict=True,
    reason="TensorFlow 2.21 reads no StableHLO of JAX 0.12's jax2tf",
  )
  def test_they_fit_as_they_are(self):
    fit(self.layers(), jit_compile=False)


def test_files_name_the_classes_as_ever():
  """Keras finds the class of a file by this name, whichever module defines it."""
  classes = (jax2tf.keras.Layer, jax2tf.keras.TFSMLayer)
  names = [keras.saving.get_registered_name(each) for each in classes]
  assert names == ["jax2tf>Layer", "jax2tf>TFSMLayer"]
