"""The greedy loop in JAX, and the logits that the model without a cache has for the same tokens.

Three forms of a decoder are compared with each other before any file is written:

- `Whole`: all tokens at once, with no cache or an empty one. This is the reference.
- `in_jax`: the user's own cache, in the pieces in which an engine reads a prompt. Some libraries
  compute something else then than for the whole text; that is a difference of JAX against JAX.
- `in_jax(..., by_rules=True)`: the rows alone, with all other leaves by their rules, as engines
  call the step. A wrong rule shows here.

`loop` runs any session that takes tokens and returns the logits of the last one, so a target
without an engine of its own uses it for its file.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from ..verify import references
from .conversations import Conversation, Generated, Runner
from .decoder import Decoder
from .greedy import Session, greedy, pieces

# (number of tokens to read) -> the numbers of tokens of each call that reads them
Pieces: TypeAlias = Callable[[int], Sequence[int]]

# Of `Whole`: a longer text is read in pieces of this size, so that logits of all its tokens need
# no more memory than those of such a piece.
_LONGEST = 512


class Reference(Protocol):
  """What JAX says of given tokens."""

  def __call__(self, conversation: Conversation, turns: Sequence[Sequence[int]]) -> np.ndarray:
    """f32[n,V]: the logits from which each of the n tokens of `turns` is to be chosen, given the
    prompts and tokens before it."""


def at_once(count: int) -> Sequence[int]:
  """One piece."""
  return [count]


def in_pieces(sizes: Sequence[int]) -> Pieces:
  """Pieces of an engine that has a function for each of these sizes and one for one token."""
  return functools.partial(pieces, sizes=sizes)


def loop(session: Session, conversation: Conversation) -> Generated:
  """Runs a conversation in a new session."""
  turns, logits = greedy(session, [(turn.prompt, turn.new) for turn in conversation])
  return Generated(tuple(map(tuple, turns)), tuple(logits))


def in_jax(decoder: Decoder, cut: Pieces, *, by_rules: bool = False) -> Runner:
  """The loop in JAX with a cache.

  Args:
    decoder: the model.
    cut: how a prompt is cut.
    by_rules: call the step as engines do, with rows alone.
  """
  new_session = _sessions(decoder, cut, by_rules=by_rules)
  return lambda conversations: [loop(new_session(), each) for each in conversations]


class Whole:
  """The reference: the whole text at once.

  Attributes:
    decoder: the model.
    size: the number of tokens that all texts are padded to. What follows a token cannot change its
      logits, so one compilation serves all texts.
  """

  def __init__(self, decoder: Decoder, conversations: Sequence[Conversation]):
    self.decoder = decoder
    longest = max(
      sum(len(turn.prompt) + turn.new for turn in conversation) for conversation in conversations
    )
    self.size = min(longest, decoder.context_length, _LONGEST)
    self._logits = references.compiled(self._of_text)

  def __call__(self, conversation: Conversation, turns: Sequence[Sequence[int]]) -> np.ndarray:
    text, chosen = _text(conversation, turns)
    if len(text) > self.size:
      session = _sessions(self.decoder, in_pieces([self.size]))
      return _forced(session(), conversation, turns)
    padded = np.zeros((1, self.size), np.int32)
    padded[0, : len(text)] = text
    at = np.zeros(self.size, np.int32)  # of one size, for one compilation
    at[: len(chosen)] = chosen
    return np.asarray(self._logits(self.decoder.params, padded, at))[: len(chosen)]

  def _of_text(self, params: Any, tokens: jax.Array, at: jax.Array) -> jax.Array:
    decoder = self.decoder
    if decoder.reference is not None:
      logits = decoder.reference(params, tokens)
    else:
      positions = jnp.arange(self.size, dtype=jnp.int32)[None]
      cache = decoder.init_cache(1, decoder.context_length)
      logits, _ = decoder.call(params, tokens, positions, cache)
    return logits[0, at].astype(jnp.float32)


def own_pieces(decoder: Decoder, cut: Pieces) -> Reference:
  """A reference that reads the tokens in an engine's pieces, for a model that computes something
  else from the whole text."""
  new_session = _sessions(decoder, cut)
  return lambda conversation, turns: _forced(new_session(), conversation, turns)


def _sessions(decoder: Decoder, cut: Pieces, *, by_rules: bool = False) -> Callable[[], Session]:
  """Makes sessions that share their compiled steps."""

  def call_step(params: Any, tokens: jax.Array, positions: jax.Array, cache: Any) -> Any:
    call = decoder.on_rows if by_rules else decoder.call
    logits, after = call(params, tokens, positions, cache)
    return logits[0, -1].astype(jnp.float32), after

  step = references.compiled(call_step, donate_argnums=3)

  def new_session() -> Session:
    cache = decoder.init_cache(1, decoder.context_length)
    if by_rules:
      decoder.check_rows_only()
      cache = decoder.cache.split(cache)
    cache = jax.tree.map(jnp.array, cache)  # a copy, for the step takes the buffers over
    params = jax.tree.map(jnp.asarray, decoder.params)  # JAX would copy NumPy's at each call
    read = 0

    def session(tokens: Sequence[int]) -> np.ndarray:
      nonlocal cache, read
      last, begin = None, 0
      for size in cut(len(tokens)):
        piece = np.asarray(tokens[begin : begin + size], np.int32)[None]
        positions = np.arange(read, read + size, dtype=np.int32)[None]
        last, cache = step(params, piece, positions, cache)
        begin, read = begin + size, read + size
      return np.asarray(last)

    return session

  return new_session


def _forced(
  session: Session, conversation: Conversation, turns: Sequence[Sequence[int]]
) -> np.ndarray:
  """The logits of a session that reads given tokens in place of those that it would choose."""
  logits: list[np.ndarray] = []
  unread: list[int] = []
  for turn, tokens in zip(conversation, turns, strict=False):
    if tokens:
      logits.append(session([*unread, *turn.prompt]))
      logits += [session([token]) for token in tokens[:-1]]
      unread = list(tokens[-1:])
  return np.stack(logits)


def _text(
  conversation: Conversation, turns: Sequence[Sequence[int]]
) -> tuple[list[int], list[int]]:
  """All tokens, and the indices of those from whose logits the tokens of `turns` are chosen."""
  text: list[int] = []
  chosen: list[int] = []
  for turn, tokens in zip(conversation, turns, strict=False):
    text += turn.prompt
    chosen += range(len(text) - 1, len(text) - 1 + len(tokens))
    text += tokens
  return text, chosen
