"""Emits programs as ordinary TensorFlow ops: a loop over equations that applies the rule of each
primitive."""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import tensorflow as tf
from jax.extend.core import Literal

from jax2tf import _jax_compat, _tf_compat, errors
from jax2tf.context import RuleContext, scope_name
from jax2tf.dims import DimensionValues
from jax2tf.dtypes import physical
from jax2tf.graph_context import GraphContext
from jax2tf.jaxprs import ClosedJaxpr, Eqn, function_of, inner_jaxprs
from jax2tf.lines import UNKNOWN, definition, user_line
from jax2tf.placement.devices import ON_HOST, Destination
from jax2tf.placement.shardings import explicit_sharding
from jax2tf.program import Places, Program, gap, program_of
from jax2tf.registry import PLACEMENT_PARAMS, rule_for
from jax2tf.value_numbering import Env, Numbering, WorkList

# (caller's line, inner jaxpr, operands, where they are) -> results.
Lower = Callable[..., list[tf.Tensor]]


# Context managers entered around each equation, with it and the line of its caller; `survey`
# records ops by them.
Watch = Callable[[Any, str], contextlib.AbstractContextManager[Any]]


def _unwatched(eqn: Eqn, caller: str) -> contextlib.AbstractContextManager[Any]:
  return contextlib.nullcontext()


_watch: contextvars.ContextVar[Watch] = contextvars.ContextVar("watch", default=_unwatched)


@contextlib.contextmanager
def watched_by(watch: Watch) -> Iterator[None]:
  """Has `watch` told of the equations of all emitters that are made inside."""
  token = _watch.set(watch)
  try:
    yield
  finally:
    _watch.reset(token)


@dataclass(frozen=True)
class GraphEmitter:
  """Emits programs as ordinary ops.

  Attributes:
    graph: what all equations share.
    watch: is told of each equation.
    numbering: the values that the graph has, with names; None if nobody asks for them again.
  """

  graph: GraphContext
  watch: Watch = field(default_factory=_watch.get)
  numbering: Numbering | None = None

  def __call__(self, program: Program, *operands: tf.Tensor) -> list[tf.Tensor]:
    """The results of a program; equations without a line have that of its function, or of the
    user's call."""
    return self.with_effects(
      program, lambda: self.emit(definition(program.jaxpr), program, *operands)
    )

  def with_effects(
    self, program: Program, compute: Callable[[], list[tf.Tensor]]
  ) -> list[tf.Tensor]:
    """Runs `compute` for an outermost program, and keeps its effects or warns that they are
    lost."""
    with _tf_compat.functional_control_flow():
      if not program.jaxpr.effects:
        return compute()
      results = _tf_compat.keeping_effects(compute)
    self.graph.warn_of_omitted_effects()
    return results

  def in_current_graph(self) -> GraphEmitter:
    """The same for the graph under construction now, which may be that of a gradient function."""
    return replace(self, graph=self.graph.in_current_graph(), numbering=None)

  def alias(self, tensor: tf.Tensor, source: tf.Tensor) -> None:
    """Says that a tensor is the identity of another one."""
    self.graph.stacks.alias(tensor, source)

  def with_value_numbering(self) -> GraphEmitter:
    """The same, but caching computed values."""
    return replace(self, numbering=Numbering())

  def emit_reusing(self, program: Program, *operands: tf.Tensor) -> list[tf.Tensor]:
    """The results of a program, reusing cached values."""
    assert self.numbering is not None
    return replace(self, numbering=replace(self.numbering, reuses=True))(program, *operands)

  def lower(
    self, caller: str, jaxpr: ClosedJaxpr, *operands: tf.Tensor, places: Places = ()
  ) -> list[tf.Tensor]:
    """As `emit`, of an inner jaxpr, whose operands are in `places`."""
    return self.emit(caller, program_of(jaxpr, places), *operands)

  def emit(self, caller: str, program: Program, *arguments: tf.Tensor) -> list[tf.Tensor]:
    """The results of `program` for these tensors; `caller` is the line for equations without
    one."""
    env, placed = self.environment(program.jaxpr, arguments), program.placement
    numbering = self.numbering
    work = numbering.work(program, env) if numbering else WorkList(program.equations)
    with _NameScopes() as scopes:
      while (eqn := work.next()) is not None:
        scopes.enter(_jax_compat.named_scopes(eqn))
        operands = self.read(env, eqn.invars)
        with self._on(placed.run(eqn)), self.watch(eqn, caller):
          results = self.equation(eqn, operands, caller, placed.of(eqn.invars))
        env.update(zip(eqn.outvars, results, strict=True))
        work.emitted(eqn)
    return self.read(env, program.jaxpr.outvars)

  def environment(self, jaxpr: ClosedJaxpr, operands: Sequence[tf.Tensor]) -> Env:
    """The tensors of the constants and arguments of a jaxpr."""
    constants = {
      v: self.graph.constants(c, v.aval) for v, c in zip(jaxpr.constvars, jaxpr.consts, strict=True)
    }
    return constants | dict(zip(jaxpr.invars, operands, strict=True))

  def _on(self, place: str | None) -> contextlib.AbstractContextManager[Any]:
    device = self.graph.destination.device(place) if place else None
    return tf.device(device) if device else contextlib.nullcontext()

  def read(self, env: Env, atoms: Sequence[Any]) -> list[tf.Tensor]:
    """The tensors of variables and literals."""
    return [
      self.graph.constants(v.val, v.aval) if isinstance(v, Literal) else env[v] for v in atoms
    ]

  def equation(
    self,
    eqn: Eqn,
    operands: list[tf.Tensor],
    caller: str,
    places: Places = (),
    inner: Lower | None = None,
  ) -> Sequence[tf.Tensor]:
    """The results of one equation by its rule, whose inner jaxprs `inner` lowers; by default this
    lowering."""
    where = functools.partial(user_line, eqn, caller)
    avals_in, avals_out = [v.aval for v in eqn.invars], [v.aval for v in eqn.outvars]
    operand_places = places if any(places) and function_of(eqn) else ()

    def lower(jaxpr: ClosedJaxpr, *operands: tf.Tensor) -> list[tf.Tensor]:
      return (inner or self.lower)(where(), jaxpr, *operands, places=operand_places)

    def inside(compiled: bool, sizes: dict[str, Any]) -> RuleContext:
      emitter = replace(self, graph=self.graph.branch(compiled, sizes), numbering=None)
      return replace(ctx, graph=emitter.graph, lower=functools.partial(emitter.lower, where()))

    ctx = RuleContext(
      self.graph,
      avals_in,
      avals_out,
      lower,
      eqn.primitive.name,
      where,
      inside if inner is None else None,
    )
    try:
      with eqn.ctx.manager:  # jax_threefry_partitionable, as it was when JAX traced the equation
        results = _sharded(ctx, eqn, _results(ctx, eqn, operands))
      return [
        self._checked(tensor, aval, ctx) for tensor, aval in zip(results, avals_out, strict=True)
      ]
    except Exception as error:
      if not getattr(error, "__notes__", None) and not isinstance(
        error, errors.LoweringError | errors.InternalError
      ):
        error.add_note(f"while lowering '{eqn.primitive}' at {where()}")
      raise

  def _checked(self, tensor: Any, aval: Any, ctx: RuleContext) -> tf.Tensor:
    """The tensor with JAX's static shape; an InternalError when its dtype or shape is not JAX's."""
    if not hasattr(aval, "shape"):  # tokens carry no value
      return tensor
    sizes, dtype = physical(aval)
    shape = self.graph.dimensions.static_shape(sizes)
    tensor = tf.convert_to_tensor(tensor)
    if tensor.dtype != dtype or not tensor.shape.is_compatible_with(shape):
      raise errors.InternalError(
        f"the lowering rule of '{ctx.primitive}' gave {tensor.dtype.name}{tensor.shape} where JAX "
        f"has {aval.str_short()}, "
        f"at {ctx.where()}; please report this line"
      )
    if not tensor.shape.is_fully_defined():
      tensor.set_shape(shape)
    return tensor


