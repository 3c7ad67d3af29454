"""The list of passes, and how often it runs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf

import jax2tf
from jax2tf import conversion
from jax2tf.program import PASSES, Stage, Subject, passed

W = np.ones((3, 2), np.float32)


def test_the_passes_are_listed_in_the_order_in_which_they_run():
  stages = [*Stage]
  order = [stages.index(step.stage) for step in PASSES]
  assert order == sorted(order)
  assert {step.stage for step in PASSES} == set(stages)


def test_each_jaxpr_is_prepared_once(monkeypatch):
  prepared = []

  def prepare(jaxpr, *args):
    prepared.append(jaxpr)
    return original(jaxpr, *args)

  original = conversion.prepare
  monkeypatch.setattr(conversion, "prepare", prepare)
  fun = jax2tf.convert(lambda x: jnp.sin(x) @ W, polymorphic_shapes=["b, _"])

  @tf.function(input_signature=[tf.TensorSpec([None, 3])])
  def gradient(x):
    with tf.GradientTape() as tape:
      tape.watch(x)
      y = fun(x)
    return tape.gradient(y, x)

  gradient.get_concrete_function()
  assert len(prepared) == 3  # the function, its forward pass and its backward pass
  assert len({id(jaxpr) for jaxpr in prepared}) == 3


def test_the_native_lowering_has_only_the_passes_that_say_so():
  jaxpr = jax.make_jaxpr(jax.jit(jnp.sin))(1.0)
  for stage in Stage:
    assert passed(stage, jaxpr, Subject("f", is_native=True)) is jaxpr
  names = [eqn.primitive.name for eqn in passed(Stage.NORMALISED, jaxpr, Subject("f")).eqns]
  assert names == ["sin"]
