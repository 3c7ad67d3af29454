"""How do I look up words between two JAX functions?

JAX has no strings, so words are rows of bytes. TensorFlow converts them to strings and looks them
up, under jit.
"""

from __future__ import annotations

import numpy as np

from jax2tf.examples import quiet

with quiet.startup():
  import jax
  import jax.numpy as jnp
  import tensorflow as tf

  import jax2tf

WORDS, LENGTH = ["the", "cat", "sat"], 8
TABLE = tf.lookup.StaticHashTable(
  tf.lookup.KeyValueTensorInitializer(WORDS, tf.range(1, 4)), default_value=0
)


@jax2tf.call_tf
def identify(words: tf.Tensor) -> tf.Tensor:
  """words u8[n,8], padded with zeros -> i32[n]; 0 for a word that is not in the vocabulary."""
  characters = tf.strings.unicode_encode(tf.cast(words, tf.int32), "UTF-8")
  return tf.ensure_shape(
    TABLE.lookup(tf.strings.regex_replace(characters, "\\x00", "")), [words.shape[0]]
  )


@jax.jit
def encode(embedding: jax.Array, words: jax.Array) -> jax.Array:
  lower = jnp.where((words >= ord("A")) & (words <= ord("Z")), words + 32, words)  # in JAX
  ids = identify(lower)  # in TensorFlow
  return embedding[ids].mean(0)  # and in JAX again


def main() -> np.ndarray:
  """Encodes a sentence and prints the words that have a gradient."""
  sentence = ["The", "cat", "slept"]
  rows = np.zeros((3, LENGTH), np.uint8)
  for row, word in zip(rows, sentence, strict=True):
    row[: len(word)] = list(word.encode())
  gradient = jax.grad(lambda embedding: encode(embedding, rows).sum())(jnp.ones((4, 2)))
  used = np.asarray(gradient[:, 0] > 0)
  print("rows of the embedding that the sentence uses:", np.flatnonzero(used).tolist())
  return used


if __name__ == "__main__":
  main()
