"""Loads the SavedModel of generate.py without JAX and generates texts: token by token with its
cache, and in one call.

Usage: generate_serve.py build/generate
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from rich.console import Console
from rich.panel import Panel
from rich.progress import track

import quiet

# TensorFlow imports JAX if it is installed (for its TFLite converter). This entry prevents that.
sys.modules["jax"] = None  # type: ignore[assignment]

with quiet.startup():
  import tensorflow as tf


def main(directory: str) -> None:
  model = tf.saved_model.load(str(Path(directory, "1")))
  with np.load(Path(directory, "request.npz")) as file:
    given = {name: tf.constant(x) for name, x in file.items() if name != "expected"}
    expected = file["expected"]

  made, seconds = by_token(model.signatures, given, expected.shape[1])
  np.save(Path(directory, "seconds.npy"), seconds)
  whole, start = model.signatures["generate"], time.perf_counter()
  at_once = whole(**given, count=tf.constant(expected.shape[1]))["tokens"].numpy()[
    :, : expected.shape[1]
  ]
  print(
    f"{made.size / seconds.sum():,.0f} tokens/s by the cache, "
    f"{made.size / (time.perf_counter() - start):,.0f} in one call"
  )

  vocabulary = tokenizers.Tokenizer.from_file(str(Path(directory, "tokenizer.json")))
  prompt = given["tokens"][0, : given["lengths"][0]].numpy().tolist()
  Console(width=110).print(
    Panel(vocabulary.decode([*prompt, *made[0, :120].tolist()]), title="the first text")
  )
  assert (made == expected).all(), (
    f"by the cache, {np.mean(made != expected):.1%} of the tokens are not JAX's"
  )
  assert (at_once == expected).all(), (
    f"in one call, {np.mean(at_once != expected):.1%} of the tokens are not JAX's"
  )
  assert not [
    name
    for name, module in sys.modules.items()
    if name.partition(".")[0] in ("jax", "jaxlib") and module
  ], "JAX was imported"
  print(f"JAX was not imported; all {made.size:,} tokens are JAX's")


def by_token(
  signatures: Any, given: dict[str, tf.Tensor], count: int
) -> tuple[np.ndarray, np.ndarray]:
  """(tokens i32[b,count], seconds of each after the first)."""
  slots = tf.range(len(given["seeds"]))
  token = signatures["prefill"](slots=slots, **given)["token"]
  found, seconds = [token.numpy()], []
  for _ in track(range(count - 1), "TensorFlow without JAX", console=Console(stderr=True)):
    start = time.perf_counter()
    token = signatures["decode"](
      slots=slots, tokens=token, seeds=given["seeds"], temperature=given["temperature"]
    )["token"]
    found.append(token.numpy())
    seconds.append(time.perf_counter() - start)
  return np.stack(found, axis=1), np.array(seconds)


if __name__ == "__main__":
  main(sys.argv[1])
