"""How do I use tf.image and tf.signal inside a jitted training step?

TensorFlow resizes an image and computes a spectrogram; JAX computes the rest. The gradient passes
through both.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from jax2tf.examples import quiet

with quiet.startup():
  import jax
  import jax.numpy as jnp
  import tensorflow as tf

  import jax2tf


@jax2tf.call_tf
def features(image: tf.Tensor, sound: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
  """image f32[16,16,3], sound f32[64] -> f32[8,8,3], f32[7,9]."""
  return tf.image.resize(image, [8, 8], "bicubic"), tf.abs(
    tf.signal.stft(sound, frame_length=16, frame_step=8)
  ) ** 2


def loss(
  params: dict[str, Any], images: jax.Array, sounds: jax.Array, targets: jax.Array
) -> jax.Array:
  small, spectra = jax.vmap(features)(images * params["gain"], sounds * params["volume"])
  found = small.mean((1, 2, 3)) + jnp.log1p(spectra).mean((1, 2))
  return jnp.mean((found - targets) ** 2)


@jax.jit
def step(params: dict[str, Any], *batch: jax.Array) -> tuple[dict[str, Any], jax.Array]:
  value, gradient = jax.value_and_grad(loss)(params, *batch)
  return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient), value


def main() -> list[float]:
  """Trains the parameters. Returns the losses."""
  rng = np.random.default_rng(0)
  images, sounds = (
    rng.uniform(0, 1, (4, 16, 16, 3)).astype(np.float32),
    rng.standard_normal((4, 64)).astype(np.float32),
  )
  params, losses = {"gain": jnp.float32(0.5), "volume": jnp.float32(0.5)}, []
  for _ in range(20):
    params, value = step(params, images, sounds, jnp.full(4, 2.0))
    losses.append(float(value))
  print(
    f"loss {losses[0]:.3f} -> {losses[-1]:.3f}, gain {params['gain']:.2f}, volume "
    f"{params['volume']:.2f}"
  )
  return losses


if __name__ == "__main__":
  main()
