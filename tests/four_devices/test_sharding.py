"""Shardings over four devices: lowered natively and inspected, kept or reported in the graph
lowering."""

from __future__ import annotations

import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import lax
from jax.extend.mlir.dialects import stablehlo
from jax.interpreters import mlir
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from tensorflow.compiler.xla import xla_data_pb2

import jax2tf
from tests.four_devices.graphs import graph_of

MESH = Mesh(np.array(jax.devices()), ("x",))
ROWS = NamedSharding(MESH, PartitionSpec("x"))
EVERYWHERE = NamedSharding(MESH, PartitionSpec())
X = np.linspace(-1, 1, 32, dtype=np.float32).reshape(8, 4)
W = np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4)


def modules(graph: Any) -> list[str]:
  """The StableHLO of the XlaCallModule ops."""
  found = []
  for op in graph.get_operations():
    if op.type == "XlaCallModule":
      with mlir.make_ir_context() as context:
        context.allow_unregistered_dialects = True
        found.append(str(stablehlo.deserialize_portable_artifact(context, op.get_attr("module"))))
  return found


def shardings(graph: Any) -> list[Any]:
  """The dimensions of the tiles of each XlaSharding op; None for a replicated value."""
  protos = [
    xla_data_pb2.OpSharding.FromString(op.get_attr("sharding"))
    for op in graph.get_operations()
    if op.type == "XlaSharding"
  ]
  return [
    None if p.type == xla_data_pb2.OpSharding.REPLICATED else list(p.tile_assignment_dimensions)
    for p in protos
  ]


@functools.partial(jax.jit, in_shardings=(ROWS, None), out_shardings=EVERYWHERE)
def sharded(x: jax.Array, w: jax.Array) -> jax.Array:
  return jnp.sin(lax.with_sharding_constraint(x @ w, ROWS))


@jax.jit
@functools.partial(
  jax.shard_map, mesh=MESH, in_specs=PartitionSpec("x"), out_specs=PartitionSpec("x")
)
def across(x: jax.Array) -> jax.Array:
  total = lax.psum(x, "x")
  neighbour = lax.ppermute(x, "x", [(i, (i + 1) % 4) for i in range(4)])
  return x * total + neighbour + lax.all_gather(x, "x", tiled=True)[:2]


def test_native_lowering_keeps_the_shardings_of_arguments_results_and_what_is_between() -> None:
  graph = graph_of(sharded, X, W, native_serialization=True)
  [module] = modules(graph)
  assert "mhlo.num_partitions = 4" in module
  assert len(re.findall(r"devices=\[4,1\]<=\[4\]", module)) >= 2  # x, and the constraint
  assert "{replicated}" in module
  assert shardings(graph) == [[4, 1], None]  # x and the result, for TensorFlow


def test_native_lowering_keeps_the_shardings_of_gradients() -> None:
  graph = graph_of(sharded, X, W, gradient=True, native_serialization=True)
  forward, backward = modules(graph)
  for module in (forward, backward):
    assert "mhlo.num_partitions = 4" in module
    assert re.search(r"devices=\[4,1\]<=\[4\]", module)
  assert shardings(graph)[-1] == [4, 1]  # the cotangent of x


def test_collectives_are_lowered_natively() -> None:
  [module] = modules(graph_of(across, X, native_serialization=True))
  for op in (
    "all_reduce",
    "collective_permute",
    "all_gather",
    "SPMDFullToShardShape",
    "SPMDShardToFullShape",
  ):
    assert op in module
  assert "source_target_pairs = dense<[[0, 1], [1, 2], [2, 3], [3, 0]]>" in module
  assert "replica_groups = dense<[[0, 1, 2, 3]]>" in module
  assert "sdy" not in module


def test_gradients_of_collectives_are_lowered_natively() -> None:
  _, backward = modules(graph_of(across, X, gradient=True, native_serialization=True))
  # the other way round
  assert "source_target_pairs = dense<[[1, 0], [2, 1], [3, 2], [0, 3]]>" in backward
  assert "reduce_scatter" in backward or "all_reduce" in backward


@pytest.mark.parametrize("version", ["1.0.0", "2.16", "2.20"])
def test_older_readers_are_served(version: str) -> None:
  for fun, args in ((sharded, (X, W)), (across, (X,))):
    [module] = modules(graph_of(fun, *args, native_serialization=True, stablehlo_version=version))
    assert "mhlo.num_partitions = 4" in module


def test_annotations_alone_run_on_one_device() -> None:
  converted = jax2tf.convert(sharded, native_serialization=True)
  np.testing.assert_allclose(
    tf.function(converted, autograph=False, jit_compile=True)(X, W),
    sharded(X, W),
    rtol=1e-6,
    atol=1e-6,
  )


