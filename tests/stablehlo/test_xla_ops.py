"""The `Xla*` ops that no stored model has, the first forms of those of JAX 0.4.38, against XLA in
TensorFlow."""

from __future__ import annotations

import functools
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


def _opened(function: Any, specs: Any, folder: Any) -> tuple[list[str], Any]:
  """The names of the results of a function, and a signature of the opened model whose results are
  `y0`, `y1` ..."""
  module = tf.Module()
  names: list[str] = []

  def named(*args: Any) -> dict[str, Any]:
    results = function(*args)
    names[:] = list(results)
    return {f"y{index}": result for index, result in enumerate(results.values())}

  module.f = tf.function(named, input_signature=specs, autograph=False)
  tf.saved_model.save(module, str(folder / "closed"), signatures=module.f)
  files.copied(folder / "closed", folder / "open", rewriting.opened)
  saved = saved_model_pb2.SavedModel.FromString((folder / "open/saved_model.pb").read_bytes())
  graph = saved.meta_graphs[0].graph_def
  nodes = [*graph.node, *(node for f in graph.library.function for node in f.node_def)]
  assert not [node.op for node in nodes if node.op.startswith("Xla")]
  return names, tf.saved_model.load(str(folder / "open")).signatures["serving_default"]


def test_first_forms(tmp_path: Any) -> None:
  specs = [tf.TensorSpec(value.shape, value.dtype, name) for name, value in INPUTS.items()]
  names, opened = _opened(first_forms, specs, tmp_path)
  results = opened(**INPUTS)
  expected = tf.function(first_forms, jit_compile=True, autograph=False)(*INPUTS.values())
  for index, name in enumerate(names):
    pair = results[f"y{index}"], expected[name]
    np.testing.assert_allclose(*pair, 2e-6, 2e-6, err_msg=name)
    np.testing.assert_array_equal(*map(np.signbit, pair), err_msg=f"signs of {name}")


# proto: n b k, k m -> n b m.
PRODUCT = message((1, [2]), (2, [0]))


@tf.function(input_signature=[tf.TensorSpec([], tf.float32)] * 2, autograph=False)
def is_less(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
  return x < y


def of_no_rows(left: Any, matrix: Any, x: Any) -> dict[str, Any]:
  """One result of each op that has no sizes which must be equal."""
  add, less = added.get_concrete_function(), is_less.get_concrete_function()
  number, ones, none = tf.constant(2.5), [1, 1], [[0, 0], [0, 0]]
  windows = functools.partial(gen_xla_ops.xla_reduce_window, x, number)
  return {
    "dot": gen_xla_ops.xla_dot(left, matrix, PRODUCT, b""),
    "sort of no rows": gen_xla_ops.xla_sort(x),
    "sort along no rows": gen_xla_ops.xla_variadic_sort([x], 0, less, is_stable=True)[0],
    "reduced rows": gen_xla_ops.xla_reduce(left, number, [0, 2], add),
    "reduced columns": gen_xla_ops.xla_reduce(left, number, [1, 2], add),
    "padded": gen_xla_ops.xla_pad(x, number, [1, 0], [2, 0], [0, 1]),
    "windows of no rows": windows([1, 2], ones, ones, ones, none, add),
    "windows along no rows": windows([2, 1], ones, ones, ones, [[1, 1], [0, 0]], add),
  }


def test_sizes_may_be_zero(tmp_path: Any) -> None:
  inputs = {"left": INPUTS["left"][:0], "matrix": np.ones((3, 4), np.float32), "x": HOSTILE[:0]}
  specs = [
    tf.TensorSpec([size or None for size in value.shape], value.dtype, name)
    for name, value in inputs.items()
  ]
  names, opened = _opened(of_no_rows, specs, tmp_path)
  results = opened(**inputs)
  expected = tf.function(of_no_rows, jit_compile=True, autograph=False)(*inputs.values())
  for index, name in enumerate(names):
    np.testing.assert_array_equal(results[f"y{index}"], expected[name], err_msg=name)


def slices(x: Any, update: Any, lengths: Any) -> dict[str, Any]:
  return {
    "slice": gen_xla_ops.xla_dynamic_slice(x, [1, 2], lengths),
    "update": gen_xla_ops.xla_dynamic_update_slice(x, update, [1, 2]),
  }


def test_slices_are_not_larger_than_arrays(tmp_path: Any) -> None:
  """Slice says so itself; ops that write might not."""
  specs = [tf.TensorSpec([None, None], tf.float32, name) for name in ("x", "update")]
  _, opened = _opened(slices, [*specs, tf.TensorSpec([2], tf.int32, "lengths")], tmp_path)
  x, update = tf.reshape(tf.range(12.0), (3, 4)), -tf.ones((2, 3))
  results = opened(x=x, update=update, lengths=tf.constant([2, 3]))
  np.testing.assert_array_equal(results["y0"], x[1:, 1:])
  np.testing.assert_array_equal(results["y1"], [[0, 1, 2, 3], [4, -1, -1, -1], [8, -1, -1, -1]])
  for arguments in (
    {"update": update, "lengths": tf.constant([2, 5])},
    {"update": update, "lengths": tf.constant([4, 3])},
    {"update": -tf.ones((4, 1)), "lengths": tf.constant([2, 3])},
    {"update": -tf.ones((1, 5)), "lengths": tf.constant([2, 3])},
  ):
    with pytest.raises(tf.errors.InvalidArgumentError):
      opened(x=x, **arguments)
