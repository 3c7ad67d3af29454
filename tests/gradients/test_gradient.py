"""TensorFlow's gradients of converted functions are JAX's."""

from __future__ import annotations

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import jax2tf
from tests.support.case import close, executed_op_types, op_types

X = np.array([0.5, -1.0, 2.0], np.float32)
MODES = {
  "eager": lambda f: f,
  "graph": lambda f: tf.function(f, autograph=False),
  "xla": lambda f: tf.function(f, autograph=False, jit_compile=True),
}


@pytest.fixture(params=list(MODES))
def mode(request):
  return MODES[request.param]


def gradient(converted, order=1):
  """The gradient of the sum of a converted function, `order` times."""

  def first(x):
    with tf.GradientTape() as tape:
      tape.watch(x)
      y = converted(x) if order == 1 else gradient(converted, order - 1)(x)
    return tape.gradient(y, x)

  return first


def jax_gradient(f, order=1):
  return jax.grad(lambda x: jnp.sum(f(x) if order == 1 else jax_gradient(f, order - 1)(x)))


@jax.custom_jvp
def custom(x):
  return jnp.sin(x)


@custom.defjvp
def _custom_jvp(primals, tangents):
  return custom(*primals), 3.0 * jnp.exp(primals[0]) * tangents[0]


@jax.custom_vjp
def clipped(x):
  return x * x


clipped.defvjp(lambda x: (x * x, x), lambda x, g: (jnp.clip(g * x, -1, 1),))

FUNCTIONS = {
  "sin_exp": lambda x: jnp.sin(x) * jnp.exp(x),
  "custom_jvp": custom,
  "custom_vjp": lambda x: clipped(x) * x,
  "remat": jax.checkpoint(lambda x: jnp.sin(jnp.sin(x))),
  "jit": jax.jit(lambda x: jnp.tanh(x) ** 3),
  "scan": lambda x: jax.lax.scan(lambda c, _: (jnp.sin(c) * x, None), x, None, length=3)[0],
  "cond": lambda x: jax.lax.cond(x[0] > 0, lambda x: x**3, jnp.sin, x),
  "where_nan": lambda x: jnp.where(x > 0, jnp.log(x), 0.0),
  "stop": lambda x: jax.lax.stop_gradient(x) * x,
}


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_orders(name, order, mode):
  f = FUNCTIONS[name]
  # Two or three derivatives deep, a rounding difference grows with the factors it meets.
  close(
    mode(gradient(jax2tf.convert(f), order))(tf.constant(X)),
    jax_gradient(f, order)(X),
    rtol=1e-5 * 10 ** (order - 1),
    atol=1e-6,
  )


def test_gradient_at_a_nan_of_where_is_jaxs():
  f = FUNCTIONS["where_nan"]
  x = np.zeros(2, np.float32)
  result = gradient(jax2tf.convert(f))(tf.constant(x))
  close(result, jax_gradient(f)(x))
  assert np.isnan(result).all()


def test_integers_bools_and_unused_arguments(mode):
  def f(x, n, b, unused, p):
    return jnp.where(b, x * n, x), n + 1, p

  args = [
    tf.constant(X),
    tf.constant([1, 2, 3]),
    tf.constant([True, False, True]),
    tf.constant(X),
    tf.constant(2.0),
  ]

  def grads(*args):
    with tf.GradientTape(persistent=True) as tape:
      tape.watch(args)
      y = jax2tf.convert(f)(*args)[0]
    return [
      tape.gradient(y, [args[i] for i in (0, 3, 4)]),
      tape.gradient(y, list(args), unconnected_gradients=tf.UnconnectedGradients.ZERO),
    ]

  some, every = mode(grads)(*args)
  close(some, [np.array([1, 1, 3], np.float32), np.zeros(3, np.float32), np.float32(0)])
  close(every[1], np.zeros(3, np.int32))
  close(every[3], np.zeros(3, np.float32))


