"""Loads the training step that train_step.py saved and continues the training, without JAX.

Usage: train_step_serve.py build/train_step build/train_step/batches.npz build/train_step/losses.npy
"""

from __future__ import annotations

import sys

import numpy as np
from rich.console import Console
from rich.progress import track

import quiet

# TensorFlow imports JAX if it is installed (for its TFLite converter). This entry prevents that.
sys.modules["jax"] = None  # type: ignore[assignment]

with quiet.startup():
  import tensorflow as tf


def main(directory: str, batches_file: str, losses_file: str) -> None:
  model = tf.saved_model.load(directory)
  train_step = model.signatures["train_step"]
  with np.load(batches_file) as file:
    batches = {name: tf.constant(x) for name, x in file.items()}
  steps = range(len(next(iter(batches.values()))))
  losses = [
    train_step(**{name: x[i] for name, x in batches.items()})["loss"]
    for i in track(steps, "TensorFlow without JAX", console=Console(stderr=True))
  ]
  np.save(losses_file, np.array(losses))

  graph = train_step.graph.as_graph_def()
  ops = {
    node.op
    for nodes in (graph.node, *(f.node_def for f in graph.library.function))
    for node in nodes
  }
  assert not [op for op in ops if op.startswith("Xla")], (
    "the graph should hold ordinary TensorFlow ops only"
  )
  assert not [
    name
    for name, module in sys.modules.items()
    if name.partition(".")[0] in ("jax", "jaxlib") and module
  ], "JAX was imported"


if __name__ == "__main__":
  main(*sys.argv[1:])
