"""`make jax-tests`: what a test of JAX computes, the converted function does too."""

from __future__ import annotations

import collections
import json
import re
import sys
import types
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from jax2tf.tools.lab import causes, reports
from jax2tf.tools.lab.jax_tests import (
  comparing,
  determined,
  explaining,
  plugin,
  processes,
  report,
  subjects,
)
from jax2tf.tools.lab.pages import coverage

Rows = list[dict[str, Any]]

# A file like those of JAX. One rule is wrong, one gives vectors of other signs, one is missing.
TESTS = """
import jax, jax.numpy as jnp, numpy as np
import jax.extend.core.primitives as P
import tensorflow as tf
from absl.testing import parameterized
import jax2tf
from jax.numpy import gone
from jax2tf import registry
from jax._src import test_util as jtu
from jax.test_util import check_grads

jax2tf.convert(jnp.sin)(1.0)  # the rules are there from now on
eigh = registry.rule_for(jax.lax.linalg.eigh_p)
signs = lambda vectors, values: (-vectors, values)
replaces = lambda primitive: jax2tf.lowers(primitive, replace=True)
replaces(jax.lax.linalg.eigh_p)(lambda *args, **params: signs(*eigh(*args, **params)))
replaces(P.sinh_p)(lambda ctx, x, **_: tf.sinh(x) + 1e-3)
unknown_p = jax.extend.core.Primitive("unknown")
unknown_p.def_impl(np.positive)
jax2tf.lowers(unknown_p)(lambda ctx, x: ctx.refuse("nobody knows it", "leave it out"))
unknown_p.def_abstract_eval(lambda x: x)
jax.interpreters.mlir.register_lowering(unknown_p, lambda ctx, x: [x])


class OwnTest(jtu.JaxTestCase):
  @parameterized.parameters(1, 2, 3)
  def test_of_parameters(self, n):
    self._CompileAndCheck(jnp.sin, lambda: [np.ones(n, np.float32)])

  def test_of_another_version(self):
    gone()

  def test_equal(self):
    jnp.cos(np.ones(3, np.float32))
    check_grads(jnp.tanh, (np.ones(2, np.float32),), 1)

  def test_signs(self):
    jnp.linalg.eigh(np.diag([1.0, 2.0]))

  def test_wrong(self):
    jax.jit(jnp.sinh)(np.ones(3, np.float32))

  def test_refused(self):
    jax.jit(unknown_p.bind)(np.ones(3, np.float32))

  def test_untraceable(self):
    with self.assertRaises(TypeError):
      jnp.dot(np.ones(3), np.ones(4))
"""


def test_what_differs_is_found(tmp_path: Path) -> None:
  (tmp_path / "own_test.py").write_text(TESTS, encoding="utf-8")
  (tmp_path / "broken_test.py").write_text("import jax.not_there", encoding="utf-8")
  sample = processes.Sample(str(tmp_path / "out"), per_test=2)
  processes.run(sorted(tmp_path.glob("*.py")), sample, seconds=100)
  rows = processes.rows(sample)
  statuses: dict[str, set[str]] = {}
  for row in rows:
    statuses.setdefault(row["test"].rpartition("::")[2], set()).add(row["status"])
  of_parameters = [name for name in statuses if name.startswith("test_of_parameters")]
  sampled = {name: statuses.pop(name) for name in of_parameters}
  assert list(sampled.values()) == [{"agree"}] * 2
  expected = {"equal": "agree", "signs": "agree", "wrong": "wrong", "refused": "refused"}
  assert statuses.pop("import") == {"crash"}
  expected |= {"untraceable": "untraceable"}
  assert statuses == {f"test_{name}": {status} for name, status in expected.items()}
  signs = [row for row in rows if row["function"] == "numpy.linalg.eigh"]
  assert {row["against"] for row in signs} == {"what is determined"}
  numbers = report.summary(rows, {"tests": len(processes.done(sample))})
  assert numbers["sample"]["tests"] == 9
  broken, refused, wrong = sorted(report.faults(numbers))
  assert broken.startswith("crash: import")
  assert wrong.startswith("wrong: value: jit(sinh)")
  assert refused == "refused, without a line in docs/limitations.md: unknown: nobody knows it"