def test_integer_arguments_have_no_gradient():
  n = tf.constant([1, 2])
  with tf.GradientTape() as tape:
    tape.watch(n)
    y = jax2tf.convert(lambda n: n * 2.0)(n)
  assert tape.gradient(y, n) is None


Pair = collections.namedtuple("Pair", "w b")


def test_variables_in_pytrees():
  params = {"layer": Pair(tf.Variable(np.ones((3, 2), np.float32)), tf.Variable([0.5, -0.5]))}

  def loss(params, x):
    return jnp.sum(jnp.tanh(x @ params["layer"].w + params["layer"].b))

  with tf.GradientTape() as tape:
    y = jax2tf.convert(loss)(params, X[None])
  expected = jax.grad(loss)(
    {"layer": Pair(np.ones((3, 2), np.float32), np.array([0.5, -0.5], np.float32))}, X[None]
  )
  close(tape.gradient(y, params)["layer"], expected["layer"])


def test_float64_arguments_get_float64_gradients():
  x = tf.constant(X, tf.float64)
  result = gradient(jax2tf.convert(jnp.sin))(x)
  assert result.dtype == tf.float64
  np.testing.assert_allclose(result, np.cos(X), rtol=1e-6)


@pytest.mark.parametrize(
  "f",
  [
    lambda z: z * z,
    jnp.sin,
    jnp.conj,
    lambda z: jnp.abs(z) ** 2 + 0j,
    lambda z: z.real + 2j * z.imag,
  ],
  ids=["square", "sin", "conj", "abs", "parts"],
)
def test_complex_gradients_follow_tensorflows_convention(f, mode):
  z = np.array([1 + 2j, -0.5 + 0.3j], np.complex64)
  seed = np.array([0.3 - 1j, 2 + 0.1j], np.complex64)

  def grads(z):
    with tf.GradientTape() as tape:
      tape.watch(z)
      y = jax2tf.convert(f)(z)
    return tape.gradient(y, z, tf.constant(seed))

  expected = jnp.conj(jax.vjp(f, z)[1](jnp.conj(seed))[0])
  close(mode(grads)(tf.constant(z)), expected, rtol=1e-5)


def test_complex_square_is_what_tensorflow_itself_gives():
  z = tf.constant([1 + 2j, -0.5 + 0.3j], tf.complex64)

  def of(f):
    with tf.GradientTape() as tape:
      tape.watch(z)
      y = f(z)
    return tape.gradient(y, z)

  close(of(jax2tf.convert(lambda z: z * z * (1 + 1j))), of(lambda z: z * z * (1 + 1j)))


def test_no_gradient_when_disabled(mode):
  converted = jax2tf.convert(jnp.sin, with_gradient=False)
  close(mode(converted)(tf.constant(X)), jnp.sin(X))
  with pytest.raises(
    LookupError,
    match=r"Gradient explicitly disabled.*The jax2tf-converted function does not support gradients",
  ):
    gradient(converted)(tf.constant(X))


def forever(x):
  return jax.lax.while_loop(lambda x: x.sum() < 100, lambda x: x * 2, x)


def test_function_without_a_derivative_works_until_one_is_asked_for(mode):
  converted = jax2tf.convert(forever)
  close(mode(converted)(tf.constant(X)), forever(X))
  with pytest.raises(
    ValueError, match=r"Reverse-mode differentiation does not work for lax\.while_loop"
  ):
    mode(gradient(converted))(tf.constant(X))


def mlp(params, x):
  for w, b in params:
    x = jnp.tanh(x @ w + b)
  return jnp.mean(x**2)


def mlp_params():
  rng = np.random.default_rng(0)
  return [
    (rng.standard_normal((8, 8)).astype(np.float32), rng.standard_normal(8).astype(np.float32))
    for _ in range(4)
  ]


def count_dots(jaxpr):
  dots = sum(eqn.primitive.name == "dot_general" for eqn in jaxpr.eqns)
  return dots + sum(
    count_dots(inner)
    for eqn in jaxpr.eqns
    for inner in jax.extend.core.jaxprs_in_params(eqn.params)
  )


