"""A text in progress in a loaded model that has a `GenerationRecord`: its cache is a value that the
session holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .manifest import GenerationRecord


class Session:
  """Reads tokens, and says what may come next.

  Attributes:
    read: the number of tokens in the cache.
  """

  def __init__(
    self,
    record: GenerationRecord,
    signatures: Mapping[str, Callable[..., Mapping[str, Any]]],
    constant: Callable[[np.ndarray], Any],
  ):
    """`signatures` are those of the loaded model, and `constant` makes a tensor of an array, as
    tf.constant."""
    self._record, self._signatures, self._constant = record, signatures, constant
    self._cache: Mapping[str, Any] = signatures[record.init]()
    self.read = 0

  def __call__(self, tokens: Sequence[int]) -> np.ndarray:
    """Reads tokens behind those of earlier calls, in pieces of at most `piece` tokens.

    Args:
      tokens: at least one.

    Returns:
      f32[V], the logits after the last of them.

    Raises:
      ValueError: they do not fit into the cache.
    """
    if not tokens or self.read + len(tokens) > self._record.context_length:
      raise ValueError(
        f"{len(tokens)} tokens behind {self.read} do not fit into a cache of "
        f"{self._record.context_length}"
      )
    logits = np.zeros(0, np.float32)
    for size in pieces(len(tokens), self._record.piece):
      logits = self._step(tokens[:size])
      tokens = tokens[size:]
    return logits

  def _step(self, tokens: Sequence[int]) -> np.ndarray:
    record = self._record
    positions = np.arange(self.read, self.read + len(tokens), dtype=np.int32)
    outputs = dict(
      self._signatures[record.decode if len(tokens) == 1 else record.prefill](
        tokens=self._constant(np.asarray([tokens], np.int32)),
        positions=self._constant(positions[None]),
        **self._cache,
      )
    )
    logits = outputs.pop("logits")
    self._cache = outputs
    self.read += len(tokens)
    array: np.ndarray = logits.numpy()[0]
    return array


def pieces(count: int, piece: int) -> list[int]:
  """The numbers of tokens of the calls that read `count` tokens."""
  return [min(piece, count - start) for start in range(0, count, piece)]
