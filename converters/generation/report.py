"""Compares what an engine generated with what JAX says of the same tokens.

JAX gets the engine's own tokens, and says which token comes next after each of them. So every token
of an engine is compared, also those after a first difference, and a text with no difference is the
text that JAX's greedy loop gives.

A token that is not JAX's own choice may be a *near tie*: JAX's logits of the two differ by less
than twice the tolerance, so rounding decides.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..bundle import tables
from .conversations import Conversation, Generated
from .loops import Reference

# {dtype: share of the largest logit} that rounding may change. Measured at 90M to 1B parameters:
# 1e-6 in float32, and 0.025 in bfloat16 with 26 layers.
TOLERANCES = {"float64": 1e-4, "float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}
_TITLES = ("engine", "prompts", "tokens", "equal", "near ties", "margin", "max abs", "agrees")


@dataclass(frozen=True)
class Row:
  """One conversation in one engine.

  Attributes:
    engine: the engine that ran it.
    prompts: the numbers of tokens of its prompts, "5 + 9".
    tokens: the number of tokens that the engine generated.
    equal: the number of them that JAX also chooses after the same tokens.
    near: the number of other tokens that are near ties.
    margin: by how much JAX's choice exceeds the engine's in JAX's logits, at most; 0 if all are
      equal.
    max_abs: the largest difference of the logits; None if the engine returns none.
    problem: what is wrong; empty if nothing is.
  """

  engine: str
  prompts: str
  tokens: int
  equal: int
  near: int
  margin: float
  max_abs: float | None
  problem: str = ""


@dataclass(frozen=True)
class LoopReport:
  """The comparison of a decoder's files with JAX, in greedy loops.

  Attributes:
    model: what was compared.
    rows: one per engine and conversation.
    versions: {package: version}.
    remarks: what else a reader must know, such as differences of JAX against JAX.
  """

  model: str
  rows: tuple[Row, ...]
  versions: Mapping[str, str] = field(default_factory=dict)
  remarks: tuple[str, ...] = ()

  @property
  def ok(self) -> bool:
    """Whether all rows agree."""
    return bool(self.rows) and not any(row.problem for row in self.rows)

  @property
  def agreement(self) -> dict[str, tuple[int, int]]:
    """{engine: (equal tokens, tokens)}."""
    return {
      engine: (
        sum(row.equal for row in self.rows if row.engine == engine),
        sum(row.tokens for row in self.rows if row.engine == engine),
      )
      for engine in dict.fromkeys(row.engine for row in self.rows)
    }

  @property
  def verdict(self) -> str:
    """The verdict in one sentence."""
    shares = ", ".join(f"{n} of {of} in {engine}" for engine, (n, of) in self.agreement.items())
    near = sum(row.near for row in self.rows)
    ties = f", and {near} are near ties" if near else ""
    remarks = "".join(f"; {remark}" for remark in self.remarks)
    how = "verified" if self.ok else "NOT verified"
    return f"{how}: the tokens that JAX chooses are {shares}{ties}{remarks}"

  def problems(self) -> list[str]:
    """One line for every row that does not agree."""
    return [
      f"{row.engine}, prompts of {row.prompts} tokens: {row.problem}"
      for row in self.rows
      if row.problem
    ]

  def text(self) -> str:
    """The report as a table for a terminal."""
    parts = [f"{self.model}: {self.verdict}", tables.text(_TITLES, map(_cells, self.rows))]
    return "\n\n".join([*parts, *self.problems()]) + "\n"

  def json(self) -> str:
    """All figures as JSON."""
    return (
      json.dumps(asdict(self) | {"ok": self.ok, "verdict": self.verdict}, indent=2, allow_nan=False)
      + "\n"
    )


def tolerance_of(dtypes: Sequence[Any]) -> float:
  """That of the coarsest of the floating point dtypes."""
  names = [jnp.dtype(dtype).name for dtype in dtypes]
  return max((TOLERANCES.get(name, 5e-2) for name in names), default=TOLERANCES["float32"])


def compared(
  engine: str,
  conversation: Conversation,
  generated: Generated,
  reference: Reference,
  tolerance: float,
  *,
  rounds: bool = False,
  stops: Collection[int] = (),
) -> Row:
  """Compares one conversation.

  Args:
    engine: the engine that ran it.
    conversation: what was asked for.
    generated: what came.
    reference: JAX's logits for given tokens.
    tolerance: the share of the largest logit by which logits may differ.
    rounds: whether the file rounds its weights, so that other tokens are no error.
    stops: tokens that end a conversation, in an engine that stops at them.
  """
  prompts = " + ".join(str(len(turn.prompt)) for turn in conversation)
  tokens = np.asarray([token for turn in generated.turns for token in turn], np.int64)
  if generated.problem or not tokens.size:
    problem = generated.problem or "the engine generated nothing"
    return Row(engine, prompts, len(tokens), 0, 0, 0.0, None, problem)
  logits = reference(conversation, generated.turns)
  if not np.isfinite(logits).any(axis=-1).all():
    return Row(engine, prompts, len(tokens), 0, 0, 0.0, None, "JAX's logits are not numbers")
  margins = logits.max(axis=-1) - logits[np.arange(len(tokens)), tokens]
  allowed = tolerance * max(
    float(np.max(np.abs(logits), where=np.isfinite(logits), initial=0)), 1.0
  )
  near = (margins > 0) & (margins <= 2 * allowed)
  max_abs = None
  if generated.logits is not None:
    max_abs = _largest_difference(np.concatenate(generated.logits), logits)
  asked = sum(turn.new for turn in conversation)
  problem = ""
  if len(tokens) < asked and int(tokens[-1]) not in stops:
    problem = f"it ended after {len(tokens)} of {asked} tokens"
  elif not rounds and (wrong := np.flatnonzero(margins > 2 * allowed)).size:
    problem = _other_tokens(tokens, logits, margins, wrong)
  elif not rounds and max_abs is not None and max_abs > allowed:
    problem = (
      f"its logits differ from JAX's by {max_abs:.3g}, where rounding explains {allowed:.3g}"
    )
  return Row(
    engine,
    prompts,
    len(tokens),
    int((margins == 0).sum()),
    int(near.sum()),
    float(margins.max()),
    max_abs,
    problem,
  )


def _largest_difference(ours: np.ndarray, jax_logits: np.ndarray) -> float:
  """Of the finite logits; equal infinities are equal, and others differ without bound."""
  differ = ours != jax_logits
  with np.errstate(invalid="ignore"):
    differences = np.where(differ, np.abs(ours - jax_logits), 0)
  largest = np.max(differences, initial=0)
  return float(largest) if np.isfinite(largest) else float(np.finfo(np.float32).max)


def _other_tokens(
  tokens: np.ndarray, logits: np.ndarray, margins: np.ndarray, wrong: np.ndarray
) -> str:
  first = int(wrong[0])
  return (
    f"{len(wrong)} of {len(tokens)} tokens are not JAX's; the first is token {first + 1}, "
    f"{tokens[first]} where JAX has {int(np.argmax(logits[first]))}, whose logit is "
    f"{margins[first]:.3g} larger"
  )


def _cells(row: Row) -> list[str]:
  return [
    row.engine,
    row.prompts,
    str(row.tokens),
    str(row.equal),
    str(row.near),
    f"{row.margin:.2g}" if row.margin else "",
    "" if row.max_abs is None else f"{row.max_abs:.2g}",
    "NO" if row.problem else "yes",
  ]