def _results(ctx: RuleContext, eqn: Eqn, operands: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
  """The results of the rule of an equation, as a sequence."""
  rule = rule_for(eqn.primitive)
  if rule is None:  # `prepare` checked the user's jaxpr, but a rule created this one
    ctx.refuse(*gap(eqn))
  results = rule(
    ctx, *operands, **{k: v for k, v in eqn.params.items() if k not in PLACEMENT_PARAMS}
  )
  if not eqn.primitive.multiple_results:
    return (results,)
  return results


def _sharded(ctx: RuleContext, eqn: Eqn, results: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
  """The results with the shardings of the equation or of their avals; calls, loops and branches did
  this inside."""
  if not ctx.destination.annotates_shardings or inner_jaxprs(eqn):
    return results
  sharding = (
    None
    if eqn.primitive.multiple_results
    else eqn.params.get("out_sharding", eqn.params.get("sharding"))
  )
  free = eqn.params.get("unconstrained_dims", ())
  return [
    ctx.sharded(y, sharding or explicit_sharding(aval), free)
    for y, aval in zip(results, ctx.avals_out, strict=True)
  ]


def dimension_values(
  of: Callable[[Callable[..., list[tf.Tensor]]], DimensionValues], destination: Destination
) -> tuple[DimensionValues, list[tf.Operation]]:
  """The dimension variables that `of` makes, given a function that lowers jaxprs without symbolic
  shapes; and their assertions.

  Sizes stay in host memory, where TensorFlow's ops need them.
  """
  emitter = GraphEmitter(GraphContext(DimensionValues({}, _no_dimensions), ON_HOST))

  def lower(jaxpr: ClosedJaxpr, *sizes: tf.Tensor) -> list[tf.Tensor]:
    with destination.sizes():
      operands = (
        tf.cast(size, aval.dtype) for size, aval in zip(sizes, jaxpr.in_avals, strict=True)
      )
      return emitter.lower(UNKNOWN, jaxpr, *operands)

  return of(lower), emitter.graph.assertions


def _no_dimensions(*_: Any) -> list[tf.Tensor]:
  raise errors.InternalError("a formula for a dimension has symbolic shapes of its own")


class _NameScopes(contextlib.ExitStack):
  """TensorFlow's name scopes for those of the user, inside the one that is current now."""

  def __init__(self) -> None:
    super().__init__()
    self._outer = tf.get_current_name_scope()
    self._path = ""

  def enter(self, path: str) -> None:
    """Makes ops in the user's scope `path`, such as `attention/softmax`, from now on."""
    if path == self._path:
      return
    self.close()
    self._path = path
    if path:
      names = filter(None, [self._outer, scope_name(path)])
      self.enter_context(tf.name_scope("/".join(names) + "/"))  # the slash re-enters a scope