def test_loss_and_gradient_of_an_mlp_recompute_nothing():
  params, x = mlp_params(), np.ones((5, 8), np.float32)
  variables = jax.tree.map(tf.Variable, params)
  converted = jax2tf.convert(mlp, polymorphic_shapes=[None, "b, _"])

  @tf.function(input_signature=[tf.TensorSpec([None, 8])])
  def loss_and_gradient(x):
    with tf.GradientTape() as tape:
      y = converted(variables, x)
    return y, tape.gradient(y, variables)

  products = [op for op in executed_op_types(loss_and_gradient, x) if "MatMul" in op]
  assert len(products) == count_dots(jax.make_jaxpr(jax.value_and_grad(mlp))(params, x).jaxpr)
  loss, grads = loss_and_gradient(x)
  expected_loss, expected = jax.value_and_grad(mlp)(params, x)
  close(loss, expected_loss)
  # sums of products of both signs: relative to the largest entry
  close(grads, expected, rtol=1e-5, atol=1e-5)


def test_unused_residuals_cost_an_inference_graph_nothing():
  """TensorFlow's optimiser drops what only the backward pass would use."""
  x = np.ones((5, 8), np.float32)

  def matmuls(with_gradient):
    converted = jax2tf.convert(lambda x: mlp(mlp_params(), x), with_gradient=with_gradient)
    concrete = tf.function(converted).get_concrete_function(tf.TensorSpec(x.shape))
    return sum("MatMul" in op for op in op_types(concrete.graph))

  assert matmuls(True) == matmuls(False)


@pytest.mark.parametrize("spec", [None, "b"])
@pytest.mark.parametrize("size", [3, 3_000])
def test_a_result_that_nobody_differentiates_has_no_cotangent(mode, size, spec):
  """Zeros in its place would give 0 * inf."""
  x = np.zeros(size, np.float32)
  converted = jax2tf.convert(
    lambda x: (2 * x, jnp.log(x), jnp.sqrt(x) @ x), polymorphic_shapes=[spec]
  )
  first = mode(gradient(lambda x: converted(x)[0]))(tf.constant(x))
  close(first, np.full(size, 2.0, np.float32))
  log = mode(gradient(lambda x: converted(x)[1]))(tf.constant(x))
  close(log, jax.grad(lambda x: jnp.log(x).sum())(x))

  def explicit_zeros(x):
    with tf.GradientTape() as tape:
      tape.watch(x)
      ys = converted(x)
    return tape.gradient(ys[:2], x, output_gradients=[tf.ones_like(ys[0]), 0 * tf.stop_gradient(x)])

  assert np.isnan(mode(explicit_zeros)(tf.constant(x))).all()  # as that of jax.vjp


def test_partial_cotangents_cost_nothing_for_the_others():
  matrix = np.eye(8, dtype=np.float32)
  converted = jax2tf.convert(lambda x: (x @ x, jnp.tanh(x @ x @ x @ x)))
  function = tf.function(gradient(lambda x: converted(x)[0]), autograph=False)
  counts = collections.Counter(executed_op_types(function, tf.constant(matrix)))
  assert counts["MatMul"] == 2, counts  # the value itself is not asked for
  assert counts["Tanh"] == 0, counts


def test_second_and_third_orders_of_one_of_several_results(mode):
  x = np.array([0.0, 1.0], np.float32)
  converted = jax2tf.convert(lambda x: (x**4, jnp.log(x)))
  for order, expected in ((2, 12 * x**2), (3, 24 * x)):
    close(mode(gradient(lambda x: converted(x)[0], order))(tf.constant(x)), expected)


