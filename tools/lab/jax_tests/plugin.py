"""A plugin of pytest that compares what JAX's tests compute; loaded before any test module.

The option --sample has a `processes.Sample` as JSON. Tests that count compilations or look at
tracebacks may fail: only the rows count.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import os
import pathlib
import random
import re
import sys
import time
import unittest
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.test_util
import pytest

from jax2tf.tools.lab.jax_tests import leaves, observing, processes, recording, subjects
from jax2tf.tools.lab.jax_tests.comparing import Tolerance
from jax2tf.tools.lab.jax_tests.recording import CURRENT

Fun = Callable[..., Any]

# JAX's and TensorFlow's caches grow; JAX's can be emptied.
_TESTS_PER_CACHE = 300
# Of long tables of parametrizations, one in so many runs at least.
_PART = 10
# Of derivatives, by default.
_MODES = ("fwd", "rev")
# What a test needs that one CPU does not have, by its name.
_ELSEWHERE = re.compile("pmap|shard|pallas|mosaic|multi_?device|cuda|on_gpu|on_tpu", re.IGNORECASE)


_tests = 0  # that have ended in this process


def pytest_addoption(parser: Any) -> None:
  """The hook of pytest."""
  parser.addoption("--sample", help="what to run, JSON")


def pytest_configure(config: Any) -> None:
  """The hook of pytest."""
  CURRENT.sample = processes.Sample(**json.loads(config.getoption("--sample")))
  jax.test_util.check_grads = check_grads
  observing.install()
  for file in config.args:
    define_missing(pathlib.Path(file))


def pytest_collection_modifyitems(items: list[Any]) -> None:
  """Chooses the tests, breadth first: each method once, in random order, then each again."""
  for suite in {cls for item in items if item.cls for cls in item.cls.__mro__}:
    _observe_helpers(suite)
  done = processes.done(CURRENT.sample)
  sample = chosen(items, CURRENT.sample.per_test, CURRENT.sample.seed)
  items[:] = [item for item in sample if test_of(item.nodeid) not in done]


def pytest_collectreport(report: Any) -> None:
  """Notes a file that cannot be imported."""
  if report.failed:
    test = f"{test_of(report.nodeid)}::import"
    reason = str(report.longrepr).strip().splitlines()[-1][:300]
    CURRENT.started(test)
    processes.append(CURRENT.sample, processes.crash(test, "import", reason))
    CURRENT.ended(test)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: Any) -> Iterator[None]:
  """Compares what the test calls."""
  with CURRENT.test(test_of(item.nodeid)):
    return (yield)


def pytest_runtest_logstart(nodeid: str) -> None:
  """Notes the test, in which the process may die."""
  CURRENT.started(test_of(nodeid))


def pytest_runtest_logfinish(nodeid: str) -> None:
  """Ends the process when it is late or large."""
  global _tests  # noqa: PLW0603
  CURRENT.ended(test_of(nodeid))
  _tests += 1
  if _tests % _TESTS_PER_CACHE == 0:
    jax.clear_caches()
  if time.time() > CURRENT.sample.end:
    pytest.exit("late", returncode=processes.LATE)
  if _gigabytes() > CURRENT.sample.gigabytes:
    pytest.exit("large", returncode=processes.LARGE)


def define_missing(file: pathlib.Path) -> None:
  """Defines the names that a file imports from modules of JAX and this JAX lacks: the tests may be
  of a neighbouring commit. A test that calls one is skipped."""
  for node in ast.parse(file.read_text(encoding="utf-8")).body:
    if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "jax":
      for alias in node.names:
        _define(str(node.module), alias.name)


def _define(module: str, name: str) -> None:
  def missing(*_: Any, **__: Any) -> None:
    raise unittest.SkipTest(f"this JAX has no {module}.{name}")

  try:
    if hasattr(importlib.import_module(module), name):
      return
  except ImportError:
    return
  try:
    importlib.import_module(f"{module}.{name}")
  except ImportError:
    setattr(sys.modules[module], name, missing)


def test_of(nodeid: str) -> str:
  """The file and the test, without the folder."""
  return nodeid.rpartition("/")[2]


def chosen(items: list[Any], per_test: int, seed: int) -> list[Any]:
  """Some parametrizations of each method, in the order in which they run."""
  methods: dict[str, list[Any]] = {}
  for item in items:
    if not _ELSEWHERE.search(item.name):
      methods.setdefault(_method_of(item), []).append(item)
  order = []
  for name, members in sorted(methods.items()):
    rng = random.Random(f"{seed}{name}")
    rng.shuffle(members)
    number = max(per_test, len(members) // _PART) if per_test else len(members)
    order += [(turn, rng.random(), item) for turn, item in enumerate(members[:number])]
  return [item for *_, item in sorted(order, key=lambda one: one[:2])]


def _method_of(item: Any) -> str:
  """A test without its parameters, of which absl makes methods: test_1, test_2, or test_abs_int32.

  The words of the parameters stay, so that functions that share a test are tests of their own.
  """
  name = getattr(inspect.unwrap(item.function), "__name__", "") or item.name
  parameters = item.name.removeprefix(name) if item.name.startswith(name) else ""
  words = [part for part in re.split(r"[_\W]+", parameters) if part.isalpha()]
  return "::".join([item.nodeid.rpartition("::")[0], name if parameters else item.name, *words])


def _gigabytes() -> float:
  pages = int(pathlib.Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
  return pages * os.sysconf("SC_PAGE_SIZE") / 2**30


def _observe_helpers(suite: type) -> None:
  """Replaces the helpers of JAX's own class of tests, and in its module `check_grads`."""
  # JAX's checks of its own jaxprs take long.
  vars(suite).get("_default_thread_local_config", {}).pop("jax_enable_checks", None)
  if "_CompileAndCheck" in vars(suite):
    suite._CompileAndCheck = _compile_and_check  # type: ignore[attr-defined]
    suite._CheckAgainstNumpy = _against_numpy  # type: ignore[attr-defined]
    sys.modules[suite.__module__].check_grads = check_grads  # type: ignore[attr-defined]


