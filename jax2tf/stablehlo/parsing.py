"""Parses a StableHLO module: a portable artifact, MLIR bytecode or MLIR text."""

from __future__ import annotations

import re
from typing import Any, BinaryIO

from jax.extend.mlir import ir, passmanager
from jax.extend.mlir.dialects import stablehlo

from jax2tf._jax_compat import exports
from jax2tf.stablehlo import attributes
from jax2tf.stablehlo.graph import Block, Function, Module, Op, Value

BYTECODE = b"ML\xefR"
_PORTABLE = b"StableHLO_v"
# Of regions, and of brackets in a text. JAX's own modules have fewer than ten levels; MLIR's parser
# recurs, and ends the process when its stack overflows.
DEEPEST = 200
_RETURNS = frozenset({"func.return", "stablehlo.return", "mhlo.return"})


class UnreadableError(ValueError):
  """MLIR cannot parse the module; str() says why."""


def parse(source: bytes | str) -> Module:
  """The module of a portable artifact, of MLIR bytecode, or of MLIR text.

  Raises:
    UnreadableError: it is none of these, or it nests too deep.
  """
  with exports.own_ir_context() as context:
    module = _parsed(context, source)
    del source  # what follows copies the constants
    return _converted(module)


def canonical(source: bytes | str, written: BinaryIO) -> None:
  """Writes the module as MLIR bytecode of this process' jaxlib, verified.

  Raises:
    UnreadableError: as `parse`; then nothing is written.
  """
  with exports.own_ir_context() as context:
    module = _parsed(context, source)
    del source
    _converted(module)
    module.operation.write_bytecode(written)


def _converted(module: Any) -> Module:
  try:
    return _Conversion().module(module)
  except UnreadableError:
    raise
  except (RuntimeError, ValueError, TypeError, LookupError, OverflowError) as error:
    # The bindings say so of attributes that are damaged, such as a text that is not UTF-8.
    raise UnreadableError(f"it has a damaged part ({_first_lines(error)})") from None


def _parsed(context: Any, source: bytes | str) -> Any:
  if isinstance(source, bytes) and not source.startswith(BYTECODE):
    try:
      source = source.decode()
    except UnicodeDecodeError:
      raise UnreadableError("it is neither MLIR bytecode nor a text in UTF-8") from None
  if isinstance(source, str):
    _check_brackets(source)
  try:
    if isinstance(source, bytes) and _PORTABLE in source[:64]:
      return _portable(context, source)
    module = ir.Module.parse(source, context)
    if any(view.operation.name.startswith("vhlo.") for view in module.body.operations):
      _from_vhlo(module)
    if not module.operation.verify():
      raise UnreadableError("MLIR's verifier refuses the module")
    return module
  except UnreadableError:
    raise
  except Exception as error:  # the bindings raise their own MLIRError, ValueError and others
    raise UnreadableError(_first_lines(error)) from None


def _portable(context: Any, source: bytes) -> Any:
  try:
    return stablehlo.deserialize_portable_artifact(context, source)
  except TypeError:  # a jaxlib whose function takes no context
    return ir.Module.parse(stablehlo.deserialize_portable_artifact_str(source), context)


def _from_vhlo(module: Any) -> None:
  """Replaces the ops of VHLO, in which portable artifacts are written, by those of StableHLO."""
  stablehlo.register_stablehlo_passes()
  passes = passmanager.PassManager.parse("builtin.module(vhlo-legalize-to-stablehlo)")
  passes.run(module.operation)


def _first_lines(error: Exception) -> str:
  lines = [line.strip() for line in str(error).splitlines() if line.strip()]
  return "; ".join(lines[:3])[:400] or type(error).__name__


def _check_brackets(text: str) -> None:
  depth = 0
  for bracket in re.finditer(r'"(?:[^"\\]|\\.)*"|//[^\n]*|->|[<({\[]|[>)}\]]', text):
    mark = bracket[0]
    if mark in "<({[":
      depth += 1
      if depth > DEEPEST:
        raise UnreadableError(f"its brackets nest deeper than {DEEPEST} levels")
    elif mark in ">)}]":
      depth -= 1


