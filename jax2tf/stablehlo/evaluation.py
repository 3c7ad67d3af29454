"""Traces a module: each op becomes the calls of `lax` that its rule makes."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jax2tf import errors
from jax2tf.stablehlo import sizes, static_parameters
from jax2tf.stablehlo.graph import Block, Module, Op, Value
from jax2tf.stablehlo.refusals import refusal_at
from jax2tf.stablehlo.rules import RefusedError, rule_of


class Evaluator:
  """Calls the functions of a module. One serves one trace: its functions are traced once for each
  combination of static arguments."""

  def __init__(self, module: Module):
    self._module = module
    self._static = static_parameters.of(module)
    self._jitted: dict[Any, Callable[..., Any]] = {}

  def call(self, name: str, operands: Sequence[Any]) -> list[Any]:
    """The results of a function. It is a `jax.jit` of its own, so that a function with many callers
    stays one; a function of sizes alone is computed as they are."""
    needed = self._static[name]
    is_baked = [
      index in needed and sizes.is_static(operand) for index, operand in enumerate(operands)
    ]
    is_of_sizes = all(map(sizes.is_small, operands))
    if is_of_sizes or name == self._module.main.name:
      return self.run(name, operands)
    key = (
      name,
      tuple(_key(x) if baked else None for x, baked in zip(operands, is_baked, strict=True)),
    )
    if key not in self._jitted:
      self._jitted[key] = self._as_jit(name, operands, is_baked)
    passed = [sizes.array(x) for x, baked in zip(operands, is_baked, strict=True) if not baked]
    return list(self._jitted[key](*passed))

  def _as_jit(self, name: str, operands: Any, is_baked: Any) -> Callable[..., Any]:
    baked = [x if is_here else None for x, is_here in zip(operands, is_baked, strict=True)]

    def function(*arrays: Any) -> list[Any]:
      rest = iter(arrays)
      values = [x if is_here else next(rest) for x, is_here in zip(baked, is_baked, strict=True)]
      return [sizes.array(result) for result in self.run(name, values)]

    function.__name__ = function.__qualname__ = name
    return jax.jit(function)

  def run(self, name: str, operands: Sequence[Any]) -> list[Any]:
    """The results of a function, traced here."""
    return Scope(self, ChainMap()).run(self.block_of(name), operands)

  def block_of(self, name: str) -> Block:
    return self._module.functions[name].block


def _key(value: Any) -> Any:
  if isinstance(value, sizes.PerPlatform):
    return value
  if isinstance(value, sizes.Sizes):
    return tuple(value.values.flat), value.shape, value.dtype
  return value.tobytes(), value.shape, value.dtype


class Scope:
  """The values of a block and of those around it."""

  def __init__(self, evaluator: Evaluator, values: ChainMap[Value, Any]):
    self._evaluator, self._values = evaluator, values

  def run(self, block: Block, operands: Sequence[Any]) -> list[Any]:
    inner = Scope(self._evaluator, self._values.new_child())
    inner._values.update(zip(block.arguments, operands, strict=True))
    for op in block.ops:
      inner._evaluate(op)
    return [inner._values[value] for value in block.results]

  def bound(self, block: Block) -> Callable[..., list[Any]]:
    return lambda *operands: [sizes.array(result) for result in self.run(block, operands)]

  def call(self, name: str, operands: Sequence[Any]) -> list[Any]:
    return self._evaluator.call(name, operands)

  def block_of(self, name: str) -> Block:
    return self._evaluator.block_of(name)

  def value(self, value: Value) -> Any:
    return self._values.get(value)

  def _evaluate(self, op: Op) -> None:
    operands = [self._values[value] for value in op.operands]
    try:
      results = self._results(op, operands)
    except RefusedError as refused:
      raise errors.artifact_error([refusal_at(op, refused.refusal)]) from None
    except Exception as error:
      _note(error, op)
      raise
    for value, result in zip(op.results, results, strict=True):
      _check(op, value, result)
      self._values[value] = result

  def _results(self, op: Op, operands: list[Any]) -> list[Any]:
    if op.name == "constant":
      return [op.attributes["value"]]
    if op.dialect in ("stablehlo", "mhlo"):
      static = sizes.folded(op, operands)
      if static is not None:
        return [static]
    rule = rule_of(op)
    assert rule is not None, op.name  # refusals.check has let it pass
    if not rule.is_of_values:
      operands = [sizes.array(operand) for operand in operands]
    results = rule.apply(self, op, *operands)
    return list(results) if isinstance(results, list | tuple) else [results]


def _note(error: Exception, op: Op) -> None:
  """Adds to an error the innermost op that it comes from."""
  if not hasattr(error, "__notes__"):
    error.add_note(f"at {op.dialect}.{op.name} of the StableHLO module, {op.where or 'unplaced'}")


def _check(op: Op, value: Value, result: Any) -> None:
  """Compares a result with its type in the module: a rule that gives another dtype or another size
  would go on to wrong values."""
  if value.type is None or value.type.dtype is None:
    return
  shape = np.shape(result) if not hasattr(result, "shape") else result.shape
  if not value.may_be(shape, result.dtype):
    raise errors.InternalError(
      f"{op.dialect}.{op.name} at {op.where or 'an unknown place'} gave "
      f"{result.dtype}{list(shape)} where the module has {value.text}"
    )
