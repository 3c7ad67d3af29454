"""A graph as TensorFlow runs it on a device: calls inlined, loops and branches lowered to ops, each
op with the memory that it has its operands and results in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import tensorflow as tf

from jax2tf._tf_compat import functions
from jax2tf.devices.kernels import ON_HOST, Kernels, Memory

_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_LOOPS = ("While", "StatelessWhile")
_CONDITIONS = {"If": ("then_branch", "else_branch"), "StatelessIf": ("then_branch", "else_branch")}
_CASES = ("Case", "StatelessCase")
# Grappler removes them before anything runs.
_REMOVED = ("Identity", "StopGradient", "PreventGradient", "Snapshot")

# What stands in a flat graph beside ops.
ARGUMENT, RESULT, VARIABLE, BRANCH, PREDICATE = (
  "argument",
  "result",
  "loop variable",
  "branch",
  "predicate",
)


@dataclass(eq=False)
class Node:
  """An op in a flat graph, or what TensorFlow makes of a loop or a branch.

  Attributes:
    kind: the type of the op, or ARGUMENT, RESULT, VARIABLE (of a loop), BRANCH (what goes in or
      comes out), PREDICATE.
    operands: the tensors that it reads.
    memory: where it has its operands and results; None without a kernel: all on the host.
    dtypes: of its results.
    loops: how many loops it is inside of.
    op: None for what is no op.
    calls: the nodes of the calls, loops and branches around it, the outermost first.
  """

  kind: str
  operands: list[Value]
  memory: Memory | None
  dtypes: tuple[tf.DType, ...]
  loops: int
  op: tf.Operation | None
  calls: tuple[tf.Operation, ...] = ()

  def operand_on_host(self, i: int) -> bool:
    """Whether it needs an operand in host memory."""
    return self.memory is None or self.memory.operands[i]

  def result_on_host(self, i: int) -> bool:
    """Whether a result is in host memory."""
    return self.memory is None or self.memory.results[i]


Value: TypeAlias = tuple[Node, int]


def nodes(
  graph: Any, results: Sequence[tf.Tensor], effects: Iterable[tf.Operation], kernels: Kernels
) -> list[Node]:
  """The nodes of what `results` and `effects`, ops of `graph`, need: operands first, but for what
  closes a loop."""
  inliner = _Inliner(kernels)
  values = inliner.inlined(graph, (), (), results, effects, 0, ())
  for value, tensor in zip(values, results, strict=True):
    inliner.add(RESULT, [value], [], 0, None, (), [tensor.dtype])
  return inliner.nodes


def _held(dtypes: Iterable[tf.DType]) -> tuple[bool, ...]:
  return tuple(dtype in ON_HOST for dtype in dtypes)


class _Inliner:
  def __init__(self, kernels: Kernels):
    self.nodes: list[Node] = []
    self._kernels = kernels

  def add(
    self,
    kind: str,
    operands: list[Value],
    dtypes: Sequence[tf.DType],
    loops: int,
    op: tf.Operation | None,
    calls: tuple[tf.Operation, ...],
    dtypes_in: Sequence[tf.DType] = (),
  ) -> Node:
    """A node that is no op of the graph: its tensors are where their dtypes are."""
    memory = Memory(_held(dtypes_in), _held(dtypes))
    node = Node(kind, operands, memory, tuple(dtypes), loops, op, calls)
    self.nodes.append(node)
    return node

  def inlined(
    self,
    graph: Any,
    inputs: Sequence[tf.Tensor],
    arguments: Sequence[Value],
    results: Sequence[tf.Tensor],
    effects: Iterable[tf.Operation],
    loops: int,
    calls: tuple[tf.Operation, ...],
  ) -> list[Value]:
    """The values of `results` of a graph, whose `inputs` have the values `arguments`."""
    env: dict[Any, Value] = {x.ref(): value for x, value in zip(inputs, arguments, strict=True)}
    for op in _needed([*(y.op for y in results), *effects], {x.op for x in inputs}):
      operands = [env[x.ref()] for x in op.inputs]
      values = self._values(op, operands, loops, calls)
      env |= {y.ref(): value for y, value in zip(op.outputs, values, strict=True)}
    return [env[y.ref()] for y in results]

  def _values(
    self, op: tf.Operation, operands: list[Value], loops: int, calls: tuple[tf.Operation, ...]
  ) -> list[Value]:
    """The values of the results of an op."""
    if op.type in _REMOVED:
      return operands[: len(op.outputs)]
    inside = (*calls, op)
    if op.type in _LOOPS:
      return self._loop(op, operands, loops, inside)
    if op.type in _CONDITIONS:
      branches = [op.get_attr(name).name for name in _CONDITIONS[op.type]]
      return self._branches(op, branches, operands, loops, inside)
    if op.type in _CASES:
      branches = [branch.name for branch in op.get_attr("branches")]
      return self._branches(op, branches, operands, loops, inside)
    if op.type in _CALLS and _is_compiled(op) and not self._kernels.is_xla:
      # XLA compiles the whole call for the device
      sources, results = ([x.dtype for x in side] for side in (op.inputs, op.outputs))
      node = self.add(op.type, operands, results, loops, op, calls, sources)
      return [(node, i) for i in range(len(results))]
    called = op.get_attr("f").name if op.type in _CALLS else op.type
    body = functions.function_named(op.graph, called)
    if body is not None:
      return self._call(body, operands, loops, inside)
    dtypes = tuple(y.dtype for y in op.outputs)
    if op.type == "Placeholder":
      node = self.add(ARGUMENT, [], dtypes, loops, op, calls)
    else:
      node = Node(op.type, operands, self._kernels.memory(op), dtypes, loops, op, calls)
      self.nodes.append(node)
    return [(node, i) for i in range(len(dtypes))]

  def _call(
    self, body: Any, operands: Sequence[Value], loops: int, calls: tuple[tf.Operation, ...]
  ) -> list[Value]:
    return self.inlined(
      body, body.inputs, operands, body.outputs, body.control_outputs, loops, calls
    )

  def _loop(
    self, op: tf.Operation, operands: Sequence[Value], loops: int, calls: tuple[tf.Operation, ...]
  ) -> list[Value]:
    """A loop: each variable is a node that reads its first value and that of the last step."""
    variables = [
      self.add(VARIABLE, [first], [y.dtype], loops + 1, op, calls, [y.dtype] * 2)
      for first, y in zip(operands, op.outputs, strict=True)
    ]
    values = [(variable, 0) for variable in variables]
    condition, body = (
      functions.function_named(op.graph, op.get_attr(name).name) for name in ("cond", "body")
    )
    (goes_on,) = self._call(condition, values, loops + 1, calls)
    self._predicate(goes_on, loops + 1, op, calls)
    nexts = self._call(body, values, loops + 1, calls)
    for variable, following in zip(variables, nexts, strict=True):
      variable.operands.append(following)
    return list(values)

  def _branches(
    self,
    op: tf.Operation,
    branches: Sequence[str],
    operands: Sequence[Value],
    loops: int,
    calls: tuple[tf.Operation, ...],
  ) -> list[Value]:
    """Branches: what goes in and what comes out are nodes."""
    (chooser, *_), *arguments = operands
    bodies = [functions.function_named(op.graph, name) for name in branches]
    if chooser.kind == "DeviceIndex":
      # TensorFlow knows the device before it runs the graph, and takes one branch.
      chosen = self._for_device(chooser.op, len(branches))
      return self._call(bodies[chosen], arguments, loops, calls)
    self._predicate(operands[0], loops, op, calls)
    dtypes = [x.dtype for x in op.inputs][1:]
    entering: list[Value] = [
      (self.add(BRANCH, [x], [dtype], loops, op, calls, [dtype]), 0)
      for x, dtype in zip(arguments, dtypes, strict=True)
    ]
    results = [self._call(body, entering, loops, calls) for body in bodies]
    return [
      (self.add(BRANCH, list(values), [y.dtype], loops, op, calls, [y.dtype] * len(values)), 0)
      for y, values in zip(op.outputs, zip(*results, strict=True), strict=True)
    ]

  def _for_device(self, op: Any, n_branches: int) -> int:
    """The branch that a DeviceIndex chooses; the last one where it names other devices only."""
    names = [name.decode() for name in op.get_attr("device_names")]
    device = self._kernels.device_type
    return min(names.index(device) if device in names else len(names), n_branches - 1)

  def _predicate(
    self, value: Value, loops: int, op: tf.Operation, calls: tuple[tf.Operation, ...]
  ) -> None:
    node = self.add(PREDICATE, [value], [], loops, op, calls, [tf.bool])
    node.memory = Memory((True,), ())


def _is_compiled(op: tf.Operation) -> bool:
  """Whether an op calls a function with jit_compile=True."""
  try:
    return bool(op.get_attr("_XlaMustCompile"))
  except ValueError:
    return False


def _needed(
  ops: Iterable[tf.Operation], arguments: Iterable[tf.Operation]
) -> Iterator[tf.Operation]:
  """What `ops` need, by data or control, operands first; without the `arguments`."""
  done = set(arguments)
  for start in ops:
    stack: list[tuple[tf.Operation, Iterator[tf.Operation]]] = []
    if start not in done:
      done.add(start)
      stack.append((start, _before(start)))
    while stack:
      op, rest = stack[-1]
      if (before := next((o for o in rest if o not in done), None)) is not None:
        done.add(before)
        stack.append((before, _before(before)))
      else:
        stack.pop()
        yield op


def _before(op: tf.Operation) -> Iterator[tf.Operation]:
  return iter([*(x.op for x in op.inputs), *op.control_inputs])
