"""The table from StableHLO's ops to functions of JAX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from jax2tf.stablehlo.graph import Block, Op


class Evaluation(Protocol):
  """What a rule may ask for while the module is traced; `evaluation.Scope` is one."""

  def run(self, block: Block, operands: Sequence[Any]) -> list[Any]:
    """The results of a region, whose values may be static."""

  def bound(self, block: Block) -> Callable[..., list[Any]]:
    """A region as a function of arrays, which closes over the values around it."""

  def call(self, name: str, operands: Sequence[Any]) -> list[Any]:
    """The results of a function of the module."""

  def block_of(self, name: str) -> Block:
    """The body of a function of the module."""

  def value(self, value: Any) -> Any:
    """What is known of a value of the graph; None outside of this scope."""


@dataclass(frozen=True)
class Refusal:
  """Why an op cannot become JAX's, as a clause, and what the user can do."""

  reason: str
  advice: str = ""


ACROSS_DEVICES = Refusal(
  "it communicates between devices",
  "export the function for one device: without shard_map, or with a mesh of one device",
)


class RefusedError(Exception):
  """A rule refuses its op; the argument is a `Refusal`."""

  def __init__(self, reason: str, advice: str = ""):
    super().__init__(reason)
    self.refusal = Refusal(reason, advice)


@dataclass(frozen=True)
class Rule:
  """How an op becomes JAX's.

  Attributes:
    apply: `(evaluation, op, *operands)`, which gives a result, or a list of all.
    is_of_values: whether operands may be `Sizes`. Else they are arrays.
    check: gives the refusal of an op that is known before the function is traced, or None.
  """

  apply: Callable[..., Any]
  is_of_values: bool = False
  check: Callable[[Op], Refusal | None] | None = None


OPS: dict[str, Rule] = {}  # "stablehlo.add", "chlo.erf"
CUSTOM_CALLS: dict[str, Rule] = {}
COMPOSITES: dict[str, Rule] = {}  # of the others, the decomposition is called

Check = Callable[[Op], Refusal | None]


def rule(
  *names: str,
  table: dict[str, Rule] = OPS,
  dialect: str = "stablehlo",
  values: bool = False,
  check: Check | None = None,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
  """Registers the function below it for ops, custom calls or composites."""

  def register(function: Callable[..., Any]) -> Callable[..., Any]:
    for name in names:
      key = f"{dialect}.{name}" if table is OPS else name
      assert key not in table, key
      table[key] = Rule(function, values, check)
    return function

  return register


def plainly(function: Callable[..., Any]) -> Rule:
  """The rule of an op that is one function of its operands."""
  return Rule(lambda evaluation, op, *operands: function(*operands))


def rule_of(op: Op) -> Rule | None:
  """The rule of an op; None for one without."""
  if op.name == "custom_call":
    return CUSTOM_CALLS.get(op.attributes["call_target_name"])
  if op.name == "composite" and op.attributes["name"] in COMPOSITES:
    return COMPOSITES[op.attributes["name"]]
  dialect = {"mhlo": "stablehlo", "func": "stablehlo"}.get(op.dialect, op.dialect)
  return OPS.get(f"{dialect}.{op.name}")
