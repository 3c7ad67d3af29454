"""Emits programs as ordinary TensorFlow ops: a loop over equations that applies the rule of each
primitive."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np
import tensorflow as tf
from jax.extend.core import Literal

from jax2tf import _jax_compat, _tf_compat, errors
from jax2tf._tf_compat import scopes
from jax2tf.context import Notes, RuleContext, scope_name
from jax2tf.dims import DimensionValues
from jax2tf.dtypes import FLOAT0, data_of, is_key, physical
from jax2tf.jaxprs import ClosedJaxpr, function_of, inner_jaxprs
from jax2tf.lines import UNKNOWN, definition, user_line
from jax2tf.placement.devices import Destination
from jax2tf.program import Places, Program, gap, program_of
from jax2tf.registry import PLACEMENT_PARAMS, rule_for
from jax2tf.value_numbering import Env, Naming, Values, needed

# Below this size a constant is cheaper to repeat in a body than to capture, and stays visible to
# TensorFlow's shape inference and constant folding.
_SMALL_CONSTANT = 16

# (caller's line, inner jaxpr, operands, where they are) -> results.
Lower = Callable[..., list[tf.Tensor]]


# Context managers entered around each equation, with it and the line of its caller; `survey`
# records ops by them.
Watch = Callable[[Any, str], contextlib.AbstractContextManager[Any]]


def _unwatched(eqn: Any, caller: str) -> contextlib.AbstractContextManager[Any]:
  del eqn, caller
  return contextlib.nullcontext()


class Constants:
  """The arrays that a function closes over, as tensors: one each, in the outermost graph."""

  def __init__(self) -> None:
    self._outermost = scopes.scope_here()
    self._name_scope = "/".join(filter(None, [tf.get_current_name_scope(), "constants/"]))
    # keeps the array alive, so that its id stays unique
    self._tensors: dict[int, tuple[Any, tf.Tensor]] = {}
    self._small: dict[tuple[scopes.Scope, bytes, str], tf.Tensor] = {}

  def __call__(self, value: Any, aval: Any) -> tf.Tensor:
    if id(value) in self._tensors:
      return self._tensors[id(value)][1]
    array = _host_array(value, aval)
    if array.size <= _SMALL_CONSTANT:
      here = scopes.scope_here()
      if here is None:
        return tf.constant(array)
      key = (here, array.tobytes(), f"{array.dtype}{array.shape}")
      if key not in self._small:
        self._small[key] = tf.constant(array)
      return self._small[key]
    if self._outermost is None:
      return tf.constant(array)
    with self._outermost.entered(), tf.name_scope(self._name_scope):
      tensor = tf.constant(array)
    self._tensors[id(value)] = (value, tensor)
    return tensor


def _host_array(value: Any, aval: Any) -> np.ndarray:
  if is_key(aval.dtype):
    return np.asarray(jax.random.key_data(value))
  if aval.dtype == FLOAT0:
    return np.zeros(aval.shape, np.bool_)
  if data := data_of(aval.dtype):
    return np.asarray(jax.lax.convert_element_type(value, data[1]))
  return np.asarray(value, aval.dtype)


@dataclass(frozen=True)
class Lowering:
  """The state of one lowering into one graph."""

  dimensions: DimensionValues
  destination: Destination = field(default_factory=Destination)
  constants: Constants = field(default_factory=Constants)
  notes: Notes = field(default_factory=Notes)
  watch: Watch = _unwatched
  values: Values | None = None
  reuse: bool = False
  compiled: bool | None = None

  def __call__(self, program: Program, *operands: tf.Tensor) -> list[tf.Tensor]:
    """The results of a program; equations without a line have that of its function, or of the
    user's call."""
    return self.whole(program, lambda: self.emit(definition(program.jaxpr), program, *operands))

  def whole(self, program: Program, compute: Callable[[], list[tf.Tensor]]) -> list[tf.Tensor]:
    """Runs `compute` for an outermost program, and keeps its effects or warns that they are
    lost."""
    with _tf_compat.functional_control_flow():
      if not program.jaxpr.effects:
        return compute()
      results = _tf_compat.keeping_effects(compute)
    self.notes.warn_of_what_is_left_out()
    return results

  def here(self) -> Lowering:
    """The same for the graph under construction now, which may be that of a gradient function."""
    return replace(
      self, dimensions=self.dimensions.here(), constants=Constants(), values=None, reuse=False
    )

  def remembering(self) -> Lowering:
    """The same, but caching computed values."""
    return replace(self, values=Values())

  def again(self, program: Program, *operands: tf.Tensor) -> list[tf.Tensor]:
    """The results of a program, reusing cached values."""
    return replace(self, reuse=True)(program, *operands)

  def lower(
    self, caller: str, jaxpr: ClosedJaxpr, *operands: tf.Tensor, places: Places = ()
  ) -> list[tf.Tensor]:
    """As `emit`, of an inner jaxpr, whose operands are in `places`."""
    return self.emit(caller, program_of(jaxpr, places), *operands)

  def emit(self, caller: str, program: Program, *arguments: tf.Tensor) -> list[tf.Tensor]:
    """The results of `program` for these tensors; `caller` is the line for equations without
    one."""
    env, placed = self.environment(program.jaxpr, arguments), program.placement
    values = self.values and Naming(self.values, program.jaxpr, env)
    outer_scope = tf.get_current_name_scope()
    eqns = needed(program, env, values) if values and self.reuse else program.equations
    for path, group in itertools.groupby(eqns, key=_jax_compat.named_scopes):
      with _scope(outer_scope, path):
        for eqn in group:
          operands = self.read(env, eqn.invars)
          with self._on(placed.run(eqn)), self.watch(eqn, caller):
            env.update(
              zip(
                eqn.outvars,
                self.equation(eqn, operands, caller, placed.of(eqn.invars)),
                strict=True,
              )
            )
          if values:
            values.name(eqn)
    return self.read(env, program.jaxpr.outvars)

  def environment(self, jaxpr: ClosedJaxpr, operands: Sequence[tf.Tensor]) -> Env:
    """The tensors of the constants and arguments of a jaxpr."""
    constants = {
      v: self.constants(c, v.aval) for v, c in zip(jaxpr.constvars, jaxpr.consts, strict=True)
    }
    return constants | dict(zip(jaxpr.invars, operands, strict=True))

  def _on(self, place: str | None) -> contextlib.AbstractContextManager[Any]:
    device = self.destination.device(place) if place else None
    return tf.device(device) if device else contextlib.nullcontext()

  def read(self, env: Env, atoms: Sequence[Any]) -> list[tf.Tensor]:
    """The tensors of variables and literals."""
    return [self.constants(v.val, v.aval) if isinstance(v, Literal) else env[v] for v in atoms]

  def equation(
    self,
    eqn: Any,
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

    def inside(compiled: bool, sizes: dict[str, Any]) -> Callable[..., list[tf.Tensor]]:
      lowering = replace(
        self, compiled=compiled, dimensions=self.dimensions.also(sizes), values=None, reuse=False
      )
      return functools.partial(lowering.lower, where())

    ctx = RuleContext(
      avals_in,
      avals_out,
      lower,
      self.dimensions,
      eqn.primitive.name,
      where,
      self.destination,
      self.notes,
      self.compiled,
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
    shape = self.dimensions.static_shape(sizes)
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


def _results(ctx: RuleContext, eqn: Any, operands: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
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


def _sharded(ctx: RuleContext, eqn: Any, results: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
  """The results with the shardings of the equation or of their avals; calls, loops and branches did
  this inside."""
  if not ctx.destination.spreads or inner_jaxprs(eqn):
    return results
  said = (
    None
    if eqn.primitive.multiple_results
    else eqn.params.get("out_sharding", eqn.params.get("sharding"))
  )
  free = eqn.params.get("unconstrained_dims", ())
  return [
    ctx.sharded(y, said or _jax_compat.explicit_sharding(aval), free)
    for y, aval in zip(results, ctx.avals_out, strict=True)
  ]


def dimension_values(
  of: Callable[[Callable[..., list[tf.Tensor]]], DimensionValues],
) -> tuple[DimensionValues, list[tf.Operation]]:
  """The dimension variables that `of` makes, given a function that lowers jaxprs without symbolic
  shapes; and their assertions."""
  lowering = Lowering(DimensionValues({}, _no_dimensions))
  return of(functools.partial(lowering.lower, UNKNOWN)), lowering.notes.assertions


def _no_dimensions(*_: Any) -> list[tf.Tensor]:
  raise errors.InternalError("a formula for a dimension has symbolic shapes of its own")


def _scope(outer: str, path: str) -> contextlib.AbstractContextManager[Any]:
  """The TensorFlow name of the user's scope; the trailing slash re-enters an existing one."""
  if not path:
    return contextlib.nullcontext()
  return tf.name_scope("/".join(part for part in (outer, scope_name(path)) if part) + "/")
