"""What the comparison of one call showed."""

from __future__ import annotations

import dataclasses
import functools
import re
import time
import traceback
from collections.abc import Callable
from typing import Any

from jax.extend.core import InconclusiveDimensionOperation

import jax2tf
from jax2tf.tools.lab.jax_tests import comparing, subjects

# The largest part of an error's message that a row has.
_WORDS = 700


@dataclasses.dataclass(frozen=True)
class Outcome:
  """What one comparison showed.

  Attributes:
    status: agree, rounding, refused, wrong, crash, or untraceable where JAX itself refuses.
    kind: of a wrong result, its kind of difference; of a crash, the type of the exception.
    against: what a result agrees with where that is not jax.jit: "op by op", "what is determined".
    detail: the difference, or the message.
    cause: of a refusal, "primitive: reason".
    where: the innermost line of ours in the traceback of a crash.
    seconds: of the comparison.
  """

  status: str
  kind: str = ""
  against: str = ""
  detail: str = ""
  cause: str = ""
  where: str = ""
  seconds: float = 0.0


def concluded(difference: comparing.Difference, against: str = "") -> Outcome:
  """The outcome of a comparison that ended."""
  if difference.kind in ("", "rounding"):
    return Outcome(difference.kind or "agree", against=against, detail=difference.text)
  return Outcome("wrong", difference.kind, against, difference.text)


def described(error: Exception) -> Outcome:
  """The outcome of a conversion that raised."""
  if isinstance(error, subjects.UntraceableError):
    return Outcome("untraceable", detail=str(error))
  if isinstance(error, subjects.TooLongError):
    return Outcome("crash", "time", detail=f"did not end in {subjects.PATIENCE} s")
  if isinstance(error, InconclusiveDimensionOperation):
    cause = f"{_where(error)}: JAX cannot compare the symbolic sizes"
    return Outcome("refused", detail=str(error)[:_WORDS], cause=cause)
  message = " | ".join(str(error).strip().splitlines()[:6])[:_WORDS]
  if isinstance(error, jax2tf.LoweringError):
    causes = sorted({f"{gap.primitive}: {gap.reason}" for gap in error.gaps})
    return Outcome("refused", detail=message, cause="; ".join(causes)[:_WORDS] or message)
  return Outcome("crash", type(error).__name__, detail=message, where=_where(error))


def _where(error: Exception) -> str:
  frames = traceback.extract_tb(error.__traceback__)
  others = re.compile("/site-packages/|/lab/")
  ours = [f for f in frames if "/jax2tf/" in f.filename and not others.search(f.filename)]
  return f"{ours[-1].filename.rpartition('/jax2tf/')[-1]}:{ours[-1].lineno}" if ours else ""


def timed(check: Callable[..., Outcome]) -> Callable[..., Outcome]:
  """Gives a check a time limit, and makes an exception an outcome."""

  @functools.wraps(check)
  def run(*args: Any, **kwargs: Any) -> Outcome:
    start = time.perf_counter()
    try:
      with subjects.time_limit():
        outcome = check(*args, **kwargs)
    except Exception as error:
      outcome = described(error)
    return dataclasses.replace(outcome, seconds=round(time.perf_counter() - start, 3))

  return run
