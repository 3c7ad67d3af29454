"""An `Xla*` op, as JAX wrote them until 0.4.38, as a StableHLO module of one op.

The inputs that XLA needs as constants become constants of the module, and what is a number in a
call alone becomes a dimension variable: that of an array without elements, which has one size more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import tensorflow as tf
from jax import export

from jax2tf.messages import Message
from jax2tf.stablehlo import loading  # noqa: F401  (registers the rules)
from jax2tf.stablehlo.artifacts import Artifact, Aval, Convention
from jax2tf.stablehlo.functions import Function
from jax2tf.stablehlo.graph import Block, Module, Op, Tensor, Value
from jax2tf.stablehlo.graph import Function as ModuleFunction

from . import scalars
from .places import Place
from .programs import Program

Word = int | str


class Operation:
  """A node, and the module that is made of it.

  Args:
    node: a NodeDef.
    place: where it stands.
    functions: the library, {name: FunctionDef}.
  """

  def __init__(self, node: Any, place: Place, functions: Mapping[str, Any]):
    self.node, self._place, self._functions = node, place, functions
    self.inputs = [name for name in node.input if not name.startswith("^")]
    self._block = Block([])
    self._shapes: list[list[Word]] = []
    self._avals: list[Any] = []
    self._sources: list[tuple[int, int | None]] = []  # of each argument: the input, the entry
    self._lengths: dict[int, list[Word]] = {}
    self._constraints: list[str] = []
    self._regions: dict[str, Block] = {}
    # Whether TensorFlow's ops for it take sizes that XLA refuses, or are wrong for sizes of 0.
    self.needs_check = False
    self._names = (f"d{number}" for number in range(10**6))

  def refuse(self, reason: str) -> Any:
    """Raises what says why the node cannot be opened."""
    raise NotImplementedError(
      Message(
        problem=f"{self.node.op} ({self.node.name!r}) cannot be opened: {reason}",
        advice="convert the model's JAX function with jax2tf.convert",
      )
    )

  # Attributes.

  def dtype(self, attribute: str) -> Any:
    """An attribute that is a type."""
    return tf.as_dtype(self.node.attr[attribute].type).as_numpy_dtype

  def dtypes(self, attribute: str) -> list[Any]:
    """An attribute that is a list of types."""
    return [tf.as_dtype(each).as_numpy_dtype for each in self.node.attr[attribute].list.type]

  def region(self, attribute: str) -> Block:
    """An attribute that is a function of scalars."""
    return scalars.block(self._functions, self.node.attr[attribute].func.name)

  # Inputs.

  def data(self, index: int, dtype: Any) -> Value:
    """An input as an argument."""
    shape = self._place.shape(self.inputs[index])
    if shape is None:
      return self.refuse(f"the number of dimensions of its input {index} is not in the graph")
    words: list[Word] = [next(self._names) if size is None else size for size in shape]
    return self._argument(words, dtype, (index, None))

  def _argument(self, words: list[Word], dtype: Any, source: tuple[int, int | None]) -> Value:
    value = Value(None, "", None, len(self._block.arguments))
    self._block.arguments.append(value)
    self._shapes.append(words)
    self._avals.append(np.dtype(dtype))
    self._sources.append(source)
    return value

  def numbers(self, index: int) -> list[int]:
    """An input that is a constant.

    Raises:
      NotImplementedError: it is not.
    """
    entries = self._place.entries(self.inputs[index])
    if entries is None or None in entries.flat:
      return self.refuse(f"its input {index} depends on sizes or data, where XLA needs numbers")
    return [int(each) for each in entries.flat]

  def constant(self, index: int) -> Value | None:
    """An input that is a constant as one of the module; None for another one."""
    array = self._place.constant(self.inputs[index])
    return None if array is None else self.literal(array)

  def scalar(self, index: int, dtype: Any) -> Value:
    """An input that is a constant, or data."""
    return self.constant(index) or self.data(index, dtype)

  def sizes(self, index: int) -> Value:
    """An input of integers as a value whose entries are constants or dimension variables."""
    entries = self._place.entries(self.inputs[index])
    if entries is None:
      return self.refuse(f"the number of entries of its input {index} is not in the graph")
    self._lengths[index] = list(entries.flat)
    if None not in entries.flat:
      return self.literal(entries.astype(np.int32))
    parts = [self._size(index, place, entry) for place, entry in enumerate(entries.flat)]
    rows = [self.op("reshape", [part], np.int32, (1,)) for part in parts]
    joined = self.op("concatenate", rows, np.int32, (len(rows),), {"dimension": 0})
    return self.op("reshape", [joined], np.int32, entries.shape)

  def _size(self, index: int, place: int, entry: int | None) -> Value:
    if entry is not None:
      return self.literal(np.array(entry, np.int32))
    # One more, because a dimension variable is at least 1, and a size of XLA may be 0.
    name = next(self._names)
    carrier = self._argument([name, 0], np.int8, (index, place))
    self._lengths[index][place] = f"{name} - 1"
    size = self.op("get_dimension_size", [carrier], np.int32, (), {"dimension": 0})
    return self.op("subtract", [size, self.literal(np.array(1, np.int32))], np.int32, ())

  # Sizes.

  def words(self, value: Value) -> list[Word]:
    """The sizes of an argument: numbers, and names of dimension variables."""
    return self._shapes[value.index]

  def same(self, left: Value, axis: int, right: Value, other: int) -> None:
    """Says that two sizes are equal."""
    one, two = self.words(left)[axis], self.words(right)[other]
    kept, gone = (one, two) if isinstance(one, int) else (two, one)
    for words in self._shapes:
      words[:] = [kept if word == gone else word for word in words]

  def same_shape(self, values: Sequence[Value]) -> None:
    for value in values[1:]:
      for axis in range(len(self.words(value))):
        self.same(values[0], axis, value, axis)

  def at_most(
    self, smaller: Sequence[Word], larger: Sequence[Word], *, is_checked: bool = False
  ) -> None:
    """Says that sizes are not above others; `is_checked` if TensorFlow's ops refuse larger ones."""
    for one, two in zip(smaller, larger, strict=True):
      if one not in (0, 1, two) and not (isinstance(one, int) and isinstance(two, int)):
        self._constraints.append(f"{one} <= {two}")
        self.needs_check |= not is_checked

  def lengths(self, index: int) -> list[Word]:
    """The entries of an input that `sizes` has read."""
    return self._lengths[index]

  def iota_dimension(self, index: int) -> int | None:
    """The dimension along which an input counts; None for another input."""
    return self._place.iota_dimension(self.inputs[index])

  def iota(self, like: Value, dtype: Any, dimension: int) -> Value:
    """An array of the shape of an argument that counts along a dimension."""
    rows = []
    for axis in range(len(self.words(like))):
      size = self.op("get_dimension_size", [like], np.int32, (), {"dimension": axis})
      rows.append(self.op("reshape", [size], np.int32, (1,)))
    shape = self.op("concatenate", rows, np.int32, (len(rows),), {"dimension": 0})
    return self.op(
      "dynamic_iota", [shape], dtype, self.shape_of(like), {"iota_dimension": dimension}
    )

  # The module.

  def literal(self, array: np.ndarray[Any, Any]) -> Value:
    return self.op("constant", [], array.dtype, array.shape, {"value": array})

  def op(
    self,
    name: str,
    operands: Sequence[Value],
    dtype: Any,
    shape: Sequence[int | None],
    attributes: Mapping[str, Any] | None = None,
    blocks: Sequence[Block] = (),
  ) -> Value:
    """Adds an op of one result."""
    return self.ops(name, operands, [(dtype, shape)], attributes, blocks)[0]

  def ops(
    self,
    name: str,
    operands: Sequence[Value],
    results: Sequence[tuple[Any, Sequence[int | None]]],
    attributes: Mapping[str, Any] | None = None,
    blocks: Sequence[Block] = (),
  ) -> list[Value]:
    """Adds an op of any number of results, of these dtypes and shapes."""
    for operand in operands:
      operand.uses += 1
    where = f"the node {self.node.name!r}"
    made = Op("stablehlo", name, list(operands), [], dict(attributes or {}), list(blocks), where)
    made.results = [_value(dtype, shape, made, k) for k, (dtype, shape) in enumerate(results)]
    self._block.ops.append(made)
    return made.results

  def result(self, index: int = 0) -> tuple[int | None, ...]:
    """The sizes of an output."""
    shape = self._place.shape(f"{self.node.name}:{index}")
    if shape is None:
      return self.refuse("the number of dimensions of its result is not in the graph")
    return shape

  def shape_of(self, value: Value) -> tuple[int | None, ...]:
    """The sizes of an argument as the type of a result has them."""
    return tuple(word if isinstance(word, int) else None for word in self.words(value))

  def callee(self, region: Block) -> str:
    """The name of a new function of the module, of a region."""
    name = f"computation_{len(self._regions)}"
    self._regions[name] = region
    return name

  def program(self, results: Sequence[Value]) -> Program:
    """The module as a JAX function."""
    for result in results:
      result.uses += 1
    self._block.results = list(results)
    for value, words, dtype in zip(self._block.arguments, self._shapes, self._avals, strict=True):
      known = tuple(word if isinstance(word, int) else None for word in words)
      value.type = Tensor(known, dtype, f"tensor<{known} x {dtype.name}>")
    artifact = Artifact(
      self.node.op,
      Module(self._functions_of_module(), {}),
      self._convention(results),
      constraints=tuple(dict.fromkeys(self._constraints)),
    )
    inputs = list(dict.fromkeys(index for index, _ in self._sources))
    return Program(
      Function(artifact),
      tuple(inputs),
      tuple(self._spec(index) for index in inputs),
      tuple((inputs.index(index), entry) for index, entry in self._sources),
      checks_sizes=self._checks_sizes(),
    )

  def _checks_sizes(self) -> bool:
    names = [word for words in self._shapes for word in words if isinstance(word, str)]
    return self.needs_check or len(set(names)) < len(names)

  def _functions_of_module(self) -> dict[str, ModuleFunction]:
    blocks = {"main": self._block, **self._regions}
    return {
      name: ModuleFunction(
        name,
        each,
        [{} for _ in each.arguments],
        [{} for _ in each.results],
        ["" for _ in each.arguments],
        name == "main",
      )
      for name, each in blocks.items()
    }

  def _convention(self, results: Sequence[Value]) -> Convention:
    scope = export.SymbolicScope(tuple(dict.fromkeys(self._constraints)))
    avals = tuple(
      Aval(tuple(export.symbolic_shape(",".join(map(str, words)), scope=scope)), dtype)
      for words, dtype in zip(self._shapes, self._avals, strict=True)
    )
    return Convention(
      in_tree=jax.tree.structure((tuple(range(len(avals))), {})),
      in_avals=avals,
      out_tree=jax.tree.structure(tuple(range(len(results)))),
      out_avals=tuple(Aval(result.shape, result.dtype) for result in results),
      platforms=(),
      kept=tuple(range(len(avals))),
      devices=1,
    )

  def _spec(self, index: int) -> tf.TensorSpec:
    if (index, None) in self._sources:
      argument = self._sources.index((index, None))
      sizes = [word if isinstance(word, int) else None for word in self._shapes[argument]]
      return tf.TensorSpec(sizes, self._avals[argument])
    entries = self._place.entries(self.inputs[index])
    assert entries is not None  # `sizes` has read them
    integers = self.node.attr["Tindices" if "Tindices" in self.node.attr else "Tshape"].type
    return tf.TensorSpec(entries.shape, tf.as_dtype(integers))


