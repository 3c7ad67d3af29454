"""Which primitive is lowered by which rule.

A rule is `(ctx, *operands, **params) -> tensor or tensors`. It is keyed by the primitive object and
registered where it stands, so a primitive that JAX renames breaks at our import.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from jax.extend.core import Primitive

Rule = Callable[..., Any]

# Params that say where a value lives or how exact it may be, never what it is; no rule sees them.
PLACEMENT_PARAMS = frozenset({"sharding", "out_sharding", "accuracy"})

# name -> (reason, advice): primitives that we know and refuse.
UNSUPPORTED: dict[str, tuple[str, str]] = {}

# Primitives that the native lowering leaves to their graph rules -> the tf.Variables that one with these params captures.
IN_TENSORFLOW: dict[Primitive, Callable[..., Sequence[tf.Variable]]] = {}

_RULES: dict[Primitive, Rule] = {}
_ON_KEYS: set[Primitive] = set()


def lowers(*primitives: Primitive | None, on_keys: bool = False) -> Callable[[Rule], Rule]:
  """Registers the decorated lowering rule, `(ctx, *operands, **params) -> tensor`, or tensors for a primitive with multiple results.

  It is for the graph lowering; the native one uses JAX's own rules. docs/own-primitives.md has an example.

  Args:
    primitives: what the rule lowers. None stands for a primitive that this JAX does not have.
    on_keys: the rule takes typed PRNG keys as their physical uint32 data. Other primitives reach
      key arrays through a vmap over the physical axis, which the interpreter adds.

  Raises:
    TypeError: one of them is no primitive.
    ValueError: one of them has a rule already.
  """
  present = [primitive for primitive in primitives if primitive is not None]
  for primitive in present:
    if not isinstance(primitive, Primitive):
      raise TypeError(f"lowers takes primitives (jax.extend.core.Primitive), not {primitive!r}")

  def register(rule: Rule) -> Rule:
    for primitive in present:
      if (known := _RULES.get(primitive)) is not None:
        raise ValueError(f"primitive '{primitive}' has a lowering rule already: {getattr(known, '__module__', '')} {known}")
    _RULES.update(dict.fromkeys(present, rule))
    if on_keys:
      _ON_KEYS.update(present)
    return rule

  return register


def stays_in_tensorflow(table: Mapping[Primitive, Callable[..., Sequence[tf.Variable]]]) -> None:
  """Has the native lowering leave these to their graph rules: they call TensorFlow, which a module of XLA's cannot.

  Args:
    table: primitive -> a function of its params that gives the floating point and complex tf.Variables that it captures.
  """
  IN_TENSORFLOW.update(table)


def lower_directly(table: Mapping[Primitive | None, Callable[..., Any]]) -> None:
  """Registers primitives that are one TensorFlow op on the same operands, without params."""
  for primitive, op in table.items():
    lowers(primitive)(lambda ctx, *operands, op=op: op(*operands))


def rule_for(primitive: Primitive) -> Rule | None:
  """The lowering rule of a primitive, or None."""
  return _RULES.get(primitive)


def takes_keys(primitive: Primitive) -> bool:
  """Whether the rule of this primitive handles physical key data by itself."""
  return primitive in _ON_KEYS
