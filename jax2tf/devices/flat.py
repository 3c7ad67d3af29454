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
_CONDITIONS = ("If", "StatelessIf")
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
    calls: the calls, loops and branches that it is inside of, the outermost first.
    op: None for what is no op.
  """

  kind: str
  operands: list[Value]
  memory: Memory | None
  dtypes: tuple[tf.DType, ...]
  calls: tuple[tf.Operation, ...]
  op: tf.Operation | None = None

  @property
  def results(self) -> list[Value]:
    """The tensors that it makes."""
    return [(self, i) for i in range(len(self.dtypes))]

  @property
  def loops(self) -> int:
    """How many loops it is inside of."""
    return sum(call.type in _LOOPS for call in self.calls)

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
  values = inliner.inlined(graph, (), (), results, effects, ())
  for value, tensor in zip(values, results, strict=True):
    inliner.add(RESULT, [value], _by_dtype([tensor.dtype], []), [], ())
  return inliner.nodes


def _by_dtype(operands: Iterable[tf.DType], results: Iterable[tf.DType]) -> Memory:
  """Where tensors of these dtypes are, if no kernel says otherwise."""
  return Memory(*(tuple(dtype in ON_HOST for dtype in dtypes) for dtypes in (operands, results)))


class _Inliner:
  def __init__(self, kernels: Kernels):
    self.nodes: list[Node] = []
    self._kernels = kernels

  def add(
    self,
    kind: str,
    operands: list[Value],
    memory: Memory | None,
    dtypes: Sequence[tf.DType],
    calls: tuple[tf.Operation, ...],
    op: tf.Operation | None = None,
  ) -> Node:
    """A new node of the graph."""
    node = Node(kind, operands, memory, tuple(dtypes), calls, op)
    self.nodes.append(node)
    return node

  def inlined(
    self,
    graph: Any,
    inputs: Sequence[tf.Tensor],
    arguments: Sequence[Value],
    results: Sequence[tf.Tensor],
    effects: Iterable[tf.Operation],
    calls: tuple[tf.Operation, ...],
  ) -> list[Value]:
    """The values of `results` of a graph, whose `inputs` have the values `arguments`."""
    env: dict[Any, Value] = {x.ref(): value for x, value in zip(inputs, arguments, strict=True)}
    for op in _needed([*(y.op for y in results), *effects], {x.op for x in inputs}):
      operands = [env[x.ref()] for x in op.inputs]
      values = self._values(op, operands, calls)
      env |= {y.ref(): value for y, value in zip(op.outputs, values, strict=True)}
    return [env[y.ref()] for y in results]

  def _values(
    self, op: tf.Operation, operands: list[Value], calls: tuple[tf.Operation, ...]
  ) -> list[Value]:
    """The values of the results of an op."""
    if op.type in _REMOVED:
      return operands[: len(op.outputs)]
    inside = (*calls, op)
    dtypes = [y.dtype for y in op.outputs]
    if op.type in _LOOPS:
      return self._loop(op, operands, inside)
    if op.type in _CONDITIONS:
      branches = [op.get_attr(name).name for name in ("then_branch", "else_branch")]
      return self._branches(op, branches, operands, inside)
    if op.type in _CASES:
      branches = [branch.name for branch in op.get_attr("branches")]
      return self._branches(op, branches, operands, inside)
    if op.type in _CALLS and _is_compiled(op) and not self._kernels.is_xla:
      # XLA compiles the whole call for the device
      memory = _by_dtype([x.dtype for x in op.inputs], dtypes)
      return self.add(op.type, operands, memory, dtypes, calls, op).results
    called = op.get_attr("f").name if op.type in _CALLS else op.type
    body = functions.function_named(op.graph, called)
    if body is not None:
      return self._call(body, operands, inside)
    if op.type == "Placeholder":
      return self.add(ARGUMENT, [], _by_dtype([], dtypes), dtypes, calls).results
    return self.add(op.type, operands, self._kernels.memory(op), dtypes, calls, op).results

  def _call(
    self, body: Any, operands: Sequence[Value], calls: tuple[tf.Operation, ...]
  ) -> list[Value]:
    return self.inlined(body, body.inputs, operands, body.outputs, body.control_outputs, calls)

  def _loop(
    self, op: tf.Operation, operands: Sequence[Value], calls: tuple[tf.Operation, ...]
  ) -> list[Value]:
    """A loop: each variable is a node that reads its first value and that of the last step."""
    variables = [
      self.add(VARIABLE, [first], _by_dtype([y.dtype] * 2, [y.dtype]), [y.dtype], calls)
      for first, y in zip(operands, op.outputs, strict=True)
    ]
    values: list[Value] = [(variable, 0) for variable in variables]
    condition, body = (
      functions.function_named(op.graph, op.get_attr(name).name) for name in ("cond", "body")
    )
    (goes_on,) = self._call(condition, values, calls)
    self._predicate(goes_on, calls)
    nexts = self._call(body, values, calls)
    for variable, following in zip(variables, nexts, strict=True):
      variable.operands.append(following)
    return values

  def _branches(
    self,
    op: tf.Operation,
    branches: Sequence[str],
    operands: Sequence[Value],
    calls: tuple[tf.Operation, ...],
  ) -> list[Value]:
    """Branches: what goes in and what comes out are nodes."""
    index, *arguments = operands
    chooser, _ = index
    bodies = [functions.function_named(op.graph, name) for name in branches]
    if chooser.kind == "DeviceIndex":
      # TensorFlow knows the device before it runs the graph, and takes one branch.
      chosen = self._for_device(chooser.op, len(branches))
      return self._call(bodies[chosen], arguments, calls)
    self._predicate(index, calls)
    dtypes = [x.dtype for x in op.inputs][1:]
    entering = [
      self._of_branch([x], dtype, calls) for x, dtype in zip(arguments, dtypes, strict=True)
    ]
    results = [self._call(body, entering, calls) for body in bodies]
    return [
      self._of_branch(list(values), y.dtype, calls)
      for y, values in zip(op.outputs, zip(*results, strict=True), strict=True)
    ]

  def _of_branch(
    self, operands: list[Value], dtype: tf.DType, calls: tuple[tf.Operation, ...]
  ) -> Value:
    memory = _by_dtype([dtype] * len(operands), [dtype])
    return self.add(BRANCH, operands, memory, [dtype], calls), 0

  def _for_device(self, op: Any, n_branches: int) -> int:
    """The branch that a DeviceIndex chooses; the last one where it names other devices only."""
    names = [name.decode() for name in op.get_attr("device_names")]
    device = self._kernels.device_type
    return min(names.index(device) if device in names else len(names), n_branches - 1)

  def _predicate(self, value: Value, calls: tuple[tf.Operation, ...]) -> None:
    self.add(PREDICATE, [value], Memory((True,), ()), [], calls)


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
