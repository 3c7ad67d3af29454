"""Derivatives taken from outside of a tf.function that holds a converted function: TensorFlow then
differentiates the function's graph.

A persistent tape, and a tape around a tape, ask for the derivatives of all that the gradient
functions capture, residuals among it.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import jax2tf
from tests.gradients.test_gradient import MODES, gradient, jax_gradient
from tests.support.case import close

X = np.array([0.0, 0.5, 2.0], np.float32)
LOWERINGS = {"ops": {}, "native": {"native_serialization": True}}


@pytest.fixture(params=list(LOWERINGS))
def lowering(request):
  return LOWERINGS[request.param]


FUNCTIONS = {
  "pair": lambda x: (x * x, x * jnp.sin(x))[1],
  # a residual is an IgammaGradA
  "without_a_gradient_in_tensorflow": lambda x: jax.scipy.special.gammainc(x + 1, 2.0),
  # a cotangent of zeros for 1 / sqrt(0) would be NaN
  "infinite_residual": lambda x: jnp.sqrt(x) * jnp.where(x > 0, x, 1.0),
  "scan": lambda x: jax.lax.scan(lambda c, _: (jnp.sin(c) * (x + 1), None), x, None, length=3)[0],
}


@pytest.mark.parametrize(
  ("name", "way"),
  [*((name, "ops") for name in FUNCTIONS), ("pair", "native"), ("infinite_residual", "native")],
)
def test_persistent_tape(name, way):
  f = FUNCTIONS[name]
  function = tf.function(jax2tf.convert(f, **LOWERINGS[way]), autograph=False)
  x = tf.constant(X)
  with tf.GradientTape(persistent=True) as tape:
    tape.watch(x)
    y = function(x)
  for _ in range(2):
    close(tape.gradient(y, x), jax_gradient(f)(X), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("name", "order"), [("pair", 2), ("pair", 3), ("scan", 2)])
def test_orders(name, order, lowering):
  f = FUNCTIONS[name]
  nested = tf.function(tf.function(jax2tf.convert(f, **lowering), autograph=False), autograph=False)
  close(gradient(nested, order)(tf.constant(X)), jax_gradient(f, order)(X), rtol=1e-4, atol=1e-5)


def test_saved_models(lowering, tmp_path):
  """A function, and the second derivative of a nested one; both in JAX too, where call_tf has a
  persistent tape."""
  call_tf = pytest.importorskip("jax.experimental.jax2tf").call_tf
  spec = tf.TensorSpec([None])
  module, f = tf.Module(), FUNCTIONS["pair"]
  twice = jax2tf.convert(f, polymorphic_shapes="b", gradient_orders=2, **lowering)
  module.f = tf.function(twice, autograph=False, input_signature=[spec])
  inner = tf.function(
    jax2tf.convert(f, polymorphic_shapes="b", **lowering), autograph=False, input_signature=[spec]
  )
  module.second = tf.function(gradient(inner, 2), autograph=False, input_signature=[spec])
  tf.saved_model.save(
    module, str(tmp_path), options=tf.saved_model.SaveOptions(experimental_custom_gradients=True)
  )
  loaded = tf.saved_model.load(str(tmp_path))
  close(loaded.second(tf.constant(X)), jax_gradient(f, 2)(X), rtol=1e-5, atol=1e-6)
  close(gradient(loaded.f, 2)(tf.constant(X)), jax_gradient(f, 2)(X), rtol=1e-5, atol=1e-6)
  for function in (module.f, loaded.f):
    close(
      jax.grad(lambda x, function=function: call_tf(function)(x).sum())(X),
      jax_gradient(f)(X),
      rtol=1e-5,
      atol=1e-6,
    )


def test_call_tf_inside():
  """Its gradient comes from a tape of its own, in what JAX traces and exports while ours is being
  made."""
  call_tf = pytest.importorskip("jax.experimental.jax2tf").call_tf

  def times_sine(x):
    return call_tf(lambda x: tf.sin(x) * x)(x)

  x, expected = tf.constant(X), np.sin(X) + X * np.cos(X)
  for mode in MODES.values():
    converted = jax2tf.convert(times_sine, native_serialization=True)
    close(mode(gradient(converted))(x), expected, rtol=1e-6)
  derivative = jax2tf.convert(jax.grad(lambda x: times_sine(x).sum()), native_serialization=True)
  with tf.GradientTape() as tape:
    tape.watch(x)
    y = derivative(x)
  close(y, expected, rtol=1e-6)


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_zeros_that_are_given_are_not_missing(mode):
  """0 / 0 is NaN for them, as for jax.vjp; without a cotangent there is none."""
  converted = jax2tf.convert(lambda x: (2 * x, jnp.log(x)))

  def gradients(x):
    with tf.GradientTape(persistent=True) as tape:
      tape.watch(x)
      ys = converted(x)
    zeros = (tf.zeros_like(x), tf.zeros(3), tf.constant(np.zeros(3, np.float32)))
    return [tape.gradient(ys, x, [tf.ones_like(x), z]) for z in zeros], tape.gradient(ys[0], x)

  given, missing = mode(gradients)(tf.constant(X))
  for found in given:
    close(found, np.array([np.nan, 2, 2], np.float32))
  close(missing, np.full(3, 2.0, np.float32))


@jax.custom_vjp
def first(x, y):
  return 2 * x


first.defvjp(lambda x, y: (2 * x, None), lambda _, g: (2 * g, jnp.zeros_like(g)))


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_between_two_converted_functions(mode):
  """What the second does not differentiate, the first leaves out, as JAX does; zeros from a rule of
  the user's are zeros."""
  pair = jax2tf.convert(lambda x: (2 * x, jnp.log(x)))
  seconds = {
    f: jax2tf.convert(f)
    for f in (lambda x, y: 2 * x, lambda x, y: 2 * x + 0 * jax.lax.stop_gradient(x), first)
  }

  def gradients(x):
    with tf.GradientTape(persistent=True) as tape:
      tape.watch(x)
      results = [second(*pair(x)) for second in seconds.values()]
    return [tape.gradient(y, x) for y in results]

  for found, second in zip(mode(gradients)(tf.constant(X)), seconds, strict=True):
    close(found, jax.grad(lambda x, second=second: second(2 * x, jnp.log(x)).sum())(X))


@jax.custom_vjp
def squared(x):
  return x @ x.swapaxes(2, 3)


squared.defvjp(lambda x: (squared(x), 3 * x), lambda residual, g: (g @ residual,))


def test_static_shapes_of_a_polymorphic_gradient(lowering):
  """The polymorphic shapes say less than the arguments: sizes that TensorFlow knows stay known."""
  converted = jax2tf.convert(squared, polymorphic_shapes="a, b, c, d", **lowering)

  @tf.function(autograph=False, input_signature=[tf.TensorSpec([None, 4, 8, 9])])
  def value_and_gradient(x):
    return converted(x), gradient(converted)(x)

  shapes = value_and_gradient.get_concrete_function().output_shapes
  assert [shape.as_list() for shape in shapes] == [[None, 4, 8, 8], [None, 4, 8, 9]]


@pytest.mark.parametrize("args", [(), (1,), (1.0,)], ids=str)
def test_no_results_and_no_gradient(args):
  assert (
    tf.function(jax2tf.convert(lambda *_: None, with_gradient=False), autograph=False)(*args)
    is None
  )
