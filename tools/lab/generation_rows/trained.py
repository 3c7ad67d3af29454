"""A small decoder that has learned a text, in each engine with rounded weights: what rounding costs
where tokens are not nearly equally probable, as they are with random weights.

The text is the language reference that is part of Python (pydoc_data.topics). Its last tenth is not
learned.
"""

from __future__ import annotations

import functools
import importlib
import pathlib
import pydoc_data.topics
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import tokenizers
from jax import tree_util

from jax2tf.converters import generation
from jax2tf.converters.generation import conversations, loops, report
from jax2tf.converters.generation import target as targets
from jax2tf.tools.lab import workers

WIDTH, LAYERS, STEPS, BATCH, PIECE = 128, 3, 600, 8, 128
PROMPTS, READ, NEW = 80, 40, 8  # of the comparison: their number, and tokens
# {title: (target, its options)}
TARGETS: dict[str, tuple[str, dict[str, Any]]] = {
  "saved_model": ("saved_model", {}),
  "litert-lm": ("litert-lm", {"prefill_lengths": [16]}),
  "litert-lm float16": ("litert-lm", {"prefill_lengths": [16], "quantization": "float16"}),
  "litert-lm int8": ("litert-lm", {"prefill_lengths": [16], "quantization": "dynamic_int8"}),
  "litert-lm int4": ("litert-lm", {"prefill_lengths": [16], "quantization": "int4"}),
  "onnxruntime-genai": ("onnxruntime-genai", {}),
  "onnxruntime-genai int8": ("onnxruntime-genai", {"quantization": "int8"}),
  "onnxruntime-genai int4": ("onnxruntime-genai", {"quantization": "int4"}),
}
_SECONDS = 1200  # the time limit of a row, on two busy cores
_STORED = pathlib.Path("build", "generation", f"trained-{STEPS}.npz")

# {"bytes": of the file or folder, "tokens": [equal to JAX's, of], "margin": of the other ones, the
# largest, in JAX's logits, "right": the share of first tokens that are the text's, "jax": that of
# JAX}, or {"refused": the reason}
Numbers = dict[str, Any]


def rows() -> list[str]:
  """The targets."""
  return [*TARGETS]


def measured(names: Sequence[str]) -> Iterator[tuple[str, Numbers]]:
  """Each row in another process; the first one trains."""
  yield from workers.each(
    _row, [(name,) for name in names], _lost, renewed_after=1, seconds=_SECONDS
  )


def _lost(error: workers.LostError, name: str) -> tuple[str, Numbers]:
  return name, {"refused": str(error)[:400]}


def _row(name: str) -> tuple[str, Numbers]:
  engine, options = TARGETS[name]
  target = targets.of(engine, options)
  with tempfile.TemporaryDirectory() as folder:
    place = pathlib.Path(folder)
    tokens = _tokenizer(place / "tokenizer.json")
    decoder = _decoder(tokens, place / "tokenizer.json" if engine == "litert-lm" else None)
    asked, following = _asked(tokens)
    target.check(decoder)
    written = target.write(decoder, place / "model")
    size = sum(file.stat().st_size for file in _files(written))
    engines = target.runners(decoder, written)
    answers = [*engines.values()][-1](asked)  # of the engine itself
    whole = loops.Whole(decoder, asked)
    tolerance = report.tolerance_of([*decoder.dtypes])
    compared = [
      report.compared(engine, *pair, whole, tolerance) for pair in zip(asked, answers, strict=True)
    ]
    in_jax = loops.in_jax(decoder, loops.at_once)(asked)
  return name, {
    "bytes": size,
    "tokens": [sum(row.equal for row in compared), sum(row.tokens for row in compared)],
    "margin": max(row.margin for row in compared),
    "right": _right(answers, following),
    "jax": _right(in_jax, following),
  }


