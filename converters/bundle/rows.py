"""Decides from a manifest whether the rows of a signature are independent of each other."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

Dimensions = tuple[str, ...]  # ("b", "max(a, 2)", "784")


def fault(
  inputs: Mapping[str, Dimensions], outputs: Mapping[str, Dimensions], constraints: Sequence[str]
) -> str:
  """Why rows of several requests cannot form one batch: dimension 0 is not one symbolic size
  everywhere, or it also occurs elsewhere."""
  named = [(f"input {name!r}", dims) for name, dims in inputs.items()] + [
    (f"output {name!r}", dims) for name, dims in outputs.items()
  ]
  for what, dims in named:
    if not dims or not dims[0].isidentifier():
      return f"{what} is [{','.join(dims)}], which has no batch dimension"
  first = next((dims[0] for _, dims in named), "")
  for what, dims in named:
    if dims[0] != first:
      return f"{what} is [{','.join(dims)}], and {named[0][0]} begins with {first}"
    if any(_has(first, dim) for dim in dims[1:]):
      return f"{what} is [{','.join(dims)}], where the batch dimension is not the first alone"
  # A request that is rejected alone must be rejected in a batch. Only for an upper bound do more
  # rows never make a bad request valid.
  others = [
    text
    for text in constraints
    if _has(first, text) and not re.fullmatch(rf"\s*{first}\s*<=\s*\d+\s*", text)
  ]
  return f"its rows depend on each other by {others[0]!r}" if first and others else ""


def bound(symbol: str, constraints: Sequence[str]) -> int | None:
  """The largest size that a constraint `symbol <= n` allows."""
  matches = [re.fullmatch(rf"\s*{symbol}\s*<=\s*(\d+)\s*", text) for text in constraints]
  return min((int(match[1]) for match in matches if match), default=None)


def _has(symbol: str, text: str) -> bool:
  return re.search(rf"\b{symbol}\b", text) is not None
