"""The copies between host and device memory that a flat graph makes each time it runs."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import tensorflow as tf

from jax2tf.devices import report
from jax2tf.devices.flat import PREDICATE, RESULT, Node, Value
from jax2tf.devices.kernels import ON_HOST, is_pinned

# TF 2.21: Grappler folds no op whose result is larger (kMaxConstantSize).
_LARGEST_CONSTANT = 100 * 1024


@dataclass(frozen=True)
class Copy:
  """A tensor that is copied from one memory to the other.

  Attributes:
    kind: of `report`, as `Copies` explains.
    value: the tensor.
    reader: the node that needs the copy; if there are several, the one that decides the kind.
    operand: which of the reader's operands it is.
    to_host: from the device to the host, or the other way.
  """

  kind: str
  value: Value
  reader: Node
  operand: int
  to_host: bool


class Copies:
  """The copies of a flat graph, and its nodes without a kernel.

  What goes to the host is a

  - BOUNCE if a device op needs it there, as the index of a slice, or an op without a kernel reads
    it, of which something goes back to the device;
  - SYNC if it decides which ops run next: the predicate of a loop or a branch, or an assertion;
  - INT32 if it is for arithmetic of int32, which TensorFlow has in host memory on every device;
  - RESULT if it ends there.

  What goes to the device is a RETURN, or INT32, if it comes of something that came from there. Else
  it is an UPLOAD: a loop counter, say, or an index.
  """

  def __init__(self, nodes: list[Node]):
    self._nodes = nodes
    self._folded = _folded(nodes)
    self._readers: dict[Value, list[tuple[Node, int]]] = collections.defaultdict(list)
    for node in nodes:
      for i, value in enumerate(node.operands):
        self._readers[value].append((node, i))
    read_by_device_ops = (
      value
      for node in nodes
      if self._is_on_device(node)
      for i, value in enumerate(node.operands)
      if node.operand_on_host(i)
    )
    read_on_device = (
      value
      for node in nodes
      for i, value in enumerate(node.operands)
      if not node.operand_on_host(i) and not self._is_made_for(value, node)
    )
    self._indices = self._with_sources(read_by_device_ops)
    self._returned = self._with_sources(read_on_device)
    self._of_device = self._from_device()

  def running(self) -> list[Node]:
    """The nodes that are ops and no constants."""
    ops = (node for node in self._nodes if node.op is not None and node.kind != "NoOp")
    return [node for node in ops if node not in self._folded]

  def missing(self) -> list[Node]:
    """The nodes without a kernel for whose operands or results tensors are copied."""
    return [node for node in self._without_kernel() if self._crosses(node)]

  def harmless(self) -> list[Node]:
    """The nodes without a kernel whose operands and results are in host memory anyway."""
    return [node for node in self._without_kernel() if not self._crosses(node)]

  def copies(self) -> Iterator[Copy]:
    """Each tensor that is copied, once."""
    for value, readers in self._readers.items():
      to_host = not self._is_on_host(value)
      across = [
        (self._kind(value, node, to_host), node, i)
        for node, i in readers
        if node.operand_on_host(i) == to_host and not self._is_made_for(value, node)
      ]
      if across:
        kind, node, i = min(across, key=lambda one: report.SEVEREST_FIRST.index(one[0]))
        yield Copy(kind, value, node, i, to_host)

  def _kind(self, value: Value, reader: Node, to_host: bool) -> str:
    node, i = value
    is_int32 = node.dtypes[i] == tf.int32
    if not to_host:
      back = report.INT32 if is_int32 else report.RETURN
      return back if value in self._of_device else report.UPLOAD
    if reader.kind in (PREDICATE, "Assert"):
      return report.SYNC
    if self._is_on_device(reader) or not self._indices.isdisjoint(reader.results):
      return report.BOUNCE
    if self._returned.isdisjoint(reader.results):
      return report.RESULT
    return report.INT32 if is_int32 else report.BOUNCE

  def _is_on_host(self, value: Value) -> bool:
    node, i = value
    if node not in self._folded:
      return node.result_on_host(i)
    return node.dtypes[i] in ON_HOST or (node.op is not None and is_pinned(node.op))

  def _is_made_for(self, value: Value, reader: Node) -> bool:
    """Whether a tensor is where its reader wants it, whatever its kernel says: TensorFlow makes a
    constant where it is read, and returns a result where it was made."""
    if value[0] in self._folded:
      return reader in self._folded or reader.memory is None or reader.kind == RESULT
    return reader.kind == RESULT and self._is_on_host(value)

  def _is_on_device(self, node: Node) -> bool:
    """Whether a node computes on the device, whatever it needs on the host."""
    return node not in self._folded and node.memory is not None and not all(node.memory.results)

  def _stays_on_host(self, node: Node) -> bool:
    """Whether a node computes on the host, from what is there."""
    return node not in self._folded and (
      node.memory is None or (all(node.memory.operands) and all(node.memory.results))
    )

  def _without_kernel(self) -> list[Node]:
    return [node for node in self._nodes if node.memory is None and node not in self._folded]

  def _crosses(self, node: Node) -> bool:
    operands = (v for v in node.operands if v[0] not in self._folded)
    readers = (one for value in node.results for one in self._readers[value])
    return any(not self._is_on_host(value) for value in operands) or any(
      not reader.operand_on_host(i) and reader.kind != RESULT for reader, i in readers
    )

  def _with_sources(self, values: Iterable[Value]) -> set[Value]:
    """The values, and those from which the host computes them."""
    return _closure(
      values, lambda value: value[0].operands if self._stays_on_host(value[0]) else ()
    )

  def _from_device(self) -> set[Value]:
    """The values in host memory that come of values on the device."""

    def results(node: Node) -> list[Value]:
      return node.results if self._stays_on_host(node) else []

    first = (
      result
      for node in self._nodes
      if any(not self._is_on_host(v) and v[0] not in self._folded for v in node.operands)
      for result in results(node)
    )
    return _closure(
      first, lambda value: [y for reader, _ in self._readers[value] for y in results(reader)]
    )


def _closure(values: Iterable[Value], following: Callable[[Value], Iterable[Value]]) -> set[Value]:
  """The values and all that follows from them."""
  reached, rest = set[Value](), [*values]
  while rest:
    value = rest.pop()
    if value not in reached:
      reached.add(value)
      rest.extend(following(value))
  return reached


def _folded(nodes: list[Node]) -> set[Node]:
  """The nodes whose results are constants: Grappler computes them before the graph runs."""
  folded: set[Node] = set()
  for node in nodes:
    if node.op is None:
      continue
    if node.kind in ("Const", "DeviceIndex") or _is_folded(node, node.op, folded):
      folded.add(node)
  return folded


def _is_folded(node: Node, op: tf.Operation, folded: set[Node]) -> bool:
  return (
    bool(node.operands)
    and all(producer in folded for producer, _ in node.operands)
    and not op.op_def.is_stateful
    and tf.variant not in node.dtypes
    and sum((y.shape.num_elements() or 0) * y.dtype.size for y in op.outputs) <= _LARGEST_CONSTANT
  )
