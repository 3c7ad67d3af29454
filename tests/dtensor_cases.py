"""Functions on a mesh of 2 x 2 devices of DTensor, each in a process of its own, which test_dtensor.py starts."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

jax.config.update("jax_num_cpu_devices", 4)
tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 4)

tf.config.threading.set_inter_op_parallelism_threads(8)  # a device that waits for the others holds a thread

import jax2tf  # noqa: E402  (after the devices are made)
import jax2tf.dtensor  # noqa: E402

RNG = np.random.default_rng(0)


def mesh() -> jax.sharding.Mesh:
  return jax.make_mesh((2, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)


def spread(x: Any, *axes: Any) -> Any:
  return lax.with_sharding_constraint(x, NamedSharding(mesh(), P(*axes)))


def draw(*shape: int) -> np.ndarray:
  return RNG.standard_normal(shape).astype(np.float32)


@dataclass(frozen=True)
class Case:
  """A function of parameters and one input.

  Attributes:
    fun: (params, x) -> y.
    params: {name: (array, axes of its dimensions)}.
    x: the input, whose first dimension is over "data".
    poly: its polymorphic shape.
    gradient: whether to compare that by the parameters too.
  """

  fun: Callable[..., Any]
  params: dict[str, tuple[np.ndarray, tuple[str | None, ...]]]
  x: np.ndarray
  poly: str | None = None
  gradient: bool = True


def encoder(p: Any, x: Any) -> Any:
  """A layer of an encoder: heads and the width of the MLP are over "model"."""
  x = spread(x, "data", None, None)
  q, k, v = (spread(jnp.einsum("btc,chd->bthd", x, p[name]), "data", None, "model", None) for name in "qkv")
  weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k))
  x = x + spread(jnp.einsum("bhqk,bkhd,hdc->bqc", weights, v, p["o"]), "data", None, None)
  return x + spread(jnp.tanh(x @ p["up"]) @ p["down"], "data", None, None)


HEADS = {name: (draw(4, 2, 3), (None, "model", None)) for name in "qkv"}
WIDE = {"o": (draw(2, 3, 4), ("model", None, None)), "up": (draw(4, 8), (None, "model")), "down": (draw(8, 4), ("model", None))}
UP_DOWN = {name: WIDE[name] for name in ("up", "down")}
PLAIN = {"w": (draw(4, 4), (None, None))}
CASES = {
  "encoder": Case(encoder, HEADS | WIDE, draw(4, 3, 4), "b, t, _", gradient=False),
  "mlp": Case(lambda p, x: spread(spread(jnp.tanh(x @ p["up"]), "data", "model") @ p["down"], "data"), UP_DOWN, draw(4, 4), "b, _"),
  "data parallel": Case(lambda p, x: spread(jnp.tanh(spread(x, "data") @ p["w"]), "data"), PLAIN, draw(4, 4), "b, _"),
}


def main(name: str) -> None:
  case, dtensor = CASES[name], tf.experimental.dtensor
  there = dtensor.create_mesh([("data", 2), ("model", 2)], devices=[f"CPU:{i}" for i in range(4)])
  arrays = {k: array for k, (array, _) in case.params.items()}
  placed = {k: jax.device_put(array, NamedSharding(mesh(), P(*axes))) for k, (array, axes) in case.params.items()}
  variables = jax2tf.dtensor.variables(placed, there)
  for k, (array, axes) in case.params.items():
    parts = {tuple(part.shape) for part in dtensor.unpack(variables[k].read_value())}
    assert parts == {tuple(size // (2 if axis else 1) for size, axis in zip(array.shape, axes, strict=True))}, (k, parts)
  x = jax2tf.dtensor.tensor(case.x, there, "data")
  poly = [None, case.poly] if case.poly else None
  converted = jax2tf.convert(case.fun, polymorphic_shapes=poly, dtensor_mesh=there, with_gradient=case.gradient)
  whole = lambda y: dtensor.relayout(y, dtensor.Layout.replicated(there, y.shape.rank)).numpy()  # noqa: E731

  def close(actual: Any, expected: Any) -> None:
    np.testing.assert_allclose(whole(actual), expected, rtol=0, atol=2e-6 * max(1, np.abs(expected).max()))

  close(tf.function(lambda x: converted(dict(variables), x), autograph=False)(x), jax.jit(case.fun)(arrays, case.x))
  if case.gradient:

    @tf.function(autograph=False)
    def gradient(x: tf.Tensor) -> dict[str, tf.Tensor]:
      with tf.GradientTape() as tape:
        value = tf.reduce_mean(tf.sin(converted(dict(variables), x)))
      return tape.gradient(value, variables)

    expected = jax.jit(jax.grad(lambda p: jnp.mean(jnp.sin(case.fun(p, case.x)))))(arrays)
    for k, g in gradient(x).items():
      if g is not None:
        close(g, expected[k])
        assert dtensor.fetch_layout(g) == dtensor.fetch_layout(variables[k])
  print("equal")


if __name__ == "__main__":
  main(sys.argv[1])
