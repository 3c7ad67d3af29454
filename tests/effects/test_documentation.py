"""What JAX's pages "Debugging" and "External callbacks" show: a row for each program, with the
text, values and errors of `jax.jit`."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import tensorflow as tf
from jax.experimental import io_callback

import jax2tf
from tests.support.case import close

X = np.arange(4, dtype=np.float32)
ONE = np.float32(1)
rng = np.random.default_rng()


@dataclass(frozen=True)
class Row:
  """A program of the documentation.

  Attributes:
    name: of the page, and what it shows.
    fun: a program like it.
    args: its arguments.
    order: of the derivative that is asked for.
    error: words of what is raised.
    any_order: of the lines, which JAX leaves open.
  """

  name: str
  fun: Callable[..., Any]
  args: tuple[Any, ...]
  order: int = 0
  error: str | None = None
  any_order: bool = False


def _two_prints(x):
  jax.debug.print("x is {x}, a number", x=x)
  y = jnp.sin(x)
  jax.debug.print("y is {}", y)
  return y


def _ordered(x, y):
  jax.debug.print("first {}", x, ordered=True)
  jax.debug.print("second {}", y, ordered=True)
  return x + y


def _called(x):
  jax.debug.callback(lambda x: print("logged", x), x)
  return x * 2


@jax.custom_vjp
def _seen(x):
  return x


_seen.defvjp(lambda x: (x, None), lambda _, g: (jax.debug.print("cotangent {}", g), (g,))[1])


def _stops(x):
  y, z = jnp.sin(x), jnp.cos(x)
  jax.debug.breakpoint(stdin=io.StringIO("p y\np z\nc\n"), backend="cli")
  return y * z


def _stops_if_nonfinite(x, y):
  z = x / y
  stop = functools.partial(jax.debug.breakpoint, stdin=io.StringIO("l\nc\n"), backend="cli")
  jax.lax.cond(jnp.isfinite(z).all(), lambda z: None, lambda z: stop(), z)
  return z


def _host(fun, **options):
  return lambda x: jax.pure_callback(fun, jax.ShapeDtypeStruct(x.shape, x.dtype), x, **options)


_sine = _host(lambda x: np.sin(x), vmap_method="sequential")


def _says():
  print("called")
  return np.int32(7)


def _says_for_nothing():
  jax.pure_callback(_says, jax.ShapeDtypeStruct((), np.int32))
  return jnp.float32(1)


def _raises(x):
  raise ValueError(f"this is {x}")


def _not_negative(x):
  return jax.lax.cond(x < 0, _host(_raises, vmap_method="sequential"), lambda x: x, x)


def _uniform(x):
  print(f"draws {x.dtype}{list(x.shape)}")
  return rng.uniform(size=x.shape).astype(x.dtype)


def _draws(x, ordered=False):
  return io_callback(_uniform, jax.ShapeDtypeStruct(x.shape, x.dtype), x, ordered=ordered)


def _rows(fun):
  return lambda x: jax.lax.scan(lambda _, row: (None, fun(row)), None, x)[1]


def _greets(x):
  io_callback(lambda: print("hello"), None)
  return x


@jax.custom_jvp
def _bessel(v, z):
  of_scipy = lambda v, z: scipy.special.jv(v, z).astype(z.dtype)  # noqa: E731
  shape = jnp.broadcast_shapes(jnp.shape(v), z.shape)
  return jax.pure_callback(
    of_scipy, jax.ShapeDtypeStruct(shape, z.dtype), v, z, vmap_method="broadcast_all"
  )


@_bessel.defjvp
def _(primals, tangents):
  v, z = primals
  below, above = _bessel(v - 1, z), _bessel(v + 1, z)
  return _bessel(v, z), jnp.where(v == 0, -above, (below - above) / 2) * tangents[1]


def _j1(z):
  return _bessel(jnp.int32(1), z)


NO_JVP, NO_IO_JVP = "Pure callbacks do not support JVP", "IO callbacks do not support JVP"
ROWS = [
  Row("debugging: print", _two_prints, (np.float32(2),)),
  Row("debugging: vmap", jax.vmap(_two_prints), (X,)),
  Row("debugging: map", lambda x: jax.lax.map(_two_prints, x), (X,), any_order=True),
  Row("debugging: grad", _two_prints, (ONE,), order=1),
  Row("debugging: ordered", _ordered, (np.int32(1), np.int32(2))),
  Row("debugging: backward pass", lambda x: _seen(x) * 2, (ONE,), order=1),
  Row("debugging: callback", _called, (ONE,)),
  Row("debugging: callback under vmap", jax.vmap(_called), (X,)),
  Row("debugging: callback under grad", _called, (ONE,), order=1),
  Row("debugging: breakpoint", _stops, (np.float32(2),)),
  Row("debugging: breakpoint never reached", _stops_if_nonfinite, (np.float32(2), ONE)),
  Row("debugging: breakpoint reached", _stops_if_nonfinite, (np.float32(2), np.float32(0))),
  Row(
    "callbacks: print",
    lambda x: (jax.debug.print("between: {}", x + 1), (x + 1) * 2)[1],
    (np.int32(2),),
  ),
  Row("callbacks: pure", _sine, (X,)),
  Row("callbacks: pure in scan", _rows(_sine), (X,)),
  Row("callbacks: pure under vmap", jax.vmap(_sine), (X,)),
  Row("callbacks: pure under grad", lambda x: _sine(x).sum(), (X,), order=1, error=NO_JVP),
  Row("callbacks: used", lambda: jax.pure_callback(_says, jax.ShapeDtypeStruct((), np.int32)), ()),
  Row("callbacks: not used", _says_for_nothing, ()),
  Row("callbacks: does not raise", _not_negative, (ONE,)),
  Row("callbacks: raises", _not_negative, (-ONE,), error="this is -1.0"),
  # any of them
  Row("callbacks: raises under vmap", jax.vmap(_not_negative), (X,), error="this is "),
  Row("callbacks: io", _draws, (X,)),
  Row("callbacks: io under vmap", jax.vmap(_draws), (X,)),
  Row(
    "callbacks: ordered io under vmap",
    jax.vmap(functools.partial(_draws, ordered=True)),
    (X,),
    error="Cannot `vmap` ordered IO callback",
  ),
  Row("callbacks: ordered io in scan", _rows(functools.partial(_draws, ordered=True)), (X,)),
  Row("callbacks: io under grad", lambda x: _draws(x).sum(), (X,), order=1, error=NO_IO_JVP),
  Row("callbacks: io beside grad", _greets, (ONE,), order=1),
  Row("callbacks: debug.callback", _called, (ONE,)),
  Row("callbacks: custom_jvp", _j1, (X,)),
  Row("callbacks: custom_jvp under vmap", jax.vmap(_j1), (X,)),
  Row("callbacks: custom_jvp under grad", _j1, (np.float32(2),), order=1),
  Row("callbacks: custom_jvp, second order", _j1, (np.float32(2),), order=2),
]


def _gradient(function, x):
  with tf.GradientTape() as tape:
    tape.watch(x)
    y = function(x)
  return tape.gradient(y, x)


def _in_a_graph_of_tensorflow_1(fun, args, order):
  with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    args = [tf.constant(x) for x in args]
    y = jax2tf.convert(fun)(*args)
    for _ in range(order):
      y = tf.gradients(y, args)[0]
    return session.run(y)


def _ways(row):
  """{name: the function of the arguments}, of JAX first."""

  def derived(gradient, fun):
    return functools.reduce(lambda fun, _: functools.partial(gradient, fun), range(row.order), fun)

  def ours():  # each way traces anew: a breakpoint reads what is typed once
    return jax2tf.convert(row.fun)

  return {
    "JAX": jax.jit(functools.reduce(lambda fun, _: jax.grad(fun), range(row.order), row.fun)),
    "eager": derived(_gradient, ours()),
    "graph, with tapes outside": derived(_gradient, tf.function(ours(), autograph=False)),
    "graph, with tapes inside": tf.function(derived(_gradient, ours()), autograph=False),
    "TensorFlow 1": lambda *args: _in_a_graph_of_tensorflow_1(row.fun, args, row.order),
  }


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_program(row, capsys):
  said = {}
  for way, call in _ways(row).items():
    rng.bit_generator.state = np.random.default_rng(0).bit_generator.state
    result, error = None, ""
    try:
      result = jax.tree.map(
        np.asarray, call(*row.args) if way == "JAX" else call(*map(tf.constant, row.args))
      )
    except Exception as raised:
      error = f"{type(raised).__name__}: {raised}"
    jax.effects_barrier()
    assert (row.error or "") in error, (way, error)
    assert bool(row.error) == bool(error), (way, error)
    said[way] = result, capsys.readouterr().out
  ordered = sorted if row.any_order else list
  expected, text = said.pop("JAX")
  for way, (result, found) in said.items():
    if row.error is None:
      close(result, expected, rtol=2e-6)
      assert ordered(found.splitlines()) == ordered(text.splitlines()), way
