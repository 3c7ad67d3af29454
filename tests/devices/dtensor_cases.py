"""Functions on four devices of DTensor, each in a process of its own, or two of two devices, which
test_dtensor.py starts."""

from __future__ import annotations

import os
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
_HERE = 4 // len(os.environ.get("DTENSOR_JOBS", "one").split(","))  # devices of this process
tf.config.set_logical_device_configuration(
  tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * _HERE
)

# a device that waits for the others holds a thread
tf.config.threading.set_inter_op_parallelism_threads(8)

import jax2tf  # noqa: E402  (after the devices are made)
import jax2tf.dtensor  # noqa: E402
from jax2tf.examples import minilm  # noqa: E402

RNG = np.random.default_rng(0)


def mesh(sizes: tuple[int, int] = (2, 2)) -> jax.sharding.Mesh:
  return jax.make_mesh(sizes, ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)


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
    mesh: the sizes of "data" and "model".
    constraints: on dimension variables.
    tolerance: of the largest number of an array, or of 1.
  """

  fun: Callable[..., Any]
  params: dict[str, tuple[np.ndarray, tuple[str | None, ...]]]
  x: np.ndarray
  poly: str
  gradient: bool = True
  mesh: tuple[int, int] = (2, 2)
  constraints: tuple[str, ...] = ()
  tolerance: float = 2e-6


def encoder(p: Any, x: Any) -> Any:
  """A layer of an encoder: heads and the width of the MLP are over "model"."""
  x = spread(x, "data", None, None)
  q, k, v = (
    spread(jnp.einsum("btc,chd->bthd", x, p[name]), "data", None, "model", None) for name in "qkv"
  )
  weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k))
  x = x + spread(jnp.einsum("bhqk,bkhd,hdc->bqc", weights, v, p["o"]), "data", None, None)
  return x + spread(jnp.tanh(x @ p["up"]) @ p["down"], "data", None, None)


def gram(x: Any) -> Any:
  """f32[b,n,k] -> f32[b,n,n], positive definite."""
  return jnp.einsum("bij,bkj->bik", x, x) + 3 * jnp.eye(x.shape[1])


def halved(p: Any, x: Any) -> Any:
  y = (x.astype(jnp.bfloat16) @ p["w"].astype(jnp.bfloat16)).astype(jnp.float32)
  return spread(y, "data", "model")


def convolve(p: Any, x: Any) -> Any:
  return lax.conv_general_dilated(
    x, p["k"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
  )


def by_hand(p: Any, x: Any) -> Any:
  """As an MLP over both axes is written with `jax.shard_map`."""

  def layer(p: Any, x: Any) -> Any:
    return lax.psum(jnp.tanh(x @ p["up"]) @ p["down"], "model")

  specs = {"up": P(None, "model"), "down": P("model")}
  return jax.shard_map(layer, mesh=mesh(), in_specs=(specs, P("data")), out_specs=P("data"))(p, x)


def minilm_case(data_parallel: bool = False) -> Case:
  """all-MiniLM-L6-v2; a quarter of each kernel of its layers is on a device, or a quarter of the
  rows."""
  leaves, tree = jax.tree_util.tree_flatten_with_path(minilm.parameters())
  params = {
    jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(leaf)
    for path, leaf in leaves
  }

  def axes(path: str) -> tuple[str | None, ...]:
    if (
      data_parallel
      or "layer" not in path
      or "LayerNorm" in path
      or (path.endswith("bias") and "output" in path)
    ):
      return (None,) * params[path].ndim
    if path.endswith("bias"):
      return ("model",)
    return ("model", None) if "output" in path else (None, "model")

  def encode(p: Any, ids: Any) -> Any:
    return minilm.encode(
      jax.tree.unflatten(tree, [p[path] for path in params]), ids, (ids != 0).astype(jnp.int32)
    )

  ids = np.random.default_rng(0).integers(1, 30_000, (4, 7), np.int32)
  ids[1, 5:] = 0
  spread_params = {path: (leaf, axes(path)) for path, leaf in params.items()}
  sizes, tolerance = ((4, 1), 2e-5) if data_parallel else ((1, 4), 2e-6)
  return Case(encode, spread_params, ids, "b, s", data_parallel, sizes, ("s <= 512",), tolerance)


HEADS = {name: (draw(4, 2, 3), (None, "model", None)) for name in "qkv"}
WIDE = {
  "o": (draw(2, 3, 4), ("model", None, None)),
  "up": (draw(4, 8), (None, "model")),
  "down": (draw(8, 4), ("model", None)),
}
UP_DOWN = {name: WIDE[name] for name in ("up", "down")}
PLAIN = {"w": (draw(4, 4), (None, None))}
CASES = {
  "minilm": minilm_case,
  "minilm data parallel": lambda: minilm_case(data_parallel=True),
  "encoder": lambda: Case(encoder, HEADS | WIDE, draw(4, 3, 4), "b, t, _", gradient=False),
  "mlp": lambda: Case(
    lambda p, x: spread(spread(jnp.tanh(x @ p["up"]), "data", "model") @ p["down"], "data"),
    UP_DOWN,
    draw(4, 4),
    "b, _",
  ),
  # DTensor chooses the layouts of its gradients.
  "shard_map": lambda: Case(by_hand, UP_DOWN, draw(4, 4), "2*b, _", gradient=False),
  "cholesky of rows": lambda: Case(
    lambda p, x: jnp.linalg.cholesky(gram(x @ p["w"])),
    PLAIN,
    draw(4, 3, 4),
    "b, _, _",
    False,
    tolerance=1e-5,
  ),
  "bfloat16": lambda: Case(
    halved, {"w": (draw(4, 4), (None, "model"))}, draw(4, 4), "b, _", tolerance=3e-2
  ),
  # What DTensor does not run. The layouts of arguments decide, so a jaxpr does not tell:
  # test_dtensor.py has the errors.
  "output channels": lambda: Case(
    convolve,
    {"k": (draw(3, 3, 2, 4), (None, None, None, "model"))},
    draw(4, 5, 5, 2),
    "b, _, _, _",
    False,
  ),
  "column of rows": lambda: Case(
    lambda p, x: x.at[:, 1].set(p["w"][0, 0]), PLAIN, draw(4, 4), "b, _", False
  ),
  "tensor-parallel gradient": lambda: Case(encoder, HEADS | WIDE, draw(4, 3, 4), "b, t, _"),
  "data parallel": lambda: Case(
    lambda p, x: spread(jnp.tanh(spread(x, "data") @ p["w"]), "data"), PLAIN, draw(4, 4), "b, _"
  ),
}


def main(name: str) -> None:
  dtensor = tf.experimental.dtensor
  dtensor.initialize_accelerator_system("CPU")
  case = CASES[name]()
  there = dtensor.create_distributed_mesh(
    list(zip(("data", "model"), case.mesh, strict=True)), device_type="CPU"
  )
  arrays = {k: array for k, (array, _) in case.params.items()}
  placed = {
    k: jax.device_put(array, NamedSharding(mesh(case.mesh), P(*axes)))
    for k, (array, axes) in case.params.items()
  }
  variables = jax2tf.dtensor.variables(placed, there)
  for k, (array, axes) in case.params.items():
    parts = {tuple(part.shape) for part in dtensor.unpack(variables[k].read_value())}
    over = {"data": case.mesh[0], "model": case.mesh[1], None: 1}
    assert parts == {
      tuple(size // over[axis] for size, axis in zip(array.shape, axes, strict=True))
    }, (k, parts)
  x = jax2tf.dtensor.tensor(case.x, there, "data")
  options = {"polymorphic_shapes": [None, case.poly], "polymorphic_constraints": case.constraints}
  converted = jax2tf.convert(case.fun, dtensor_mesh=there, with_gradient=case.gradient, **options)
  whole = lambda y: dtensor.relayout(y, dtensor.Layout.replicated(there, y.shape.rank)).numpy()  # noqa: E731

  def close(actual: Any, expected: Any) -> None:
    np.testing.assert_allclose(
      whole(actual), expected, rtol=0, atol=case.tolerance * max(1, np.abs(expected).max())
    )

  close(
    tf.function(lambda x: converted(dict(variables), x), autograph=False)(x),
    jax.jit(case.fun)(arrays, case.x),
  )
  if case.gradient:

    @tf.function(autograph=False)
    def gradient(x: tf.Tensor) -> dict[str, tf.Tensor]:
      with tf.GradientTape() as tape:
        value = tf.reduce_sum(tf.sin(converted(dict(variables), x)))
      return tape.gradient(value, variables)

    expected = jax.jit(jax.grad(lambda p: jnp.sum(jnp.sin(case.fun(p, case.x)))))(arrays)
    for k, g in gradient(x).items():
      close(g, expected[k])
      assert dtensor.fetch_layout(g) == dtensor.fetch_layout(variables[k])
  print("equal")


if __name__ == "__main__":
  main(sys.argv[1])
