"""The greedy loop. It needs NumPy alone: processes without JAX load the file by its path."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

# tokens, which stand behind those of earlier calls -> f32[V], the logits of the last
Session: TypeAlias = Callable[[Sequence[int]], np.ndarray]


def greedy(
  session: Session, turns: Sequence[tuple[Sequence[int], int]]
) -> tuple[list[list[int]], list[np.ndarray]]:
  """Reads each prompt and chooses the most probable token, again and again.

  Args:
    session: a new one.
    turns: (prompt, number of tokens to generate), at least one of each.

  Returns:
    for each turn its tokens, and the logits f32[n,V] from which they were chosen.
  """
  generated: list[list[int]] = []
  logits: list[np.ndarray] = []
  unread: list[int] = []  # the last token of a turn is read with the next prompt
  for prompt, new in turns:
    seen = [session([*unread, *prompt])]
    tokens = [int(np.argmax(seen[0]))]
    while len(tokens) < new:
      seen.append(session(tokens[-1:]))
      tokens.append(int(np.argmax(seen[-1])))
    unread = tokens[-1:]
    generated.append(tokens)
    logits.append(np.stack(seen))
  return generated, logits


def pieces(count: int, sizes: Sequence[int]) -> list[int]:
  """How an engine cuts a prompt of which it reads the last token by itself: the largest size while
  it fits, then the rest.

  Args:
    count: the number of tokens.
    sizes: of the calls that read several tokens.
  """
  rest, cut = count - 1, []
  while rest:
    cut.append(min(rest, max(sizes)))
    rest -= cut[-1]
  return [*cut, 1]
