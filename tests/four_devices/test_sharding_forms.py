"""Each form in which JAX takes a sharding, in the HLO that TensorFlow compiles: the shapes and
tilings that JAX itself lowers it to."""

from __future__ import annotations

import contextlib
import functools
import re
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jax2tf

with warnings.catch_warnings():  # what it does with None is its own: "replicated"
  warnings.simplefilter("ignore", DeprecationWarning)
  from jax.experimental.pjit import pjit

DEVICES = jax.devices()[:2]
MESH = Mesh(np.array(DEVICES), ("x",))
EXPLICIT = Mesh(np.array(DEVICES), ("x",), axis_types=(AxisType.Explicit,))
X = np.arange(200, dtype=np.float32).reshape(10, 20)
COLUMNS, ROWS = P(None, "x"), P("x", None)
CONST = np.full((10, 20), 7, np.float32)


def turned(x: jax.Array) -> jax.Array:
  """f32[10,20] -> f32[20,10], so that an argument and a result are told apart."""
  return jnp.sin(x).T


def constrained(spec: Any, nested: bool, jit: Any = jax.jit) -> Callable[..., Any]:
  def fun(x: jax.Array) -> jax.Array:
    y = jnp.concatenate([x, x], axis=1)
    y = (
      jit(lambda y: y, in_shardings=spec, out_shardings=spec)(y)
      if nested
      else lax.with_sharding_constraint(y, spec)
    )
    return jnp.concatenate([y, y], axis=1)

  return fun


@dataclass(frozen=True)
class Form:
  """A function with shardings.

  Attributes:
    make: gives the function, inside of its mesh.
    mesh: the context: `jax.set_mesh`, or `with mesh:` for the old `pjit`.
    poly: `polymorphic_shapes`.
  """

  make: Callable[[], Callable[..., Any]]
  mesh: Any = MESH
  poly: str | None = None


named = functools.partial(NamedSharding, MESH)
OLD = "with mesh"
FORMS = {
  "argument": Form(lambda: jax.jit(turned, in_shardings=COLUMNS)),
  "arguments in a tuple": Form(lambda: jax.jit(turned, in_shardings=(COLUMNS,))),
  "result": Form(lambda: jax.jit(turned, out_shardings=ROWS)),
  "argument and result": Form(lambda: jax.jit(turned, in_shardings=COLUMNS, out_shardings=ROWS)),
  "argument, result None": Form(lambda: jax.jit(turned, in_shardings=COLUMNS, out_shardings=None)),
  "argument None, result": Form(lambda: jax.jit(turned, in_shardings=None, out_shardings=ROWS)),
  "both None": Form(lambda: jax.jit(turned, in_shardings=None, out_shardings=None)),
  "replicated": Form(lambda: jax.jit(turned, in_shardings=P(), out_shardings=P())),
  "NamedSharding": Form(
    lambda: jax.jit(turned, in_shardings=named(COLUMNS), out_shardings=named(ROWS)), None
  ),
  "constant": Form(
    lambda: jax.jit(lambda x: (x * CONST).T, in_shardings=(P("x"),), out_shardings=None)
  ),
  "polymorphic": Form(
    lambda: jax.jit(turned, in_shardings=COLUMNS, out_shardings=ROWS), MESH, "b, 2*c"
  ),
  "constraint": Form(lambda: constrained(ROWS, nested=False)),
  "constraint in a jit": Form(lambda: jax.jit(constrained(ROWS, nested=False))),
  "constraint, NamedSharding": Form(lambda: constrained(named(ROWS), nested=False), None),
  "constraint, unconstrained": Form(lambda: constrained(P(P.UNCONSTRAINED, "x"), nested=False)),
  "nested jit": Form(
    lambda: jax.jit(constrained(ROWS, nested=True), in_shardings=COLUMNS, out_shardings=P())
  ),
  "pjit": Form(
    lambda: pjit(constrained(ROWS, nested=True, jit=pjit), in_shardings=None, out_shardings=None),
    OLD,
  ),
  "pjit, None": Form(
    lambda: pjit(constrained(None, nested=True, jit=pjit), in_shardings=None, out_shardings=None),
    OLD,
  ),
  "pjit, constraint": Form(
    lambda: pjit(constrained(ROWS, nested=False), in_shardings=None, out_shardings=None), OLD
  ),
  "pjit, constraint None": Form(
    lambda: pjit(constrained(None, nested=False), in_shardings=None, out_shardings=None),
    OLD,
    "2*b, c",
  ),
  "explicit, argument": Form(
    lambda: jax.jit(turned, in_shardings=COLUMNS, out_shardings=ROWS), EXPLICIT
  ),
  "explicit, reshard": Form(lambda: lambda x: turned(jax.sharding.reshard(x, COLUMNS)), EXPLICIT),
}


