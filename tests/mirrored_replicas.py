"""Trains a converted function on two logical devices; test_gradient_training.py runs this in a process of its own."""

from __future__ import annotations

import numpy as np
import optax
import tensorflow as tf

DEVICES = 2
tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * DEVICES)

import jax2tf  # noqa: E402  (after the devices are made)
from tests.case import close  # noqa: E402
from tests.test_gradient_training import PARAMS, X, Y, loss, train_in_jax  # noqa: E402


def main() -> None:
  strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(DEVICES)])
  assert strategy.num_replicas_in_sync == DEVICES
  with strategy.scope():
    variables = {name: tf.Variable(x) for name, x in PARAMS.items()}
  converted = jax2tf.convert(loss, polymorphic_shapes=[None, "b, _", "b, _"])
  data = strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices((X, Y)).batch(8))

  def replica_step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    with tf.GradientTape() as tape:
      value = converted(variables, x, y) / DEVICES
    context = tf.distribute.get_replica_context()
    for name, gradient in context.all_reduce("sum", tape.gradient(value, variables)).items():
      variables[name].assign_sub(0.1 * gradient)
    return value

  @tf.function
  def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    return strategy.reduce("sum", strategy.run(replica_step, (x, y)), axis=None)

  losses = [float(step(x, y)) for x, y in data]
  params, expected = train_in_jax(PARAMS, optax.sgd(0.1), [(X[i : i + 8], Y[i : i + 8]) for i in (0, 8, 16)])
  np.testing.assert_allclose(losses, expected, rtol=1e-5)
  for replica in range(DEVICES):  # each has its own copy
    copies = {name: strategy.experimental_local_results(v)[replica].read_value() for name, v in variables.items()}
    close(copies, params, rtol=1e-5, of_the_largest=True)
  print("equal")


if __name__ == "__main__":
  main()
