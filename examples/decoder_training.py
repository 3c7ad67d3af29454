"""Trains the decoder of decoder.py in a few minutes, on text that is part of Python: its language
reference (pydoc_data.topics).

The tokenizer is a byte-level BPE (https://arxiv.org/abs/1909.03341) of the same text.
"""

from __future__ import annotations

import pydoc_data.topics
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import safetensors.numpy
import tokenizers
from rich.console import Console
from rich.progress import Progress

from jax2tf.examples import decoder

BATCH, CONTEXT, STEPS = 12, 128, 1200


def text() -> str:
  return "\n\n".join(pydoc_data.topics.topics.values())


def tokenizer(of: str) -> tokenizers.Tokenizer:
  """Trains a byte-level BPE, which encodes any text without loss."""
  made = tokenizers.ByteLevelBPETokenizer()
  made.train_from_iterator(
    of.splitlines(keepends=True), vocab_size=decoder.VOCABULARY, show_progress=False
  )
  return made


def train(tokens: np.ndarray, steps: int = STEPS, seed: int = 0) -> tuple[decoder.Tree, np.ndarray]:
  """(parameters, the loss of each step in nats per token), by optax.adamw on random pieces of the
  text."""
  params, rng = decoder.init(seed), np.random.default_rng(seed)
  optimiser = optax.adamw(
    optax.warmup_cosine_decay_schedule(0, 3e-3, steps // 10, steps), weight_decay=0.01
  )

  def loss(params: decoder.Tree, batch: jax.Array) -> jax.Array:
    scores = decoder.logits(params, batch[:, :-1])
    return optax.softmax_cross_entropy_with_integer_labels(scores, batch[:, 1:]).mean()

  @jax.jit
  def step(params: Any, state: Any, batch: jax.Array) -> Any:
    value, gradient = jax.value_and_grad(loss)(params, batch)
    updates, state = optimiser.update(gradient, state, params)
    return optax.apply_updates(params, updates), state, value

  state, losses = optimiser.init(params), []
  with Progress(console=Console(stderr=True)) as progress:
    task = progress.add_task("training", total=steps)
    for _ in range(steps):
      starts = rng.integers(0, len(tokens) - CONTEXT, BATCH)
      batch = tokens[starts[:, None] + np.arange(CONTEXT + 1)]
      params, state, value = step(params, state, batch)
      losses.append(float(value))
      words = f"training, loss {np.mean(losses[-20:]):.2f}"
      progress.update(task, advance=1, description=words)
  return jax.tree.map(np.asarray, params), np.array(losses)


def load(directory: Path, steps: int = STEPS) -> tuple[decoder.Tree, tokenizers.Tokenizer]:
  """The trained parameters and the tokenizer, read from `directory`, or trained and written
  there."""
  weights = directory / f"decoder_{steps}.safetensors"
  vocabulary = tokenizer(text())
  leaves, tree = jax.tree.flatten(decoder.init(0))
  if not weights.exists():
    params, losses = train(np.array(vocabulary.encode(text()).ids, np.int32), steps)
    print(
      f"trained {sum(x.size for x in leaves):,} parameters: loss {losses[:10].mean():.2f} -> "
      f"{losses[-50:].mean():.2f} nats a token"
    )
    directory.mkdir(parents=True, exist_ok=True)
    beside = weights.with_suffix(".part")
    safetensors.numpy.save_file({str(i): x for i, x in enumerate(jax.tree.leaves(params))}, beside)
    beside.rename(weights)
  kept = safetensors.numpy.load_file(weights)
  return jax.tree.unflatten(tree, [kept[str(i)] for i in range(len(leaves))]), vocabulary
