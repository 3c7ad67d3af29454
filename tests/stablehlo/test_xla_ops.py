"""The `Xla*` ops that no stored model has, the first forms of those of JAX 0.4.38, against XLA in
TensorFlow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops
from tensorflow.core.protobuf import saved_model_pb2

from jax2tf.converters.opened import files, rewriting

pytestmark = pytest.mark.one_python
RNG = np.random.default_rng(0)
HOSTILE = np.array(
  [[1.5, -0.0, 0.0, np.nan, -np.inf, 2.0, -np.nan], [3.0, np.inf, -1.0, 0.0, -0.0, 7.0, 7.0]],
  np.float32,
)
INPUTS = {
  "image": RNG.standard_normal((2, 7, 6, 4)).astype(np.float32),
  "kernel": RNG.standard_normal((3, 2, 2, 6)).astype(np.float32),
  "left": RNG.standard_normal((5, 2, 3)).astype(np.float32),
  "right": RNG.standard_normal((2, 3, 4)).astype(np.float32),
  "x": HOSTILE,
  "i": RNG.integers(-9, 9, (2, 7), np.int32),
}


def message(*fields: tuple[int, list[int]]) -> bytes:
  """A protocol buffer of packed integers below 128."""
  return b"".join(
    bytes([number << 3 | 2, len(values), *values])
    if isinstance(values, list)
    else bytes([number << 3, values])
    for number, values in fields
  )


# xla_data.proto: NHWC by HWIO, and b n k, n k m -> n b m.
CONVOLUTION = message(
  (3, 2), (4, 3), (6, [0, 1]), (7, 0), (8, 3), (9, 0), (10, 3), (11, [1, 2]), (12, [1, 2])
)
DOT = message((1, [2]), (2, [1]), (3, [1]), (4, [0]))


@tf.function(input_signature=[tf.TensorSpec([], tf.float32)] * 2, autograph=False)
def added(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
  return x + y


@tf.function(input_signature=[tf.TensorSpec([], tf.float32)] * 4, autograph=False)
def sum_and_largest(a: Any, b: Any, x: Any, y: Any) -> tuple[tf.Tensor, tf.Tensor]:
  return a + x, tf.maximum(b, y)


def first_forms(image: Any, kernel: Any, left: Any, right: Any, x: Any, i: Any) -> dict[str, Any]:
  """One result of each op."""
  add, both = added.get_concrete_function(), sum_and_largest.get_concrete_function()
  keys, values = gen_xla_ops.xla_key_value_sort(x, i)
  total, largest = gen_xla_ops.xla_variadic_reduce(
    [left, left * 2], [tf.constant(1.0), tf.constant(-1.0)], [0, 2], both
  )
  barred = gen_xla_ops.xla_optimization_barrier([x, i])
  return {
    "conv": gen_xla_ops.xla_conv(
      image, kernel, [2, 1], [[1, 0], [0, 2]], [1, 2], [2, 1], 2, CONVOLUTION, b""
    ),
    "dot": gen_xla_ops.xla_dot(left, right, DOT, b""),
    "sort": gen_xla_ops.xla_sort(x),
    "sort of integers": gen_xla_ops.xla_sort(i),
    "keys": keys,
    "values": values,
    "reduce": gen_xla_ops.xla_reduce(left, tf.constant(0.5), [0, 2], add),
    "total": total,
    "largest": largest,
    "barred": barred[0],
    "barred integers": barred[1],
    "reduced": gen_xla_ops.xla_reduce_precision(x, 5, 10),
  }


def test_first_forms(tmp_path: Any) -> None:
  module = tf.Module()
  specs = [tf.TensorSpec(value.shape, value.dtype, name) for name, value in INPUTS.items()]
  names: list[str] = []

  def named(*args: Any) -> dict[str, Any]:
    results = first_forms(*args)
    names[:] = list(results)
    return {f"y{index}": result for index, result in enumerate(results.values())}

  module.f = tf.function(named, input_signature=specs, autograph=False)
  tf.saved_model.save(module, str(tmp_path / "closed"), signatures=module.f)
  files.copied(tmp_path / "closed", tmp_path / "open", rewriting.opened)
  saved = saved_model_pb2.SavedModel.FromString((tmp_path / "open/saved_model.pb").read_bytes())
  graph = saved.meta_graphs[0].graph_def
  nodes = [*graph.node, *(node for f in graph.library.function for node in f.node_def)]
  assert not [node.op for node in nodes if node.op.startswith("Xla")]
  results = tf.saved_model.load(str(tmp_path / "open")).signatures["serving_default"](**INPUTS)
  expected = tf.function(named, jit_compile=True, autograph=False)(*INPUTS.values())
  for index, name in enumerate(names):
    np.testing.assert_allclose(
      results[f"y{index}"], expected[f"y{index}"], 2e-6, 2e-6, err_msg=name
    )
    signs = (np.signbit(y[f"y{index}"]) for y in (results, expected))
    np.testing.assert_array_equal(*signs, err_msg=f"signs of {name}")
