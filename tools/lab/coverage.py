"""The report on primitives: docs/coverage.md, and its numbers docs/reports/data/coverage.json.

`python -m jax2tf.tools.lab.coverage` prints the primitives of the installed JAX without a rule.
`make conformance` runs JAX's harnesses and writes the report. Both need a checkout.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable
from typing import Any

import jax
from jax.extend.core import Primitive, primitives

import jax2tf  # noqa: F401  (registers the rules)
from jax2tf.registry import refusal, rule_for
from jax2tf.tools.lab import pages, reports


def without_rule() -> tuple[int, dict[str, str]]:
  """(number of public primitives, {primitive without a rule: reason})."""
  known = {p.name: p for p in vars(primitives).values() if isinstance(p, Primitive)}
  return len(known), {
    name: (refusal(p) or ("no rule", ""))[0]
    for name, p in sorted(known.items())
    if rule_for(p) is None
  }


def write(rows: Iterable[dict[str, Any]]) -> None:
  """Writes the outcomes of the installed JAX to the report, which keeps those of other versions."""
  rows = list(rows)
  groups: dict[str, dict[str, dict[str, float]]] = collections.defaultdict(dict)
  for row in rows:
    counts = groups[row["group"]].setdefault(
      row["way"], {"pass": 0, "limit": 0, "skip": 0, "fail": 0, "worst": 0.0}
    )
    counts[row["status"]] += 1
    if row["status"] == "pass":
      counts["worst"] = max(counts["worst"], round(row["error"], 2))
  total, missing = without_rule()
  report = reports.read("coverage")
  report[jax.__version__] = {
    "primitives": total,
    "without_rule": missing,
    "groups": dict(sorted(groups.items())),
  }
  reports.keep("coverage", report)
  pages.write("coverage")


def main() -> None:
  """Prints the primitives without a rule, each with its reason if there is one, and the counts."""
  total, missing = without_rule()
  print(*(f"{name:32} {reason}" for name, reason in missing.items()), sep="\n")
  print(
    f"JAX {jax.__version__}: {total - len(missing)} of {total} public primitives have a lowering "
    "rule"
  )


if __name__ == "__main__":
  main()
