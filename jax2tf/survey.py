"""The TensorFlow ops of a function, and the user's line that needs each."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from jax.extend.core import primitives as P

from jax2tf import _jax_compat, _tf_compat, interpreter, lines, program
from jax2tf import lowering as _lowering  # noqa: F401  (registers the lowering rules)
from jax2tf._tf_compat import functions
from jax2tf.context import scope_name
from jax2tf.dtypes import physical
from jax2tf.graph_context import GraphContext
from jax2tf.interpreter import GraphEmitter
from jax2tf.jaxprs import Eqn, function_of, inner_jaxprs
from jax2tf.placement.devices import HERE
from jax2tf.trace import Traceable


@dataclass(frozen=True)
class Origin:
  """The equation that made an op: its primitive, the user's line, the dtypes of its operands and
  results."""

  primitive: str
  where: str
  dtypes: frozenset[str]


@contextlib.contextmanager
def origins() -> Iterator[dict[tf.Operation, Origin]]:
  """Records the equation that made each op, the innermost one, of all functions that are converted
  inside."""
  recorded: dict[tf.Operation, Origin] = {}

  @contextlib.contextmanager
  def note(eqn: Eqn, caller: str) -> Iterator[None]:
    graph: Any = _tf_compat.current_graph()
    before = len(graph.operations)
    yield
    if new := [op for op in graph.operations[before:] if op not in recorded]:
      origin = Origin(eqn.primitive.name, lines.user_line(eqn, caller), _dtypes(eqn))
      recorded.update(dict.fromkeys(new, origin))

  with interpreter.watched_by(note):
    yield recorded


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
    specs: a tree of jax.ShapeDtypeStruct for each positional argument, with dimensions of
      `jax.export.symbolic_shape` or without.

  Raises:
    NotImplementedError: primitives that have no lowering, all at once.
  """
  traced = Traceable.of(fun).trace(specs, {}, {})
  ready = program.prepare(traced.jaxpr, program.Subject(traced.name))
  uses: dict[Use, None] = {}

  def lower(*operands: tf.Tensor) -> list[tf.Tensor]:
    dimensions, _ = interpreter.dimension_values(
      lambda lower: traced.dimensions.values(operands, lower), HERE
    )
    with origins() as origins_of_ops:
      emitter = GraphEmitter(GraphContext(dimensions))
      results = emitter.emit(lines.definition(traced.jaxpr), ready, *operands)
    uses.update(
      (Use(inner.type, origin.primitive, origin.where), None)
      for op, origin in origins_of_ops.items()
      for inner in (op, *_inside(op, origins_of_ops))
    )
    return results

  specs_of = [
    tf.TensorSpec([d if isinstance(d, int) else None for d in shape], dtype)
    for shape, dtype in map(physical, traced.jaxpr.in_avals)
  ]
  tf.function(lower, autograph=False).get_concrete_function(*specs_of)
  return list(uses)


def _dtypes(eqn: Eqn) -> frozenset[str]:
  avals = (v.aval for v in (*eqn.invars, *eqn.outvars))
  return frozenset(str(aval.dtype) for aval in avals if hasattr(aval, "dtype"))


def modules_of(fun: Callable[..., Any], *specs: Any) -> frozenset[str]:
  """The paths of the user's name scopes, as the ops of the forward graph have them in their names:
  modules of Flax and Haiku, and `jax.named_scope`. The path of one in a loop or a branch begins
  with `*`, in place of the scopes of the loop.

  A path such as `encoder/_apply/attention` may contain the name of a jitted function; none ends
  with it.

  Args:
    fun, specs: as in `ops_of`.
  """
  traced = Traceable.of(fun).trace(specs, {}, {})
  return frozenset(_scopes(traced.jaxpr, ()))


def _scopes(jaxpr: Any, outer: tuple[str, ...]) -> Iterator[str]:
  for eqn in jaxpr.eqns:
    own = [name for name in _jax_compat.named_scopes(eqn).split("/") if name]
    path = (*outer, *map(scope_name, own))
    for n, name in enumerate(own, len(outer) + 1):
      if "->" not in name:  # of jnp.einsum, whose scope is its formula
        yield "/".join(path[:n])
    if (inner := function_of(eqn)) is not None:
      is_jitted = eqn.primitive is P.jit_p
      yield from _scopes(inner, (*path, scope_name(eqn.params["name"])) if is_jitted else path)
    else:
      for inner in inner_jaxprs(eqn):
        yield from _scopes(inner, ("*",))


def _inside(op: tf.Operation, others: Collection[tf.Operation]) -> Iterator[tf.Operation]:
  """The ops of the functions that an op calls, as a rule makes them, without the `others`, which
  equations in them made."""
  for graph in functions.called_graphs(op):
    for inner in graph.get_operations():
      if inner not in others and inner.type != "Placeholder":  # those are its arguments
        yield inner
        yield from _inside(inner, others)
