"""What a target writes, run in its engine, without the comparison of JAX with itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jax2tf.converters.generation import loops, report
from jax2tf.converters.generation.conversations import Conversation
from jax2tf.converters.generation.decoder import Decoder
from jax2tf.converters.generation.target import Target


def problems(
  target: Target, decoder: Decoder, folder: Path, conversations: Sequence[Conversation]
) -> list[str]:
  """Writes the model, and says of each engine and conversation what differs from JAX."""
  target.check(decoder)
  written = target.write(decoder, folder)
  whole = loops.Whole(decoder, conversations)
  rows = [
    report.compared(engine, conversation, generated, whole, 1e-4)
    for engine, run in target.runners(decoder, written).items()
    for conversation, generated in zip(conversations, run(conversations), strict=True)
  ]
  assert rows
  return [f"{row.engine}: {row.problem}" for row in rows if row.problem]
