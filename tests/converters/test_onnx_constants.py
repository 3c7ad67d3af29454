"""What tf2onnx computes from constants is computed at once, with the same values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tf2onnx import tfonnx

from jax2tf.converters.onnx import constants


def of_constants(x: tf.Tensor) -> tf.Tensor:
  """A chain that other ops read at two places, one that nothing reads, and one of strings."""
  ranks = tf.range(tf.constant(1), tf.constant(4)) * 2
  table = tf.cast(tf.stack([ranks, -ranks]), tf.float32) / 3.0
  tf.sqrt(table, "unread")
  names = tf.strings.join([tf.constant("a"), tf.constant("b")])
  return tf.gather(x + table, ranks[:1] - 2, axis=1) + tf.cast(tf.strings.length(names), tf.float32)


def of_sizes(x: tf.Tensor) -> tf.Tensor:
  """A known size of a shape that is not wholly known."""
  return tf.reshape(x, tf.stack([-1, tf.shape(x)[1] * 2]))


def of_huge_results(x: tf.Tensor) -> tf.Tensor:
  """tf2onnx does not store a million numbers for one."""
  return x * tf.sqrt(2.0) + tf.reduce_sum(tf.fill([1000, 1001], tf.constant(0.5)) * 2.0)


def of_failing_ops(x: tf.Tensor) -> tf.Tensor:
  """An op that raises stays, and what reads it."""
  return x + tf.debugging.check_numerics(tf.constant(np.nan, tf.float32), "NaN") + tf.sqrt(2.0)


def of_control(x: tf.Tensor) -> tf.Tensor:
  """An op that waits for another one, and calls of functions."""
  with tf.control_dependencies([x]):
    waiting = tf.sqrt(tf.constant(2.0))
  return x + waiting + tf.cond(tf.constant(True), lambda: tf.constant(1.0), lambda: 2.0)


@pytest.mark.one_python
@pytest.mark.parametrize(
  "fun", [of_constants, of_sizes, of_huge_results, of_failing_ops, of_control]
)
def test_constants_are_those_of_tf2onnx(fun: Callable[[Any], Any]) -> None:
  with tf.Graph().as_default() as graph:
    fun(tf.compat.v1.placeholder(tf.float32, [None, 3]))
  expected, dtypes = tfonnx.compute_const_folding_using_tf(graph, None, [])
  with constants.at_once():
    computed = tfonnx.compute_const_folding_using_tf(graph, None, [])
  assert computed[0].keys() == expected.keys() and expected
  for name, value in expected.items():
    np.testing.assert_array_equal(computed[0][name], value, strict=True)
    assert computed[1][name] == dtypes[name]


@pytest.mark.one_python
def test_a_graph_of_constants_takes_one_session(monkeypatch: pytest.MonkeyPatch) -> None:
  with tf.Graph().as_default() as graph:
    of_constants(tf.compat.v1.placeholder(tf.float32, [None, 3]))
  sessions = []
  session = tf.compat.v1.Session

  def counted(*args: Any, **options: Any) -> Any:
    sessions.append(options)
    return session(*args, **options)

  monkeypatch.setattr(tf.compat.v1, "Session", counted)
  with constants.at_once():
    values, _ = tfonnx.compute_const_folding_using_tf(graph, None, [])
  assert values and len(sessions) == 1
