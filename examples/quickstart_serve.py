"""Loads the SavedModel of quickstart.py without JAX, encodes sentences and compares with JAX's
embeddings.

Usage: quickstart_serve.py build/minilm/1 build/minilm/jax.npz
"""

from __future__ import annotations

import collections
import itertools
import sys
import time

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

import minilm_text
import quiet

# TensorFlow imports JAX if it is installed (for its TFLite converter). This entry prevents that.
sys.modules["jax"] = None  # type: ignore[assignment]

with quiet.startup():
  import tensorflow as tf

TOLERANCE = 1e-5


def main(directory: str, expected_file: str) -> None:
  start = time.perf_counter()
  model = tf.saved_model.load(directory)
  encode = model.signatures["serving_default"]
  loaded = time.perf_counter() - start
  expected = np.load(expected_file)

  differences = []
  for name, sentences in minilm_text.BATCHES.items():
    ids, mask = minilm_text.tokenize(sentences)
    embedding = encode(input_ids=tf.constant(ids), attention_mask=tf.constant(mask))[
      "embedding"
    ].numpy()
    differences.append((ids.shape, float(np.abs(embedding - expected[name]).max())))
  everything = embedding  # the last batch has all sentences

  print_similarities(everything)
  print(
    "largest difference from JAX:",
    ", ".join(f"{b}x{s} tokens {d:.1e}" for (b, s), d in differences),
  )
  ops = op_counts(encode)
  print(
    f"loaded in {loaded:.1f} s; {ops.total()} ops of {len(ops)} types, most often: "
    + ", ".join(f"{op} {n}" for op, n in ops.most_common(6))
  )

  assert max(d for _, d in differences) <= TOLERANCE, f"more than {TOLERANCE} from JAX"
  assert not [op for op in ops if op.startswith("Xla")], (
    "the graph should hold ordinary TensorFlow ops only"
  )
  assert not [
    name
    for name, module in sys.modules.items()
    if name.partition(".")[0] in ("jax", "jaxlib") and module
  ], "JAX was imported"
  print("JAX was not imported; no Xla op; all embeddings agree")


def op_counts(function: tf.types.experimental.ConcreteFunction) -> collections.Counter[str]:
  """Counts the op types in a function and the functions that it calls."""
  graph = function.graph.as_graph_def()
  return collections.Counter(
    node.op for node in itertools.chain(graph.node, *(f.node_def for f in graph.library.function))
  )


def print_similarities(embeddings: np.ndarray) -> None:
  table = Table(
    title="cosine similarity of the embeddings, in percent", box=box.SIMPLE, padding=(0, 1, 0, 0)
  )
  table.add_column("", justify="right")
  table.add_column("sentence", no_wrap=True, width=32)
  for i in range(len(embeddings)):
    table.add_column(str(i + 1), justify="right", no_wrap=True)
  for i, row in enumerate(embeddings @ embeddings.T):
    cells = [
      f"[bold]{x}[/]" if x > 40 and i != j else str(x)
      for j, x in enumerate(np.rint(100 * row).astype(int))
    ]
    table.add_row(str(i + 1), minilm_text.SENTENCES[i], *cells)
  Console(width=110).print(table)


if __name__ == "__main__":
  main(*sys.argv[1:])
