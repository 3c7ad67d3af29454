"""Fused idioms: each matches what is written by hand, not a near miss, and has JAX's values and
derivatives.

tests/idioms/test_fused_layers.py has the layers of libraries, and what differs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flax.linen as linen
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import lax

import jax2tf
from jax2tf.converters import saved_model
from jax2tf.idioms.fused import NAMES, entries
from tests.idioms.fused_layers import IMAGE, KEY, TOKENS, X, primitives
from tests.idioms.test_idioms import conv
from tests.support import onednn
from tests.support.case import executed_op_types, op_types

KERNEL = np.random.default_rng(0).standard_normal((3, 3, 3, 4), np.float32)
gelu_erf = functools.partial(jax.nn.gelu, approximate=False)

ELEMENTWISE = {
  "relu": jax.nn.relu,
  "relu6": jax.nn.relu6,
  "leaky_relu": functools.partial(jax.nn.leaky_relu, negative_slope=0.2),
  "elu": jax.nn.elu,
  "selu": jax.nn.selu,
  "silu": jax.nn.silu,
  "hard_swish": jax.nn.hard_swish,
  "gelu": jax.nn.gelu,
  "gelu_erf": gelu_erf,
}
ROWS = {"softmax": jax.nn.softmax, "log_softmax": jax.nn.log_softmax}


def normalized(x: Any) -> Any:
  return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)


BY_HAND: dict[str, Callable[[Any], Any]] = {
  "relu": lambda x: jnp.maximum(x, 0),
  "relu6": lambda x: jnp.clip(x, 0, 6),
  "leaky_relu": lambda x: jnp.where(x >= 0, x, 0.2 * x),
  "silu": lambda x: x * (1 / (1 + jnp.exp(-x))),
  "gelu": lambda x: 0.5 * x * (1 + lax.erf(x / jnp.sqrt(2))),
  "softmax": lambda x: (e := jnp.exp(x - x.max(-1, keepdims=True))) / e.sum(-1, keepdims=True),
  "normalize": normalized,
}


@pytest.mark.parametrize("name", BY_HAND)
def test_written_by_hand(name: str) -> None:
  assert name in primitives(BY_HAND[name], X)


BATCHED: dict[str, Callable[[Any], Any]] = {
  "attention": lambda x: jax.nn.dot_product_attention(x, x, x),
  "groups": lambda x: jax.nn.dot_product_attention(x, x[:, :, :1], x[:, :, :1]),
  "columns": lambda x: jax.vmap(jax.nn.softmax, in_axes=2)(x),
  "log": lambda x: jax.vmap(jax.nn.log_softmax, in_axes=1)(x),
}


@pytest.mark.parametrize("name", BATCHED)
def test_scores_are_reduced_before_their_axes_move(name: str) -> None:
  x = np.random.default_rng(0).standard_normal((2, 3, 2, 4), np.float32)
  assert ("log_softmax" if name == "log" else "softmax") in primitives(BATCHED[name], x)
  converted = jax2tf.convert(BATCHED[name], idioms="fused")
  # sums of three and four terms
  np.testing.assert_allclose(converted(x), BATCHED[name](x), rtol=1e-5, atol=1e-6)


def of_other_rows(x: Any) -> Any:
  """A softmax but for the maxima, which are those of other rows."""
  moved = jnp.transpose(x, (1, 0, 2))
  e = jnp.exp(moved - jnp.transpose(x[::-1].max(-1), (1, 0))[..., None])
  return e / e.sum(-1, keepdims=True)


def of_two_maxima(x: Any) -> Any:
  moved = jnp.transpose(x, (1, 0, 2))
  least = jnp.maximum(x.max(-1), x[..., 0])
  e = jnp.exp(moved - jnp.transpose(least, (1, 0))[..., None])
  return e / e.sum(-1, keepdims=True)


_SCALE = np.ones(4, np.float32)
NEAR_MISSES: dict[str, tuple[Callable[..., Any], Any, str]] = {
  "another_bound": (lambda x: jnp.maximum(x, 0.5), X, "relu"),
  "integers": (lambda x: jnp.maximum(x, 0), X.astype(np.int32), "relu"),
  "halves": (jax.nn.gelu, X.astype(np.float16), "gelu"),
  "another_elu": (functools.partial(jax.nn.elu, alpha=0.5), X, "elu"),
  "used_between": (
    lambda x: (jax.nn.gelu(x), jnp.tanh(0.7978845834732056 * (x + 0.044714998453855515 * x**3))),
    X,
    "gelu",
  ),
  "of_another": (lambda x: x * jax.nn.sigmoid(x + 1), X, "silu"),
  "another_axis": (functools.partial(jax.nn.softmax, axis=0), X, "softmax"),
  "other_rows": (of_other_rows, X, "softmax"),
  "two_maxima": (of_two_maxima, X, "softmax"),
  "another_factor": (lambda x: 0.5 * x * (1 + jnp.tanh(0.8 * (x + 0.044715 * x**3))), X, "gelu"),
  "normalized_columns": (
    lambda x: (x - x.mean(0, keepdims=True)) / jnp.sqrt(x.var(0, keepdims=True) + 1e-5),
    X,
    "normalize",
  ),
  "another_mean": (
    lambda x: (x - x[:1].mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5),
    X,
    "normalize",
  ),
  "norm_in_training": (
    lambda x: ((y := conv(x, KERNEL)) - y.mean((0, 1, 2))) * _SCALE,
    IMAGE,
    "batch_norm",
  ),
  "bias_alone": (lambda x: conv(x, KERNEL) + _SCALE, IMAGE, "batch_norm"),
  "per_pixel": (lambda x: conv(x, KERNEL) * np.ones((6, 1), np.float32), IMAGE, "batch_norm"),
}


@pytest.mark.parametrize("miss", NEAR_MISSES)
def test_does_not_fire(miss: str) -> None:
  fun, x, name = NEAR_MISSES[miss]
  assert name not in primitives(fun, x)


def _with_rule(function: Callable[..., Any], rule: Callable[..., Any]) -> Callable[..., Any]:
  own = jax.custom_jvp(function)
  own.defjvp(rule)
  return own


def _raise(primals: Any, tangents: Any) -> Any:
  raise NotImplementedError("has no derivative")


def _select(primals: Any, tangents: Any) -> Any:
  (x,), (t,) = primals, tangents
  return jnp.maximum(x, 0), lax.select(x > 0, t, jnp.zeros_like(t))


def _select_twice(primals: Any, tangents: Any) -> Any:
  y, t = _select(primals, tangents)
  return (y, 2 * y), (t, t)


# Rules of the user's: for relu with another derivative, for two results, and one that JAX calls
# only to differentiate.
RULES = {
  "another_derivative": _with_rule(
    lambda x: jnp.maximum(x, 0), lambda p, t: (jnp.maximum(*p, 0), 3 * t[0])
  ),
  "two_results": _with_rule(lambda x: (jnp.maximum(x, 0), 2 * jnp.maximum(x, 0)), _select_twice),
  "raises": _with_rule(lambda x: jnp.maximum(x, 0), _raise),
}


@pytest.mark.parametrize("name", RULES)
def test_a_rule_of_the_users_is_another_function(name: str) -> None:
  assert primitives(RULES[name], X) == ["custom_jvp_call"]
  converted = jax2tf.convert(RULES[name], idioms="fused", with_gradient=False)
  for actual, wanted in zip(
    jax.tree.leaves(converted(X)), jax.tree.leaves(RULES[name](X)), strict=True
  ):
    np.testing.assert_array_equal(actual, wanted)


def test_a_rule_like_jaxs_is_the_same() -> None:
  assert primitives(_with_rule(lambda x: jnp.maximum(x, 0), _select), X) == ["relu"]


def test_draws_are_not_shared() -> None:
  draws = jax2tf.convert(
    lambda a, b: [lax.rng_uniform(a, b, (4,)) for _ in range(2)],
    idioms="fused",
    with_gradient=False,
  )
  first, second = draws(0.0, 1.0)
  assert not np.array_equal(first, second)


@pytest.mark.parametrize("which", [-1, 0, 1, 5])
def test_a_number_that_selects_is_clipped(which: int) -> None:
  converted = jax2tf.convert(lambda a, b: lax.select_n(np.int32(which), a, b), idioms="fused")
  np.testing.assert_array_equal(converted(X, X + 1), X + min(max(which, 0), 1))


def test_slopes_that_leaky_relu_has_not() -> None:
  """Its attribute is a float32: another slope of float64 stays exact."""
  x = X.astype(np.float64)
  with jax.enable_x64(True):
    for slope, name in ((0.25, "leaky_relu"), (-0.5, "leaky_relu"), (0.2, "select_n")):
      fun = functools.partial(jax.nn.leaky_relu, negative_slope=slope)
      assert name in primitives(fun, x)
      np.testing.assert_array_equal(jax2tf.convert(fun, idioms="fused")(x), fun(x))


@pytest.mark.parametrize("slope", [2.0, -0.5, 0.0])
def test_unusual_slopes(slope: float) -> None:
  """Alone, and as what Grappler fuses with a product or a convolution."""
  leaky = functools.partial(jax.nn.leaky_relu, negative_slope=slope)

  def fun(x: Any, images: Any, w: Any, b: Any) -> Any:
    return leaky(x), leaky(x @ w + b), leaky(conv(images, w[None, None, :3]) + b)

  args = X[0], IMAGE, np.eye(8, dtype=np.float32), np.linspace(-1, 1, 8, dtype=np.float32)
  found = tf.function(jax2tf.convert(fun, idioms="fused", with_gradient=False), autograph=False)(
    *args
  )
  for actual, wanted in zip(found, fun(*args), strict=True):
    np.testing.assert_allclose(actual, wanted, rtol=1e-6, atol=1e-6)


def test_halves_of_pools() -> None:
  """A maximum rounds nothing; a mean does."""
  image = IMAGE.astype(np.float16)
  assert "max_pool" in primitives(lambda x: linen.max_pool(x, (2, 2)), image)
  assert "mean_pool" not in primitives(lambda x: linen.avg_pool(x, (2, 2)), image)


def test_a_window_of_symbolic_size() -> None:
  """Whose number of elements is no number."""

  def fun(x: Any) -> Any:
    return lax.reduce_window(x, 0.0, lax.add, (1, *x.shape[1:3], 1), (1, 1, 1, 1), "VALID") / 4.0

  np.testing.assert_allclose(
    jax2tf.convert(fun, polymorphic_shapes="b, h, w, _", idioms="fused")(IMAGE),
    fun(IMAGE),
    rtol=1e-5,
  )


def _scores(x: Any) -> Any:
  return jnp.einsum("bqhd,bkhd->bhqk", x, x) / 2


# One row of queries of the first batch sees no key at all.
_SOME = np.arange(5) < np.array([[5], [3], [1], [4], [2]])
_SEEN = np.stack([np.where(np.arange(5)[:, None] == 1, False, _SOME), _SOME])[:, None]
MASKED: dict[str, Callable[[Any], Any]] = {
  "rows": lambda x: jax.nn.softmax(jnp.where(_SEEN, _scores(x), -1e30)),
  "keys": lambda x: jax.nn.softmax(
    jnp.where(_SEEN[:, :, 2:3], _scores(x), jnp.finfo(jnp.float32).min)
  ),
  "the_other_way": lambda x: jax.nn.softmax(jnp.where(_SEEN[1, 0], -1e30, _scores(x))),
  "for_all": lambda x: jax.nn.dot_product_attention(x, x, x, mask=_SEEN[1:], is_causal=True),
  "bias": lambda x: jax.nn.dot_product_attention(
    x, x, x, bias=jnp.cos(x[:1, :, 0, 0] + x[0, :, 1, :1])[None]
  ),
}


@pytest.mark.parametrize("name", MASKED)
def test_attention_is_one_op(name: str) -> None:
  assert {"masked", "biased"}.intersection(primitives(MASKED[name], TOKENS))
  for shapes in (None, "b, _, _, _"):
    converted = jax2tf.convert(
      MASKED[name], polymorphic_shapes=shapes, idioms="fused", with_gradient=False
    )
    if shapes is None or name in ("the_other_way", "for_all", "bias"):
      function = tf.function(
        converted,
        autograph=False,
        input_signature=[tf.TensorSpec([None if shapes else 2, 5, 2, 4])],
      )
      assert (
        "_MklFusedBatchMatMulV2" in executed_op_types(function, tf.constant(TOKENS))
      ) == onednn.ENABLED
      np.testing.assert_allclose(function(TOKENS), MASKED[name](TOKENS), rtol=1e-5, atol=1e-6)


def test_scores_that_stay_as_they_are() -> None:
  """Of halves, which a number moved behind the product would round otherwise; over 0; selected by
  an integer."""
  mask = _SEEN.astype(np.int32) - 1
  halves = TOKENS.astype(jnp.bfloat16)

  def rounded(x: Any) -> Any:
    scores = jnp.einsum("bqhd,bkhd->bhqk", x * 0.3, x, preferred_element_type=jnp.float32)
    return jnp.where(_SEEN, scores, -1e30)

  def by_zero(x: Any) -> Any:
    return jnp.where(_SEEN, _scores(x) / np.float32(0), -1e30)

  def by_integer(x: Any) -> Any:
    return lax.select_n(
      jnp.broadcast_to(mask, (2, 2, 5, 5)), jnp.full((2, 2, 5, 5), -1e30), _scores(x)
    )

  for fun, x in ((rounded, halves), (by_zero, TOKENS), (by_integer, TOKENS)):
    np.testing.assert_allclose(
      jax2tf.convert(fun, idioms="fused", with_gradient=False)(x),
      jax.jit(fun)(x),
      rtol=1e-5,
      atol=1e-6,
    )
    assert "masked" not in primitives(fun, x)


def test_a_tanh_behind_batch_norm() -> None:
  """TF 2.21: Grappler fuses Conv2D, FusedBatchNorm and Tanh into an op without a kernel."""

  def fun(x: Any, scale: Any) -> Any:
    return jnp.tanh(conv(x, KERNEL) * scale + scale)

  function = tf.function(jax2tf.convert(fun, idioms="fused"), autograph=False)
  np.testing.assert_allclose(
    function(IMAGE, 2 * _SCALE), fun(IMAGE, 2 * _SCALE), rtol=1e-5, atol=1e-5
  )


def test_empty_arrays() -> None:
  """Of each idiom, value and gradient. A size of 0 is that of a symbolic dimension less 1; JAX's
  own are 1 at least."""
  rows, images = np.zeros((0, 8), np.float32), np.zeros((0, 6, 6, 3), np.float32)

  def fun(x: Any, images: Any) -> Any:
    activated = {
      name: (f(x), f(x @ np.eye(8, dtype=np.float32) + 1))
      for name, f in (ELEMENTWISE | ROWS).items()
    }
    features = jax.nn.relu(conv(images, KERNEL) * _SCALE + _SCALE)
    tokens = jnp.zeros((x.shape[0], *TOKENS.shape[1:])) + x[:, :1, None, None]
    return (
      activated,
      normalized(x),
      features,
      DIFFERENTIATED["pooling"][0](images),
      MASKED["the_other_way"](tokens),
    )

  converted = jax2tf.convert(fun, polymorphic_shapes=("b-1, ...", "b-1, ..."), idioms="fused")

  # TF 2.21: a gradient of static size 0 may end the process, in hand-written graphs too.
  @tf.function(
    autograph=False, input_signature=[tf.TensorSpec([None, *x.shape[1:]]) for x in (rows, images)]
  )
  def both(x: tf.Tensor, images: tf.Tensor) -> Any:
    with tf.GradientTape() as tape:
      tape.watch([x, images])
      result = converted(x, images)
    return result, tape.gradient(result, [x, images])

  result, gradients = both(*map(tf.constant, (rows, images)))
  for actual, wanted in zip(
    tf.nest.flatten([result, gradients]),
    jax.tree.leaves([fun(rows, images), [rows, images]]),
    strict=True,
  ):
    np.testing.assert_array_equal(actual, wanted)


@pytest.mark.parametrize("mean", [0, 100, 1e4])
def test_the_variance_by_squares(mean: float) -> None:
  """Where E[x^2] - E[x]^2 cancels, JAX has its rounding error: the exact graph is as far off as the
  idiom, which is nearer the truth."""
  x = np.float32(mean + np.random.default_rng(0).standard_normal((16, 64)))
  wide = x.astype(np.float64)
  truth = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + 1e-5)
  wanted = jax.nn.standardize(x)
  exact, fused = (
    jax2tf.convert(jax.nn.standardize, idioms=idioms)(x) for idioms in ("exact", "fused")
  )
  assert "normalize" in primitives(jax.nn.standardize, x)

  def off(found: Any, of: Any) -> float:
    return float(np.abs(found - of).max())

  assert off(fused, truth) <= max(off(wanted, truth), 1e-6)
  assert off(fused, wanted) <= 2 * max(off(wanted, truth), off(exact, wanted), 1e-6)


def _norm(x: Any, mean: Any, variance: Any, scale: Any) -> Any:
  return jax.nn.relu((conv(x, KERNEL) - mean) * (lax.rsqrt(variance + 1e-5) * scale) + mean)


def _depthwise(x: Any, kernel: Any) -> Any:
  numbers = ("NHWC", "HWIO", "NHWC")
  return lax.conv_general_dilated(
    x, kernel, (1, 1), "SAME", dimension_numbers=numbers, feature_group_count=3
  )


def _features_first(x: Any, scale: Any) -> Any:
  y = lax.conv_general_dilated(
    x, KERNEL, (1, 1), "SAME", dimension_numbers=("NCHW", "HWIO", "NCHW")
  )
  return jax.nn.elu(2 - (y - scale[:, None, None]) / (1 + scale[:, None, None]) / 9)


DIFFERENTIATED: dict[str, tuple[Callable[..., Any], list[Any]]] = {
  **{name: (fun, [X]) for name, fun in (ELEMENTWISE | ROWS).items()},
  "ties": (lambda x: jnp.maximum(x, 0), [np.zeros((2, 3), np.float32)]),
  "normalize": (normalized, [X]),
  "batch_norm": (_norm, [IMAGE, _SCALE, 2 * _SCALE, 3 * _SCALE]),
  "masked": (lambda x: [f(x) for f in MASKED.values()], [TOKENS]),
  "depthwise": (
    lambda x, k, s: jax.nn.relu6(_depthwise(x, k) * s + s),
    [IMAGE, KERNEL[:, :, :1, :3], 2 * _SCALE[:3]],
  ),
  "tanh_of_norm": (lambda x, s: jnp.tanh(conv(x, KERNEL) * s / 9), [IMAGE, _SCALE]),
  "features_first": (_features_first, [IMAGE.transpose(0, 3, 1, 2), _SCALE]),
  "pooling": (
    lambda x: (
      linen.max_pool(x, (3, 3), (2, 2), "SAME"),
      linen.avg_pool(x, (2, 3), padding="SAME"),
    ),
    [IMAGE],
  ),
  "dense": (lambda x, w, b: jax.nn.gelu(x @ w + b), [X, X[0, :3].T, X[0, 0, :3]]),
  "scan": (lambda x: lax.scan(lambda c, y: (jax.nn.relu(c + y), jax.nn.gelu(c)), x[0], x), [X / 4]),
}


def _all(functions: Any, args: Any) -> Any:
  return {name: f(*args[name]) for name, f in functions.items()}


def test_values_and_derivatives_of_two_orders() -> None:
  functions = {name: fun for name, (fun, _) in DIFFERENTIATED.items()}
  arguments = {name: args for name, (_, args) in DIFFERENTIATED.items()}

  def loss(args: Any) -> Any:
    leaves = jax.tree.leaves(_all(functions, args))
    return sum(
      jnp.sum(leaf * jnp.cos(jnp.arange(leaf.size, dtype=leaf.dtype)).reshape(leaf.shape))
      for leaf in leaves
    )

  def of_gradient(args: Any) -> Any:
    return sum(jnp.sum(jnp.square(g)) for g in jax.tree.leaves(jax.grad(loss)(args)))

  converted = jax2tf.convert(loss, idioms="fused")

  @tf.function(autograph=False)
  def derivatives(args: Any) -> Any:
    leaves = tf.nest.flatten(args)
    with tf.GradientTape() as outer:
      outer.watch(leaves)
      with tf.GradientTape() as inner:
        inner.watch(leaves)
        value = converted(args)
      first = inner.gradient(value, leaves)
      squares = tf.add_n([tf.reduce_sum(tf.square(g)) for g in first])
    return value, first, outer.gradient(squares, leaves)

  expected = jax.jit(lambda args: (loss(args), jax.grad(loss)(args), jax.grad(of_gradient)(args)))(
    arguments
  )
  found = derivatives(tf.nest.map_structure(tf.constant, arguments))
  for actual, wanted in zip(tf.nest.flatten(found), jax.tree.leaves(expected), strict=True):
    np.testing.assert_allclose(actual, wanted, rtol=2e-4, atol=1e-4 * np.abs(wanted).max())


def test_gelu_and_its_gradient_share_one_tanh() -> None:
  converted = jax2tf.convert(lambda x, w: jax.nn.gelu(x @ w + w[0]), idioms="fused")

  @tf.function(autograph=False)
  def gradient(x: tf.Tensor, w: tf.Tensor) -> Any:
    with tf.GradientTape() as tape:
      tape.watch(w)
      y = converted(x, w)
    return y, tape.gradient(y, w)

  assert executed_op_types(gradient, tf.constant(X), tf.constant(X[0, :3].T)).count("Tanh") == 1


def test_symbolic_sizes_and_loops() -> None:
  def fun(x: Any) -> Any:
    return lax.scan(lambda c, y: (jax.nn.relu(c + y), jax.nn.softmax(y)), x[0], normalized(x))

  converted = tf.function(
    jax2tf.convert(fun, polymorphic_shapes="b, c, _", idioms="fused"), autograph=False
  )
  graph = converted.get_concrete_function(tf.TensorSpec([None, None, 8])).graph
  assert {"Relu", "Softmax", "SquaredDifference"} <= {*op_types(graph)}
  for a, e in zip(tf.nest.flatten(converted(X)), jax.tree.leaves(fun(X)), strict=True):
    np.testing.assert_allclose(a, e, rtol=1e-5, atol=1e-6)


def test_equal_equations_of_other_contexts_are_not_one() -> None:
  def bits(key: Any) -> list[jax.Array]:
    found = []
    for partitionable in (False, True):
      with jax.threefry_partitionable(partitionable):
        found.append(jax.random.bits(key, (3, 3)))
    return found

  for actual, wanted in zip(jax2tf.convert(bits, idioms="fused")(KEY), bits(KEY), strict=True):
    np.testing.assert_array_equal(actual, wanted)


def test_a_saved_model_has_them(tmp_path: Path) -> None:
  path = saved_model.save(
    lambda p, x: jax.nn.softmax(x * p),
    2.0,
    tmp_path,
    inputs={"x": "f32[b,8]"},
    idioms="fused",
    with_gradient=True,
  )
  function = tf.saved_model.load(str(path))
  assert "Softmax" in op_types(function.signatures["serving_default"].graph)
  x = tf.constant(X[0])
  with tf.GradientTape() as tape:
    tape.watch(x)
    y = function(x)[..., 0]
  np.testing.assert_allclose(
    tape.gradient(y, x),
    jax.grad(lambda x: jax.nn.softmax(x * 2)[..., 0].sum())(X[0]),
    rtol=1e-5,
    atol=1e-7,
  )


def test_a_bad_choice_is_an_error() -> None:
  with pytest.raises(
    ValueError,
    match=r"idioms = 'gelu,fast': there is no 'fast'; choose 'exact', 'fused', or names of ",
  ):
    jax2tf.convert(jnp.sin, idioms="gelu,fast")
  with pytest.raises(ValueError, match="idioms = 'fused': native_serialization is not supported"):
    jax2tf.convert(jnp.sin, idioms="fused", native_serialization=True)


def test_functions_of_more_arguments_than_a_template() -> None:
  """The `custom_jvp` of softplus has two, that of the activations one."""
  np.testing.assert_allclose(
    jax2tf.convert(jax.nn.softplus, idioms="fused")(X), jax.nn.softplus(X), rtol=1e-6
  )


def test_some_idioms_by_name() -> None:
  """Only these, also in a loop; the names are those of the table."""

  def fun(x: Any) -> Any:
    return lax.scan(lambda c, y: (jax.nn.softmax(jax.nn.relu(c + y)), None), x[0], x)[0]

  found = []
  for idioms in ("exact", "softmax, elu", "fused"):
    converted = tf.function(
      jax2tf.convert(fun, idioms=idioms, with_gradient=False), autograph=False
    )
    found.append(
      sorted({"Softmax", "Relu"}.intersection(op_types(converted.get_concrete_function(X).graph)))
    )
  assert found == [[], ["Softmax"], ["Relu", "Softmax"]]
  assert {name for some in entries() for name, _, _ in some} == NAMES
