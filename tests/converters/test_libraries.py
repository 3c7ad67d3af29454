"""Models of Flax, Haiku and Equinox by name, against the library's own results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import flax.linen as nn
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from flax import nnx

from jax2tf.converters import saved_model
from jax2tf.converters.saved_model import adapted, libraries
from tests.support.library_models import CLOSE, KEY, LIBRARIES, Linen, Vision, X, of

IDS = np.array([[1, 2, 3], [4, 5, 0]], np.int32)


class Text(nnx.Module):
  """With shared weights, a list and a recurrent cell, which draws a key for zeros."""

  def __init__(self, rngs: nnx.Rngs):
    self.embed, self.cell = nnx.Embed(8, 4, rngs=rngs), nnx.RNN(nnx.GRUCell(4, 4, rngs=rngs))
    self.layers = nnx.List([nnx.Linear(4, 4, rngs=rngs) for _ in range(2)])
    self.last = self.layers[0]

  def __call__(self, ids: Any) -> Any:
    x = self.cell(self.embed(ids))
    for layer in self.layers:
      x = layer(x)
    return self.last(x)


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_model_by_its_library(library: str, training: bool, tmp_path: Path) -> None:
  case = of(library)
  rngs, shape = (case.rngs, "f32[3,4]") if training else ({}, "f32[b,4]")
  model = getattr(saved_model, library)(
    *case.model, inputs={"x": shape}, training=training, **rngs, **case.options
  )
  loaded = tf.saved_model.load(str(model.save(tmp_path)))
  np.testing.assert_allclose(
    loaded.signatures["serving_default"](x=X)["output"], case.expected(training), **CLOSE
  )
  assert {
    path for path, variable in model.parameters.items() if variable.trainable
  } == case.trainable
  # In training the statistics and keys change, so they are state; in inference nothing does.
  assert bool(loaded.state_variables) == training
  assert len(loaded.variables) > len(case.trainable) or training


def test_values_of_a_checkpoint_of_the_state() -> None:
  """`nnx.state(model)` in an Orbax checkpoint has each array as the `value` of a variable."""
  whole = libraries.nnx(nnx.Linear(2, 1, rngs=nnx.Rngs(0)))
  tree = {
    "kernel": {"value": np.ones((2, 1), np.float32)},
    "bias": {"value": np.zeros(1, np.float32)},
  }
  assert adapted.with_values(whole, tree, "it").tree["kernel"].tolist() == [[1], [1]]
  with pytest.raises(
    ValueError, match=r"it does not fit Linear: bias is missing, bias/values is not in the model"
  ):
    adapted.with_values(whole, {"kernel": tree["kernel"], "bias": {"values": X}}, "it")


def test_typed_keys_of_a_checkpoint() -> None:
  whole = libraries.nnx(nnx.Dropout(0.5, rngs=nnx.Rngs(0)), training=True)
  found = adapted.with_values(
    whole, {"rngs": {"key": jax.random.key(7), "count": np.uint32(3)}}, "it"
  ).tree["rngs"]
  assert jax.random.key_data(found["key"]).tolist() == [0, 7] and found["count"] == 3
  for key, words in (
    (jax.random.key(7, impl="rbg"), "is a key of rbg, the model has threefry2x32"),
    (np.ones(3, np.uint32), r"has shape \(3,\)"),
  ):
    with pytest.raises(ValueError, match=f"rngs/key {words}"):
      adapted.with_values(whole, {"rngs": {"key": key}}, "it")


@pytest.mark.parametrize("with_state", [False, True])
def test_a_haiku_transform_without_a_key(with_state: bool) -> None:
  transform = hk.without_apply_rng(
    (hk.transform_with_state if with_state else hk.transform)(lambda x: hk.Linear(3)(x))
  )
  made = transform.init(KEY, X)
  given = made if with_state else (made,)
  model = saved_model.from_haiku(transform, *given, inputs={"x": "f32[b,4]"})
  result = transform.apply(*given, X)
  np.testing.assert_allclose(
    model.signatures["serving_default"](x=X)["output"], result[0] if with_state else result, **CLOSE
  )
  with pytest.raises(
    TypeError, match=r"rng is given, and hk.without_apply_rng made a function that takes none"
  ):
    saved_model.from_haiku(transform, *given, inputs={"x": "f32[b,4]"}, rng=KEY)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_method_that_is_not_there(library: str) -> None:
  if library == "from_haiku":  # whose transforms have one
    return
  with pytest.raises(ValueError, match=r"call = 'foo': \w+ has no such method; it has .*__call__"):
    getattr(saved_model, library)(*of(library).model, inputs={"x": "f32[b,4]"}, call="foo")


@pytest.mark.parametrize(
  "spec", [tf.TensorSpec([2], tf.float64), jax.ShapeDtypeStruct((2,), np.int64)], ids=str
)
def test_64_bits_need_x64_however_they_are_given(spec: Any) -> None:
  with pytest.raises(
    ValueError, match=r"inputs\['x'\] = '[fi]64\[2\]': JAX narrows this dtype here; set jax"
  ):
    saved_model.Model({}).add(lambda p, x: x, inputs={"x": spec})
  with jax.enable_x64(True):
    saved_model.Model({}).add(lambda p, x: x, inputs={"x": spec})


def test_the_model_of_the_user_stays_as_it_was() -> None:
  net = Vision(nnx.Rngs(0))
  saved_model.from_flax_nnx(net, inputs={"x": "f32[b,4]"})
  assert not net.dropout.deterministic


def test_what_is_drawn_for_nothing_is_no_state() -> None:
  net = Text(nnx.Rngs(0))
  model = saved_model.from_flax_nnx(net, inputs={"ids": "i32[b,t]"})
  assert model.remembered is None
  assert "layers/1/kernel" in model.parameters
  assert {"layers/0/kernel", "last/kernel"} - model.parameters.keys()  # shared, so it is there once
  np.testing.assert_allclose(
    model.signatures["serving_default"](ids=IDS)["output"], net(IDS), **CLOSE
  )


def test_a_method_other_arguments_and_options() -> None:
  net = Vision(nnx.Rngs(0))
  model = saved_model.from_flax_nnx(
    net,
    inputs={"x": "f32[b,4]"},
    call="features",
    outputs=["y"],
    signatures="features",
    trainable=False,
  )
  np.testing.assert_allclose(model.signatures["features"](x=X)["y"], net.features(X), **CLOSE)
  assert not model.trainable_variables
  module = nn.Dense(3)
  variables = module.init(jax.random.key(0), X)
  with pytest.raises(ValueError, match=r"inputs = \['x', 'y'\]: 'Dense' takes \(params, inputs\)"):
    saved_model.from_flax_linen(module, variables, inputs={"x": "f32[b,4]", "y": "f32[b]"})


def test_a_random_haiku_function_draws_anew_at_each_call() -> None:
  net = hk.transform(lambda x: x + jax.random.normal(hk.next_rng_key(), x.shape))
  model = saved_model.from_haiku(net, net.init(KEY, X), inputs={"x": "f32[3,4]"}, rng=KEY)
  run, key = model.signatures["serving_default"], KEY
  for _ in range(2):
    key, mine = jax.random.split(key)
    np.testing.assert_allclose(run(x=X)["output"], net.apply({}, mine, X), **CLOSE)


@pytest.mark.parametrize(
  ("make", "words"),
  [
    (
      lambda: saved_model.from_flax_nnx(Linen(), inputs={}),
      r"flax.nnx.Module.*Linen, which is a model of linen; use from_flax_linen",
    ),
    (lambda: saved_model.from_flax_linen(Vision, {}, inputs={}), "a class, Vision; make one"),
    (
      lambda: saved_model.from_flax_linen(Linen(), {"Dense_0": X}, inputs={}),
      r"a dict of collections: \{'params'",
    ),
    (
      lambda: saved_model.from_haiku(hk.transform(lambda x: x), {}, {"a": 1}, inputs={}),
      "takes no state; hk.transform_with_state",
    ),
    (lambda: saved_model.from_equinox(3, inputs={}), "equinox.Module, and this is of type int"),
  ],
)
def test_another_object_is_refused(make: Any, words: str) -> None:
  with pytest.raises(TypeError, match=words):
    make()


def test_a_typed_key_among_the_parameters() -> None:
  def noisy(params: Any, x: Any) -> Any:
    return x * params["w"] + jax.random.normal(params["key"], x.shape)

  params = {"key": KEY, "w": jnp.float32(2)}
  model = saved_model.Model(params).add(noisy, inputs={"x": "f32[3,4]"})
  assert {path: (v.dtype.name, v.trainable) for path, v in model.parameters.items()} == {
    "key": ("uint32", False),
    "w": ("float32", True),
  }
  np.testing.assert_allclose(
    model.signatures["serving_default"](x=X)["output"], noisy(params, X), **CLOSE
  )
  assert model.values()["key"] == KEY
  other = {"key": jax.random.key(9), "w": jnp.float32(3)}
  model.update(other)
  np.testing.assert_allclose(
    model.signatures["serving_default"](x=X)["output"], noisy(other, X), **CLOSE
  )


def test_statistics_are_not_trainable_unless_asked() -> None:
  params = {
    "params": {"w": X},
    "batch_stats": {"norm": {"mean": X[0], "var": X[0]}},
    "net/norm/~/mean_ema": {"average": X[0]},
    "gauss": {"mean": X[0], "scale": X[0]},  # a parameter of that name
    "keras": {"moving_mean": X[0], "moving_variance": X[0]},
  }

  def names(**how: Any) -> list[str]:
    variables = saved_model.Model(params, **how).trainable_variables
    return sorted(v.name.removesuffix(":0") for v in variables)

  assert names() == ["gauss/mean", "gauss/scale", "params/w"]
  assert len(names(trainable=True)) == 8


@pytest.mark.parametrize(
  ("spec", "better"),
  [
    ((None, 4), "f32[b,4]"),
    ([None, None], "f32[b,c]"),
    (tf.TensorSpec([None, 4], tf.int32), "i32[b,4]"),
    (tf.TensorShape(None), "f32[b,784]"),
    (np.float32, "f32[b,784]"),
    (None, "f32[b,784]"),
    ({"a": (2, None)}, "f32[2,b]"),
  ],
  ids=str,
)
def test_a_shape_in_other_words_is_refused_with_the_right_ones(spec: Any, better: str) -> None:
  with pytest.raises(ValueError, match=r"inputs\['x") as caught:
    saved_model.Model({}).add(lambda p, x: x, inputs={"x": spec})
  assert f"write its dtype and shape as in {better!r}" in str(caught.value)
  assert "\n" not in str(caught.value)


def test_a_tensor_spec_of_known_sizes_is_understood() -> None:
  model = saved_model.Model({}).add(lambda p, x: x, inputs={"x": tf.TensorSpec([2, 4], tf.int32)})
  assert model.records["serving_default"].inputs == {"x": "i32[2,4]"}
