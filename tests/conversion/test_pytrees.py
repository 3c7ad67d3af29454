"""Pytree nodes that look at their leaves when they are built, as validators of dataclasses do."""

import dataclasses

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import tree_util

import jax2tf
import jax2tf.keras
from jax2tf.converters import saved_model
from jax2tf.converters.verify.precision import of_results
from tests.support.case import close

X = np.arange(3, dtype=np.float32)
X4 = np.arange(12, dtype=np.float32).reshape(4, 3)
W = np.arange(6, dtype=np.float32).reshape(3, 2)


class Node:
  def __init__(self, w):
    self.check(w)
    self.w = w

  def __init_subclass__(cls):
    tree_util.register_pytree_node(
      cls, lambda node: ((node.w,), None), lambda _, leaves: cls(*leaves)
    )

  def check(self, w):
    raise NotImplementedError


class Ranked(Node):
  def check(self, w):
    assert w.ndim in (1, 2)


class Sized(Node):
  def check(self, w):
    assert len(w)


class OfFloats(Node):
  def check(self, w):
    assert w.dtype == np.float32
    assert w.shape[-1] in (2, 3)


class OfArrays(Node):
  def check(self, w):
    if not isinstance(w, jax.Array | np.ndarray | tf.Tensor):
      raise TypeError(f"an array, not {type(w).__name__}")


class Given(Node):
  def check(self, w):
    assert w is not None
    assert not isinstance(w, str | bool)


@flax.struct.dataclass
class OfFlax:
  w: jax.Array

  def __post_init__(self):
    assert self.w.ndim


@tree_util.register_dataclass
@dataclasses.dataclass
class OfJax:
  w: jax.Array

  def __post_init__(self):
    assert self.w.ndim


NODES = [Ranked, Sized, OfFloats, OfArrays, Given, OfFlax, OfJax]


# a tf.Tensor of a graph has no len()
@pytest.mark.parametrize("node", [n for n in NODES if n is not Sized])
def test_a_result(node):
  converted = jax2tf.convert(lambda x: {"y": node(x * 2), "z": jnp.sum(x)})
  found = converted(X)
  assert type(found["y"]) is node
  close(found["y"].w, X * 2)
  close(tf.function(lambda x: tree_util.tree_leaves(converted(x)), autograph=False)(X)[0], X * 2)


@pytest.mark.parametrize("node", NODES)
def test_an_argument(node):
  fun = lambda given, x: given["p"].w * x  # noqa: E731
  converted = jax2tf.convert(fun)
  argument = {"p": node(X)}
  close(converted(argument, X), X * X)
  close(tf.function(lambda x: converted(argument, x), autograph=False)(X), X * X)
  with tf.GradientTape() as tape:
    x = tf.constant(X)
    tape.watch(x)
    y = converted(argument, x)
  close(tape.gradient(y, x), X)
  gradient = jax2tf.convert(jax.grad(lambda given: jnp.sum(given["p"].w ** 2)))
  close(gradient(argument)["p"].w, 2 * X)


# len() of a symbolic size is an error of JAX
@pytest.mark.parametrize("node", [n for n in NODES if n is not Sized])
def test_symbolic_sizes(node):
  fun = lambda given, x: given["p"].w @ x  # noqa: E731
  shapes = [{"p": "b, 3"}, None]
  converted = jax2tf.convert(fun, polymorphic_shapes=shapes)

  @tf.function(autograph=False, input_signature=[tf.TensorSpec([None, 3])])
  def in_graph(x):
    return converted({"p": node(x)}, W)

  close(in_graph(X4), X4 @ W)
  close(jax2tf.convert(fun, polymorphic_shapes=["b, _", None])({"p": node(X4)}, W), X4 @ W)
  with pytest.raises(ValueError, match=r"args\[0\]\['p'\]"):
    converted({"p": node(X)}, W)


@pytest.mark.parametrize("node", [Ranked, OfFloats, OfFlax, OfJax])
def test_the_shapes_of_a_result(node):
  evaluate = jax2tf.eval_polymorphic_shape(lambda x: node(x), polymorphic_shapes="b, 3")
  specs, shapes = evaluate(jax.ShapeDtypeStruct((4, 3), jnp.float32))
  assert specs.w.dtype == np.float32
  assert shapes.w == "(b, 3)"


@pytest.mark.parametrize("node", NODES)
def test_parameters_of_a_saved_model(node, tmp_path):
  fun = lambda params, x: x @ params["p"].w  # noqa: E731
  params = {"p": node(W)}
  folder = saved_model.save(fun, params, tmp_path, inputs={"x": "f32[b,3]"}, trainable={"p": True})
  loaded = tf.saved_model.load(str(folder)).signatures["serving_default"]
  close(loaded(x=X4)["output"], X4 @ W)
  layer = jax2tf.keras.Layer(fun, params, inputs={"x": "f32[b,3]"})
  close(layer(X4), X4 @ W)


def test_a_state_and_the_precision_of_results():
  count = lambda params, state, x: (OfArrays(state.w + 1), x @ state.w + params.w[0])  # noqa: E731
  model = saved_model.Model(OfArrays(W), state=OfArrays(W))
  model.add(count, inputs={"x": "f32[b,3]"}, stateful=True)
  close(model.signatures["serving_default"](x=X4)["output"], X4 @ W + W[0])
  half = of_results(
    lambda params, x: OfArrays((x @ params.w).astype(jnp.bfloat16)), OfArrays(W), X4
  )
  assert half.w.dtype == jnp.bfloat16


def test_classes_at_the_ends_of_a_saved_model(tmp_path):
  with pytest.raises(ValueError, match="input 'x' holds a OfArrays"):
    saved_model.save(lambda p, x: x.w @ p, W, tmp_path, inputs={"x": OfArrays(X4)})
  with pytest.raises(ValueError, match="the result of '<lambda>' holds a OfArrays"):
    saved_model.save(lambda p, x: OfArrays(x @ p), W, tmp_path, inputs={"x": "f32[b,3]"})


def test_next_to_a_ref():
  def count(given, ref):
    ref[...] += given.w
    return OfArrays(given.w * 2)

  variable = tf.Variable(X)
  result = jax2tf.convert(count)(OfArrays(X), jax2tf.Ref(variable))
  close(result.w, X * 2)
  close(variable.read_value(), X * 2)


def test_in_call_tf():
  fun = jax2tf.call_tf(lambda given: given.w * 2)
  close(fun(OfArrays(X)), X * 2)
  close(jax.jit(lambda x: fun(OfArrays(x)))(X), X * 2)


def test_a_result_that_takes_no_tensors():
  class OnlyOfJax(Node):
    def check(self, w):
      if not isinstance(w, jax.Array):
        raise TypeError("only of JAX")

  with pytest.raises(TypeError, match="only of JAX") as error:
    jax2tf.convert(lambda x: OnlyOfJax(x))(X)
  assert any("tf.Tensors" in note for note in error.value.__notes__)
