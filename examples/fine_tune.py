"""How do I continue the training of a TensorFlow SavedModel with optax?

`jax2tf.functional` makes a JAX function of the model's variables. Each step is one jitted function.
Then the model's variables get the trained values.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from jax2tf.examples import quiet

with quiet.startup():
  import jax
  import optax
  import tensorflow as tf

  import jax2tf


class Classifier(tf.Module):
  """Saves a model that stands for an existing one."""

  def __init__(self) -> None:
    super().__init__()
    self.w = tf.Variable(np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32))
    self.b = tf.Variable(tf.zeros(3))

  @tf.function(input_signature=[tf.TensorSpec([None, 4], tf.float32)])
  def __call__(self, x: Any) -> Any:
    return x @ self.w + self.b


def main(folder: Path) -> list[float]:
  """Trains the model. Returns the losses."""
  tf.saved_model.save(Classifier(), str(folder / "given"))
  model = tf.saved_model.load(str(folder / "given"))
  apply, variables = jax2tf.functional(model, tf.TensorSpec([32, 4]))

  rng = np.random.default_rng(1)
  x = rng.standard_normal((32, 4)).astype(np.float32)
  labels = x[:, :3].argmax(1)
  optimiser = optax.adam(0.1)

  def loss(variables: Any) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(apply(variables, x), labels).mean()

  @jax.jit
  def step(variables: Any, state: Any) -> tuple[Any, Any, jax.Array]:
    value, gradient = jax.value_and_grad(loss)(variables)
    updates, state = optimiser.update(gradient, state)
    return optax.apply_updates(variables, updates), state, value

  losses, state = [], optimiser.init(variables)
  for _ in range(20):
    variables, state, value = step(variables, state)
    losses.append(float(value))

  for variable, value in zip(apply.variables, variables, strict=True):  # type: ignore[attr-defined]
    variable.assign(value)
  tf.saved_model.save(model, str(folder / "tuned"))
  tuned = tf.saved_model.load(str(folder / "tuned"))
  print(
    f"loss {losses[0]:.3f} -> {losses[-1]:.3f}; {np.mean(np.argmax(tuned(x), 1) == labels):.0%} "
    "right after loading"
  )
  return losses


if __name__ == "__main__":
  main(Path(*sys.argv[1:]) if sys.argv[1:] else Path(tempfile.mkdtemp()))
