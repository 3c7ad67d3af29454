"""What takes the place of the ops that a target lacks, or gets wrong: each replacement registers where it stands.

  @replaces("Erfc", on="onnx", because="tf2onnx 1.17: no handler")

A replacement is a function of the op, for its attributes, and of its operands in the new graph, and returns the list of its results.
It is written in ops that the target has and gets right, and keeps values and dtypes as TensorFlow has them. What it emits is not replaced
again. A rule of the lowering is not touched: docs/targets.md says which of them each target can take thanks to these.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TypeVar

from .replay import Replacement

# By target: {type of op: what takes its place}, and {type of op: why}. The modules named `replacements` fill them.
TABLES: Mapping[str, dict[str, Replacement]] = {"onnx": {}, "tflite": {}, "tfjs": {}}
REASONS: Mapping[str, dict[str, str]] = {target: {} for target in TABLES}

# Ops that move elements and do not look at them.
MOVES = frozenset(
  re.findall(
    r"\w+",
    """
    BroadcastArgs BroadcastTo ConcatV2 ExpandDims Fill GatherNd GatherV2 MirrorPad OnesLike Pack Pad PadV2 Rank Reshape
    ReverseV2 Select SelectV2 Shape ShapeN Size Slice Split SplitV Squeeze StridedSlice TensorScatterUpdate Tile Transpose Unpack
    ZerosLike
    """,
  )
)

_R = TypeVar("_R", bound=Replacement)


def replaces(*ops: str, on: str, because: str) -> Callable[[_R], _R]:
  """Registers a replacement.

  Args:
    ops: types of ops.
    on: the target.
    because: what is wrong with them there, with the version that shows it.

  Raises:
    ValueError: an op has a replacement there already.
  """

  def register(replacement: _R) -> _R:
    if twice := [op for op in ops if op in TABLES[on]]:
      raise ValueError(f"{twice[0]} has a replacement on {on} already, because {REASONS[on][twice[0]]}")
    for op in ops:
      TABLES[on][op], REASONS[on][op] = replacement, because
    return replacement

  return register


def replaces_each(table: Mapping[str, Replacement], *, on: str, because: str) -> None:
  """Registers {type of op: replacement}; see `replaces`."""
  for op, replacement in table.items():
    replaces(op, on=on, because=because)(replacement)
