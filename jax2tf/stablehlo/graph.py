"""A StableHLO module as plain Python objects, which outlive MLIR's context."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Tensor:
  """The type of a tensor.

  Attributes:
    shape: its sizes; None stands for one that is not known before the call.
    dtype: None if JAX has no such elements.
    text: the type as MLIR writes it.
  """

  shape: tuple[int | None, ...]
  dtype: np.dtype[Any] | None
  text: str


@dataclass(eq=False)
class Value:
  """A value of a block: one of its arguments, or a result of one of its ops.

  Attributes:
    type: None for a token, a tuple and whatever else is no tensor.
    owner: the op whose result it is; None for an argument.
    index: which argument or result.
    uses: how many operands it is.
  """

  type: Tensor | None
  text: str
  owner: Op | None = None
  index: int = 0
  uses: int = 0

  @property
  def shape(self) -> tuple[int | None, ...]:
    assert self.type is not None, self.text
    return self.type.shape

  @property
  def dtype(self) -> np.dtype[Any]:
    assert self.type is not None and self.type.dtype is not None, self.text
    return self.type.dtype

  def may_be(self, shape: Sequence[Any], dtype: Any) -> bool:
    """Whether a tensor may be an array of this dtype and shape, of which sizes may be symbolic."""
    assert self.type is not None, self.text
    return (
      self.type.dtype == dtype
      and len(self.shape) == len(shape)
      and all(
        wanted is None or not isinstance(got, int) or wanted == got
        for wanted, got in zip(self.shape, shape, strict=True)
      )
    )


@dataclass(eq=False)
class Op:
  """An operation.

  Attributes:
    dialect: such as "stablehlo".
    name: such as "add", without the dialect.
    attributes: as `attributes.converted` gives them.
    where: the line of the user's code, or what else the artifact says of its origin.
  """

  dialect: str
  name: str
  operands: list[Value]
  results: list[Value]
  attributes: dict[str, Any]
  blocks: list[Block]
  where: str

  def get(self, name: str, default: Any = None) -> Any:
    """An attribute."""
    return self.attributes.get(name, default)


@dataclass(eq=False)
class Block:
  """The only block of a region: its last op, which returns, stands in `results`."""

  arguments: list[Value]
  ops: list[Op] = field(default_factory=list)
  results: list[Value] = field(default_factory=list)


@dataclass(eq=False)
class Function:
  """A function of a module.

  Attributes:
    argument_attributes: of each argument, such as {"jax.global_constant": "b"}.
    result_attributes: of each result, such as {"jax.result_info": "[0]"}.
  """

  name: str
  block: Block
  argument_attributes: list[dict[str, Any]]
  result_attributes: list[dict[str, Any]]
  argument_names: list[str]
  is_public: bool


@dataclass(eq=False)
class Module:
  """The functions of a module, by name."""

  functions: dict[str, Function]
  attributes: dict[str, Any]

  @property
  def main(self) -> Function:
    """What a caller of the module calls."""
    public = [function for function in self.functions.values() if function.is_public]
    return self.functions.get("main") or [*public, *self.functions.values()][0]


def walk(block: Block) -> Iterator[Op]:
  """The ops of a block and of the blocks inside it."""
  for op in block.ops:
    yield op
    for inner in op.blocks:
      yield from walk(inner)


def reachable(module: Module, known: Collection[str] = ()) -> list[Function]:
  """The functions that a call of the module may reach, the main function first; not the
  decompositions of composites that are `known`."""
  names, seen = [module.main.name], {module.main.name}
  for name in names:
    for op in walk(module.functions[name].block):
      is_known = op.name == "composite" and op.attributes["name"] in known
      for callee in () if is_known else callees(op):
        if callee in module.functions and callee not in seen:
          seen.add(callee)
          names.append(callee)
  return [module.functions[name] for name in names]


def callees(op: Op) -> list[str]:
  """The functions that an op names."""
  if op.name == "call":
    return [op.attributes["callee"]]
  if op.name == "composite":
    return [op.attributes["decomposition"]]
  return list(op.get("called_computations", ()))


def circle(module: Module) -> str | None:
  """The name of a function that calls itself, by way of others or not; None if there is none."""
  called = {
    name: {callee for op in walk(function.block) for callee in callees(op)}
    for name, function in module.functions.items()
  }
  # A function whose callees are all left out cannot be in a circle.
  while left := {name for name, names in called.items() if not names & called.keys()}:
    called = {name: names for name, names in called.items() if name not in left}
  return next(iter(called), None)