def _files(written: pathlib.Path) -> Sequence[pathlib.Path]:
  return [written] if written.is_file() else [f for f in written.rglob("*") if f.is_file()]


def _right(answers: Sequence[Any], following: Sequence[int]) -> float:
  pairs = zip(answers, following, strict=True)
  return float(np.mean([answer.turns[0][0] == token for answer, token in pairs]))


def _asked(tokens: np.ndarray) -> tuple[list[conversations.Conversation], list[int]]:
  """(prompts of the part that is not learned, the token behind each)."""
  learned = _learned(tokens)
  starts = np.linspace(learned, len(tokens) - READ - 1, PROMPTS).astype(int)
  prompts = [tuple(tokens[start : start + READ].tolist()) for start in starts]
  asked: list[conversations.Conversation] = [(generation.Turn(one, new=NEW),) for one in prompts]
  return asked, [int(tokens[start + READ]) for start in starts]


def _learned(tokens: np.ndarray) -> int:
  return len(tokens) * 9 // 10


def _model() -> Any:
  """The module of the gallery that has the layers."""
  return importlib.import_module("jax2tf.examples.gallery.language_model")


def _tokenizer(file: pathlib.Path) -> np.ndarray:
  """Writes a byte-level BPE of the text, and returns the text's tokens."""
  text = "\n\n".join(pydoc_data.topics.topics.values())
  made = tokenizers.ByteLevelBPETokenizer()
  options = {"vocab_size": _model().VOCABULARY, "special_tokens": ["<end>"]}
  made.train_from_iterator(text.splitlines(keepends=True), show_progress=False, **options)
  made.save(str(file))
  return np.array(made.encode(text).ids, np.int32)


def _decoder(tokens: np.ndarray, tokenizer: pathlib.Path | None) -> generation.Decoder:
  leaves, tree = tree_util.tree_flatten(_model().init(WIDTH, LAYERS))
  if not _STORED.exists():
    made = jax.tree.leaves(_trained(tokens[: _learned(tokens)]))
    _STORED.parent.mkdir(parents=True, exist_ok=True)
    np.savez(_STORED, *made)
  with np.load(_STORED) as stored:
    params = tree_util.tree_unflatten(tree, [stored[f"arr_{i}"] for i in range(len(leaves))])
  return generation.Decoder(
    step=_model().step,
    params=params,
    init_cache=_new_cache,
    context_length=_model().CONTEXT,
    stop_tokens=[_model().STOP],
    tokenizer=tokenizer,
  )


def _new_cache(batch: int, length: int) -> Any:
  return _model().init_cache(batch, length, width=WIDTH, layers=LAYERS)


def _trained(tokens: np.ndarray) -> Any:
  positions = jnp.arange(PIECE)[None]
  mask = (positions <= positions[0][:, None])[None]
  optimiser = optax.adam(optax.warmup_cosine_decay_schedule(0, 3e-3, STEPS // 10, STEPS))

  def loss(params: Any, pieces: jax.Array) -> jax.Array:
    cache = _new_cache(BATCH, PIECE)
    scores, _ = _model().step(params, pieces[:, :-1], positions, cache, mask)
    return optax.softmax_cross_entropy_with_integer_labels(scores, pieces[:, 1:]).mean()

  @functools.partial(jax.jit, donate_argnums=(0, 1))
  def step(params: Any, memory: Any, pieces: jax.Array) -> Any:
    slope = jax.grad(loss)(params, pieces)
    change, memory = optimiser.update(slope, memory)
    return optax.apply_updates(params, change), memory

  params = jax.tree.map(jnp.asarray, _model().init(WIDTH, LAYERS))
  memory, rng = optimiser.init(params), np.random.default_rng(0)
  for _ in range(STEPS):
    starts = rng.integers(0, len(tokens) - PIECE, BATCH)
    params, memory = step(params, memory, tokens[starts[:, None] + np.arange(PIECE + 1)])
  return jax.tree.map(np.asarray, params)
