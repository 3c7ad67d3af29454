"""Transposes between convolutions in ONNX: few of them are left, and the values are JAX's."""

from __future__ import annotations

import collections
import itertools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jax2tf.converters import onnx as to_onnx
from jax2tf.converters.onnx import transposes
from jax2tf.converters.onnx.runtime import extra

RNG = np.random.default_rng(0)
KERNELS = [RNG.normal(size=(3, 3, i, 8)).astype(np.float32) for i in (3, 8, 8)]
IMAGES = ("NHWC", "HWIO", "NHWC")


def convolved(x, kernel):
  return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=IMAGES)


def squeezed_and_excited(x):
  return x * jax.nn.sigmoid(x.mean((1, 2), keepdims=True))


def response_normalized(x):
  return x / (1e-6 + jnp.linalg.norm(x, axis=(1, 2), keepdims=True))


def groups_normalized(x):
  groups = x.reshape(*x.shape[:3], 2, 4)
  mean, variance = groups.mean((1, 2, 4), keepdims=True), groups.var((1, 2, 4), keepdims=True)
  return ((groups - mean) * lax.rsqrt(variance + 1e-5)).reshape(x.shape) * np.arange(1.0, 9.0)


def chosen(x):
  return jnp.where(x > 0.5, jnp.sin(x), x**3)


def scaled_by_columns(x):
  return x * np.arange(8, dtype=np.float32) + np.arange(40, dtype=np.float32).reshape(5, 8)


def joined(x):
  return jnp.concatenate([x, jax.nn.silu(x)], -1)[..., 4:12] * 2


BETWEEN = {
  "silu": jax.nn.silu,
  "mish": jax.nn.mish,
  "gelu": jax.nn.gelu,
  "hard_swish": jax.nn.hard_swish,
  "softmax": jax.nn.softmax,
  "squeeze_and_excite": squeezed_and_excited,
  "response_norm": response_normalized,
  "group_norm": groups_normalized,
  "where": chosen,
  "constants": scaled_by_columns,
  "concatenate": joined,
}


def counts(function, path: Path, params=KERNELS, batch="b") -> collections.Counter:
  """{op: nodes} of the file, which the exporter compares with JAX's values before it is there."""
  images = to_onnx_input(batch)
  to_onnx.save(function, params, path, inputs={"images": images}, polymorphic_constraints=())
  nodes = extra("onnx").load(path).graph.node
  return collections.Counter(node.op_type for node in nodes)


def to_onnx_input(batch):
  scope = jax.export.SymbolicScope()
  shape = jax.export.symbolic_shape(f"{batch}, 5, 5, 3", scope=scope)
  return jax.ShapeDtypeStruct(shape, np.float32)


@pytest.mark.parametrize("between", BETWEEN.values(), ids=BETWEEN)
def test_images_are_transposed_at_the_ends_only(between, tmp_path: Path) -> None:
  def network(params, images):
    for kernel in params:
      images = between(convolved(images, kernel))
    return images

  assert counts(network, tmp_path / "m.onnx")["Transpose"] == 2


def test_a_sum_over_images_needs_no_transpose(tmp_path: Path) -> None:
  def network(params, images):
    return jax.nn.silu(convolved(images, params[0])).mean((1, 2))

  assert counts(network, tmp_path / "m.onnx")["Transpose"] == 1


def test_a_value_with_users_of_both_orders(tmp_path: Path) -> None:
  """A result, a loop and a product take what the next convolution takes, too."""

  def network(params, images):
    x = jax.nn.silu(convolved(images, params[0]))
    rows = x @ jnp.ones((8, 2))
    total = lax.fori_loop(0, 50, lambda i, y: jnp.sin(y) + x, x)
    return x, rows, total, convolved(jax.nn.silu(x), params[1])

  assert 2 < counts(network, tmp_path / "m.onnx")["Transpose"] <= 6


def test_convolutions_in_the_body_of_a_loop(tmp_path: Path) -> None:
  def network(params, images):
    start = convolved(images, params[0])
    return lax.fori_loop(
      0, 50, lambda i, x: jax.nn.silu(convolved(x / 9, params[1])) + start, start
    )

  assert counts(network, tmp_path / "m.onnx")["Loop"] == 1


def test_vectors_of_parameters(tmp_path: Path) -> None:
  """In a large model parameters are bound later, and are no constants while transposes move."""

  def network(params, images):
    for kernel, scale in params:
      images = jax.nn.silu(convolved(images, kernel) * scale)
    return images

  params = [(kernel, np.linspace(1, 2, 8, dtype=np.float32)) for kernel in KERNELS]
  assert counts(network, tmp_path / "m.onnx", params)["Transpose"] == 2


def test_the_cut_is_the_least() -> None:
  """Against all orders of up to seven ops, for random graphs."""
  rng = np.random.default_rng(1)
  for _ in range(60):
    size = int(rng.integers(1, 8))
    nodes = [_Node(f"n{i}") for i in range(size)]
    tensors = [_tensor(rng, nodes) for _ in range(int(rng.integers(1, 9)))]
    taken = [n for t in tensors for n in ([t.maker] if t.maker else []) + t.users]
    best = min(
      _cost(tensors, {n.name for n, chosen in zip(nodes, order, strict=True) if chosen})
      for order in itertools.product((False, True), repeat=size)
    )
    moved = transposes.least_transposed(tensors)
    assert _cost(tensors, {node.name for node in moved}) == best
    assert {node.name for node in moved} <= {node.name for node in taken}


class _Node:
  def __init__(self, name: str):
    self.name = name


def _tensor(rng: np.random.Generator, nodes: list[_Node]) -> transposes.Tensor:
  kind = rng.integers(3)  # made by a node, by a Transpose, or by something else
  users = [node for node in nodes if rng.random() < 0.4]
  maker = nodes[rng.integers(len(nodes))] if kind == 0 else None
  return transposes.Tensor(
    cost=int(rng.integers(1, 50)),
    maker=maker,
    is_transposed=bool(kind == 1),
    users=[node for node in users if node is not maker],
    is_used=bool(rng.random() < 0.3),
    is_used_transposed=bool(rng.random() < 0.3),
  )


def _cost(tensors: list[transposes.Tensor], moved: set[str]) -> int:
  """What is transposed if these nodes have the other order."""
  total = 0
  for tensor in tensors:
    is_other = tensor.maker.name in moved if tensor.maker else tensor.is_transposed
    orders = {node.name in moved for node in tensor.users}
    orders |= {False} if tensor.is_used else set()
    orders |= {True} if tensor.is_used_transposed else set()
    total += tensor.cost * ((not is_other) in orders)
  return total
