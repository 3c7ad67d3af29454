"""Symbolic sizes add little to a graph: each is one scalar, computed once."""

from __future__ import annotations

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import lax

import jax2tf
from tests.support.case import op_types

WIDTH, HEADS = 32, 4


def layer(p, x, causal):
  """A transformer's layer, x f32[b,s,32] -> f32[b,s,32]."""

  def norm(x):
    return (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5) * p[
      "scale"
    ] + p["bias"]

  y, length = norm(x), x.shape[1]
  q, k, v = (
    (y @ p[name] + p["bias"]).reshape(*x.shape[:2], HEADS, -1).transpose(0, 2, 1, 3)
    for name in "qkv"
  )
  scores = q @ k.swapaxes(-1, -2) / np.sqrt(WIDTH // HEADS)
  if causal:
    scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e9)
  x = x + (jax.nn.softmax(scores) @ v).transpose(0, 2, 1, 3).reshape(x.shape) @ p["out"] + p["bias"]
  return x + jax.nn.gelu(norm(x) @ p["up"] + p["wide_bias"]) @ p["down"] + p["bias"]


def params():
  random = np.random.default_rng(0)
  shapes = {
    "scale": [WIDTH],
    "bias": [WIDTH],
    "wide_bias": [4 * WIDTH],
    "up": [WIDTH, 4 * WIDTH],
    "down": [4 * WIDTH, WIDTH],
  }
  shapes |= {name: [WIDTH, WIDTH] for name in ("q", "k", "v", "out")}
  return {
    name: tf.Variable(random.standard_normal(shape).astype(np.float32))
    for name, shape in shapes.items()
  }


def ops(spec, shape, causal, gradient):
  converted = jax2tf.convert(lambda p, x: layer(p, x, causal), polymorphic_shapes=[None, spec])
  variables = params()

  def function(x):
    if not gradient:
      return converted(variables, x)
    with tf.GradientTape() as tape:
      y = converted(variables, x)
    return tape.gradient(y, variables)

  return collections.Counter(
    op_types(
      tf.function(function, autograph=False).get_concrete_function(tf.TensorSpec(shape)).graph
    )
  )


@pytest.mark.parametrize("gradient", [False, True], ids=["forward", "gradient"])
@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
def test_a_transformer_layer_of_any_size_has_few_more_nodes(causal, gradient):
  static = ops(None, [2, 8, WIDTH], causal, gradient)
  symbolic = ops("b, s, _", [None, None, WIDTH], causal, gradient)
  # The sizes, the shapes made of them and their two assertions; with a gradient at most a tenth.
  # The function alone has no residuals.
  extra = symbolic - static
  assert extra.total() - extra["Const"] <= (24 if gradient else 20), extra
  # known shapes have fewer constants: equal ones share one
  assert symbolic.total() <= (506 if gradient else 218)
  assert not gradient or extra.total() <= 0.1 * static.total(), extra
  assert symbolic["StridedSlice"] - static["StridedSlice"] == 2  # b and s, once each
  assert symbolic["Shape"] <= 2 + gradient


def test_equal_shapes_are_one_constant_of_each_graph():
  def rows(x):
    return sum(jnp.sin(x.reshape(6, 1) + i).reshape(2, 3) for i in range(5))

  def function(x):
    return lax.while_loop(lambda c: c.sum() < 9, rows, rows(x))

  graph = (
    tf.function(jax2tf.convert(function), autograph=False)
    .get_concrete_function(tf.TensorSpec([2, 3]))
    .graph
  )
  graphs = [graph, *(f.graph for f in graph._functions.values() if "body" in f.graph.name)]
  assert len(graphs) == 2
  for each in graphs:
    shapes = [op.inputs[1] for op in each.get_operations() if op.type == "Reshape"]
    assert len({x.ref() for x in shapes}) == 2 < len(shapes)