def _compile_and_check(_: Any, fun: Fun, args_maker: Fun, **options: Any) -> None:
  """In place of JAX's comparison of a function with its compiled one. JAX's errors are raised: a
  test may expect them."""
  tol, rtol, atol = map(options.get, ("tol", "rtol", "atol"))
  rtol, atol = (tol if one is None else one for one in (rtol, atol))
  if error := _compared(fun, args_maker, Tolerance(rtol, atol)):
    raise (error.__cause__ or error) from None


def _against_numpy(_: Any, __: Fun, lax_op: Fun, args_maker: Fun, *___: Any, **____: Any) -> None:
  """In place of JAX's comparison with NumPy, which may allow more than ours needs."""
  if error := _compared(lax_op, args_maker, Tolerance()):
    CURRENT.untraceable(recording.name_of(lax_op), error)


def _compared(fun: Fun, args_maker: Fun, tolerance: Tolerance) -> subjects.UntraceableError | None:
  """Compares a function, unless it is called inside of another one; or why JAX does not compute
  it."""
  if CURRENT.is_idle():
    return None
  with CURRENT.busy():
    args = args_maker()
    if leaves.has_tracer(args):
      return None
    try:
      subject = subjects.Subject(fun, args, {})
      CURRENT.compare(recording.name_of(fun), subject, subject.expected(), tolerance)
    except subjects.UntraceableError as error:
      return error
  return None


def check_grads(f: Fun, args: Any, order: int, modes: Any = _MODES, *_: Any, **__: Any) -> None:
  """In place of JAX's comparison with numerical derivatives."""
  if CURRENT.is_idle():
    return
  with CURRENT.busy():
    second = "rev" in modes and order > 1
    CURRENT.differentiate(f, tuple(args), second=second, forward="fwd" in modes)
