"""One call of a model: what it answers, how long it takes, and whether it writes.

Of the standard library alone: processes without this package, which run a model where JAX is not, load the file by its path.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, TypedDict

# Ops that write a variable begin with these; Rng is that of tf.random.Generator.
_WRITERS = ("Assign", "ResourceApply", "ResourceScatter", "ResourceSparseApply", "ResourceStridedSliceAssign", "Rng")


class Answer(TypedDict):
  """Of one run: {name: array}; what went wrong, or ""; the median of a run that was timed."""

  outputs: dict[str, Any]
  error: str
  seconds: float | None


def answered(prepared: Callable[[], Callable[[], Mapping[str, Any]]], timed: bool) -> Answer:
  """What the call that `prepared` gives answers; an error of either is an answer too."""
  try:
    call = prepared()
    outputs = dict(call())
    return {"outputs": outputs, "error": "", "seconds": median_seconds(call) if timed else None}
  except Exception as error:
    return failed(sentence(error))


def failed(why: str) -> Answer:
  """Of a run that has no outputs."""
  return {"outputs": {}, "error": why, "seconds": None}


def sentence(error: Exception) -> str:
  """The error on one line, cut where TensorFlow goes on to list its graph."""
  text = " ".join(f"{type(error).__name__}: {error}".split())
  return text if len(text) <= 400 else text[:400] + " ..."


def writers(definition: Any) -> list[str]:
  """The types of the ops in a GraphDef that write a variable."""
  nodes = [*definition.node, *(node for function in definition.library.function for node in function.node_def)]
  return sorted({node.op for node in nodes if node.op.startswith(_WRITERS)})


def median_seconds(call: Callable[[], Any]) -> float:
  """The median of 3 to 20 runs of `call`, which has run before and is waited for by itself; about a second in all."""
  seconds: list[float] = []
  while len(seconds) < 20 and (len(seconds) < 3 or sum(seconds) < 1):
    start = time.perf_counter()
    call()
    seconds.append(time.perf_counter() - start)
  return statistics.median(seconds)
