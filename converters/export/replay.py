"""Replays a signature as one graph for an exporter: calls are inlined, parameters become constants,
and replacements and expansions are applied.

The graph is not edited. TensorFlow builds it again op by op, so it infers shapes again, and
replacements and expansions are plain TensorFlow code.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from jax2tf import _tf_compat

from ..bundle import graphs
from . import strides
from .ends import UnpairedOpsError
from .expansion import EXPANSIONS, Call, is_expanded
from .pair import (
  PAIRS,
  Pair,
  are_pairs,
  condition,
  constant,
  flat,
  is_of_pairs,
  paired,
  rule_of,
  unflat,
  zeros_of,
)
from .scopes import Scopes, own_name

# (the op to replace, for its attributes; its operands in the new graph) -> its results.
Replacement: TypeAlias = Callable[..., Sequence[Any]]

_SAME = ("Copy", "Identity", "IdentityN", "PreventGradient", "StopGradient", "Snapshot")
_CALLS = ("PartitionedCall", "StatefulPartitionedCall", "BatchFunction")
_CONDITIONS = ("If", "StatelessIf", "Case", "StatelessCase")
_LOOPS = ("While", "StatelessWhile")
_ASSIGN = "AssignVariableOp"
_PADS = ("Pad", "PadV2")
# Types of ops that the replay handles itself.
REPLAYED = frozenset(
  (*_SAME, *_CALLS, *_CONDITIONS, *_LOOPS, "ReadVariableOp", "EnsureShape", "DeviceIndex")
)


def own_inputs(concrete: Any) -> list[tf.Tensor]:
  """The placeholders of the arguments of a ConcreteFunction, without those of what it captures."""
  captures = [inside for _, inside in concrete.graph.captures]
  return [tensor for tensor in concrete.graph.inputs if not any(tensor is x for x in captures)]


def replayed(
  concrete: Any,
  tensors: Sequence[Any],
  replacements: Mapping[str, Replacement],
  held: Mapping[tf.DType, tf.DType],
  state: Mapping[int, tf.Tensor],
  weights: Mapping[int, tf.Tensor] | None = None,
) -> tuple[list[Any], dict[int, tf.Tensor]]:
  """Copies the ops of a ConcreteFunction into the graph under construction, with `tensors` in place
  of its inputs; see `freezing.frozen`.

  Args:
    state: {id of a variable that it may write: its value before}.
    weights: {id of a variable: its value}, for those that do not become constants.

  Returns:
    its flat results, of which complex ones are Pairs, and the state after it.

  Raises:
    ValueError, UnpairedOpsError: as `freezing.frozen`.
  """
  definition = concrete.graph.as_graph_def()
  if written := [op for op in graphs.writers(definition) if not (state and op == _ASSIGN)]:
    raise ValueError(f"it writes variables ({', '.join(written)}), which would be dropped silently")
  replay = _Replay(definition.library, replacements, held, dict(state), {}, weights)
  results = replay.results(concrete, tensors)
  if replay.lacking:
    raise UnpairedOpsError(replay.lacking)
  return results, replay.state


def op_name(name: str) -> str:
  """A valid name of an op for the name of an output."""
  return re.sub("^[^A-Za-z0-9.]|[^A-Za-z0-9_.]", ".", name)


def sizes_of(x: tf.Tensor) -> list[Any]:
  """The sizes of a tensor of known rank: ints where they are known, else i32[]."""
  return [tf.shape(x)[i] if size is None else size for i, size in enumerate(x.shape.as_list())]


def dynamic_sides(paddings: tf.Tensor) -> list[tuple[tf.Tensor, tf.Tensor]] | None:
  """The scalars before and after each axis, if they are stacked and some are no constants."""
  packed = paddings.op.inputs[0].op if paddings.op.type == "Reshape" else paddings.op
  if (
    packed.type != "Pack"
    or packed.inputs[0].shape.rank != 0
    or tf.get_static_value(packed.outputs[0]) is not None
  ):
    return None
  return list(zip(packed.inputs[::2], packed.inputs[1::2], strict=True))


def _set_padded_sizes(result: tf.Tensor, x: tf.Tensor, paddings: tf.Tensor) -> None:
  """Sets the sizes of the axes that a Pad leaves as they are. TF 2.21 infers none if some numbers
  of the padding are no constants."""
  sides = dynamic_sides(paddings)
  if sides is None or len(sides) != x.shape.rank:
    return
  is_kept = [all(tf.get_static_value(side) == 0 for side in pair) for pair in sides]
  sizes = [size if kept else None for size, kept in zip(x.shape.as_list(), is_kept, strict=True)]
  result.set_shape(sizes)


def with_shape(x: Any, shape: tf.TensorShape) -> Any:
  """`x` with this static shape."""
  if isinstance(x, Pair):
    return x.map(lambda part: with_shape(part, shape))
  if x.shape.merge_with(shape) == x.shape:  # it is known already; a constant stays one
    return x
  y = tf.identity(x)
  y.set_shape(shape)
  return y


def _as_of(op: tf.Operation, results: Sequence[Any]) -> list[Any]:
  """The results in place of the op's, with its static shapes too."""
  # a list, whose shape is of no use, may be a tensor in the target
  return [
    result if y.dtype == tf.variant else with_shape(result, result.shape.merge_with(y.shape))
    for result, y in zip(results, op.outputs, strict=True)
  ]


