"""Layers of Keras from models of Flax, Haiku and Equinox: both modes, and a file that needs no
library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import jax2tf.keras
from tests.support.library_models import CLOSE, LIBRARIES, X, of

# Keras 3.15 copies variables by np.array, which asks them for more than they offer.
pytestmark = pytest.mark.filterwarnings(
  "ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"
)


def layer_of(library: str, **options: Any) -> jax2tf.keras.Layer:
  case = of(library)
  # JAX has no mean over a mapped axis of unknown size, which BatchNorm of Equinox takes.
  inputs = {"x": "f32[3,4]" if library == "from_equinox" else "f32[b,4]"}
  return getattr(jax2tf.keras, library)(
    *case.model, inputs=inputs, name="net", **case.rngs, **case.options, **options
  )


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_layer_by_its_library(library: str, tmp_path: Path) -> None:
  case, layer = of(library), layer_of(library)
  assert {weight.path.removeprefix("net/") for weight in layer.trainable_weights} == case.trainable
  np.testing.assert_allclose(layer(X), case.expected(False), **CLOSE)
  np.testing.assert_allclose(layer(X, training=True), case.expected(True), **CLOSE)
  again = layer(X + 1, training=True)
  assert ((again == 0) != (case.expected(True) == 0)).numpy().any()  # another key drops others
  assert np.abs(layer(X) - case.expected(False)).max() > 1e-3  # the statistics have moved
  model = keras.Sequential(
    [keras.Input(batch_shape=(3 if library == "from_equinox" else None, 4)), layer]
  )
  model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=False)
  before = [weight.numpy() for weight in layer.trainable_weights]
  # not monotonic: another Dropout mask each step
  losses = model.fit(X, X[:, :3], epochs=4, verbose=0).history["loss"]
  assert np.isfinite(losses).all()
  unmoved = [
    weight.path
    for weight, old in zip(layer.trainable_weights, before, strict=True)
    if (weight.numpy() == old).all()
  ]
  # BatchNorm subtracts the mean, so only rounding moves the bias before it.
  assert [
    path for path in unmoved if not path.endswith(("linear/bias", "linear/b", "Dense_0/bias"))
  ] == []
  model.save(tmp_path / "net.keras")
  loaded = keras.models.load_model(tmp_path / "net.keras", safe_mode=False)
  np.testing.assert_array_equal(loaded.predict(X, verbose=0), model.predict(X, verbose=0))


@pytest.mark.parametrize("library", LIBRARIES)
def test_mixed_precision(library: str) -> None:
  """float16 rounds to 2^-11; parameters and statistics stay float32."""
  layer, expected = layer_of(library, dtype="mixed_float16"), of(library).expected
  for training in (False, True):
    values = layer(X, training=training)
    np.testing.assert_allclose(
      values, expected(training), rtol=0, atol=2.0**-9 * np.abs(expected(training)).max()
    )
  assert "float16" not in {weight.dtype for weight in layer.weights}


def test_a_layer_of_another_object_is_refused() -> None:
  with pytest.raises(TypeError, match="from_flax_nnx: it takes a flax"):
    jax2tf.keras.from_flax_nnx(of("from_equinox").model[0], inputs={"x": "f32[b,4]"})
