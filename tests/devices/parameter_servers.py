"""Gradients of a converted function on the workers of a ParameterServerStrategy; test_strategies.py
runs this with the cluster as JSON.

The servers have neither JAX nor this package: what they run comes as a graph.
"""

from __future__ import annotations

import json
import signal
import sys

import jax
import numpy as np
import tensorflow as tf

import jax2tf
from tests.gradients.test_gradient_training import PARAMS, X, Y, loss


def main() -> None:
  signal.alarm(120)  # the coordinator waits for its servers without end
  cluster = tf.train.ClusterSpec(json.loads(sys.argv[1]))
  strategy = tf.distribute.ParameterServerStrategy(
    tf.distribute.cluster_resolver.SimpleClusterResolver(cluster, rpc_layer="grpc")
  )
  with strategy.scope():
    variables = {name: tf.Variable(x) for name, x in PARAMS.items()}
  coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
  converted = jax2tf.convert(loss, polymorphic_shapes=[None, "b, _", "b, _"])

  @tf.function
  def step(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    with tf.GradientTape() as tape:
      value = converted(variables, x, y)
    return value, tape.gradient(value, variables)

  batches = [(X[i : i + 6], Y[i : i + 6]) for i in range(0, 24, 6)]
  results = [coordinator.schedule(step, args=batch) for batch in batches]
  coordinator.join()
  for batch, result in zip(batches, results, strict=True):
    value, gradient = result.fetch()
    expected, expected_gradient = jax.value_and_grad(loss)(PARAMS, *batch)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    for name, g in gradient.items():
      np.testing.assert_allclose(
        g, expected_gradient[name], rtol=0, atol=1e-5 * np.abs(expected_gradient[name]).max()
      )
  print("equal")


if __name__ == "__main__":
  main()