def _value(dtype: Any, shape: Sequence[int | None], owner: Op, index: int) -> Value:
  text = f"tensor<{list(shape)} x {np.dtype(dtype).name}>"
  return Value(Tensor(tuple(shape), np.dtype(dtype), text), text, owner, index)


RULES: dict[str, Callable[[Operation], list[Value]]] = {}


def rule(*names: str) -> Callable[..., Any]:
  """Registers the function below it, which gives the results of a node."""

  def register(function: Callable[[Operation], list[Value]]) -> Callable[..., Any]:
    RULES.update(dict.fromkeys(names, function))
    return function

  return register


def of_node(node: Any, place: Place, functions: Mapping[str, Any]) -> Program:
  """The program of an `Xla*` op.

  Args:
    node: its NodeDef.
    place: where it stands.
    functions: the library, {name: FunctionDef}.

  Raises:
    NotImplementedError: there is no rule for it, or it has inputs or functions that JAX lacks.
  """
  if node.op not in RULES:
    raise NotImplementedError(
      Message(
        problem=f"{node.op} ({node.name!r}) cannot be opened: it is none of the ops that JAX wrote",
        advice="convert the model's JAX function with jax2tf.convert",
      )
    )
  operation = Operation(node, place, functions)
  try:
    return operation.program(RULES[node.op](operation))
  except ValueError as error:
    raise NotImplementedError(f"{node.op} ({node.name!r}) cannot be opened: {error}") from error