class _Replay:
  """Copies the ops of graphs into the graph under construction.

  Attributes:
    state: {id of a writable variable: its current value}.
    lacking: {type of an op without a form in pairs: why}.
  """

  def __init__(
    self,
    library: Any,
    replacements: Mapping[str, Replacement],
    held: Mapping[tf.DType, tf.DType],
    state: dict[int, tf.Tensor],
    lacking: dict[str, str],
    weights: Mapping[int, tf.Tensor] | None = None,
  ):
    self._library = {function.signature.name: function for function in library.function}
    self._home = tf.Graph()  # in which functions of the library find each other
    if library.function:
      with self._home.as_default():
        tf.graph_util.import_graph_def(tf.compat.v1.GraphDef(library=library), name="")
    self._replacements, self._held = replacements, held
    self.state, self.lacking = state, lacking
    self._graphs: dict[str, Any] = {}
    self._values: dict[int, Any] = dict(weights or {})
    self._expansions: dict[str, tuple[Any, _Replay]] = {}

  def results(self, concrete: Any, tensors: Sequence[Any]) -> list[Any]:
    """The flat results of the ConcreteFunction whose library it has, with `tensors` in place of its
    inputs."""
    variables = {id(v.handle): v for v in concrete.graph.variables}
    captured = [variables.get(id(outer), outer) for outer, _ in concrete.graph.captures]
    inner = [inside for _, inside in concrete.graph.captures]
    values = self.run(
      concrete.graph, [*own_inputs(concrete), *inner], [*tensors, *map(self.constant, captured)]
    )
    return [values(tensor) for tensor in concrete.graph.outputs]

  def run(
    self, graph: Any, inputs: Sequence[tf.Tensor], arguments: Sequence[Any]
  ) -> Callable[[tf.Tensor], Any]:
    """Replays `graph` with `arguments` in place of `inputs`. Returns a function that maps its
    tensors to the new ones."""
    values: dict[Any, Any] = {x.ref(): value for x, value in zip(inputs, arguments, strict=True)}
    writes = [op for op in graph.get_operations() if op.type == _ASSIGN]
    needed = _needed([*graph.outputs, *(op.inputs[1] for op in writes)])
    # in program order, because reads and writes of a variable do not commute
    with Scopes() as scopes:
      for op in graph.get_operations():
        # Pure ops need no control dependencies. No target has assertions or prints, so ops that
        # only these use are left out.
        if op in needed and not all(y.ref() in values for y in op.outputs):
          scopes.enter(op)
          operands = [values[x.ref()] for x in op.inputs]
          strided = strides.found(op)
          results = (
            self._strided(op, strided, values[strided.operand.ref()])
            if strided and not isinstance(operands[0], Pair)
            else self._op(op, operands)
          )
          if op.type in _PADS and not isinstance(results[0], Pair):
            _set_padded_sizes(results[0], *operands[:2])
          values.update((y.ref(), result) for y, result in zip(op.outputs, results, strict=True))
        elif op in writes:
          self._write(values[op.inputs[0].ref()], values[op.inputs[1].ref()])
    return lambda tensor: values[tensor.ref()]

  def _strided(self, op: tf.Operation, strided: strides.Strided, x: tf.Tensor) -> Sequence[Any]:
    return _as_of(op, self._called(Call(op, [x, *strided.bounds()], strides.sliced)))

  def _op(self, op: tf.Operation, operands: list[Any]) -> Sequence[Any]:
    of_pairs = is_of_pairs(op, operands)
    if op.type in self._replacements and not of_pairs:
      return self._replaced(op, operands)
    if op.type in _SAME:
      return operands
    if op.type == "ReadVariableOp":
      if of_pairs and op.type in self._replacements:
        return [paired(*self._replaced(op, operands))]
      return [self._value(operands[0])]
    if op.type == "Const" and of_pairs:
      return [constant(tf.get_static_value(op.outputs[0]))]
    # the function without its checks, which TF.js and LiteRT cannot run
    if op.type == "EnsureShape":
      return [with_shape(operands[0], op.outputs[0].shape)]
    # the default branch, as in XLA, because a target is none of these devices
    if op.type == "DeviceIndex":
      return [tf.constant(len(op.get_attr("device_names")))]
    if op.type in _CALLS:
      return self._function(op.get_attr("f"))(operands)
    if op.type in _CONDITIONS:
      return self._branches(op, operands)
    if op.type in _LOOPS:
      return self._loop(op, operands)
    if is_expanded(op, operands) and not (of_pairs and op.type in PAIRS):
      return _as_of(op, self._called(Call(op, operands, EXPANSIONS[op.type])))
    return _as_of(op, self._of_pairs(op, operands)) if of_pairs else again(op, operands)

  def _replaced(self, op: tf.Operation, operands: list[Any]) -> Sequence[Any]:
    try:
      return self._replacements[op.type](op, *operands)
    except (TypeError, ValueError) as error:
      if all(not isinstance(x, tf.Tensor) or x.shape.rank is not None for x in operands):
        raise
      raise ValueError(
        f"{op.type} {op.name!r} has an operand of unknown rank; set it by tf.ensure_shape in the "
        "TensorFlow code"
      ) from error

  def _of_pairs(self, op: tf.Operation, operands: Sequence[Any]) -> list[Any]:
    """The results of an op of complex numbers, by its rule."""
    pairs = [isinstance(x, Pair) for x in operands]

    def of_parts(op: tf.Operation, *parts: tf.Tensor) -> list[tf.Tensor]:
      return flat(rule_of(op)(op, *unflat(parts, pairs)))

    call = Call(op, flat(operands), of_parts)
    try:
      concrete, _ = self._traced(call)
      return unflat(call.folded(concrete) or self._called(call), are_pairs(op))
    except NotImplementedError as error:
      self.lacking.setdefault(op.type, str(error))
      return zeros_of(op)

  def _called(self, call: Call) -> list[Any]:
    """The results of the call, in whose place its ops are replayed."""
    concrete, replay = self._traced(call)
    with tf.name_scope(own_name(call.op)):
      return replay.results(concrete, call.tensors)

  def _traced(self, call: Call) -> tuple[Any, _Replay]:
    """The ConcreteFunction of the call, and what replays it."""
    if call.key not in self._expansions:
      concrete = call.traced()
      library = concrete.graph.as_graph_def().library
      replay = _Replay(library, self._replacements, self._held, {}, self.lacking)
      self._expansions[call.key] = concrete, replay
    return self._expansions[call.key]

  def _write(self, variable: Any, value: tf.Tensor) -> None:
    if id(variable) not in self.state or graph() is not outermost():
      raise ValueError(
        f"it writes variable {variable.name!r} in a loop or a branch, or one that is not state"
      )
    self.state[id(variable)] = value

  def _value(self, variable: Any) -> Any:
    """The value of a variable: an input, or else a constant in the outermost graph, which bodies of
    loops and branches capture."""
    if id(variable) in self.state:
      return self.state[id(variable)]
    if id(variable) not in self._values:
      held = self._held.get(variable.dtype, variable.dtype)
      self._values[id(variable)] = constant_of(variable, held)
    return self._values[id(variable)]

  def constant(self, captured: Any) -> Any:
    """A constant for a captured tensor of values, such as strings or a table of weights; variables
    and resources unchanged."""
    if not isinstance(captured, tf.Tensor) or captured.dtype in (tf.resource, tf.variant):
      return captured
    with tf.init_scope():
      value = captured.numpy()
    held = self._held.get(captured.dtype, captured.dtype).as_numpy_dtype
    return constant(value.astype(held, copy=False))

  def _function(self, attribute: Any) -> Callable[[Sequence[Any]], list[Any]]:
    """A function that replays a function of the library."""
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
    """Keeps If. Case, which no target has, becomes nested If ops; an out-of-range index takes the
    last branch, as in TensorFlow."""
    first, *rest = operands
    if op.type in ("If", "StatelessIf"):
      branches = [
        self._function(op.get_attr("else_branch")),
        self._function(op.get_attr("then_branch")),
      ]
      predicate = first if first.dtype == tf.bool else tf.cast(first, tf.bool)
      return condition(predicate, lambda: branches[1](rest), lambda: branches[0](rest))
    branches = [self._function(name) for name in op.get_attr("branches")]
    if (known := tf.get_static_value(first)) is not None:
      return branches[known if 0 <= known < len(branches) else -1](rest)

    def nested(k: int) -> list[Any]:
      if k == len(branches) - 1:
        return branches[k](rest)
      return condition(tf.equal(first, k), lambda: branches[k](rest), lambda: nested(k + 1))

    # A negative index equals no index tested before, so it takes the last branch too.
    return nested(0)

  def _loop(self, op: tf.Operation, operands: list[Any]) -> list[Any]:
    """A loop that carries its tensors. Variables and tables are loop-invariant, so it does not
    carry them."""
    predicate, body = self._function(op.get_attr("cond")), self._function(op.get_attr("body"))
    carried = [
      i
      for i, x in enumerate(operands)
      if isinstance(x, tf.Tensor | Pair) and x.dtype != tf.resource
    ]
    pairs = [isinstance(operands[i], Pair) for i in carried]
    invariants = [_invariant(op.outputs[i], part) for i in carried for part in flat([operands[i]])]

    def whole(carry: Sequence[tf.Tensor]) -> list[Any]:
      full = list(operands)
      for i, x in zip(carried, unflat(carry, pairs), strict=True):
        full[i] = x
      return full

    def turn(*carry: tf.Tensor) -> tuple[tf.Tensor, ...]:
      results = body(whole(carry))
      # TensorFlow infers less where a size is computed inside.
      parts = map(with_shape, flat(results[i] for i in carried), invariants)
      # OpenVINO 2026.4 refuses a loop in ONNX whose body returns an argument itself.
      arguments = {x.ref() for x in carry}
      return tuple(tf.identity(x) if x.ref() in arguments else x for x in parts)

    results = tf.while_loop(
      lambda *carry: predicate(whole(carry))[0],
      turn,
      tuple(flat(operands[i] for i in carried)),
      shape_invariants=tuple(invariants),
      parallel_iterations=op.get_attr("parallel_iterations"),
    )
    return whole(results)


