"""One call of a model, in any runtime: its answer and its time. And the child's side of
`children`.

It imports only the standard library: processes without this package, and without JAX, load the file
by its path.
"""

from __future__ import annotations

import mmap
import os
import pickle
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypedDict

_ALIGNMENT = 64  # of arrays in files


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


def median_seconds(call: Callable[[], Any]) -> float:
  """The median time of 3 to 20 runs of `call`, in about a second. `call` must have run before, and
  must wait for its result."""
  seconds: list[float] = []
  while len(seconds) < 20 and (len(seconds) < 3 or sum(seconds) < 1):
    start = time.perf_counter()
    call()
    seconds.append(time.perf_counter() - start)
  return statistics.median(seconds)


def respond(to: Callable[[Any], Any]) -> None:
  """For a script that `children.script` started: writes the response to its request."""
  request, response = map(Path, sys.argv[1:])
  answer = [*chunks(to(read(request)))]  # an error leaves no file
  with response.open("wb") as stream:
    stream.writelines(answer)


def chunks(message: Any) -> Iterator[Any]:
  """The parts of a file that `read` reads: a pickle, and the arrays behind it."""
  buffers: list[pickle.PickleBuffer] = []
  pickled = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
  arrays = [buffer.raw() for buffer in buffers]
  head = pickle.dumps((pickled, [array.nbytes for array in arrays]))
  yield head
  end = len(head)
  for array in arrays:
    padding = -end % _ALIGNMENT
    yield bytes(padding)
    yield array
    end += padding + array.nbytes


def read(file: Path) -> Any:
  """The message of a file. Its arrays are mapped from the file, for caches of decoders are large;
  who changes one gets a copy of its pages."""
  with file.open("rb") as stream:
    pickled, sizes = pickle.load(stream)
    end = stream.tell()
    if os.name == "nt":  # which deletes no mapped file
      contents: Any = bytearray(file.read_bytes())
    else:
      contents = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
  arrays = []
  for size in sizes:
    start = end + -end % _ALIGNMENT
    end = start + size
    arrays.append(memoryview(contents)[start:end])
  return pickle.loads(pickled, buffers=arrays)


def done() -> None:
  """Tells the parent that a run has ended."""
  print("done", flush=True)
