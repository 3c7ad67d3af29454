"""docs/coverage.md: does it compute what JAX computes?"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from jax2tf.tools.lab import causes, reports
from jax2tf.tools.lab.pages import table
from tests.support.conformance.tolerances import units_and_reason

_ABOUT = """# Coverage: primitives, random programs and JAX's own tests

Generated from the numbers in `docs/reports/data`; do not edit.

## Primitives and JAX's test harnesses

`make conformance` runs the cases of `jax._src.internal_test_util.test_harnesses` with 64-bit types
enabled. Cases that are not about 64-bit types also run without them. Values, dtypes and shapes are
compared with `jax.jit` on the same input, gradients with `jax.vjp`, and second gradients with its
VJP. No graph may contain an `Xla*` op. `graph` and `gradient` run all cases; the other ways run a
seeded sample. Errors are in units of the dtype's machine epsilon; integers and bools are exact. A
case is *limited* for a reason in [Limitations](limitations.md). It is *left out* if JAX rejects it
or it has no derivative.

"""

_PROGRAMS = """## Random programs

`make conformance` draws programs from a seed and compares every step with JAX. Programs *with
control flow* have branches, loops, rematerialisation and custom rules, and their derivatives are
compared too.
"""

_JAX_TESTS = """## JAX's own unit tests

`make jax-tests JAX_TESTS=.../tests` runs the tests of JAX's public repository at the installed
release, or at the nearest commit; nothing of it is part of this project. The tests run unchanged.
The converted function computes everything that they compute with JAX.

- **Tests** are chosen by a seed: two parametrizations of each test method, or a tenth where there
  are many. Tests that need several devices, Pallas or a GPU are left out.
- A **case** is one call of a function in one way. Every call is computed in a graph. The seed
  chooses calls that are also computed eagerly, compiled by XLA, or with a symbolic first axis.
  Gradients come from a tape; some cases have second gradients and tangents.
- **Differ by rounding**: beyond the tolerance of JAX's test, but by at most 30 of them, or 240
  machine epsilons (8 of types of 16 bits), of the largest number of the result; or by at most 30
  times what JAX's own result changes with the last bits of the arguments.
- **Refused**: a `LoweringError`, with its line below. **Untraceable**: JAX itself refuses, or
  leaves open what is differentiated; these do not count as cases.