# In place of pytest: it writes the rows of tests a, b and c, and dies in b.
FAKE = """
import json, os, pathlib, sys
rows = pathlib.Path(json.loads(sys.argv[1].partition("=")[2])["folder"], "rows.jsonl")
before = rows.read_text() if rows.exists() else ""
for test in "abc":
  if f'"{test}"' in before:
    continue
  with rows.open("a") as rows_file:
    print(json.dumps({"test": test, "event": "start", "process": os.getpid()}), file=rows_file)
    if test == "b":
      rows_file.flush()
      os._exit(3)
    print(json.dumps({"test": test, "status": "agree"}), file=rows_file)
    print(json.dumps({"test": test, "event": "end", "process": os.getpid()}), file=rows_file)
"""


def test_a_process_that_dies_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
  (tmp_path / "fake.py").write_text(FAKE, encoding="utf-8")
  (tmp_path / "dies_test.py").write_text("", encoding="utf-8")
  monkeypatch.setattr(processes, "_COMMAND", [sys.executable, str(tmp_path / "fake.py")])
  sample = processes.Sample(str(tmp_path / "out"))
  processes.run([tmp_path / "dies_test.py"], sample, seconds=60)
  outcomes = [(row["test"], row["status"]) for row in processes.rows(sample)]
  assert outcomes == [("a", "agree"), ("b", "crash"), ("c", "agree")]
  assert processes.done(sample) == set("abc")


def test_functions_that_share_a_test_are_tests_of_their_own() -> None:
  def item(name: str, method: str) -> types.SimpleNamespace:
    function = types.FunctionType((lambda: None).__code__, {}, method)
    return types.SimpleNamespace(nodeid=f"a_test.py::A::{name}", name=name, function=function)

  items = [item(f"test_op_{name}_float{i}", "test_op") for name in ("abs", "cos") for i in range(9)]
  items += [item(f"test_many{i}", "test_many") for i in range(40)]
  items += [item("test_issue_1", "test_issue_1"), item("test_issue_2", "test_issue_2")]
  items += [item("test_pmap", "test_pmap")]
  numbers = collections.Counter(re.sub(r"\d+$", "", one.name) for one in plugin.chosen(items, 2, 0))
  ops = {"test_op_abs_float": 2, "test_op_cos_float": 2}
  assert numbers == ops | {"test_many": 4, "test_issue_": 2}
  first = [one.name for one in plugin.chosen(items, 1, 0)]
  assert first[:5] == [one.name for one in plugin.chosen(items, 2, 0)][:5]


F32, ONE = np.float32, np.ones(3, np.float32)
DIFFERENCES = [
  ("", ONE, ONE * (1 + 5e-7), {}),
  ("rounding", ONE, ONE * (1 + 2e-5), {}),
  ("value", ONE, ONE * (1 + 1e-3), {}),
  ("", ONE, ONE * (1 + 1e-3), {"rtol": 1e-2}),
  ("", ONE, ONE * (1 + 1e-3), {"rtol": {np.float32: 1e-2}}),
  ("value", 1e-9 * ONE, 2e-9 * ONE, {}),
  ("", 1e-9 * ONE, 2e-9 * ONE, {"atol": 1e-6}),
  ("nan", np.array([np.nan, 1], F32), np.array([1, np.nan], F32), {}),
  ("", np.array([np.nan, np.inf], F32), np.array([np.nan, np.inf], F32), {}),
  ("value", np.array([np.inf, 1], F32), np.array([-np.inf, 1], F32), {}),
  ("value", np.array([2**63 - 1]), np.array([2**63 - 2]), {}),
  ("dtype", ONE, ONE.astype(np.float64), {}),
  ("shape", ONE, ONE[None], {}),
  ("structure", [ONE], (ONE,), {}),
  ("value", [ONE, ONE], [ONE, 2 * ONE], {}),
  ("rounding", ONE.astype(jnp.bfloat16), ONE.astype(jnp.bfloat16) * jnp.bfloat16(1.04), {}),
  ("value", ONE.astype(jnp.bfloat16), ONE.astype(jnp.bfloat16) * jnp.bfloat16(1.5), {}),
]


