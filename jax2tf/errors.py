"""The error classes of the package. Each message states what failed, where, and what to do."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import types
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import tensorflow as tf


class LoweringError(NotImplementedError):
  """The function has equations without a lowering to TensorFlow ops. The message lists all of them
  with the user's lines.

  Attributes:
    gaps: one entry per equation, with the attributes `primitive`, `reason`, `advice`, `where` and
      `op`.

  Examples:
    >>> import jax, jax2tf
    >>> try:
    ...   jax2tf.convert(lambda x: jax.ffi.ffi_call("kernel", x)(x))(jax.numpy.eye(2))
    ... except jax2tf.LoweringError as error:
    ...   print([gap.primitive for gap in error.gaps])
    ['ffi_call']
  """

  def __init__(self, message: str, gaps: Iterable[UnsupportedEquation] = ()):
    super().__init__(message)
    self.gaps = list(gaps)


class CallbackError(ValueError):
  """A graph calls Python functions, which no file can hold.

  Attributes:
    gaps: one entry for each call.
  """

  def __init__(self, message: str, gaps: Iterable[UnsupportedEquation]):
    super().__init__(message)
    self.gaps = list(gaps)


class SizeError(tf.errors.InvalidArgumentError, ValueError):  # type: ignore[misc]
  """Argument sizes do not fit. A ValueError, as `jax.export` raises, and an InvalidArgumentError,
  as a graph assertion raises."""

  def __init__(self, message: str):
    super().__init__(None, None, message)


class InternalError(AssertionError):
  """A lowering rule violated its contract: the result would differ from JAX."""


class InexpressibleError(ValueError):
  """An equation has no meaning for arrays; str() says why, as a clause.

  Attributes:
    advice: what the user can do; empty for the general one.
  """

  def __init__(self, message: str, advice: str = ""):
    super().__init__(message)
    self.advice = advice


@dataclass(frozen=True)
class UnsupportedEquation:
  """One equation that cannot be lowered, or one op that a runtime lacks: what, where, and what the
  user can do."""

  primitive: str
  reason: str
  advice: str
  where: str
  op: str = ""


ACROSS_DEVICES = (
  "it communicates between devices, which TensorFlow graphs leave to tf.distribute",
  "convert with meshes='one_device', convert the per-device function and put tf.distribute around "
  "it, or lower natively",
)


def no_rule(why_not: str | None) -> tuple[str, str]:
  """(reason, advice) for a primitive without a rule; `why_not` says why no JAX function can replace
  it."""
  return (
    f"no lowering rule is registered, and {why_not}",
    "rewrite this line with other JAX functions, or register a rule with jax2tf.lowers "
    "(docs/developers/own-primitives.md)",
  )


def lowering_error(function: str, gaps: Iterable[UnsupportedEquation]) -> LoweringError:
  """Makes one error for all gaps of a function; equal gaps are merged, with every source line."""
  gaps = list(gaps)
  entries = _entries(gaps, "TensorFlow interpretation rule for '{}' not implemented: {}")
  return LoweringError(f"cannot lower '{function}' to TensorFlow.\n" + "\n".join(entries), gaps)


def _entries(gaps: list[UnsupportedEquation], sentence: str) -> list[str]:
  """The gaps as texts, equal ones as one with all of its lines."""
  lines_of: dict[tuple[str, str, str], list[str]] = {}
  for gap in gaps:
    lines_of.setdefault((gap.primitive, gap.reason, gap.advice), []).append(gap.where)
  entries = []
  for (primitive, reason, advice), wheres in lines_of.items():
    lines = [f"  at {where}" for where in dict.fromkeys(wheres)]
    entries.append("\n".join([sentence.format(primitive, reason), *lines, f"  {advice}"]))
  return entries


class ArtifactError(ValueError):
  """A source is not a readable StableHLO artifact: it is truncated or changed, of another kind, or
  newer than the installed JAX."""


def artifact_error(gaps: Iterable[UnsupportedEquation]) -> LoweringError:
  """Makes one error for all ops of a StableHLO module that have no meaning in JAX."""
  gaps = list(gaps)
  entries = "\n".join(_entries(gaps, "'{}' cannot become operations of JAX: {}"))
  return LoweringError(f"cannot open the StableHLO module.\n{entries}", gaps)


# Packages whose frames lie between ours and the user's.
_LIBRARIES = frozenset(
  {
    "jax2tf",
    "jax",
    "jaxlib",
    "tensorflow",
    "keras",
    "tf_keras",
    "contextlib",
    "functools",
    "threading",
  }
)


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
  """Issues a warning that names the line of the user's code from which the call came, whatever lies
  between."""
  frame = _user_frame(sys._getframe(1))
  namespace = frame.f_globals
  warnings.warn_explicit(
    message,
    category,
    frame.f_code.co_filename,
    frame.f_lineno,
    namespace.get("__name__"),
    namespace.setdefault("__warningregistry__", {}),
  )


def _user_frame(frame: types.FrameType) -> types.FrameType:
  """The innermost frame outside of the libraries; the outermost one, if all are theirs."""
  while True:
    package = str(frame.f_globals.get("__name__")).partition(".")[0]
    # What AutoGraph makes of a function of the user has the user's names, in a temporary file.
    is_generated = os.path.basename(frame.f_code.co_filename).startswith(
      "__autograph_generated_file"
    )
    if (package not in _LIBRARIES and not is_generated) or frame.f_back is None:
      return frame
    frame = frame.f_back


_COMPARISON = re.compile(r"comparison '(.+)' (>=|<=|>|<) '(.+)' is inconclusive")
_REMAINDER = re.compile(r"(?:The remainder|rest is) (mod\(.+\))")


def settling_constraints(error: Exception) -> tuple[str, str] | None:
  """Constraints that decide an inconclusive comparison of symbolic dimensions: the one under which
  it holds, and the one under which it does not, if there is one. None for other errors."""
  if match := _COMPARISON.search(str(error)):
    left, relation, right = match.groups()
    above, below = (
      str(int(right) + one) if right.lstrip("-").isdecimal() else f"{right} {sign} 1"
      for one, sign in ((1, "+"), (-1, "-"))
    )
    holds = {">": f"{left} >= {above}", "<": f"{left} <= {below}"}.get(
      relation, f"{left} {relation} {right}"
    )
    fails = {
      ">": f"{left} <= {right}",
      "<": f"{left} >= {right}",
      ">=": f"{left} <= {below}",
      "<=": f"{left} >= {above}",
    }[relation]
    return holds, fails
  if match := _REMAINDER.search(str(error)):
    return f"{match[1]} == 0", ""
  return None


@contextlib.contextmanager
def hints() -> Iterator[None]:
  """Adds notes to tracing errors: the constraint that decides an inconclusive comparison of
  symbolic dimensions, and what to do about devices."""
  try:
    yield
  except Exception as error:
    if constraints := settling_constraints(error):
      error.add_note(_hint(*constraints))
    for words, note in _NOTES_ON_DEVICES.items():
      if words in str(error):
        error.add_note(note)
    raise


_PRETEND = (
  "This process has fewer devices than the function names. Make its meshes, and call what is "
  "converted, inside `with jax2tf.pretend_devices(n):`, or give it a "
  "jax.sharding.AbstractMesh(sizes, names, axis_types=...)"
)
# A part of JAX's message -> what the user can do. JAX 0.10.2 and 0.12.0.1 have the same words.
_NOTES_ON_DEVICES = {
  "must be >= the product of mesh_shape": _PRETEND,
  "cannot select an axis to squeeze out": _PRETEND,
  "does not match the specs of the input": (
    "The mesh has Explicit axes, which is jax.make_mesh's default, and the arguments of a "
    "converted function have no shardings. Make it with axis_types=(jax.sharding.AxisType.Auto,) "
    "* n, or put jax.sharding.reshard around the arguments inside of the function"
  ),
  "that are not evenly divisible by the corresponding mesh axis sizes": (
    'Write a polymorphic dimension as a multiple of the devices along it, such as "8*b". A mesh of '
    "one device takes any size"
  ),
}


def _hint(holds: str, fails: str) -> str:
  if fails:
    return (
      f'If it holds for all sizes that you use, pass polymorphic_constraints=["{holds}"]; if for '
      f'none, ["{fails}"]. '
      "Or give the dimension a number"
    )
  return (
    f'If it is 0 for all sizes that you use, pass polymorphic_constraints=["{holds}"], or '
    'write the dimension as a multiple, such as "4*b"'
  )
