"""Trains a converted function on four logical devices, or with a TF_CONFIG as one of several
workers; each in a process of its own.

test_gradient_training.py and test_strategies.py run this.
"""

from __future__ import annotations

import os
import signal

import keras
import numpy as np
import optax
import tensorflow as tf

WORKERS = "TF_CONFIG" in os.environ
DEVICES = 1 if WORKERS else 4
# a replica that waits for the others holds a thread
tf.config.threading.set_inter_op_parallelism_threads(2 * DEVICES)
tf.config.set_logical_device_configuration(
  tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * DEVICES
)

import jax2tf  # noqa: E402  (after the devices are made)
import jax2tf.keras  # noqa: E402
from tests.gradients.test_gradient_training import PARAMS, X, Y, loss, predict, train_in_jax  # noqa: E402
from tests.support.case import close  # noqa: E402


def main() -> None:
  if WORKERS:
    signal.alarm(120)  # a worker waits for the others without end
    train_by_hand(tf.distribute.MultiWorkerMirroredStrategy())
  else:
    strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(DEVICES)])
    train_by_hand(strategy)
    train_by_keras(strategy)
  print("equal")


def train_by_hand(strategy: tf.distribute.Strategy) -> None:
  """A loop of our own, which is JAX's on one device."""
  replicas = strategy.num_replicas_in_sync
  assert replicas == (2 if WORKERS else DEVICES)
  with strategy.scope():
    variables = {name: tf.Variable(x) for name, x in PARAMS.items()}
  converted = jax2tf.convert(loss, polymorphic_shapes=[None, "b, _", "b, _"])
  data = strategy.experimental_distribute_dataset(
    tf.data.Dataset.from_tensor_slices((X, Y)).batch(8)
  )

  def replica_step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    with tf.GradientTape() as tape:
      value = converted(variables, x, y) / replicas
    context = tf.distribute.get_replica_context()
    for name, gradient in context.all_reduce("sum", tape.gradient(value, variables)).items():
      variables[name].assign_sub(0.1 * gradient)
    return value

  @tf.function
  def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    return strategy.reduce("sum", strategy.run(replica_step, (x, y)), axis=None)

  losses = [float(step(x, y)) for x, y in data]
  params, expected = train_in_jax(
    PARAMS, optax.sgd(0.1), [(X[i : i + 8], Y[i : i + 8]) for i in (0, 8, 16)]
  )
  np.testing.assert_allclose(losses, expected, rtol=1e-5)
  for replica in range(DEVICES):  # each has its own copy
    copies = {
      name: strategy.experimental_local_results(v)[replica].read_value()
      for name, v in variables.items()
    }
    close(copies, params, rtol=1e-5, of_the_largest=True)


def train_by_keras(strategy: tf.distribute.Strategy) -> None:
  """A layer of ours on the devices is the same on one."""

  def trained() -> list[np.ndarray]:
    layer = jax2tf.keras.Layer(predict, PARAMS, inputs={"x": "f32[b,3]"})
    model = keras.Sequential([keras.Input((3,)), layer])
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse", jit_compile=False)
    model.fit(X, Y, batch_size=8, epochs=2, shuffle=False, verbose=0)
    return model.get_weights()

  with strategy.scope():
    together = trained()
  alone = trained()
  largest = max(np.abs(w).max() for w in alone)  # of all weights: the bias sums errors that cancel
  for several, one in zip(together, alone, strict=True):
    np.testing.assert_allclose(several, one, rtol=0, atol=1e-6 * largest)


if __name__ == "__main__":
  main()