"""
_OTHERS = "\nResults that differ from `jax.jit` are compared with something else:\n"
_AGAINST = {
  "op by op": "JAX itself differs without `jax.jit`, and has our result",
  "what is determined": "JAX leaves signs, bases or the order of equal things open",
  "other last bits": "JAX's own result changes as much with the last bits of the arguments",
  "the arguments": "terms as large as the arguments cancel to some of their last bits, in JAX and "
  "in ours",
}
_STATUSES = {
  "agree": "agree",
  "rounding": "differ by rounding",
  "refused": "refused",
  "wrong": "wrong",
  "crash": "crash",
  "untraceable": "untraceable",
}


def text() -> str:
  """The page."""
  parts = (_harnesses, _programs, _jax_tests)
  return "\n".join([_ABOUT, *(line for part in parts for line in part())])


def _harnesses() -> Iterator[str]:
  for version, section in sorted(reports.read("coverage").items()):
    refused = ", ".join(f"`{name}`" for name in section["without_rule"])
    yield from (f"### JAX {version}", "")
    yield (
      f"{section['primitives'] - len(section['without_rule'])} of {section['primitives']} public "
      f"primitives have a lowering rule; refused, each with a reason and a way out: {refused}. "
      "Collectives are computed in the program that names their axes: `shard_map`, `pmap`, `vmap`."
    )
    groups = section["groups"]
    ways = sorted({way for counts in groups.values() for way in counts})
    kinds = {"pass": "passed", "limit": "limited", "fail": "failed", "skip": "left out"}
    sums = [
      [
        way,
        *(sum(counts[way][kind] for counts in groups.values() if way in counts) for kind in kinds),
      ]
      for way in ways
    ]
    yield from ("", *table(["way", *kinds.values()], sums), "")
    rows = [
      [group, *(_cell(counts.get(way)) for way in ways), _tolerance(group)]
      for group, counts in groups.items()
    ]
    head = ["harness group", *(f"{way}: passed, worst" for way in ways), "tolerance"]
    yield from (*table(head, rows, words=len(head)), "")


def _cell(counts: Mapping[str, float] | None) -> str:
  if counts is None:
    return ""
  compared = counts["pass"] + counts["limit"] + counts["fail"]
  return f"{counts['pass']:g}/{compared:g}, {counts['worst']:g}" if compared else "-"


def _tolerance(group: str) -> str:
  units, why = units_and_reason(group)
  return f"{units:g} ({why})" if why else f"{units:g}"


def _programs() -> Iterator[str]:
  kinds = {"fuzz": "straight lines", "fuzz-control": "with control flow"}
  rows = [
    [words, f"JAX {version}", section["programs"], len(section["functions"]), _mismatches(section)]
    for name, words in kinds.items()
    for version, section in sorted(reports.read(name).items())
  ]
  yield _PROGRAMS
  yield from table(["", "", "programs", "functions", "mismatches"], rows, words=2)
  yield ""


def _mismatches(section: Mapping[str, Any]) -> str:
  return ", ".join(section["mismatches"]) or "0"


def _jax_tests() -> Iterator[str]:
  report = reports.read("jax-tests")
  head = ["cases", *_STATUSES.values()]
  by_file = _sums(numbers["files"] for numbers in report.values())
  by_way = _sums(numbers["ways"] for numbers in report.values())
  yield _JAX_TESTS
  configurations = [
    [f"JAX {name}", numbers["sample"]["tests"], *_counts(_total(numbers["files"].values()))]
    for name, numbers in report.items()
  ]
  yield from table(["", "tests", *head], configurations)
  yield "\nBy file and by way, of all configurations together:\n"
  files = [[f"`{file}`", *_counts(counts)] for file, counts in sorted(by_file.items())]
  yield from table(["file", *head], files)
  yield ""
  yield from table(["way", *head], [[way, *_counts(counts)] for way, counts in by_way.items()])
  against = _total(numbers["against"] for numbers in report.values())
  if against:
    yield _OTHERS
    rows = [[what, _AGAINST[what], number] for what, number in against.most_common()]
    yield from table(["compared with", "why", "cases"], rows, words=2)
  yield from ("", "### Refused", "")
  refused = _total(numbers["refused"] for numbers in report.values()).most_common()
  lines = [[cause, causes.limitation(cause) or "none", number] for cause, number in refused]
  yield from table(["cause", "line of [Limitations](limitations.md)", "cases"], lines, words=2)
  failed = [
    [kind.replace("|", "/"), configuration, f"`{one['first']}`", one["cases"]]
    for configuration, numbers in report.items()
    for kind, one in numbers["failed"].items()
  ]
  if failed:
    yield from ("", "### Failures by cause", "")
    yield from table(["cause", "configuration", "first test", "cases"], failed, words=3)
  yield ""


def _counts(counts: Mapping[str, int]) -> list[int]:
  cases = sum(number for status, number in counts.items() if status != "untraceable")
  return [cases, *(counts.get(status, 0) for status in _STATUSES)]


def _total(tables: Iterable[Mapping[str, int]]) -> collections.Counter[str]:
  return sum((collections.Counter(counts) for counts in tables), collections.Counter[str]())


def _sums(sections: Iterable[Mapping[str, Mapping[str, int]]]) -> dict[str, dict[str, int]]:
  """The counts of each name, of all sections together."""
  sums: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
  for section in sections:
    for name, counts in section.items():
      sums[name].update(counts)
  return {name: dict(counts) for name, counts in sums.items()}