@contextlib.contextmanager
def context(form: Form) -> Any:
  if form.mesh is OLD:
    with warnings.catch_warnings():
      warnings.simplefilter("ignore", DeprecationWarning)
      with MESH:
        yield
  else:
    with contextlib.nullcontext() if form.mesh is None else jax.set_mesh(form.mesh):
      yield


def _tiling(text: str) -> str:
  return found[0] if (found := re.search(r"devices=\[[\d,]+\]|replicated", text)) else text


def said_by_jax(fun: Any, *args: Any) -> Counter[tuple[str, str]]:
  """How often a shape has a tiling: arguments and results of the function, and custom calls."""
  lower = (fun if hasattr(fun, "lower") else jax.jit(fun)).lower
  jax.config.update("jax_use_shardy_partitioner", False)
  try:
    text = lower(*args).as_text()
  finally:
    jax.config.update("jax_use_shardy_partitioner", True)
  attributes = re.findall(r'tensor<([\dx]*)f32> \{[^{}]*mhlo.sharding = "(\{.*?\})"', text)
  calls = re.findall(r'@Sharding\(.*?mhlo.sharding = "(\{.*?\})".*-> tensor<([\dx]*)f32>', text)
  return Counter(
    (shape.rstrip("x").replace("x", ","), _tiling(t))
    for shape, t in (*attributes, *((s, t) for t, s in calls))
  )


def compiled(function: Any, *args: Any) -> Counter[tuple[str, str]]:
  """The same of the HLO that TensorFlow gives to XLA."""
  hlo = tf.function(function, autograph=False, jit_compile=True).experimental_get_compiler_ir(
    *args
  )(stage="hlo")
  found = re.findall(
    r'f32\[([\d,]*)\]\S* custom-call\(.*custom_call_target="Sharding".*sharding=(\{.*?\})', hlo
  )
  return Counter((shape, _tiling(t)) for shape, t in found)


def options(lowering: str) -> dict[str, bool]:
  return {"native_serialization": True} if lowering == "native" else {"keep_shardings": True}


@pytest.mark.parametrize("lowering", ["graph", "native"])
@pytest.mark.parametrize("name", FORMS)
def test_shardings_are_those_of_jax(name: str, lowering: str) -> None:
  form = FORMS[name]
  with context(form):
    fun = form.make()
    expected = said_by_jax(fun, X)
    assert expected or name == "both None"
    found = compiled(
      jax2tf.convert(fun, with_gradient=False, polymorphic_shapes=form.poly, **options(lowering)),
      tf.constant(X),
    )
  if form.mesh is EXPLICIT:  # JAX repeats them at each call, and the result's at its last equation
    assert found.keys() == expected.keys()
  else:
    assert found == expected


GRADIENTS = [
  "argument",
  "result",
  "argument and result",
  "polymorphic",
  "nested jit",
  "pjit",
  "explicit, argument",
  "explicit, reshard",
]


@pytest.mark.parametrize("lowering", ["graph", "native"])
@pytest.mark.parametrize("name", GRADIENTS)
def test_shardings_of_gradients_are_those_of_jax(name: str, lowering: str) -> None:
  form = FORMS[name]
  with context(form):
    fun = form.make()
    converted = jax2tf.convert(fun, polymorphic_shapes=form.poly, **options(lowering))

    def gradient(x: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
      with tf.GradientTape() as tape:
        tape.watch(x)
        y = converted(x)
      return tape.gradient(y, x, output_gradients=seed)

    seed = np.ones(jax.eval_shape(fun, X).shape, np.float32)
    expected = said_by_jax(lambda x, seed: jax.vjp(fun, x)[1](seed)[0], X, seed)
    assert expected.keys() <= compiled(gradient, tf.constant(X), tf.constant(seed)).keys()


def test_unconstrained_dimensions_are_left_to_the_partitioner() -> None:
  with jax.set_mesh(MESH):
    fun = tf.function(
      jax2tf.convert(FORMS["constraint, unconstrained"].make(), keep_shardings=True),
      autograph=False,
    )
    [op] = [
      op
      for op in fun.get_concrete_function(tf.TensorSpec([10, 20])).graph.get_operations()
      if op.type == "XlaSharding"
    ]
  assert op.get_attr("unspecified_dims") == [0]


def test_what_is_left_out_is_reported() -> None:
  with jax.set_mesh(MESH), pytest.warns(UserWarning, match="sharding annotations of 'turned'"):
    jax2tf.convert(FORMS["argument"].make())(X)