@pytest.mark.parametrize(("kind", "want", "got", "allowed"), DIFFERENCES)
def test_kinds_of_difference(kind: str, want: Any, got: Any, allowed: dict[str, Any]) -> None:
  assert comparing.compare(want, got, comparing.Tolerance(**allowed)).kind == kind


def test_last_bits_of_constants_change_too() -> None:
  """A number of Python is a constant of the function; what cancels it is exposed to rounding."""
  one = subjects.Subject(lambda x: x - 1, (1.0,), {})
  assert one.expected() == 0
  assert 0 < one.shaken() < 1e-6


def test_what_cancels_is_rounding() -> None:
  zeros, left = np.zeros(2, np.float32), np.float32([0, 6e-8])
  assert explaining.cancel(zeros, left, [np.float32([0.3, -0.9])])
  assert not explaining.cancel(zeros, left, [np.float32([1e-3])])
  assert explaining.cancel(left, zeros, [np.float32([0.3])])
  assert not explaining.cancel(left + 1, left, [np.float32([0.3])])
  assert not explaining.cancel(np.int32([0]), np.int32([1]), [np.int32([3])])


MATRIX = np.random.default_rng(0).standard_normal((4, 4))
SYMMETRIC = MATRIX + MATRIX.T
VALUES, VECTORS = np.linalg.eigh(SYMMETRIC)
U, S, VT = np.linalg.svd(MATRIX)
SIGNS = np.array([1.0, -1.0, -1.0, 1.0])
ROWS, TIED = np.array([1, 1, 2, 2]), np.array([0, 1, 2, 3])
RIGHT = [
  ("eigh", [SYMMETRIC], [VECTORS, VALUES], [VECTORS * SIGNS, VALUES]),
  ("svd", [MATRIX], [S, U, VT], [S, U * SIGNS, SIGNS[:, None] * VT]),
  ("sort", [], [ROWS, TIED], [ROWS, TIED[[1, 0, 3, 2]]]),
]
WRONG = [
  ("eigh", [SYMMETRIC], [VECTORS, VALUES], [VECTORS[:, ::-1], VALUES]),
  ("svd", [MATRIX], [S, U, VT], [S, U * SIGNS, VT]),
  ("sort", [], [ROWS, TIED], [ROWS, TIED[[0, 2, 1, 3]]]),
]


@pytest.mark.parametrize("row", [*((row, True) for row in RIGHT), *((row, False) for row in WRONG)])
def test_what_is_determined_is_compared(row: Any) -> None:
  (name, operands, theirs, ours), right = row
  params = types.SimpleNamespace(params={"is_stable": False, "num_keys": 1})
  got, want = determined.CHECKS[name](params, operands, ours, theirs)
  assert all(np.allclose(x, y) for x, y in zip(got, want, strict=True)) == right


def test_each_known_refusal_has_its_line_in_the_limitations() -> None:
  assert causes.unknown_lines() == []
  assert causes.limitation("pure_callback: it calls back into Python (f), which XLA cannot compile")
  assert causes.limitation("unknown: nobody knows it") is None


def test_the_report_has_every_status(monkeypatch: pytest.MonkeyPatch) -> None:
  row = {"test": "lax_test.py::A::test_b", "call": 1, "function": "f", "way": "graph"}
  refused = row | {"status": "refused", "cause": "eig: no (A.<locals>.f) at /x.py"}
  crash = row | {"status": "crash", "kind": "ValueError", "where": "api.py:1", "detail": "7 of 8"}
  agree = row | {"status": "agree", "against": "op by op"}
  numbers = report.summary([refused, crash, agree], {"tests": 1})
  kept = {"jax-tests": {"0.10.2": json.loads(json.dumps(numbers)), "0.12.0 x64": numbers}}
  monkeypatch.setattr(reports, "read", lambda name: kept.get(name, {}))
  text = coverage.text()
  assert "| JAX 0.12.0 x64 | 1 | 3 | 1 | 0 | 1 | 0 | 1 | 0 |" in text
  assert "| `lax_test` | 6 | 2 | 0 | 2 | 0 | 2 | 0 |" in text
  assert "crash: ValueError api.py:1: # of #" in text
  assert "| eig: no | none | 2 |" in text
