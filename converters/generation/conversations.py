"""What a check asks of an engine: conversations of turns, and what came of them.

In each turn the engine reads the tokens of a prompt and then chooses the most probable token, one
after another (a greedy loop). A later turn goes on in the cache of the earlier ones.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from jax2tf.messages import ArgumentError

from .decoder import Decoder

_NEW = 8  # tokens of a turn
_LONGEST_PROMPT = 512  # tokens, of a prompt whose length does not follow from the pieces


@dataclass(frozen=True)
class Turn:
  """One turn of a conversation.

  Attributes:
    prompt: the tokens of the prompt, at least one.
    new: the number of tokens to generate.

  Examples:
    >>> from jax2tf.converters import generation
    >>> generation.Turn((2, 7, 5), new=8).new
    8
  """

  prompt: tuple[int, ...]
  new: int


Conversation: TypeAlias = tuple[Turn, ...]


@dataclass(frozen=True)
class Generated:
  """What an engine made of a conversation.

  Attributes:
    turns: the tokens of each turn. A turn may end early, after a stop token or at the end of the
      cache.
    logits: for each turn f32[new,V], from which each token was chosen; None if the engine does not
      give them.
    problem: why the engine ended; empty if it did not fail.
  """

  turns: tuple[tuple[int, ...], ...]
  logits: tuple[np.ndarray, ...] | None = None
  problem: str = ""


# Runs the conversations in an engine, each in a session of its own.
Runner: TypeAlias = Callable[[Sequence[Conversation]], Sequence[Generated]]


def planned(decoder: Decoder, pieces: Sequence[int] = (), seed: int = 0) -> list[Conversation]:
  """The conversations of a check: prompts of one token, of a few, of one more than each piece, of
  several pieces; one that ends at the cache's end; and one of two turns.

  Args:
    decoder: of which the tokens are.
    pieces: the numbers of tokens that the engine reads in one call.
    seed: of the random tokens of the prompts.
  """
  room = decoder.context_length
  most = max(pieces, default=min(room // 4, _LONGEST_PROMPT))
  rng = random.Random(seed)
  special = {*decoder.stop_tokens, decoder.start_token}
  ordinary = [token for token in range(decoder.vocabulary) if token not in special]

  def turn(length: int, new: int) -> Turn:
    return Turn(tuple(rng.choices(ordinary, k=max(1, length))), max(1, new))

  single = {1, 5, *(piece + 1 for piece in pieces), most + most // 2 + 2}
  conversations: list[Conversation] = [(turn(n, _NEW),) for n in sorted(single) if n + _NEW <= room]
  conversations += [(turn(room - _NEW, _NEW),)]
  first, second = min(most // 2 + 1, room // 4), min(most // 2 + 2, room // 4)
  if first + second + _NEW <= room:
    conversations += [(turn(first, _NEW // 2), turn(second, _NEW // 2))]
  return conversations


def check_given(decoder: Decoder, conversations: Sequence[Conversation]) -> None:
  """Checks what a user gave.

  Raises:
    ArgumentError: there is none, or one of them is empty, names tokens outside of the vocabulary,
      or does not fit into the cache.
  """
  if not conversations:
    raise ArgumentError("conversations", problem="there is none", advice="give at least one")
  for conversation in conversations:
    tokens = [token for turn in conversation for token in turn.prompt]
    outside = [token for token in tokens if not 0 <= token < decoder.vocabulary]
    if outside or not all(turn.prompt and turn.new > 0 for turn in conversation):
      raise ArgumentError(
        "conversations",
        conversation,
        problem=f"the vocabulary has {decoder.vocabulary} tokens",
        advice="each turn has at least one token of it, and generates at least one",
      )
    if (total := len(tokens) + sum(turn.new for turn in conversation)) > decoder.context_length:
      raise ArgumentError(
        "conversations",
        conversation,
        problem=f"it has {total} tokens, and the cache {decoder.context_length}",
        advice="shorten it",
      )
