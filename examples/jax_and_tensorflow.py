"""How do I save JAX and TensorFlow code together, as one SavedModel?

TensorFlow normalises with its own variables, JAX computes the rest, and a process without JAX runs
both.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from jax2tf.examples import quiet

with quiet.startup():
  import jax
  import jax.numpy as jnp
  import tensorflow as tf

  import jax2tf
  from jax2tf.converters import saved_model

MEAN, SCALE = tf.Variable([1.0, 2.0, 3.0]), tf.Variable([0.5, 0.5, 0.5])
SERVE = """
import sys, numpy as np, tensorflow as tf
sys.modules["jax"] = None  # any import of JAX fails
model = tf.saved_model.load(sys.argv[1])
np.save(sys.argv[2], model(np.load(sys.argv[3])))
"""


@jax2tf.call_tf
def normalise(x: tf.Tensor) -> tf.Tensor:
  """f32[b,3] -> f32[b,3]."""
  return (x - MEAN) * SCALE


def predict(params: dict[str, Any], x: jax.Array) -> jax.Array:
  return jax.nn.softmax(normalise(x) @ params["w"])


def main(folder: Path, python: str = sys.executable) -> float:
  """Saves the model, runs it without JAX, and returns the largest difference."""
  params = {"w": np.random.default_rng(0).standard_normal((3, 2)).astype(np.float32)}
  model = saved_model.Model(params)
  model.add(predict, inputs={"x": "f32[b,3]"})
  directory = model.save(folder / "model")
  x = np.arange(6, dtype=np.float32).reshape(2, 3)
  np.save(folder / "x.npy", x)
  subprocess.run(
    [python, "-c", SERVE, str(directory), str(folder / "y.npy"), str(folder / "x.npy")], check=True
  )
  difference = float(jnp.abs(np.load(folder / "y.npy") - jax.jit(predict)(params, x)).max())
  print(f"largest difference between JAX and the SavedModel: {difference:.1e}")
  return difference


if __name__ == "__main__":
  main(Path(*sys.argv[1:]) if sys.argv[1:] else Path(tempfile.mkdtemp()))
