"""Fused idioms: each fires for every library's form, not on a near miss, and has JAX's values and derivatives but for NaN and infinity."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import flax.linen as linen
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from flax import nnx
from jax import lax

import jax2tf
from jax2tf import program
from jax2tf.converters import saved_model
from jax2tf.idioms.fused import NAMES, entries, with_composite_ops
from tests.case import HOSTILE_F32, executed_op_types, op_types
from tests.test_idioms import conv

RNG = np.random.default_rng(0)
X, IMAGE, KERNEL = (RNG.standard_normal(shape, np.float32) for shape in ((4, 5, 8), (2, 6, 6, 3), (3, 3, 3, 4)))
KEY = jax.random.key(0)
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


def _primitives(fun: Callable[..., Any], *args: Any) -> list[str]:
  """The primitives of a function with fused idioms, well-formed as JAX checks it."""
  jaxpr = with_composite_ops(jax.make_jaxpr(fun)(*args))
  with jax.enable_checks(True):
    program.program_of(jaxpr)
  return [eqn.primitive.name for eqn in jaxpr.eqns]


def _hk(module: Callable[..., Any], **options: Any) -> Callable[..., Any]:
  """A module of Haiku as a function, which makes its parameters itself."""

  def call(x: Any) -> Any:
    pair = hk.without_apply_rng(hk.transform_with_state(lambda x, **options: module()(x, **options)))
    with jax.ensure_compile_time_eval():
      params, state = pair.init(KEY, jnp.ones(x.shape), **dict.fromkeys(options, True))
    return pair.apply(params, state, x, **options)[0]

  return call


def _linen(*modules: Any) -> Callable[..., Any]:
  def call(x: Any) -> Any:
    with jax.ensure_compile_time_eval():
      variables = linen.Sequential(modules).init(KEY, jnp.ones(x.shape))
    return linen.Sequential(modules).apply(variables, x)

  return call


def _nnx(*make: Callable[[nnx.Rngs], Any]) -> Callable[..., Any]:
  def call(x: Any) -> Any:
    with jax.ensure_compile_time_eval():
      layers = [layer(nnx.Rngs(0)) for layer in make]
    return nnx.Sequential(*layers)(x)

  return call


def _hk_conv_norm() -> Callable[..., Any]:
  layers = hk.Conv2D(4, 3), hk.BatchNorm(create_scale=True, create_offset=True, decay_rate=0.9)
  return lambda x, is_training: layers[1](layers[0](x), is_training)


_SHARED = ("relu", "relu6", "elu", "selu", "silu", "hard_swish", "gelu", "softmax", "log_softmax")
# (library, primitive) -> function, argument.
LAYERS: dict[tuple[str, str], tuple[Callable[..., Any], Any]] = {
  **{("jax.nn", name.removesuffix("_erf")): (fun, X) for name, fun in (ELEMENTWISE | ROWS).items()},
  **{(library.__name__, name): (getattr(library, name), X) for library in (linen, nnx) for name in _SHARED},
  ("jnp", "relu"): (lambda x: jnp.maximum(x, 0), X),
  ("linen", "reduce_window_max"): (lambda x: linen.max_pool(x, (2, 2), (2, 2)), IMAGE),
  ("linen", "reduce_window_sum"): (lambda x: linen.avg_pool(x, (2, 2), (2, 2)), IMAGE),
  ("jnp", "softmax"): (lambda x: (e := jnp.exp(x - x.max(-1, keepdims=True))) / e.sum(-1, keepdims=True), X),
  ("jnp", "normalize"): (lambda x: (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5), X),
  ("linen", "normalize"): (_linen(linen.LayerNorm()), X),
  ("nnx", "normalize"): (_nnx(lambda rngs: nnx.LayerNorm(8, rngs=rngs)), X),
  ("haiku", "normalize"): (_hk(lambda: hk.LayerNorm(-1, True, True)), X),
  ("equinox", "normalize"): (lambda x: jax.vmap(jax.vmap(eqx.nn.LayerNorm(8)))(x), X),
  ("haiku", "relu"): (_hk(lambda: hk.nets.MLP([8, 8])), X),
  ("equinox", "relu"): (lambda x: jax.vmap(eqx.nn.MLP(8, 8, 8, 1, key=KEY))(x[0]), X),
  ("linen", "batch_norm"): (_linen(linen.Conv(4, (3, 3)), linen.BatchNorm(use_running_average=True)), IMAGE),
  ("nnx", "batch_norm"): (
    _nnx(lambda rngs: nnx.Conv(3, 4, (3, 3), rngs=rngs), lambda rngs: nnx.BatchNorm(4, use_running_average=True, rngs=rngs)),
    IMAGE,
  ),
  ("haiku", "batch_norm"): (_hk(_hk_conv_norm, is_training=False), IMAGE),
  ("linen attention", "softmax"): (lambda x: linen.dot_product_attention(x[:, :, None], x[:, :, None], x[:, :, None]), X),
  ("haiku", "softmax"): (_hk(lambda: lambda x: hk.MultiHeadAttention(2, 4, w_init=hk.initializers.Constant(0.1))(x, x, x)), X),
  ("equinox", "softmax"): (lambda x: jax.vmap(lambda x: eqx.nn.MultiheadAttention(2, 8, key=KEY)(x, x, x))(x), X),
}


@pytest.mark.parametrize(("library", "name"), LAYERS)
def test_fires(library: str, name: str) -> None:
  fun, x = LAYERS[library, name]
  assert name in _primitives(fun, x)


_SCALE = np.ones(4, np.float32)
NEAR_MISSES: dict[str, tuple[Callable[..., Any], Any, str]] = {
  "another_bound": (lambda x: jnp.maximum(x, 0.5), X, "relu"),
  "integers": (lambda x: jnp.maximum(x, 0), X.astype(np.int32), "relu"),
  "halves": (jax.nn.gelu, X.astype(np.float16), "gelu"),
  "another_elu": (functools.partial(jax.nn.elu, alpha=0.5), X, "elu"),
  "used_between": (lambda x: (jax.nn.gelu(x), jnp.tanh(0.7978845834732056 * (x + 0.044714998453855515 * x**3))), X, "gelu"),
  "of_another": (lambda x: x * jax.nn.sigmoid(x + 1), X, "silu"),
  "another_axis": (functools.partial(jax.nn.softmax, axis=0), X, "softmax"),
  "another_factor": (lambda x: 0.5 * x * (1 + jnp.tanh(0.8 * (x + 0.044715 * x**3))), X, "gelu"),
  "normalized_columns": (lambda x: (x - x.mean(0, keepdims=True)) / jnp.sqrt(x.var(0, keepdims=True) + 1e-5), X, "normalize"),
  "another_mean": (lambda x: (x - x[:1].mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5), X, "normalize"),
  "norm_in_training": (lambda x: ((y := conv(x, KERNEL)) - y.mean((0, 1, 2))) * _SCALE, IMAGE, "batch_norm"),
  "bias_alone": (lambda x: conv(x, KERNEL) + _SCALE, IMAGE, "batch_norm"),
  "per_pixel": (lambda x: conv(x, KERNEL) * np.ones((6, 1), np.float32), IMAGE, "batch_norm"),
}


@pytest.mark.parametrize("miss", NEAR_MISSES)
def test_does_not_fire(miss: str) -> None:
  fun, x, name = NEAR_MISSES[miss]
  assert name not in _primitives(fun, x)


def test_a_rule_of_the_users_is_another_function() -> None:
  @jax.custom_jvp
  def clipped(x: Any) -> Any:
    return jnp.maximum(x, 0)

  clipped.defjvp(lambda primals, tangents: (clipped(*primals), 3 * tangents[0]))
  assert _primitives(clipped, X) == ["custom_jvp_call"]


def _norm(x: Any, mean: Any, variance: Any, scale: Any) -> Any:
  return jax.nn.relu((conv(x, KERNEL) - mean) * (lax.rsqrt(variance + 1e-5) * scale) + mean)


DIFFERENTIATED: dict[str, tuple[Callable[..., Any], list[Any]]] = {
  **{name: (fun, [X]) for name, fun in (ELEMENTWISE | ROWS).items()},
  "ties": (lambda x: jnp.maximum(x, 0), [np.zeros((2, 3), np.float32)]),
  "normalize": (LAYERS["jnp", "normalize"][0], [X]),
  "batch_norm": (_norm, [IMAGE, _SCALE, 2 * _SCALE, 3 * _SCALE]),
  "pooling": (lambda x: (linen.max_pool(x, (3, 3), (2, 2), "SAME"), linen.avg_pool(x, (2, 3), padding="SAME")), [IMAGE]),
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
    return sum(jnp.sum(leaf * jnp.cos(jnp.arange(leaf.size, dtype=leaf.dtype)).reshape(leaf.shape)) for leaf in leaves)

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

  expected = jax.jit(lambda args: (loss(args), jax.grad(loss)(args), jax.grad(of_gradient)(args)))(arguments)
  found = derivatives(tf.nest.map_structure(tf.constant, arguments))
  for actual, wanted in zip(tf.nest.flatten(found), jax.tree.leaves(expected), strict=True):
    np.testing.assert_allclose(actual, wanted, rtol=2e-4, atol=1e-4 * np.abs(wanted).max())


# TF 2.21: by how much finite results may differ; Elu and Selu are exp(x) - 1, and erf stands for erfc.
_ROUNDING = dict.fromkeys(ELEMENTWISE | ROWS, 2e-7) | {"gelu": 1e-6, "gelu_erf": 1e-6, "log_softmax": 2e-6}


def test_only_nan_and_infinity_differ() -> None:
  column = np.concatenate([HOSTILE_F32, np.float32([1e-4, -1e-4, 3, -3, 6, -6, 5.9999, 88, -88])])
  rows = np.zeros((len(column), 16), np.float32) + np.linspace(-1, 1, 16, dtype=np.float32)
  rows[:, 3] = column
  functions = ELEMENTWISE | ROWS
  expected = jax.jit(lambda x: {name: f(x) for name, f in functions.items()})(rows)
  found = tf.function(jax2tf.convert(lambda x: {name: f(x) for name, f in functions.items()}, idioms="fused"), autograph=False)(rows)
  finite = np.isfinite(column)
  for name in functions:
    np.testing.assert_allclose(found[name][finite], expected[name][finite], rtol=1e-6, atol=_ROUNDING[name], err_msg=name)


def test_grappler_fuses_them() -> None:
  w, b = RNG.standard_normal((8, 8), np.float32), np.zeros(8, np.float32)
  dense = tf.function(jax2tf.convert(lambda *args: jax.nn.relu(args[0] @ args[1] + args[2]), idioms="fused"), autograph=False)
  # Of three dimensions: the reshape comes last.
  assert executed_op_types(dense, *map(tf.constant, (X, w, b))).count("_FusedMatMul") == 1
  convolved = tf.function(jax2tf.convert(_norm, idioms="fused"), autograph=False)
  ops = executed_op_types(convolved, *map(tf.constant, DIFFERENTIATED["batch_norm"][1]))
  assert "_FusedConv2D" in ops and not {"Relu", "Maximum", "Conv2D"} & {*ops}


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
    return lax.scan(lambda c, y: (jax.nn.relu(c + y), jax.nn.softmax(y)), x[0], LAYERS["jnp", "normalize"][0](x))

  converted = tf.function(jax2tf.convert(fun, polymorphic_shapes="b, c, _", idioms="fused"), autograph=False)
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
  path = saved_model.save(lambda p, x: jax.nn.softmax(x * p), 2.0, tmp_path, inputs={"x": "f32[b,8]"}, idioms="fused", with_gradient=True)
  function = tf.saved_model.load(str(path))
  assert "Softmax" in op_types(function.signatures["serving_default"].graph)
  x = tf.constant(X[0])
  with tf.GradientTape() as tape:
    tape.watch(x)
    y = function(x)[..., 0]
  np.testing.assert_allclose(tape.gradient(y, x), jax.grad(lambda x: jax.nn.softmax(x * 2)[..., 0].sum())(X[0]), rtol=1e-5, atol=1e-7)


def test_a_bad_choice_is_an_error() -> None:
  with pytest.raises(ValueError, match=r"idioms = 'gelu,fast': choose 'exact', 'fused', or names of .*; 'fast' is none of them"):
    jax2tf.convert(jnp.sin, idioms="gelu,fast")
  with pytest.raises(ValueError, match="native_serialization is not supported with idioms = 'fused'"):
    jax2tf.convert(jnp.sin, idioms="fused", native_serialization=True)


def test_functions_of_more_arguments_than_a_template() -> None:
  """The `custom_jvp` of softplus has two, that of the activations one."""
  np.testing.assert_allclose(jax2tf.convert(jax.nn.softplus, idioms="fused")(X), jax.nn.softplus(X), rtol=1e-6)


def test_some_idioms_by_name() -> None:
  """Only these, also in a loop; the names are those of the table."""

  def fun(x: Any) -> Any:
    return lax.scan(lambda c, y: (jax.nn.softmax(jax.nn.relu(c + y)), None), x[0], x)[0]

  found = []
  for idioms in ("exact", "softmax, elu", "fused"):
    converted = tf.function(jax2tf.convert(fun, idioms=idioms, with_gradient=False), autograph=False)
    found.append(sorted({"Softmax", "Relu"}.intersection(op_types(converted.get_concrete_function(X).graph))))
  assert found == [[], ["Softmax"], ["Relu", "Softmax"]]
  assert {name for some in entries() for name, _, _ in some} == NAMES
