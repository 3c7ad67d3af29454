"""What an exported file has inside, the same for every target."""

from __future__ import annotations

import collections
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..bundle.notation import Spec


@dataclass(frozen=True)
class Node:
  """An op of a file.

  Attributes:
    name: of the op, or of its first result; it begins with the name scopes of the user's function.
    op: its type, in the words of the format.
    dtype: of its first result, in TF.js of its operands, such as "float32"; empty if the file does
      not say.
    weights: the names of its constant operands.
    takers: the delegates that take it over.
  """

  name: str
  op: str
  dtype: str
  weights: tuple[str, ...] = ()
  takers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Contents:
  """What is in an ONNX or LiteRT file, or in a folder of TF.js.

  Attributes:
    path: the file or folder.
    format: its format and version, such as "ONNX, opset 18".
    size: of all its files, in bytes.
    signatures: {signature: {"inputs" or "outputs": {name: dtype and shape, such as f32[b,4]}}}.
    nodes: the ops, in order, also those in loops and branches.
    weights: {name: its values}.
    delegates: what may take ops over, other than the runtime's own kernels on a CPU.
    notes: {what: text}, such as the oldest runtime.
  """

  path: str
  format: str
  size: int
  signatures: Mapping[str, Mapping[str, Mapping[str, str]]]
  nodes: Sequence[Node]
  weights: Mapping[str, np.ndarray] = field(repr=False)
  delegates: Sequence[str] = ()
  notes: Mapping[str, str] = field(default_factory=dict)

  def as_json(self) -> dict[str, Any]:
    """The same as JSON values: ops by type with their counts, dtypes and the bytes of their
    weights, and of each weight its dtype, shape and hash."""
    return {
      "path": self.path,
      "format": self.format,
      "bytes": self.size,
      "signatures": {name: dict(ends) for name, ends in self.signatures.items()},
      "ops": self.ops(),
      "weights": {name: _described(value) for name, value in self.weights.items()},
      "notes": dict(self.notes),
    }

  def ops(self) -> dict[str, dict[str, Any]]:
    """{type of op: {"count", "dtypes", "bytes" of its weights, "taken": {delegate: how many}}}, the
    most frequent first."""
    by_type: dict[str, list[Node]] = collections.defaultdict(list)
    for node in self.nodes:
      by_type[node.op].append(node)
    ordered = sorted(by_type.items(), key=lambda item: (-len(item[1]), item[0]))
    return {op: self._of_type(nodes) for op, nodes in ordered}

  def _of_type(self, nodes: Sequence[Node]) -> dict[str, Any]:
    names = {name for node in nodes for name in node.weights}
    return {
      "count": len(nodes),
      "dtypes": sorted({node.dtype for node in nodes if node.dtype}),
      "bytes": sum(self.weights[name].nbytes for name in names if name in self.weights),
      "taken": {
        delegate: sum(delegate in node.takers for node in nodes) for delegate in self.delegates
      },
    }


def _described(value: np.ndarray) -> dict[str, Any]:
  digest = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()[:12]
  return {"dtype": value.dtype.name, "shape": list(value.shape), "hash": digest}


def spec(dtype: Any, shape: Sequence[int | str | None] | None) -> str:
  """ "f32[b,4]"; "?" stands for an unknown size."""
  dims = None if shape is None else tuple("?" if n is None else n for n in shape)
  return str(Spec(np.dtype(dtype), dims))
