"""A signature as one graph that an exporter takes: calls inlined, parameters constant, and each op that a target lacks replaced.

The graph is not edited but made anew, op by op, in TensorFlow's own eyes: shapes are inferred once more, and whatever a
replacement needs is written in TensorFlow.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from jax2tf import _tf_compat

from ..comparison import calls

# The op to be replaced, for its attributes, and its operands in the new graph -> its results.
Replacement: TypeAlias = Callable[..., Sequence[Any]]

_SAME = ("Identity", "IdentityN", "PreventGradient", "StopGradient", "Snapshot")
_CALLS = ("PartitionedCall", "StatefulPartitionedCall", "BatchFunction")
_CONDITIONS = ("If", "StatelessIf", "Case", "StatelessCase")
_LOOPS = ("While", "StatelessWhile")
_ASSIGN = "AssignVariableOp"
# What the replay of a graph takes itself.
REPLAYED = frozenset((*_SAME, *_CALLS, *_CONDITIONS, *_LOOPS, "ReadVariableOp", "EnsureShape"))


def frozen(
  signature: Any,
  replacements: Mapping[str, Replacement],
  held: Mapping[tf.DType, tf.DType] | None = None,
  state: Mapping[str, tf.Variable] | None = None,
) -> Any:
  """The same function of the same named tensors, as a tf.types.experimental.ConcreteFunction without variables or calls.

  Args:
    signature: a ConcreteFunction of a signature: named tensors in, a dict of named tensors out.
    replacements: {op type: what takes its place}.
    held: {dtype: the target's dtype that holds it}, of inputs and parameters; the replacements see to all others.
    state: {name: variable}, of those that become an input and an output of this name, the value before and after the call.

  Raises:
    ValueError: it writes another variable, or one in a loop or a branch.
  """
  held, state = held or {}, state or {}
  specs = signature.structured_input_signature[1] or {spec.name: spec for spec in signature.structured_input_signature[0]}
  variables = {id(v.handle): v for v in signature.graph.variables}
  captured = [variables.get(id(outer), outer) for outer, _ in signature.graph.captures]
  inner = [inside for _, inside in signature.graph.captures]
  inputs = [tensor for tensor in signature.graph.inputs if not any(tensor is x for x in inner)]
  # The placeholders are in the order in which the function took its arguments, which is that of their names here.
  names = [tensor.op.name for tensor in inputs]
  outputs = sorted(signature.structured_outputs)  # as TensorFlow orders the values of a dict
  definition = signature.graph.as_graph_def()
  if written := [op for op in calls.writers(definition) if not (state and op == _ASSIGN)]:
    raise ValueError(f"it writes variables ({', '.join(written)}), which would be left out without a word")
  library = definition.library

  def function(**tensors: tf.Tensor) -> dict[str, tf.Tensor]:
    replay = _Replay(library, replacements, held, {id(variable): tensors[name] for name, variable in state.items()})
    values = replay.run(signature.graph, [*inputs, *inner], [*(tensors[name] for name in names), *captured])
    found = {name: tf.identity(values(tensor), op_name(name)) for name, tensor in zip(outputs, signature.graph.outputs, strict=True)}
    return found | {name: tf.identity(replay.state[id(variable)]) for name, variable in state.items()}

  ordered = {name: tf.TensorSpec(specs[name].shape, held.get(specs[name].dtype, specs[name].dtype), name) for name in names}
  ordered |= {name: tf.TensorSpec(variable.shape, variable.dtype, name) for name, variable in state.items()}
  return tf.function(function, autograph=False).get_concrete_function(**ordered)


def op_name(name: str) -> str:
  """An output may have any name, an op may not."""
  return re.sub("^[^A-Za-z0-9.]|[^A-Za-z0-9_.]", ".", name)


def with_shape(x: tf.Tensor, shape: tf.TensorShape) -> tf.Tensor:
  """`x`, known to have this shape."""
  y = tf.identity(x)
  y.set_shape(shape)
  return y


class _Replay:
  """Makes the ops of graphs once more in the graph under construction.

  Attributes:
    state: {id of a variable that may be written: its value now}.
  """

  def __init__(self, library: Any, replacements: Mapping[str, Replacement], held: Mapping[tf.DType, tf.DType], state: dict[int, tf.Tensor]):
    self._library = {function.signature.name: function for function in library.function}
    self._home = tf.Graph()  # where one function of the library finds another
    with self._home.as_default():
      tf.graph_util.import_graph_def(tf.compat.v1.GraphDef(library=library), name="")
    self._replacements, self._held, self.state = replacements, held, state
    self._graphs: dict[str, Any] = {}
    self._constants: dict[int, tf.Tensor] = {}

  def run(self, graph: Any, inputs: Sequence[tf.Tensor], given: Sequence[Any]) -> Callable[[tf.Tensor], Any]:
    """A function from the tensors of `graph` to the new ones, where `inputs` are `given`: tensors, variables, tables."""
    values: dict[Any, Any] = {x.ref(): value for x, value in zip(inputs, given, strict=True)}
    writes = [op for op in graph.get_operations() if op.type == _ASSIGN]
    needed = _needed([*graph.outputs, *(op.inputs[1] for op in writes)])
    for op in graph.get_operations():  # in the order of the program: a read stands before or behind a write
      # What is pure needs no control dependencies; and no target has assertions or prints, so what these alone need is left out.
      if op in needed and not all(y.ref() in values for y in op.outputs):
        results = self._op(op, [values[x.ref()] for x in op.inputs])
        values.update((y.ref(), result) for y, result in zip(op.outputs, results, strict=True))
      elif op in writes:
        self._write(values[op.inputs[0].ref()], values[op.inputs[1].ref()])
    return lambda tensor: values[tensor.ref()]

  def _op(self, op: tf.Operation, operands: list[Any]) -> Sequence[Any]:
    if op.type in self._replacements:
      return self._replacements[op.type](op, *operands)
    if op.type in _SAME:
      return operands
    if op.type == "ReadVariableOp":
      return [self._value(operands[0])]
    if op.type == "EnsureShape":  # what it says, without what it checks: TF.js and LiteRT cannot run it
      return [with_shape(operands[0], op.outputs[0].shape)]
    if op.type in _CALLS:
      return self._function(op.get_attr("f"))(operands)
    if op.type in _CONDITIONS:
      return self._branches(op, operands)
    if op.type in _LOOPS:
      return self._loop(op, operands)
    return again(op, operands)

  def _write(self, variable: Any, value: tf.Tensor) -> None:
    if id(variable) not in self.state or graph() is not outermost():
      raise ValueError(f"it writes variable {variable.name!r} in a loop or a branch, or one that is no state")
    self.state[id(variable)] = value

  def _value(self, variable: Any) -> tf.Tensor:
    """The value of a variable: one constant in the outermost graph, which the bodies of loops and branches capture."""
    if id(variable) in self.state:
      return self.state[id(variable)]
    if id(variable) not in self._constants:
      with tf.init_scope():
        value = variable.numpy().astype(self._held.get(variable.dtype, variable.dtype).as_numpy_dtype, copy=False)
      with outermost().as_default(), tf.control_dependencies(None):
        self._constants[id(variable)] = tf.constant(value, name=variable.name.split(":")[0])
    return self._constants[id(variable)]

  def _function(self, attribute: Any) -> Callable[[Sequence[Any]], list[Any]]:
    """A function of the library, as a function that makes its ops."""
    name = attribute.name
    if name not in self._graphs:
      with self._home.as_default():
        self._graphs[name] = _tf_compat.function_graph(self._library[name])
    graph = self._graphs[name]

    def call(operands: Sequence[Any]) -> list[Any]:
      values = self.run(graph, graph.inputs, operands)
      return [values(y) for y in graph.outputs]

    return call

  def _branches(self, op: tf.Operation, operands: list[Any]) -> list[Any]:
    """If as it is; Case, which no target has, as nested ones: an index out of range takes the last branch, as in TensorFlow."""
    first, *rest = operands
    if op.type in ("If", "StatelessIf"):
      branches = [self._function(op.get_attr("else_branch")), self._function(op.get_attr("then_branch"))]
      predicate = first if first.dtype == tf.bool else tf.cast(first, tf.bool)
      return _condition(predicate, lambda: branches[1](rest), lambda: branches[0](rest))
    branches = [self._function(name) for name in op.get_attr("branches")]

    def nested(k: int) -> list[Any]:
      if k == len(branches) - 1:
        return branches[k](rest)
      return _condition(first == k, lambda: branches[k](rest), lambda: nested(k + 1))

    # A negative index takes the last branch as well, and equals none of those before it.
    return nested(0)

  def _loop(self, op: tf.Operation, operands: list[Any]) -> list[Any]:
    """A loop whose carry is its tensors; variables and tables are the same in each turn, and are not carried."""
    predicate, body = self._function(op.get_attr("cond")), self._function(op.get_attr("body"))
    carried = [i for i, x in enumerate(operands) if isinstance(x, tf.Tensor) and x.dtype != tf.resource]

    def whole(carry: Sequence[tf.Tensor]) -> list[Any]:
      full = list(operands)
      for i, x in zip(carried, carry, strict=True):
        full[i] = x
      return full

    def turn(*carry: tf.Tensor) -> tuple[tf.Tensor, ...]:
      results = body(whole(carry))
      return tuple(results[i] for i in carried)

    results = tf.while_loop(
      lambda *carry: predicate(whole(carry))[0],
      turn,
      tuple(operands[i] for i in carried),
      shape_invariants=tuple(_invariant(op.outputs[i], operands[i]) for i in carried),
      parallel_iterations=op.get_attr("parallel_iterations"),
    )
    return whole(results)


def _needed(tensors: Sequence[tf.Tensor]) -> set[tf.Operation]:
  """The ops from which the tensors are computed."""
  found: set[tf.Operation] = set()
  waiting = [x.op for x in tensors]
  while waiting:
    if (op := waiting.pop()) not in found:
      found.add(op)
      waiting.extend(x.op for x in op.inputs)
  return found


def _condition(predicate: tf.Tensor, true: Callable[[], list[Any]], false: Callable[[], list[Any]]) -> list[Any]:
  return list(tf.cond(predicate, lambda: tuple(true()), lambda: tuple(false())))


def graph() -> Any:
  """The graph under construction; a replacement always has one."""
  found = _tf_compat.current_graph()
  assert found is not None
  return found


def again(op: tf.Operation, operands: Sequence[Any], dtypes: Mapping[tf.DType, tf.DType] | None = None) -> list[tf.Tensor]:
  """The op once more in the graph under construction.

  Args:
    op: what to make again, without the attributes that TensorFlow adds for itself.
    operands: its operands there.
    dtypes: {dtype of the op: the dtype that takes its place}.
  """
  held = dict(dtypes or {})
  attributes = {}
  for name, attribute in op.node_def.attr.items():
    if name.startswith("_"):
      continue
    attributes[name] = new = tf.compat.v1.AttrValue()
    new.CopyFrom(attribute)
    if attribute.WhichOneof("value") == "type":
      dtype = tf.as_dtype(attribute.type)
      new.type = held.get(dtype, dtype).as_datatype_enum
    if attribute.list.type:
      types = [tf.as_dtype(t) for t in attribute.list.type]
      del new.list.type[:]
      new.list.type.extend(held.get(t, t).as_datatype_enum for t in types)
  results = [held.get(y.dtype, y.dtype) for y in op.outputs]
  return list(graph().create_op(op.type, list(operands), results, attrs=attributes, name=op.name).outputs)


def outermost() -> Any:
  """The graph of the whole function, while that of a loop or a branch is under construction."""
  graph: Any = _tf_compat.current_graph()
  while getattr(outer := getattr(graph, "outer_graph", None), "outer_graph", None) is not None:
    graph = outer
  return graph


def _invariant(result: tf.Tensor, operand: tf.Tensor) -> tf.TensorShape:
  """The shape that a loop keeps; of a list that a target's table made a tensor of, the rank."""
  is_list = result.dtype == tf.variant and operand.dtype != tf.variant
  return tf.TensorShape([None] * operand.shape.rank) if is_list else result.shape


def is_zeros(tensor: tf.Tensor) -> bool:
  """Whether a tensor of the graph that is replayed is zeros and is known to be; -0.0 has a bit set."""
  while tensor.op.type in ("Reshape", "Identity"):
    tensor = tensor.op.inputs[0]
  # Of a Fill the number alone: asking TensorFlow for the value of the whole tensor would build it.
  value = tf.get_static_value(tensor.op.inputs[1] if tensor.op.type == "Fill" else tensor)
  return value is not None and not any(value.tobytes())


def op_types(concrete: Any) -> Iterator[str]:
  """The type of each op, those of loops and branches too."""
  definition = concrete.graph.as_graph_def()
  for nodes in (definition.node, *(function.node_def for function in definition.library.function)):
    for node in nodes:
      yield node.op
