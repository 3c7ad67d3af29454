"""One call of a model: its answer, its time, and whether it writes variables.

It imports only the standard library: processes without this package, and without JAX, load the file
by its path.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, TypedDict

# Prefixes of ops that write a variable. Rng ops are those of tf.random.Generator.
_WRITERS = (
  "Assign",
  "ResourceApply",
  "ResourceScatter",
  "ResourceSparseApply",
  "ResourceStridedSliceAssign",
  "Rng",
)


class Answer(TypedDict):
  """The answer to one run: {name: array}; the error, or ""; the median time of a timed run."""

  outputs: dict[str, Any]
  error: str
  seconds: float | None


def answered(prepared: Callable[[], Callable[[], Mapping[str, Any]]], timed: bool) -> Answer:
  """The answer of the call that `prepared` returns. An error of either is an answer too."""
  try:
    call = prepared()
    outputs = dict(call())
    return {"outputs": outputs, "error": "", "seconds": median_seconds(call) if timed else None}
  except Exception as error:
    return failed(sentence(error))


def failed(why: str) -> Answer:
  """The answer to a run that failed."""
  return {"outputs": {}, "error": why, "seconds": None}


def sentence(error: Exception) -> str:
  """The error on one line, without the graph that TensorFlow appends."""
  text = " ".join(f"{type(error).__name__}: {error}".split())
  return text if len(text) <= 400 else text[:400] + " ..."


def nodes(definition: Any) -> list[Any]:
  """The nodes of a GraphDef, those of its functions included."""
  return [
    *definition.node,
    *(node for function in definition.library.function for node in function.node_def),
  ]


def writers(definition: Any) -> list[str]:
  """The types of ops in a GraphDef that write a variable."""
  return sorted({node.op for node in nodes(definition) if node.op.startswith(_WRITERS)})


def median_seconds(call: Callable[[], Any]) -> float:
  """The median time of 3 to 20 runs of `call`, in about a second. `call` must have run before, and
  must wait for its result."""
  seconds: list[float] = []
  while len(seconds) < 20 and (len(seconds) < 3 or sum(seconds) < 1):
    start = time.perf_counter()
    call()
    seconds.append(time.perf_counter() - start)
  return statistics.median(seconds)
