"""What runs in a test: which calls are compared, in which ways, and the rows of what was found."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import threading
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import jax

from jax2tf import _jax_compat
from jax2tf.tools.lab.jax_tests import derivatives, outcomes, processes, subjects, values
from jax2tf.tools.lab.jax_tests.comparing import Tolerance
from jax2tf.tools.lab.jax_tests.outcomes import Outcome
from jax2tf.tools.lab.jax_tests.subjects import Subject

Fun = Callable[..., Any]

_DEFAULT = Tolerance()
# Each call is computed in a graph. One in so many is computed in another way too.
_ONE_IN = {"eager": 6, "xla": 12, "symbolic": 4, "second": 3, "tangent": 4}


class Recorder:
  """Compares the calls of the test that runs.

  Attributes:
    sample: says how many calls of a test are compared, in which ways, and where the rows are.
  """

  def __init__(self) -> None:
    self.sample = processes.Sample("")
    self._test: str | None = None
    self._depth, self._number = 0, 0
    self._seen: set[tuple[str, str]] = set()

  @contextlib.contextmanager
  def test(self, name: str) -> Iterator[None]:
    """Compares what runs inside as part of a test."""
    self._test, self._depth, self._number, self._seen = name, 0, 0, set()
    try:
      yield
    finally:
      self._test = None

  @contextlib.contextmanager
  def busy(self) -> Iterator[None]:
    """Observes no call inside, which is part of an observed one, or of a comparison."""
    self._depth += 1
    try:
      yield
    finally:
      self._depth -= 1

  def is_idle(self) -> bool:
    """Whether a call that begins now is not compared."""
    if self._test is None or self._depth or self._number >= self.sample.calls:
      return True
    in_main = threading.current_thread() is threading.main_thread()
    return not in_main or bool(jax.config.jax_disable_jit) or _jax_compat.inside_trace()

  def compare(self, name: str, subject: Subject, want: Any, allowed: Tolerance = _DEFAULT) -> None:
    """Compares one call, unless the test had it before.

    Args:
      name: of the function.
      subject: the call.
      want: the result of jax.jit.
      allowed: the tolerance of the test.
    """
    if not self._is_new(name, subject.key()):
      return
    for way in values.WAYS:
      if way == "graph" or self._chosen(way):
        outcome = values.check(subject, want, way, allowed)
        if way != "symbolic" or outcome.status != "untraceable":
          self._write(name, way, outcome)

  def differentiate(self, fun: Fun, args: Any, second: bool = True, forward: bool = True) -> None:
    """Compares derivatives of a function, unless the test had them before.

    Args:
      fun: the function.
      args: its arguments.
      second: whether it has second derivatives.
      forward: whether it has tangents.
    """
    name = name_of(fun)
    shapes = "|".join(str(getattr(x, "shape", "")) for x in jax.tree.leaves(args))
    if not self._is_new(name, f"derivative {jax.tree.structure(args)} {shapes}"):
      return
    ways = ["gradient", *["second"] * second, *["tangent"] * forward]
    for way in ways:
      if way == "gradient" or self._chosen(way):
        seed = zlib.crc32(str(self._test).encode())
        outcome = derivatives.check(fun, args, way, seed)
        self._write(name, way, outcome)
        if outcome.status == "untraceable":
          return

  def untraceable(self, name: str, error: subjects.UntraceableError) -> None:
    """Notes a call that JAX itself refuses."""
    self._write(name, "graph", outcomes.described(error))

  def started(self, test: str) -> None:
    """Notes that a test starts. Its earlier rows are void."""
    self._append({"test": test, "event": "start", "process": os.getpid()})

  def ended(self, test: str) -> None:
    """Notes that a test ended."""
    self._append({"test": test, "event": "end", "process": os.getpid()})

  def _is_new(self, name: str, key: str) -> bool:
    if (name, key) in self._seen:
      return False
    self._seen.add((name, key))
    self._number += 1
    return True

  def _chosen(self, way: str) -> bool:
    case = f"{self._test}{self._number}{way}{self.sample.seed}"
    return zlib.crc32(case.encode()) % _ONE_IN[way] == 0

  def _write(self, name: str, way: str, outcome: Outcome) -> None:
    told = {key: value for key, value in dataclasses.asdict(outcome).items() if value}
    self._append({"test": self._test, "call": self._number, "function": name, "way": way, **told})

  def _append(self, row: dict[str, Any]) -> None:
    processes.append(self.sample, row)


# Of this process, whose tests run one by one.
CURRENT = Recorder()


def name_of(fun: Any) -> str:
  """The name of a function, or of that which a partial calls."""
  while isinstance(fun, functools.partial):
    fun = fun.func
  return getattr(fun, "__name__", type(fun).__name__)