def constant_of(variable: Any, dtype: tf.DType) -> Any:
  """The value of a variable in this dtype, as a constant of the outermost graph."""
  with tf.init_scope():
    # unlike numpy(), the graph does not record it
    read = tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)
    value = read.numpy().astype(dtype.as_numpy_dtype, copy=False)
  with outermost().as_default(), tf.name_scope(""), tf.control_dependencies(None):
    return constant(value, variable.name.split(":")[0])


def _needed(tensors: Sequence[tf.Tensor]) -> set[tf.Operation]:
  """The ops on which the tensors depend."""
  needed: set[tf.Operation] = set()
  waiting = [x.op for x in tensors]
  while waiting:
    if (op := waiting.pop()) not in needed:
      needed.add(op)
      waiting.extend(x.op for x in op.inputs)
  return needed


def graph() -> Any:
  """The graph under construction. It always exists inside a replacement."""
  current = _tf_compat.current_graph()
  assert current is not None
  return current


def again(
  op: tf.Operation, operands: Sequence[Any], dtypes: Mapping[tf.DType, tf.DType] | None = None
) -> list[tf.Tensor]:
  """Copies the op into the graph under construction.

  Args:
    op: the op to copy into the current scope, without the attributes that TensorFlow adds; with
      those that keep an optimizer from changing its values.
    operands: its operands in that graph.
    dtypes: {dtype: its replacement} for the dtypes of the op; those that its operands replaced
      follow from them.
  """
  pairs = zip(op.inputs, operands, strict=True)
  held = {x.dtype: y.dtype for x, y in pairs if x.dtype != y.dtype} | dict(dtypes or {})
  attributes = {}
  for name, attribute in op.node_def.attr.items():
    if name.startswith("_") and name not in _tf_compat.AS_WRITTEN:
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
  copy = graph().create_op(op.type, list(operands), results, attrs=attributes, name=own_name(op))
  return list(copy.outputs)


def outermost() -> Any:
  """Makes the graph of the whole function current while that of a loop or a branch is under
  construction."""
  graph: Any = _tf_compat.current_graph()
  while getattr(outer := getattr(graph, "outer_graph", None), "outer_graph", None) is not None:
    graph = outer
  return graph


def _invariant(result: tf.Tensor, operand: tf.Tensor) -> tf.TensorShape:
  """The loop-invariant shape. For a list that a target holds as a tensor, only the rank is
  invariant."""
  is_list = result.dtype == tf.variant and operand.dtype != tf.variant
  return tf.TensorShape([None] * operand.shape.rank) if is_list else result.shape


def op_types(concrete: Any) -> Iterator[str]:
  """The type of each op, including those of loops and branches."""
  return (node.op for node in graphs.nodes(concrete.graph.as_graph_def()))
