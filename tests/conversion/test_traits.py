"""`jax2tf/traits.py` knows every primitive with a rule that is of its kinds."""

from __future__ import annotations

from typing import Any

import numpy as np
from jax._src.interpreters import batching
from jax.extend.core import Primitive

import jax2tf.conversion  # noqa: F401  (registers the rules)
from jax2tf import registry, traits
from tests.support.primitive_traces import PRIMITIVES

WITH_A_RULE = {primitive for primitive in PRIMITIVES if registry.rule_for(primitive)}
# What JAX batches like an elementwise primitive and is none: it moves, hashes or marks its operand.
OTHERS = {
  "bitcast_convert_type",  # its result may have another shape
  *("random_clone", "random_seed", "random_unwrap"),
  *(primitive.name for primitive in traits.HASHES),
  *("copy", "from_edtype", "stage", "tie", "to_edtype"),
  *("with_memory_space_constraint", "xla_metadata_value"),
}
# Those that JAX batches by rules of their own.
BATCHED_OTHERWISE = {"add_any", "clamp", "convert_element_type", "select_n"}


def batched_by(*rules: Any) -> set[str]:
  """The names of the primitives with a rule that JAX batches so."""
  found = {p: batching.fancy_primitive_batchers.get(p) for p in WITH_A_RULE}
  return {p.name for p, rule in found.items() if getattr(rule, "func", None) in rules}


def names(primitives: frozenset[Primitive]) -> set[str]:
  return {primitive.name for primitive in primitives}


def test_every_elementwise_primitive_is_known() -> None:
  by_element = batched_by(batching.vectorized_batcher, batching.broadcast_batcher) - OTHERS
  assert by_element | BATCHED_OTHERWISE == names(traits.ELEMENTWISE), "give it a line in traits.py"


def test_every_elementwise_primitive_of_several_operands_is_known() -> None:
  of_several = batched_by(batching.broadcast_batcher) - OTHERS
  assert of_several | BATCHED_OTHERWISE - {"convert_element_type"} == names(traits.OF_SEVERAL)


def test_every_kind_has_rules() -> None:
  kinds = [value for value in vars(traits).values() if isinstance(value, frozenset)]
  assert len(kinds) > 10
  for kind in kinds:
    assert kind <= WITH_A_RULE


def test_the_commutative_primitives() -> None:
  """By numbers: the two operands of these may be swapped, and of no others."""
  found = set()
  for primitive in traits.OF_SEVERAL:
    swapped = [pair for x, y in OPERANDS if (pair := _in_both_orders(primitive, x, y))]
    if swapped and all(np.array_equal(a, b, equal_nan=True) for a, b in swapped):
      found.add(primitive)
  assert found == traits.COMMUTATIVE


OPERANDS = [
  (np.array([1, 0, 5, 7], dtype), np.array([3, 2, 1, 2], dtype))
  for dtype in ("float32", "int32", "uint32", "bool")
]


def _in_both_orders(primitive: Primitive, x: np.ndarray, y: np.ndarray) -> Any:
  try:
    return primitive.bind(x, y), primitive.bind(y, x)
  except (AssertionError, TypeError, ValueError):  # it takes other operands
    return None
