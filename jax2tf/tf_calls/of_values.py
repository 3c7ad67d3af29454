"""Makes functions of values from functions that read variables.

A variable that exists for one call has no name. TensorFlow gives it one when it loads a file, the
same for all of them: they would share one value. So no function of ours makes a variable: copies of
the functions take the value where they took the handle.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.core.framework.function_pb2 import FunctionDef
from tensorflow.core.framework.node_def_pb2 import NodeDef

from jax2tf._tf_compat import functions, is_stateful

# Attributes of functions that change how they run; others name the function, or its relatives.
_KEPT = frozenset({"_XlaMustCompile", "_noinline", "_input_shapes"})
# Ops whose result is one of their operands: {type: names of the results}.
_SAME = {"Identity": ["output"], "Enter": ["output"], "Switch": ["output_false", "output_true"]}
# Ops with a list of operands: {type: (how many other operands come first, the attributes with the
# types of operands and results)}.
_LISTS = {
  **dict.fromkeys(["PartitionedCall", "StatefulPartitionedCall"], (0, "Tin", "Tout")),
  **dict.fromkeys(["If", "StatelessIf", "Case", "StatelessCase"], (1, "Tin", "Tout")),
  **dict.fromkeys(["While", "StatelessWhile", "IdentityN"], (0, "T", "T")),
}
_LOOPS = frozenset({"While", "StatelessWhile"})
_numbers = itertools.count()

# {position of an operand or a result: the value in place of the handle}.
Values = Mapping[int, tf.TensorSpec]


def flat_call(
  concrete: Any, variables: Mapping[int, tf.Variable]
) -> Callable[[list[tf.Tensor]], Sequence[tf.Tensor]]:
  """A concrete function of a flat signature, without the checks of its arguments, which take longer
  than a small function.

  Args:
    concrete: the function.
    variables: {position of an argument: the variable whose value it is, and which the call does not
      read}.
  """
  if variables:
    return _of_values(concrete, variables)
  captured = concrete.captured_inputs
  return lambda tensors: functions.call_flat(concrete, tensors, captured)


def _of_values(
  concrete: Any, variables: Mapping[int, tf.Variable]
) -> Callable[[Sequence[tf.Tensor]], Sequence[tf.Tensor]]:
  """A concrete function that takes the values of some variables, and does not read these.

  Args:
    concrete: the function, of a flat signature.
    variables: {position of an argument: the variable whose value it is}.

  Raises:
    ValueError: a variable goes to an op that does more than read it.
  """
  function, captured = concrete.inference_fn, concrete.captured_inputs
  positions = {id(v.handle): i for i, v in variables.items()}
  first = len(function.cached_definition.signature.input_arg) - len(captured)
  values = {
    first + j: _spec(variables[positions[id(x)]])
    for j, x in enumerate(captured)
    if id(x) in positions
  }
  copy, _ = _Copies(function).copy(function.name.decode(), values)

  def call(tensors: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
    rest = [
      _value(tensors[positions[id(x)]], variables[positions[id(x)]].dtype)
      if id(x) in positions
      else x
      for x in captured
    ]
    return copy.call_flat(*tensors, *rest) or ()

  return call


def _spec(variable: tf.Variable) -> tf.TensorSpec:
  return tf.TensorSpec(variable.shape, variable.dtype)


def _value(value: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
  """The value in the dtype of its variable; u32[...,2] are the bits of 64-bit elements."""
  is_packed = value.dtype == tf.uint32 != dtype
  return tf.bitcast(value, dtype) if is_packed else tf.cast(value, dtype)


class _Copies:
  """Copies of the functions that `function` calls, which take values in place of handles."""

  def __init__(self, function: Any):
    self._functions = {_name(f): f for f in _with_children(function)}
    self._copied: dict[Any, tuple[Any, Values]] = {}

  def copy(self, name: str, values: Values) -> tuple[Any, Values]:
    """(a copy of the function `name`, which of its results are values in place of handles)."""
    key = name, tuple(sorted(values.items()))
    if key not in self._copied:
      self._copied[key] = self._copy(self._functions[name], values)
    return self._copied[key]

  def arguments(self, name: str) -> int:
    """How many the function `name` has."""
    return len(self._functions[name].cached_definition.signature.input_arg)

  def _copy(self, function: Any, values: Values) -> tuple[Any, Values]:
    definition = FunctionDef()
    definition.CopyFrom(function.cached_definition)
    definition.signature.name = f"{definition.signature.name}_of_values_{next(_numbers)}"
    for name in definition.attr.keys() - _KEPT:
      del definition.attr[name]
    _take(definition, values)
    edited = _Edited(
      self, {definition.signature.input_arg[i].name: spec for i, spec in values.items()}
    )
    for node in definition.node_def:
      edited.node(node)
    definition.node_def.extend(edited.added)
    results = dict[int, tf.TensorSpec]()
    for i, result in enumerate(definition.signature.output_arg):
      definition.ret[result.name] = source = edited.renamed.get(
        definition.ret[result.name], definition.ret[result.name]
      )
      if source in edited.values:
        results[i] = edited.values[source]
        result.type = results[i].dtype.as_datatype_enum
        result.ClearField("handle_data")
    return self._registered(function, definition, values, results), results

  def _registered(self, function: Any, definition: Any, values: Values, results: Values) -> Any:
    """The definition as a function that TensorFlow calls."""
    kind = function.function_type
    # The type of a branch or a body has its captures twice, as arguments too.
    own = kind.flat_inputs[: len(definition.signature.input_arg)]
    inputs = [values.get(i, x) for i, x in enumerate(own)]
    outputs = [results.get(i, y) for i, y in enumerate(kind.flat_outputs)]
    nodes = definition.node_def
    names = [*(f.name for node in nodes for f in _functions(node)), *(node.op for node in nodes)]
    called = [self._functions[name] for name in names if name in self._functions]
    # TF 2.21: a graph that gets a function gets its children, but not theirs.
    children = {_name(f): f for child in called for f in _with_children(child)}
    has_state = any(is_stateful(node.op) for node in nodes)
    copy = functions.registered(definition, inputs, outputs, [*children.values()], has_state)
    self._functions[definition.signature.name] = copy
    return copy


class _Edited:
  """The nodes of a function with values in place of handles.

  Attributes:
    values: {name of a tensor that was a handle: the value in its place}.
    renamed: {name of another tensor: its name now}.
    added: nodes that these need.
  """

  def __init__(self, copies: _Copies, values: dict[str, tf.TensorSpec]):
    self._copies, self.values = copies, values
    self.renamed: dict[str, str] = {}
    self.added: list[Any] = []

  def node(self, node: Any) -> None:
    """Edits a node, whose operands have been edited."""
    node.input[:] = [self.renamed.get(name, name) for name in node.input]
    # The gradient function belongs to the original, whose tensors it uses. Derivatives are JAX's
    # here.
    node.attr.pop("_gradient_op_type", None)
    taken = {i: self.values[name] for i, name in enumerate(node.input) if name in self.values}
    if not taken:
      return
    node.attr.pop("_output_shapes", None)
    if node.op in _SAME:
      node.attr["T"].type = taken[0].dtype.as_datatype_enum
      self.values.update({f"{node.name}:{result}:0": taken[0] for result in _SAME[node.op]})
    elif node.op in _LISTS:
      self._list(node, taken)
    elif (extra := _extra(node)) and all(i in extra for i in taken):
      self._list_of_dataset(node, taken, extra)
    else:
      self._read(node, taken[0].dtype if 0 in taken else None)

  def _list(self, node: Any, taken: Values) -> None:
    first, operands, results = _LISTS[node.op]
    taken = {i - first: spec for i, spec in taken.items()}
    copies = [self._copies.copy(f.name, taken) for f in _functions(node)]
    for f, (copy, _) in zip(_functions(node), copies, strict=True):
      f.name = _name(copy)
    # The condition of a loop has a result of its own.
    values_out = taken if results == operands else copies[0][1]
    bodies = (
      [node.attr["body"].func.name] if node.op in _LOOPS else [f.name for f in _functions(node)]
    )
    if any(dict(y) != dict(values_out) for copy, y in copies if _name(copy) in bodies):
      raise ValueError(
        f"an op {node.op} returns one of several variables, or a variable of a loop changes"
      )
    for attribute, of in ((operands, taken), (results, values_out)):
      for i, spec in of.items():
        node.attr[attribute].list.type[i] = spec.dtype.as_datatype_enum
    shapes = node.attr["output_shapes"].list.shape if "output_shapes" in node.attr else []
    for i, spec in values_out.items():
      self.values[f"{node.name}:output:{i}"] = spec
      if shapes:
        shapes[i].CopyFrom(spec.shape.as_proto())

  def _list_of_dataset(self, node: Any, taken: Values, extra: range) -> None:
    """The last arguments of its one function, which come behind the elements."""
    (f,) = _functions(node)
    first = self._copies.arguments(f.name) - len(extra)
    values_in = {first + extra.index(i): spec for i, spec in taken.items()}
    f.name = _name(self._copies.copy(f.name, values_in)[0])
    for i, spec in taken.items():
      node.attr["Targuments"].list.type[extra.index(i)] = spec.dtype.as_datatype_enum

  def _read(self, node: Any, dtype: tf.DType | None) -> None:
    kind, name, attr = (node.op if dtype else None), node.name, node.attr
    if kind == "ReadVariableOp":
      _become(node, "Identity", {"T": dtype})
      self.renamed[f"{name}:value:0"] = f"{name}:output:0"
    elif kind == "ResourceGather":
      axis = f"{name}_axis_of_value"
      self.added.append(NodeDef(name=axis, op="Const"))
      _set(self.added[-1].attr, {"dtype": tf.int32, "value": 0})
      node.input.insert(2, f"{axis}:output:0")
      batch_dims = attr["batch_dims"].i
      _become(
        node, "GatherV2", {"Tparams": dtype, "Tindices": attr["Tindices"].type, "Taxis": tf.int32}
      )
      attr["batch_dims"].i = batch_dims
    elif kind == "ResourceGatherNd":
      _become(node, "GatherNd", {"Tparams": dtype, "Tindices": attr["Tindices"].type})
    elif kind == "VariableShape":
      _become(node, "Shape", {"T": dtype, "out_type": attr["out_type"].type or tf.int32})
    elif kind == "VarIsInitializedOp":
      del node.input[0]
      _become(node, "Const", {"dtype": tf.bool, "value": True})
      self.renamed[f"{name}:is_initialized:0"] = f"{name}:output:0"
    else:
      raise ValueError(f"an op {node.op} takes a variable, and does more than read it")


def _take(definition: Any, values: Values) -> None:
  """Makes arguments of a definition values."""
  shapes = definition.attr["_input_shapes"].list.shape if "_input_shapes" in definition.attr else []
  for i, spec in values.items():
    argument = definition.signature.input_arg[i]
    argument.type = spec.dtype.as_datatype_enum
    argument.ClearField("handle_data")
    definition.arg_attr.pop(i, None)
    definition.resource_arg_unique_id.pop(i, None)
    if shapes:
      shapes[i].CopyFrom(spec.shape.as_proto())


def _become(node: Any, kind: str, attributes: Mapping[str, Any]) -> None:
  """Makes a node an op of another type; attributes of the runtime remain."""
  for name in [name for name in node.attr if not name.startswith("_")]:
    del node.attr[name]
  node.op = kind
  _set(node.attr, attributes)


def _set(attr: Any, attributes: Mapping[str, Any]) -> None:
  for name, value in attributes.items():
    if name == "value":
      attr[name].tensor.CopyFrom(tf.make_tensor_proto(value))
    else:
      attr[name].type = tf.as_dtype(value).as_datatype_enum


def _name(function: Any) -> str:
  return tf.compat.as_str(function.name)


def _with_children(function: Any) -> Iterator[Any]:
  yield function
  for child in getattr(function, "children", ()):
    yield from _with_children(child)


def _extra(node: Any) -> range | None:
  """Which operands of an op of tf.data are those that its function captures."""
  if "Targuments" not in node.attr or len(_functions(node)) != 1:
    return None
  start = 0
  for argument in functions.operands_of(node.op):
    lengths = [len(node.attr[name].list.type) for name in [argument.type_list_attr] if name]
    count = (
      lengths[0] if lengths else node.attr[argument.number_attr].i if argument.number_attr else 1
    )
    if argument.name == "other_arguments":
      return range(start, start + count)
    start += count
  return None


def _functions(node: Any) -> list[Any]:
  """The functions that a node calls."""
  return [f for value in node.attr.values() for f in (value.func, *value.list.func) if f.name]