class _Conversion:
  """Makes our graph of MLIR's module."""

  def __init__(self) -> None:
    self._wheres: dict[str, str] = {}

  def module(self, module: Any) -> Module:
    functions: dict[str, Function] = {}
    for view in module.body.operations:
      if view.operation.name.startswith("sdy."):  # a mesh
        continue
      if view.operation.name != "func.func":
        raise UnreadableError(f"the module has an op {view.operation.name} where functions stand")
      function = self._function(view.operation)
      functions[function.name] = function
    if not functions:
      raise UnreadableError("the module has no functions")
    return Module(functions, attributes.dictionary(module.operation.attributes))

  def _function(self, op: Any) -> Function:
    described = {
      name: attributes.converted(op.attributes[name])
      for name in ("sym_name", "sym_visibility", "arg_attrs", "res_attrs")
      if name in op.attributes
    }
    if not len(op.regions[0].blocks):
      raise UnreadableError(f"the function {described['sym_name']} has no body")
    entry = op.regions[0].blocks[0]
    names = [_name_of(argument) for argument in entry.arguments]
    block = self._block(op.regions[0], {}, 1)
    return Function(
      described["sym_name"],
      block,
      described.get("arg_attrs") or [{} for _ in block.arguments],
      described.get("res_attrs") or [{} for _ in block.results],
      names,
      described.get("sym_visibility") != "private",
    )

  def _block(self, region: Any, values: dict[Any, Value], depth: int) -> Block:
    if depth > DEEPEST:
      raise UnreadableError(f"its regions nest deeper than {DEEPEST} levels")
    if len(region.blocks) != 1:
      raise UnreadableError(f"a region of {len(region.blocks)} blocks; StableHLO has one each")
    block = region.blocks[0]
    arguments = [_value(each, None, index) for index, each in enumerate(block.arguments)]
    values.update(zip(block.arguments, arguments, strict=True))
    ops: list[Op] = []
    for view in block.operations:
      op = view.operation
      operands = [values[each] for each in op.operands]
      for operand in operands:
        operand.uses += 1
      if op.name in _RETURNS or op.name.endswith(".return"):
        return Block(arguments, ops, operands)
      made = self._op(op, operands, values, depth)
      values.update(zip(op.results, made.results, strict=True))
      ops.append(made)
    return Block(arguments, ops, [])

  def _op(self, op: Any, operands: list[Value], values: dict[Any, Value], depth: int) -> Op:
    dialect, _, name = op.name.partition(".")
    made = Op(dialect, name, operands, [], {}, [], self._where(op.location))
    made.results = [_value(each, made, index) for index, each in enumerate(op.results)]
    if op.name == "stablehlo.constant":
      try:
        made.attributes = {"value": attributes.constant(op)}
      except ValueError:
        made.attributes = {}
      return made
    made.attributes = attributes.dictionary(op.attributes)
    made.blocks = [self._block(region, values, depth + 1) for region in op.regions if _has(region)]
    return made

  def _where(self, location: Any) -> str:
    text = str(location)
    if text not in self._wheres:
      self._wheres[text] = _line_of(text)
    return self._wheres[text]


def _has(region: Any) -> bool:
  return len(region.blocks) > 0


def _value(value: Any, owner: Op | None, index: int) -> Value:
  return Value(attributes.tensor_type(value.type), str(value.type), owner, index)


def _name_of(argument: Any) -> str:
  """The name in the location of a function's argument, such as params['w']."""
  match = re.match(r'loc\("([^"]+)"\)$', str(argument.location))
  return match[1] if match else ""


def _line_of(location: str) -> str:
  """`file:line` of the innermost frame, else what the location says."""
  frame = re.search(r'"([^"]+)":(\d+)', location)
  if frame and frame[1] == "-":
    return f"line {frame[2]} of the text"
  if frame:
    return f"{frame[1]}:{frame[2]}"
  named = re.search(r'"([^"]+)"', location)
  return named[1] if named else ""
