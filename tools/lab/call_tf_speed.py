"""Compares the speed of `call_tf` with JAX's own and with bare callbacks: prints ratios of minimal
times in one process.

Usage: python -m jax2tf.tools.lab.call_tf_speed. The callables of a row run in turn, so that the
machine's load affects both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import tensorflow as tf
from jax.experimental import jax2tf as upstream
from rich.console import Console
from rich.table import Table

import jax2tf
from jax2tf.tools.lab import measure

_SECONDS = 2.0
_LARGE = (1000, 1000)  # 4 MB

Row = tuple[str, float, Callable[[], Any], Callable[[], Any]]


def rows() -> Iterator[Row]:
  """(name, largest accepted ratio, our callable, the other one)."""

  def f(x: Any) -> Any:
    return x + 1  # little computation, so that the overhead of the call dominates

  def call(fun: Callable[..., Any], x: Any) -> Callable[[], Any]:
    return lambda: jax.block_until_ready(fun(x))

  ours, theirs = jax2tf.call_tf(f), upstream.call_tf(f)
  for name, x in (("f32[]", jnp.float32(1)), ("4 MB", jnp.ones(_LARGE))):
    yield f"eager {name}", 0.5, call(ours, x), call(theirs, x)
    yield f"inlined {name}", 1.1, call(jax.jit(ours), x), call(jax.jit(theirs), x)
  # includes the conversions of tf.function and NumPy
  function, scalar = tf.function(f, autograph=False), jnp.float32(1)
  bare = jax.jit(
    lambda x: jax.pure_callback(
      lambda x: function(x).numpy(), jax.ShapeDtypeStruct(x.shape, x.dtype), x
    )
  )
  yield (
    "callback f32[]",
    0.7,
    call(jax.jit(jax2tf.call_tf(f, under_jit="callback")), scalar),
    call(bare, scalar),
  )
  batch = jnp.ones((256, 8))
  sequential = jax.jit(
    jax.vmap(
      lambda x: jax.pure_callback(
        lambda x: function(x).numpy(),
        jax.ShapeDtypeStruct(x.shape, x.dtype),
        x,
        vmap_method="sequential",
      )
    )
  )
  yield (
    "vmap of 256 by callback",
    0.1,
    call(jax.jit(jax.vmap(jax2tf.call_tf(f, under_jit="callback"))), batch),
    call(sequential, batch),
  )


def main() -> None:
  """Measures all rows and prints them."""
  table = Table(
    "Row",
    "Ours, us",
    "Theirs, us",
    "Ratio",
    "Asked",
    title=f"JAX {jax.__version__}, TensorFlow {tf.__version__}",
  )
  for name, asked, ours, theirs in rows():
    found = measure.milliseconds({"ours": ours, "theirs": theirs}, _SECONDS, of=min)
    ratio = found["ours"] / found["theirs"]
    table.add_row(
      name,
      f"{1e3 * found['ours']:.0f}",
      f"{1e3 * found['theirs']:.0f}",
      f"{ratio:.2f}",
      f"<= {asked}",
    )
  Console(width=100).print(table)


if __name__ == "__main__":
  main()
