"""The words of every refusal. One place, so that each says what, where and what now."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


class LoweringError(NotImplementedError):
  """A primitive, or a form of it, that has no lowering to TensorFlow ops."""


class InternalError(AssertionError):
  """A lowering rule broke its own contract: the value would not be JAX's."""


@dataclass(frozen=True)
class Gap:
  """One equation that cannot be lowered: what, where, and what the user can do."""

  primitive: str
  reason: str
  advice: str
  where: str


NO_RULE = ("no lowering rule is registered", "rewrite this line with other JAX functions, or report it")


def lowering_error(function: str, gaps: Iterable[Gap]) -> LoweringError:
  """One error for all gaps of a function; equal gaps are listed once, with every place."""
  places: dict[tuple[str, str, str], list[str]] = {}
  for gap in gaps:
    places.setdefault((gap.primitive, gap.reason, gap.advice), []).append(gap.where)
  entries = []
  for (primitive, reason, advice), wheres in places.items():
    unique = list(dict.fromkeys(wheres))
    entries.append(
      "\n".join(
        [
          f"TensorFlow interpretation rule for '{primitive}' not implemented: {reason}",
          *(f"  at {where}" for where in unique),
          f"  {advice}",
        ]
      )
    )
  return LoweringError(f"cannot lower '{function}' to TensorFlow.\n" + "\n".join(entries))
