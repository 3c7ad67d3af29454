"""How does a JAX model with real weights become a SavedModel that runs without JAX?

Converts the sentence encoder all-MiniLM-L6-v2 to build/minilm/1/. Then it runs quickstart_serve.py,
which never imports JAX, on the result. `make quickstart` installs the required packages.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track

from jax2tf.examples import minilm, minilm_text, quiet

with quiet.startup():
  import jax
  import tensorflow as tf

  import jax2tf
  from jax2tf.converters import saved_model

HERE = Path(__file__).resolve().parent
BUILD = Path("build", "minilm")
# More tokens than in training are an error, because the embedding would be worse.
CONSTRAINTS = [f"s <= {minilm_text.MAX_TOKENS}"]


def main(build: Path = BUILD) -> None:
  params = minilm.parameters()
  leaves = jax.tree.leaves(params)
  print(
    f"all-MiniLM-L6-v2, {sum(x.size for x in leaves):,} parameters; JAX {jax.__version__}, "
    f"TensorFlow {tf.__version__}"
  )
  expected = _embeddings(params)

  encode = jax2tf.convert(
    minilm.encode, polymorphic_shapes=[None, "b, s", "b, s"], polymorphic_constraints=CONSTRAINTS
  )
  variables, tokens = jax.tree.map(tf.Variable, params), tf.TensorSpec([None, None], tf.int32)
  start = time.perf_counter()
  graph = tf.function(
    lambda *inputs: encode(variables, *inputs), autograph=False
  ).get_concrete_function(tokens, tokens)
  seconds = time.perf_counter() - start
  embeddings = graph(*map(tf.constant, minilm_text.tokenize(minilm_text.SENTENCES)))
  print(
    f"converted in {seconds:.1f} s; within {np.abs(embeddings - expected['all']).max():.1e} of "
    "JAX in this process"
  )

  start = time.perf_counter()
  directory = saved_model.save(
    minilm.encode,
    params,
    build,
    version=1,
    overwrite=True,
    inputs={"input_ids": "i32[b,s]", "attention_mask": "i32[b,s]"},
    outputs=["embedding"],
    polymorphic_constraints=CONSTRAINTS,
  )
  size = sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())
  print(f"saved {directory}: {size / 1e6:.1f} MB in {time.perf_counter() - start:.1f} s")

  np.savez(build / "jax.npz", allow_pickle=False, **expected)
  subprocess.run(
    [sys.executable, str(HERE / "quickstart_serve.py"), str(directory), str(build / "jax.npz")],
    check=True,
  )


def _embeddings(params: minilm.Params) -> dict[str, np.ndarray]:
  """JAX's embeddings of each batch of sentences that the other process will encode."""
  encode = jax.jit(minilm.encode)
  return {
    name: np.asarray(encode(params, *minilm_text.tokenize(sentences)))
    for name, sentences in track(
      minilm_text.BATCHES.items(), "JAX embeddings", transient=True, console=Console(stderr=True)
    )
  }


if __name__ == "__main__":
  main(*map(Path, sys.argv[1:]))
