"""Everywhere that TensorFlow differentiates, a converted function has JAX's gradients.

test_gradient.py proves the orders and the conventions; here are the places (tapes, loops,
Jacobians) and the functions (loops, sorts, linear algebra, custom rules); test_gradient_training.py
has Keras, tf.data, loss scaling and replicas.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax.ad_checkpoint import checkpoint_name

import jax2tf
from tests.gradients.test_gradient import MODES, gradient
from tests.support.case import close

RNG = np.random.default_rng(0)
X = np.array([0.5, -1.0, 2.0, 0.25], np.float32)
BATCH = RNG.standard_normal((3, 4)).astype(np.float32)
MATRIX = (RNG.standard_normal((4, 4)) / 4 + np.diag([2.0, 3.0, 4.0, 5.0])).astype(np.float32)
KEY = jax.random.key(7)
POLICIES = jax.checkpoint_policies


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 2))
def reversed_rule(f, x, factor):
  return f(x)


reversed_rule.defvjp(lambda f, x, factor: (f(x), x), lambda f, factor, x, g: (-factor * f(x) * g,))


@jax.custom_vjp
def with_zeros(x, y):
  return x * y, jnp.sin(x)


def _with_zeros_forward(x, y):
  return with_zeros(x.value, y.value), (x.value, y.value)


def _with_zeros_backward(residuals, cotangents):
  x, y = residuals
  product, sine = (
    jnp.zeros(c.shape, c.dtype) if isinstance(c, jax.custom_derivatives.SymbolicZero) else c
    for c in cotangents
  )
  # neither is the true derivative, so nothing else can have made it
  return (2 * product * y + sine, 3 * product * x)


with_zeros.defvjp(_with_zeros_forward, _with_zeros_backward, symbolic_zeros=True)


def network(x):
  y = checkpoint_name(jnp.tanh(MATRIX @ x), "hidden")
  return jnp.sin(MATRIX.T @ y) * y


def spd(x):
  """A symmetric positive definite matrix of x."""
  m = MATRIX * jnp.cos(x)
  return m @ m.T + jnp.eye(4)


def loop(x):
  return jax.lax.scan(
    lambda c, row: (jnp.tanh(c * row + x), c * c), x, jnp.asarray(BATCH), reverse=True
  )


@dataclass(frozen=True)
class Row:
  """f32[4] -> floats, and how exactly the derivatives are compared: relative to the largest entry.

  Attributes:
    fun: the JAX function.
    rtol: 1e-5 for the first order, of a chain of some ten roundings; the second order has ten times
      that.
    second: whether the second order is compared too; a few rows of each kind suffice.
  """

  fun: Callable[..., Any]
  rtol: float = 1e-5
  second: bool = False


ROWS = {
  "nondiff_argnums": Row(lambda x: reversed_rule(jnp.cosh, x, 3.0), second=True),
  "symbolic_zeros": Row(lambda x: with_zeros(x, jnp.exp(x))[0], second=True),
  "custom_jvp": Row(lambda x: jax.nn.relu(x) + jax.nn.silu(x) + jax.numpy.logaddexp(x, 1.0)),
  "stop_gradient": Row(lambda x: x * jax.lax.stop_gradient(jnp.exp(x)) + jax.lax.stop_gradient(x)),
  "nothing_saveable": Row(jax.checkpoint(network, policy=POLICIES.nothing_saveable)),
  "dots_saveable": Row(jax.checkpoint(network, policy=POLICIES.dots_saveable), second=True),
  "saved_by_name": Row(
    jax.checkpoint(network, policy=POLICIES.save_only_these_names("hidden"), prevent_cse=False)
  ),
  "scan": Row(loop, second=True),
  "scan_of_checkpoint": Row(
    lambda x: jax.lax.scan(jax.checkpoint(lambda c, r: (jnp.sin(c) * r, c)), x, jnp.asarray(BATCH))[
      0
    ]
  ),
  "fori": Row(lambda x: jax.lax.fori_loop(0, 3, lambda i, c: c * jnp.cos(x) + i, x)),
  "cond": Row(lambda x: jax.lax.cond(x[0] > x[1], lambda x: x**3, jnp.cos, x) * x[2]),
  "switch_in_scan": Row(
    lambda x: jax.lax.scan(
      lambda c, i: (jax.lax.switch(i, [jnp.sin, jnp.exp, lambda c: c * x], c), c), x, np.arange(3)
    )
  ),
  "sort": Row(lambda x: jnp.sort(jnp.sin(3 * x)) * jnp.arange(4.0), second=True),
  "sort_pairs": Row(lambda x: jax.lax.sort((jnp.sin(x), x**3), num_keys=1)[1] * jnp.arange(4.0)),
  "top_k": Row(lambda x: jax.lax.top_k(x**3, 2)[0] * jnp.arange(1.0, 3.0)),
  "cumulative": Row(lambda x: jnp.cumprod(x) + jax.lax.cummax(x) + jnp.cumsum(x**2)),
  "gather": Row(
    lambda x: (x**2)[np.array([3, 0, 0, 9])] * jnp.take(jnp.sin(x), np.array([1, -1, 2, 2]))
  ),
  "gather_traced": Row(
    lambda x: (x**2)[jnp.argsort(x)] * jax.lax.dynamic_slice(x, (jnp.argmax(x) - 1,), (2,)).sum(),
    second=True,
  ),
  "scatter_add": Row(lambda x: jnp.zeros(6).at[np.array([0, 5, 0, 7])].add(jnp.sin(x)) ** 2),
  "scatter_set": Row(lambda x: (x**2).at[np.array([2, 0])].set(jnp.exp(x[1:3])) * x, second=True),
  "scatter_max": Row(lambda x: jnp.zeros(3).at[np.array([0, 1, 0, 2])].max(x**3)),
  "cholesky": Row(lambda x: jnp.linalg.cholesky(spd(x)), rtol=1e-4, second=True),
  "solve": Row(lambda x: jnp.linalg.solve(MATRIX * jnp.cos(x), jnp.sin(x)), rtol=1e-4, second=True),
  "solve_triangular": Row(
    lambda x: jax.scipy.linalg.solve_triangular(MATRIX * jnp.cos(x), x, lower=True), rtol=1e-4
  ),
  "eigvalsh": Row(lambda x: jnp.linalg.eigvalsh(spd(x)), rtol=1e-4, second=True),
  "slogdet": Row(lambda x: jnp.linalg.slogdet(MATRIX * jnp.exp(x))[1], rtol=1e-4),
  "inv": Row(lambda x: jnp.linalg.inv(spd(x)), rtol=1e-4),
  "reparametrised": Row(lambda x: x + jnp.exp(x) * jax.random.normal(KEY, (4,))),
  "gumbel_softmax": Row(
    lambda x: jax.nn.softmax(2 * (x + jax.random.gumbel(KEY, (4,)))), second=True
  ),
  "dropout": Row(lambda x: jnp.where(jax.random.bernoulli(KEY, 0.5, (4,)), x**2, 0.0)),
  "logsumexp_with_inf": Row(lambda x: jax.nn.logsumexp(jnp.where(jnp.arange(4) < 3, x, -jnp.inf))),
  "norm_fft": Row(lambda x: jnp.abs(jnp.fft.rfft(x)) + jnp.linalg.norm(x), second=True),
}


def total(fun: Callable[..., Any]) -> Callable[..., Any]:
  """A float of all results, with weights that tell them apart."""

  def weighted(x: Any) -> Any:
    leaves = [y for y in jax.tree.leaves(fun(x)) if jnp.issubdtype(y.dtype, np.floating)]
    return sum(jnp.sum(y * jnp.cos(jnp.arange(1.0, y.size + 1).reshape(y.shape))) for y in leaves)

  return weighted


graph, xla = MODES["graph"], MODES["xla"]
in_every_mode = pytest.mark.parametrize("mode", MODES.values(), ids=MODES)


def nearly(actual: Any, expected: Any, rtol: float) -> None:
  close(actual, expected, rtol=rtol, of_the_largest=True)


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_gradient_eagerly(row):
  nearly(
    gradient(jax2tf.convert(total(row.fun)))(tf.constant(X)),
    jax.jit(jax.grad(total(row.fun)))(X),
    row.rtol,
  )


# One of each kind that XLA compiles differently from TensorFlow's own kernels.
COMPILED = {
  *(
    "nondiff_argnums",
    "dots_saveable",
    "scan",
    "scan_of_checkpoint",
    "cond",
    "switch_in_scan",
    "sort",
    "top_k",
    "cumulative",
    "gather",
  ),
  *(
    "gather_traced",
    "scatter_add",
    "scatter_set",
    "scatter_max",
    "cholesky",
    "solve",
    "solve_triangular",
    "eigvalsh",
    "norm_fft",
  ),
}


@pytest.mark.parametrize(
  "row", [pytest.param(row, id=name) for name, row in ROWS.items() if name in COMPILED]
)
def test_gradient_under_xla(row):
  function = tf.function(
    gradient(jax2tf.convert(total(row.fun))), autograph=False, jit_compile=True
  )
  nearly(function(tf.constant(X)), jax.jit(jax.grad(total(row.fun)))(X), row.rtol)


@pytest.mark.parametrize(
  "row", [pytest.param(row, id=name) for name, row in ROWS.items() if row.second]
)
def test_second_order_in_a_graph(row):
  def jax_second(x):
    return jax.grad(lambda x: jnp.sum(jnp.sin(jax.grad(total(row.fun))(x))))(x)

  def tf_second(x):
    return gradient(lambda x: tf.reduce_sum(tf.sin(gradient(jax2tf.convert(total(row.fun)))(x))))(x)

  nearly(
    tf.function(tf_second, autograph=False)(tf.constant(X)), jax.jit(jax_second)(X), 10 * row.rtol
  )


JACOBIANS = [
  "symbolic_zeros",
  "scan",
  "cond",
  "sort",
  "scatter_add",
  "solve",
  "eigvalsh",
  "norm_fft",
  "nothing_saveable",
]


@pytest.mark.parametrize(
  ("name", "pfor"), [*((name, True) for name in JACOBIANS), ("scan", False), ("solve", False)]
)
def test_jacobian(name, pfor):
  def fun(x):
    return jax.tree.leaves(ROWS[name].fun(x))[0]

  x = tf.constant(X)
  with tf.GradientTape(persistent=not pfor) as tape:
    tape.watch(x)
    y = jax2tf.convert(fun)(x)
  nearly(tape.jacobian(y, x, experimental_use_pfor=pfor), jax.jacrev(fun)(X), ROWS[name].rtol)


@pytest.mark.parametrize(
  ("name", "pfor"), [("scan", True), ("sort", True), ("gather", True), ("scan", False)]
)
def test_batch_jacobian_with_an_unknown_batch(name, pfor):
  def fun(x):
    return jax.tree.leaves(ROWS[name].fun(x))[0]

  converted = jax2tf.convert(jax.vmap(fun), polymorphic_shapes="b, _")

  @tf.function(autograph=False, input_signature=[tf.TensorSpec([None, 4])])
  def batch_jacobian(x):
    with tf.GradientTape() as tape:
      tape.watch(x)
      y = converted(x)
    return tape.batch_jacobian(y, x, experimental_use_pfor=pfor)

  nearly(batch_jacobian(tf.constant(BATCH)), jax.vmap(jax.jacrev(fun))(BATCH), ROWS[name].rtol)


def hessian(converted, x):
  with tf.GradientTape() as outer:
    outer.watch(x)
    with tf.GradientTape() as tape:
      tape.watch(x)
      y = converted(x)
    g = tape.gradient(y, x)
  return outer.jacobian(g, x)


@pytest.mark.parametrize(
  ("name", "mode"), [("nondiff_argnums", "eager"), ("fori", "eager"), ("cond", "graph")]
)
def test_hessian(name, mode):
  fun = total(ROWS[name].fun)
  nearly(
    MODES[mode](functools.partial(hessian, jax2tf.convert(fun)))(tf.constant(X)),
    jax.hessian(fun)(X),
    10 * ROWS[name].rtol,
  )


def penalty_gradient(converted, **options):
  """The gradient of a penalty on a Jacobian; test_hessian is the other way round, the Jacobian of a
  gradient."""

  def gradient(x):
    with tf.GradientTape() as outer:
      outer.watch(x)
      with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = converted(x)
      penalty = tf.reduce_sum(tape.jacobian(y, x, **options) ** 2)
    return outer.gradient(penalty, x)

  return gradient


@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_derivative_of_a_jacobian(mode):
  def fun(x):
    return jnp.sin(x) * x[0]

  expected = jax.grad(lambda x: jnp.sum(jax.jacrev(fun)(x) ** 2))(X)
  nearly(
    MODES[mode](penalty_gradient(jax2tf.convert(fun), experimental_use_pfor=False))(tf.constant(X)),
    expected,
    1e-4,
  )


@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_derivatives_through_pfor_are_refused(mode):
  """TF 2.21: pfor makes a plain IdentityN of one with a gradient function, and would differentiate
  the ops behind it."""
  converted = jax2tf.convert(jnp.sin)
  for derivative in (
    penalty_gradient(converted),
    gradient(lambda x: tf.vectorized_map(converted, x)),
  ):
    with pytest.raises(
      LookupError, match=r"Use jax\.vmap before convert, or experimental_use_pfor=False"
    ):
      MODES[mode](derivative)(tf.constant(X))


@tf.custom_gradient
def _doubled(x):
  return tf.identity(x), lambda g: 2 * g


def through_while(f):
  return lambda x: tf.while_loop(
    lambda i, x: i < 3, lambda i, x: (i + 1, f(x)), (0, x), maximum_iterations=3
  )[1]


def through_while_of_unknown_length(f):
  return lambda x: tf.while_loop(
    lambda x: tf.reduce_sum(tf.abs(x)) > 3.0, lambda x: (f(x) / 2,), (x,)
  )[0]


def jax_while_of_unknown_length(f):
  def fun(x):
    while np.abs(jax.lax.stop_gradient(x)).sum() > 3.0:
      x = f(x) / 2
    return x

  return fun


def batched(f):
  return lambda x: jax.vmap(f)(jnp.stack([x, 2 * x]))


def twice(x):
  return tf.stack([x, 2 * x])


@dataclass(frozen=True)
class Place:
  """A way to use a converted function in TensorFlow, and the same in JAX.

  Attributes:
    in_tensorflow: converted function -> TensorFlow function.
    in_jax: JAX function -> JAX function.
    also: modes besides "graph".
  """

  in_tensorflow: Callable[..., Any]
  in_jax: Callable[..., Any] = lambda f: f
  also: tuple[str, ...] = ()


PLACES = {
  "recompute_grad": Place(tf.recompute_grad, also=("eager", "xla")),
  "between_ops": Place(
    lambda f: lambda x: tf.exp(f(tf.sin(x))), lambda f: lambda x: jnp.exp(f(jnp.sin(x)))
  ),
  "twice": Place(
    lambda f: lambda x: f(f(x)) * f(x), lambda f: lambda x: f(f(x)) * f(x), also=("eager",)
  ),
  "tf_function": Place(tf.function, also=("eager",)),
  "nested_tf_functions": Place(lambda f: tf.function(tf.function(f)), also=("eager", "xla")),
  "while_loop": Place(through_while, lambda f: lambda x: f(f(f(x))), also=("xla",)),
  "while_loop_of_unknown_length": Place(
    through_while_of_unknown_length, jax_while_of_unknown_length
  ),
  "cond": Place(lambda f: lambda x: tf.cond(x[0] > 0, lambda: f(x), lambda: -x), also=("xla",)),
  "cond_the_other_way": Place(
    lambda f: lambda x: tf.cond(x[0] < 0, lambda: f(x), lambda: -x), lambda f: lambda x: -x
  ),
  "switch_case": Place(
    lambda f: lambda x: tf.switch_case(tf.constant(1), [lambda: x, lambda: f(x)])
  ),
  "map_fn": Place(lambda f: lambda x: tf.map_fn(f, twice(x)), batched),
  "scan": Place(
    lambda f: lambda x: tf.scan(lambda c, _: f(c), tf.zeros(3), x),
    lambda f: lambda x: jnp.stack([f(x), f(f(x)), f(f(f(x)))]),
  ),
  "custom_gradient": Place(
    lambda f: lambda x: f(_doubled(x)),
    lambda f: lambda x: f(x) + (f(x) - jax.lax.stop_gradient(f(x))),
  ),
  "stop_gradient": Place(
    lambda f: lambda x: x * tf.stop_gradient(f(x)),
    lambda f: lambda x: x * jax.lax.stop_gradient(f(x)),
  ),
  "tf_gradients": Place(
    lambda f: tf.function(lambda x: tf.gradients(f(x), x)[0]),
    lambda f: jax.grad(lambda x: f(x).sum()),
    also=("eager",),
  ),
}
IN_PLACES = {
  "custom_vjp": lambda x: reversed_rule(jnp.cosh, x, 3.0) / 4,
  "scan_of_cond": lambda x: jax.lax.scan(
    lambda c, r: (
      jax.lax.cond(r[0] > 0, lambda c: jnp.tanh(c * r + x), lambda c: jnp.cos(c) * x, c),
      None,
    ),
    x,
    jnp.asarray(BATCH),
  )[0],
}


def _placed():
  for place, p in PLACES.items():
    for mode in ["graph", *p.also]:
      yield pytest.param(place, "scan_of_cond", MODES[mode], id=f"{place}-{mode}")
    yield pytest.param(place, "custom_vjp", graph, id=f"{place}-custom_vjp")


@pytest.mark.parametrize(("place", "name", "mode"), list(_placed()))
def test_place(place, name, mode):
  """The gradient through a converted function that stands there."""
  used = PLACES[place].in_tensorflow(jax2tf.convert(IN_PLACES[name]))
  expected = jax.grad(lambda x: jnp.sum(PLACES[place].in_jax(IN_PLACES[name])(x)))(X)
  nearly(mode(gradient(used))(tf.constant(X)), expected, 1e-5)


def test_persistent_tape_tells_variables_watched_and_other_tensors_apart():
  def fun(p, x, y):
    return jnp.sin(p["w"] * x) + p["frozen"] * y, p["w"].sum() * x

  w, frozen = tf.Variable(X), tf.Variable(X + 1, trainable=False)
  x, y = tf.constant(X + 2), tf.constant(X + 3)
  with tf.GradientTape(persistent=True) as tape:
    tape.watch(x)
    a, b = jax2tf.convert(fun)({"w": w, "frozen": frozen}, x, y)
  for k, result in enumerate((a, b)):
    expected = jax.grad(lambda p, x, k=k: fun(p, x, y.numpy())[k].sum(), (0, 1))(
      {"w": X, "frozen": X + 1}, X + 2
    )
    for _ in range(2):  # persistent
      found = tape.gradient(result, [w, x, frozen, y])
      nearly(found[:2], [expected[0]["w"], expected[1]], 1e-5)
      assert found[2:] == [None, None]


def test_only_the_chosen_variable_is_watched():
  w, v = tf.Variable(X), tf.Variable(X)
  with tf.GradientTape(watch_accessed_variables=False) as tape:
    tape.watch(v)
    y = jax2tf.convert(lambda w, v: w * v**2)(w, v)
  found = tape.gradient(y, [w, v])
  assert found[0] is None
  nearly(found[1], 2 * X * X, 1e-6)


def test_recompute_grad_finds_the_variables():
  w = tf.Variable(X)
  converted = jax2tf.convert(lambda w, x: jnp.sin(w * x))
  for wrap in MODES.values():

    def gradients(x):
      with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.recompute_grad(lambda x: converted(w, x))(x)
      return tape.gradient(y, [w, x])

    expected = jax.grad(lambda w, x: jnp.sin(w * x).sum(), (0, 1))(X, BATCH[0])
    nearly(wrap(gradients)(tf.constant(BATCH[0])), list(expected), 1e-5)


# Functions with the same value in both languages: what the tape gives for the one, it gives for the
# other.
COMPLEX = {
  "cube": (lambda z: z**3, lambda z: z**3),
  "exp_over": (lambda z: jnp.exp(z) / (z + 3), lambda z: tf.exp(z) / (z + 3)),
  "sqrt_log": (lambda z: jnp.sqrt(z) * jnp.log(z), lambda z: tf.sqrt(z) * tf.math.log(z)),
  "abs": (jnp.abs, tf.abs),
  "norm": (lambda z: jnp.real(z * jnp.conj(z)), lambda z: tf.math.real(z * tf.math.conj(z))),
  "imag": (jnp.imag, tf.math.imag),
  "made_of_parts": (
    lambda z: jax.lax.complex(jnp.imag(z), jnp.real(z) ** 2),
    lambda z: tf.complex(tf.math.imag(z), tf.math.real(z) ** 2),
  ),
  "matmul": (
    lambda z: z[:, None] @ jnp.conj(z)[None],
    lambda z: z[:, None] @ tf.math.conj(z)[None],
  ),
  "fft": (lambda z: jnp.fft.fft(z) * jnp.conj(z), lambda z: tf.signal.fft(z) * tf.math.conj(z)),
}


@in_every_mode
@pytest.mark.parametrize("name", COMPLEX)
def test_complex_gradient_is_that_of_the_same_function_in_tensorflow(name, mode):
  in_jax, in_tensorflow = COMPLEX[name]
  z = tf.constant([1 + 2j, -0.5 + 0.3j, 2 - 1j], tf.complex64)
  nearly(mode(gradient(jax2tf.convert(in_jax)))(z), gradient(in_tensorflow)(z), 1e-5)


@in_every_mode
def test_integers_bools_and_keys_have_no_gradient(mode):
  def fun(x, n, b, key):
    return jnp.where(b, x * n, 0.0) * jax.random.normal(key, x.shape)

  key = jax2tf.convert(lambda: jax.random.key(3))()
  args = [
    tf.constant(X),
    tf.constant([1, 2, 3, 4]),
    tf.constant([True, False, True, True]),
    tf.constant(jax.random.key_data(KEY)),
  ]

  def gradients(*args):
    with tf.GradientTape(persistent=True) as tape:
      tape.watch(args)
      y = jax2tf.convert(fun)(*args)
    zeros = tape.gradient(y, args, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    plain = tape.gradient(y, args)
    assert plain[1:] == (None, None, None)
    return zeros

  # a typed key keeps its dtype in eager calls only
  args[3] = key if mode is MODES["eager"] else args[3]
  used = jax.random.wrap_key_data(args[3].numpy())
  expected = jax.grad(lambda *args: fun(*args).sum())(
    X, np.array([1, 2, 3, 4]), np.array([True, False, True, True]), used
  )
  found = mode(gradients)(*args)
  nearly(found[0], expected, 1e-5)
  for zeros, arg in zip(found[1:], args[1:], strict=True):
    assert zeros.dtype == arg.dtype
    assert not np.any(zeros)


@in_every_mode
@pytest.mark.parametrize("used", [[0], [2], [0, 3]], ids=str)
def test_cotangents_of_some_outputs_only(used, mode):
  def fun(x):
    return jnp.sin(x), x.astype(jnp.int32), {"a": x.sum(), "b": with_zeros(x, x)[1]}

  def gradient(x):
    with tf.GradientTape() as tape:
      tape.watch(x)
      ys = jax.tree.leaves(jax2tf.convert(fun)(x))
      y = [ys[i] for i in used]
    return tape.gradient(y, x)

  nearly(
    mode(gradient)(tf.constant(X)),
    jax.grad(lambda x: sum(jax.tree.leaves(fun(x))[i].sum() for i in used))(X),
    1e-6,
  )


def test_unused_arguments_have_zeros_and_unconnected_ones_none():
  variable, x, elsewhere = tf.Variable(X), tf.constant(X), tf.Variable(1.0)
  with tf.GradientTape() as tape:
    y = jax2tf.convert(lambda p, x: (x * 2).sum() + 0 * p["unused"].shape[0])(
      {"unused": variable}, x
    )
  found = tape.gradient(y, [variable, elsewhere])
  close(found[0], np.zeros(4, np.float32))
  assert found[1] is None


def test_nan_of_where_is_jaxs_in_a_jacobian_and_under_xla():
  def fun(x):
    return jnp.where(x > 0, jnp.log(x), 0.0)

  x = np.array([0.0, 1.0, 0.0], np.float32)
  with tf.GradientTape() as tape:
    tape.watch(t := tf.constant(x))
    y = jax2tf.convert(fun)(t)
  close(tape.jacobian(y, t), jax.jacrev(fun)(x))
  close(xla(gradient(jax2tf.convert(fun)))(t), jax.grad(lambda x: fun(x).sum())(x))
