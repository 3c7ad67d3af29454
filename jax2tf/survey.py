"""Which TensorFlow ops a function becomes, and which of the user's lines asks for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from jax2tf import _tf_compat, interpreter, lines, program
from jax2tf import lowering as _lowering  # noqa: F401  (registers the lowering rules)
from jax2tf.dtypes import physical
from jax2tf.interpreter import Lower, Lowering
from jax2tf.program import Places
from jax2tf.trace import Traceable


@dataclass(frozen=True, kw_only=True)
class _Recording(Lowering):
  """A lowering that notes who asked for each op: the innermost equation, for it is the first to look."""

  found: dict[tf.Operation, tuple[str, str]]

  def equation(
    self, eqn: Any, operands: list[tf.Tensor], caller: str, places: Places = (), inner: Lower | None = None
  ) -> Sequence[tf.Tensor]:
    """As `Lowering.equation`."""
    graph = _tf_compat.current_graph()
    assert graph is not None
    before = len(graph.get_operations())
    results = super().equation(eqn, operands, caller, places, inner)
    for op in graph.get_operations()[before:]:
      self.found.setdefault(op, (eqn.primitive.name, lines.user_line(eqn, caller)))
    return results


@dataclass(frozen=True)
class Use:
  """One kind of op in one place: its type, the primitive that it came from, the user's line."""

  op: str
  primitive: str
  where: str


def ops_of(fun: Callable[..., Any], *specs: Any) -> list[Use]:
  """The ops of the forward graph of `fun`, each use once, in the order of the equations.

  Args:
    fun: a JAX function.
    specs: a tree of jax.ShapeDtypeStruct for each positional argument, with dimensions of `jax.export.symbolic_shape` or without.

  Raises:
    NotImplementedError: primitives that have no lowering, all at once.
  """
  traced = Traceable.of(fun).trace(specs, {}, {})
  ready = program.prepare(traced.jaxpr, traced.name)
  found: dict[tf.Operation, tuple[str, str]] = {}

  def lower(*operands: tf.Tensor) -> list[tf.Tensor]:
    lowering = _Recording(interpreter.dimension_values(lambda lower: traced.dimensions.values(operands, lower)), found=found)
    return lowering.emit(lines.definition(traced.jaxpr), ready, *operands)

  specs_of = [
    tf.TensorSpec([d if isinstance(d, int) else None for d in shape], dtype) for shape, dtype in map(physical, traced.jaxpr.in_avals)
  ]
  tf.function(lower, autograph=False).get_concrete_function(*specs_of)
  return list(dict.fromkeys(Use(op.type, *asked) for op, asked in found.items()))