@pytest.mark.parametrize("fun", [sharded, across])
def test_eagerly_refused_in_the_words_of_jax2tf(fun: Any) -> None:
  args = (X, W) if fun is sharded else (X,)
  with pytest.raises(
    ValueError,
    match=r"function with sharded arguments or results must be used under a `tf.function` "
    r"context: '\w+' runs",
  ):
    jax2tf.convert(fun, native_serialization=True)(*args)


def test_lapack_on_several_cpus_is_refused_by_name_and_line() -> None:
  def fun(x: jax.Array) -> jax.Array:
    return jnp.linalg.cholesky(lax.with_sharding_constraint(x @ x.T, ROWS) + 9 * jnp.eye(8))

  with pytest.raises(
    NotImplementedError,
    match=r"(?s)'cholesky'.* several devices.*test_sharding.py:\d+.*native_serialization_platforms",
  ):
    graph_of(fun, X, native_serialization=True)
  [module] = modules(
    graph_of(fun, X, native_serialization=True, native_serialization_platforms=["tpu"])
  )
  assert "cholesky" in module


def test_callbacks_on_several_devices_are_refused_by_name_and_line() -> None:
  def fun(x: jax.Array) -> jax.Array:
    jax.debug.print("{}", x)
    return lax.with_sharding_constraint(x, ROWS)

  with pytest.raises(
    NotImplementedError,
    match=r"(?s)'debug_print'.*calls back into Python.* several devices.*test_sharding.py:\d+",
  ):
    graph_of(fun, X, native_serialization=True, native_serialization_platforms=["tpu"])


def test_the_graph_lowering_computes_on_one_device() -> None:
  np.testing.assert_allclose(jax2tf.convert(across)(X), across(X), rtol=1e-6, atol=1e-6)


def test_the_graph_lowering_can_refuse_several_devices_with_the_line() -> None:
  with pytest.raises(
    NotImplementedError,
    match=r"(?s)'shard_map' not implemented.*test_sharding.py:\d+.*lower natively",
  ):
    graph_of(across, X, meshes="error")


def test_the_graph_lowering_warns_once_of_what_it_leaves_out() -> None:
  converted = jax2tf.convert(sharded)
  with pytest.warns(
    UserWarning,
    match=r"sharding annotations of 'sharded' \(at .*test_sharding.py.*keep_shardings=True",
  ) as caught:
    for _ in range(3):
      y = converted(X, W)
  assert len(caught) == 1
  np.testing.assert_allclose(y, sharded(X, W), rtol=1e-6, atol=1e-6)


def test_a_mesh_of_one_device_is_no_annotation() -> None:
  one = NamedSharding(Mesh(np.array(jax.devices()[:1]), ("x",)), PartitionSpec("x"))
  jax2tf.convert(jax.jit(lambda x: lax.with_sharding_constraint(x, one) + 1, in_shardings=one))(X)


def test_shardings_kept_as_ops_forward_and_backward() -> None:
  forward = graph_of(sharded, X, W, keep_shardings=True)
  assert shardings(forward) == [[4, 1], [4, 1], None]
  both = shardings(graph_of(sharded, X, W, gradient=True, keep_shardings=True))
  assert both.count([4, 1]) >= 2 * 2  # x, x @ w and the cotangents of both
  converted = jax2tf.convert(sharded, keep_shardings=True)
  for jit_compile in (None, True):
    y = tf.function(converted, autograph=False, jit_compile=jit_compile)(X, W)
    np.testing.assert_allclose(y, sharded(X, W), rtol=1e-6, atol=1e-6)


def test_device_put_and_explicit_shardings_are_annotations_too() -> None:
  def fun(x: jax.Array) -> jax.Array:
    return jnp.cos(jax.device_put(x, ROWS))

  assert shardings(graph_of(fun, X, keep_shardings=True)) == [[4, 1]]
  with pytest.warns(UserWarning, match="sharding annotations"):
    graph_of(fun, X)


def test_explicit_sharding_mode() -> None:
  mesh = jax.make_mesh((4,), ("x",))  # of explicit axes

  def fun(x: jax.Array) -> jax.Array:
    y = jax.sharding.reshard(x, NamedSharding(mesh, PartitionSpec("x", None)))
    return jnp.sin(y).sum(axis=1)

  with jax.set_mesh(mesh):
    expected = fun(X)
    converted = jax2tf.convert(fun, keep_shardings=True)
    graph = graph_of(fun, X, keep_shardings=True)
    np.testing.assert_allclose(tf.function(converted, autograph=False)(X), expected, rtol=1e-5)
  assert shardings(graph)[0] == [4, 1]
