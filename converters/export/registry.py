"""The registry of replacements for ops that a target lacks, or computes differently. Each
replacement registers where it is defined.

  @replaces("Erfc", on="onnx", because="tf2onnx 1.17: no handler")

A replacement takes the op, for its attributes, and its operands in the new graph, and returns the
list of results. It uses ops that the target computes correctly, and keeps TensorFlow's values and
dtypes. The ops that it emits are not replaced again. Lowering rules stay unchanged:
docs/reports/targets.md lists the rules that each target supports thanks to its replacements.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TypeVar

from .replay import Replacement

# {target: {type of op: replacement}} and {target: {type of op: reason}}. The modules named
# `replacements` fill them.
TABLES: Mapping[str, dict[str, Replacement]] = {"onnx": {}, "tflite": {}, "tfjs": {}}
REASONS: Mapping[str, dict[str, str]] = {target: {} for target in TABLES}

# Ops that move elements without reading their values.
MOVES = frozenset(
  re.findall(
    r"\w+",
    """
    BroadcastArgs BroadcastTo ConcatV2 ExpandDims Fill GatherNd GatherV2 MirrorPad OnesLike Pack Pad
    PadV2 Rank Reshape ReverseV2 Select SelectV2 Shape ShapeN Size Slice Split SplitV Squeeze
    StridedSlice TensorScatterUpdate Tile Transpose Unpack
    ZerosLike
    """,
  )
)

_R = TypeVar("_R", bound=Replacement)


def replaces(*ops: str, on: str, because: str) -> Callable[[_R], _R]:
  """Registers a replacement.

  Args:
    ops: the types of the replaced ops.
    on: the target.
    because: what the target lacks or computes differently, with the version that shows it.

  Raises:
    ValueError: an op already has a replacement on the target.
  """

  def register(replacement: _R) -> _R:
    if twice := [op for op in ops if op in TABLES[on]]:
      raise ValueError(
        f"{twice[0]} already has a replacement on {on}, because {REASONS[on][twice[0]]}"
      )
    for op in ops:
      TABLES[on][op], REASONS[on][op] = replacement, because
    return replacement

  return register


def replaces_each(table: Mapping[str, Replacement], *, on: str, because: str) -> None:
  """Registers {type of op: replacement}; see `replaces`."""
  for op, replacement in table.items():
    replaces(op, on=on, because=because)(replacement)
