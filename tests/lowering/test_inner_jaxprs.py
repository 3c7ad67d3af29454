"""Only what becomes ops needs rules: not the branches for other platforms, nor jaxprs that a rule
leaves out."""

from __future__ import annotations

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import lax
from jax.experimental import pallas as pl
from jax.extend.core import Primitive
from jax.interpreters import mlir

import jax2tf
from jax2tf import registry
from jax2tf.converters import saved_model
from tests.support.case import close, op_types

X = np.arange(3, dtype=np.float32)

only_on_tpu_p = Primitive("only_on_tpu")
only_on_tpu_p.def_abstract_eval(lambda x: x)
mlir.register_lowering(only_on_tpu_p, lambda ctx, x: [x], platform="tpu")
on_tpu = only_on_tpu_p.bind


def kernel(x, o):
  o[...] = jnp.sin(x[...])


kernel_on_tpu = pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct((3,), np.float32))
ELSEWHERE = jax.devices("cpu")[0]


def looped(x):
  return lax.fori_loop(
    0, 3, lambda i, y: lax.platform_dependent(y, tpu=on_tpu, default=jnp.cos) + i, x
  )


FUNCTIONS = {
  "kernel and cpu": lambda x: lax.platform_dependent(x, cpu=jnp.sin, tpu=kernel_on_tpu),
  "kernel and default": lambda x: lax.platform_dependent(x, tpu=kernel_on_tpu, default=jnp.sin),
  "primitive and cpu": lambda x: lax.platform_dependent(x, cpu=jnp.sin, tpu=on_tpu),
  "primitive as default": lambda x: lax.platform_dependent(x, cpu=jnp.sin, default=on_tpu),
  "primitive and default": lambda x: lax.platform_dependent(
    x, tpu=on_tpu, cuda=on_tpu, default=jnp.sin
  ),
  "in jit": jax.jit(
    lambda x: lax.platform_dependent(x, cpu=jax.jit(jnp.sin), tpu=jax.jit(on_tpu)) * 2
  ),
  "in a loop": looped,
  "in a branch for this platform": lambda x: lax.platform_dependent(
    x, cpu=lambda x: lax.platform_dependent(x, tpu=on_tpu, cpu=jnp.sin), tpu=on_tpu
  ),
  "mapped": jax.vmap(
    lambda x: lax.platform_dependent(x, cpu=jnp.sin, tpu=lambda x: on_tpu(x) if x.ndim else x)
  ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_branch_for_another_platform_needs_no_rules(name):
  fun = FUNCTIONS[name]
  expected = jax.jit(fun)(X)
  for options in ({}, {"platforms": ["cpu"]}, {"idioms": "fused"}):
    converted = jax2tf.convert(fun, **options)
    close(converted(X), expected)
  graph = tf.function(converted, autograph=False).get_concrete_function(tf.TensorSpec([3]))
  close(graph(X), expected)
  if "loop" not in name:
    assert not {"If", "StatelessIf"} & set(op_types(graph.graph))


def test_the_branch_of_the_destination_needs_rules():
  fun = FUNCTIONS["primitive and cpu"]
  with pytest.raises(jax2tf.LoweringError, match="'only_on_tpu' not implemented"):
    jax2tf.convert(fun, platforms=["tpu"])(X)
  with pytest.raises(jax2tf.LoweringError, match=r"(?s)have none for cuda.*add a default"):
    jax2tf.convert(fun, platforms=["cuda"])(X)
  with pytest.raises(jax2tf.LoweringError, match="differ for cpu, tpu, and a graph has one"):
    jax2tf.convert(fun, platforms=["cpu", "tpu"])(X)


def test_it_is_saved(tmp_path):
  fun = lambda params, x: lax.platform_dependent(x * params, tpu=kernel_on_tpu, default=jnp.sin)  # noqa: E731
  folder = saved_model.save(fun, np.float32(2), tmp_path, inputs={"x": "f32[3]"})
  close(
    tf.saved_model.load(str(folder)).signatures["serving_default"](x=X)["output"], np.sin(X * 2)
  )


def test_a_device_in_a_branch_for_another_platform_need_not_exist():
  there = jax.sharding.SingleDeviceSharding(ELSEWHERE)
  with jax.default_device(ELSEWHERE):
    fun = lambda x: lax.platform_dependent(x, cpu=jnp.sin, tpu=lambda x: jax.device_put(x, there))  # noqa: E731
  close(jax2tf.convert(fun, device_map={"cpu:0": "/device:GPU:7"})(X), np.sin(X))


def test_a_linear_solve_needs_rules_for_its_solve_only():
  a = np.diag([2.0, 4.0]).astype(np.float32)
  diagonal = jnp.array([2.0, 4.0], jnp.float32)

  def fun(b):
    return lax.custom_linear_solve(lambda x: on_tpu(a @ x), b, solve=lambda _, y: y / diagonal)

  b = np.ones(2, np.float32)
  close(jax2tf.convert(fun, with_gradient=False)(b), b / diagonal)


def test_a_rule_says_which_jaxprs_it_lowers():
  """A rule of a user for Pallas' kernels, by JAX's own interpreter of them."""
  hlo_interpreter = pytest.importorskip("jax._src.pallas.hlo_interpreter")
  interpret = hlo_interpreter.pallas_call_hlo_interpret
  names = inspect.signature(interpret).parameters.keys() - {"args"}
  block = pl.BlockSpec((4, 8), lambda i: (i, 0))

  def two(x, y, o):
    o[...] = x[...] * 2 + jnp.sin(y[...])

  def fun(x, y):
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return pl.pallas_call(
      two, out_shape=shape, grid=(2,), in_specs=[block] * 2, out_specs=block, interpret=True
    )(x, y)

  def rule(ctx, *operands, **params):
    given = {name: value for name, value in params.items() if name in names}
    return ctx.lower_fun(functools.partial(interpret, **given), *operands)

  (pallas_call_p,) = {
    e.primitive for e in jax.make_jaxpr(kernel_on_tpu)(X).eqns if e.primitive.name == "pallas_call"
  }
  x, y = np.random.default_rng(0).standard_normal((2, 8, 8)).astype(np.float32)
  try:
    jax2tf.lowers(pallas_call_p, inner=lambda params: [])(rule)
    close(jax2tf.convert(fun)(x, y), fun(x, y), atol=1e-6)
  finally:
    registry._RULES.pop(pallas_call_p)


def test_by_default_a_rule_lowers_all_jaxprs():
  call_p = Primitive("call_of_two")
  call_p.def_abstract_eval(lambda x, *, first, second: x)

  @jax2tf.lowers(call_p, inner=lambda params: [params["first"]])
  def _call(ctx, x, *, first, second):
    return ctx.lower(first, x)[0]

  good, bad = jax.make_jaxpr(jnp.sin)(X), jax.make_jaxpr(on_tpu)(X)
  close(jax2tf.convert(lambda x: call_p.bind(x, first=good, second=bad))(X), np.sin(X))
  with pytest.raises(jax2tf.LoweringError, match="'only_on_tpu' not implemented"):
    jax2tf.convert(lambda x: call_p.bind(x, first=bad, second=good))(X)
  jax2tf.lowers(call_p, replace=True)(_call)
  with pytest.raises(jax2tf.LoweringError, match="'only_on_tpu' not implemented"):
    jax2tf.convert(lambda x: call_p.bind(x, first=good, second=bad))(X)