@pytest.mark.parametrize(("dtype", "marked"), [(np.float32, 99), (np.int32, 3)])
def test_long_chains_of_one_op_are_cut(dtype, marked):
  """TensorFlow's optimiser takes a time quadratic in the length of a chain of products
  (docs/reports/speed.md)."""

  def products(x):
    for _ in range(100):
      x = x * dtype(3)
    return x

  converted = jax2tf.convert(products, polymorphic_shapes=["2, n"])
  concrete = tf.function(converted, autograph=False).get_concrete_function(
    tf.TensorSpec([2, None], dtype)
  )
  ops = [op for op in concrete.graph.get_operations() if op.type == "Mul"]
  assert len(ops) == 100
  assert (
    sum("_grappler_ArithmeticOptimizer_AddOpsRewriteStage" in op.node_def.attr for op in ops)
    == marked
  )
  ones = np.ones([2, 3], dtype)
  close(concrete(tf.constant(ones)), jax.jit(products)(ones), rtol=1e-5)


def test_second_order_with_mixed_arguments():
  def f(x, w):
    return jnp.sum(jnp.sin(x * w) * w)

  x, w = tf.constant(X), tf.constant(X + 1)
  converted = jax2tf.convert(f)
  with tf.GradientTape() as outer:
    outer.watch([x, w])
    with tf.GradientTape() as tape:
      tape.watch([x, w])
      y = converted(x, w)
    gx, _ = tape.gradient(y, [x, w])
  expected = jax.grad(lambda x, w: jax.grad(f)(x, w).sum(), (0, 1))(X, X + 1)
  close(outer.gradient(gx, [x, w]), list(expected), rtol=1e-5, atol=1e-6)


def test_jacobian_and_persistent_tape():
  x = tf.constant(X)
  with tf.GradientTape(persistent=True) as tape:
    tape.watch(x)
    y = jax2tf.convert(lambda x: jnp.outer(x, jnp.sin(x)))(x)
  expected = jax.jacobian(lambda x: jnp.outer(x, jnp.sin(x)))(X)
  close(tape.jacobian(y, x, experimental_use_pfor=False), expected)
  close(tape.jacobian(y, x), expected)


@pytest.mark.parametrize("checkpoint", [jax.checkpoint, lambda f: f], ids=["remat", "plain"])
def test_as_many_products_run_as_jax_asks_for(checkpoint):
  """TensorFlow's optimiser merges equal ops, but must not merge a recomputation with the forward
  pass."""
  w, x = np.full((8, 8), 0.3, np.float32), np.ones((5, 8), np.float32)

  def loss(w, x):
    for _ in range(3):
      x = checkpoint(lambda x: jnp.tanh(jnp.tanh(x @ w) @ w))(x)
    return jnp.mean(x**2)

  converted = jax2tf.convert(loss)

  @tf.function(autograph=False)
  def loss_and_gradient(w, x):
    with tf.GradientTape() as tape:
      tape.watch(w)
      y = converted(w, x)
    return y, tape.gradient(y, w)

  products = [
    op
    for op in executed_op_types(loss_and_gradient, tf.constant(w), tf.constant(x))
    if "MatMul" in op
  ]
  assert len(products) == count_dots(jax.make_jaxpr(jax.value_and_grad(loss))(w, x).jaxpr)


@jax.custom_jvp
def _constant(x):
  return np.zeros(x.shape, x.dtype)


_constant.defjvp(lambda primals, tangents: (_constant(*primals), tangents[0]))


def test_vmap_of_a_custom_jvp_with_a_constant_result():
  """JAX differentiates it, but not what it traces of it; the error says so, and what to do."""

  def fun(x):
    return jax.vmap(_constant)(x).sum()

  x = tf.range(3, dtype=tf.float32)
  with pytest.raises(TypeError, match="broadcast_dimensions"):
    jax.grad(jax.jit(fun))(x.numpy())
  with tf.GradientTape() as tape:
    tape.watch(x)
    with pytest.raises(TypeError, match="broadcast_dimensions") as error:
      tape.gradient(jax2tf.convert(fun)(x), x)
  assert "jax2tf.convert(jax.grad(f))" in error.value.__notes__[-1]
  np.testing.assert_array_equal(jax2tf.convert(jax.grad(fun))(x), jax.grad(fun)(x.numpy()))
