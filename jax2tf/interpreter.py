"""From jaxpr to TensorFlow ops: `preflight` names every gap at once, `lower_jaxpr` walks the equations."""

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
from jax.extend.core import Jaxpr, Literal

from jax2tf import _jax_compat, _tf_compat, errors, idioms
from jax2tf.context import RuleContext, scope_name
from jax2tf.dims import DimensionValues
from jax2tf.dtypes import FLOAT0, is_key, physical
from jax2tf.expansion import expanded, why_not
from jax2tf.jaxprs import ClosedJaxpr, equations, function_of, inner_jaxprs, opened
from jax2tf.lines import UNKNOWN, user_line
from jax2tf.placement import Destination, Place, placement
from jax2tf.registry import PLACEMENT_PARAMS, UNSUPPORTED, rule_for, takes_keys

# Below this size a constant is cheaper to repeat in a body than to capture, and stays visible to
# TensorFlow's shape inference and constant folding.
_SMALL_CONSTANT = 16

# The tensors of the variables of one jaxpr.
Env = dict[Any, tf.Tensor]
# Where the operands of a jaxpr are; empty for nowhere in particular.
Places = Sequence[Place | None]


def preflight(jaxpr: ClosedJaxpr, function: str) -> None:
  """Raises one LoweringError that lists every primitive in `jaxpr` without a rule, with the user's lines."""
  found = [(eqn, where()) for eqn, where in equations(expanded(jaxpr), _has_rule) if not _has_rule(eqn)]
  if found:
    raise errors.lowering_error(function, [errors.Gap(eqn.primitive.name, *_gap(eqn), where) for eqn, where in found])


def _gap(eqn: Any) -> tuple[str, str]:
  """(reason, advice) for an equation without a rule."""
  return UNSUPPORTED.get(eqn.primitive.name) or errors.no_rule(why_not(eqn))


def _has_rule(eqn: Any) -> bool:
  return rule_for(eqn.primitive) is not None


class Constants:
  """The arrays that a function closes over, as tensors: one each, in the outermost graph."""

  def __init__(self) -> None:
    self._graph = _tf_compat.current_graph()
    self._scope = "/".join(filter(None, [tf.get_current_name_scope(), "constants/"]))
    self._tensors: dict[int, tuple[Any, tf.Tensor]] = {}  # the array is kept, so that its id stays its own
    self._small: dict[tuple[tf.Graph, bytes, str], tf.Tensor] = {}

  def __call__(self, value: Any, aval: Any) -> tf.Tensor:
    if id(value) in self._tensors:
      return self._tensors[id(value)][1]
    array = _host_array(value, aval)
    if array.size <= _SMALL_CONSTANT:
      graph = _tf_compat.current_graph()
      if graph is None:
        return tf.constant(array)
      key = (graph, array.tobytes(), f"{array.dtype}{array.shape}")
      if key not in self._small:
        self._small[key] = tf.constant(array)
      return self._small[key]
    if self._graph is None:
      return tf.constant(array)
    with self._graph.as_default(), tf.name_scope(self._scope):
      tensor = tf.constant(array)
    self._tensors[id(value)] = (value, tensor)
    return tensor


def _host_array(value: Any, aval: Any) -> np.ndarray:
  if is_key(aval.dtype):
    return np.asarray(jax.random.key_data(value))
  if aval.dtype == FLOAT0:
    return np.zeros(aval.shape, np.bool_)
  return np.asarray(value, aval.dtype)


@dataclass(frozen=True)
class Lowering:
  """One lowering into one graph: what all its equations share."""

  dimensions: DimensionValues
  destination: Destination = field(default_factory=Destination)
  constants: Constants = field(default_factory=Constants)

  def __call__(self, jaxpr: ClosedJaxpr, *operands: tf.Tensor) -> list[tf.Tensor]:
    """The results of a jaxpr of which no caller is known."""
    return self.lower(UNKNOWN, jaxpr, *operands)

  def here(self) -> Lowering:
    """The same for the graph under construction now, which may be that of a gradient function."""
    return replace(self, dimensions=self.dimensions.here(), constants=Constants())

  def lower(self, caller: str, jaxpr: ClosedJaxpr, *operands: tf.Tensor, places: Places = ()) -> list[tf.Tensor]:
    """The results of `jaxpr` for these tensors; `caller` is the line for equations without one, `places` say where the operands are."""
    jaxpr = expanded(jaxpr)
    inner = opened(jaxpr)
    env: Env = {v: self.constants(c, v.aval) for v, c in zip(inner.constvars, jaxpr.consts, strict=True)}
    env.update(zip(inner.invars, operands, strict=True))
    self.walk(inner, env, caller, places)
    return [self.read(env, v) for v in inner.outvars]

  def walk(self, jaxpr: Jaxpr, env: Env, caller: str, places: Places = ()) -> None:
    """Puts the results of the equations into `env`."""
    outer_scope, placed = tf.get_current_name_scope(), placement(jaxpr, places)
    for path, eqns in itertools.groupby(idioms.equations(jaxpr), key=_jax_compat.named_scopes):
      with _scope(outer_scope, path):
        for eqn in eqns:
          operands = [self.read(env, v) for v in eqn.invars]
          with self._on(placed.equations.get(eqn.outvars[0]) if eqn.outvars else None):
            env.update(zip(eqn.outvars, self.equation(eqn, operands, caller, placed.of(eqn.invars)), strict=True))

  def _on(self, place: str | None) -> contextlib.AbstractContextManager[Any]:
    device = self.destination.device(place) if place else None
    return tf.device(device) if device else contextlib.nullcontext()

  def read(self, env: Env, atom: Any) -> tf.Tensor:
    """The tensor of a variable or of a literal."""
    return self.constants(atom.val, atom.aval) if isinstance(atom, Literal) else env[atom]

  def equation(self, eqn: Any, operands: list[tf.Tensor], caller: str, places: Places = ()) -> Sequence[tf.Tensor]:
    """The results of one equation by its rule."""
    where = functools.partial(user_line, eqn, caller)
    avals_in, avals_out = [v.aval for v in eqn.invars], [v.aval for v in eqn.outvars]
    lower = functools.partial(self._inner, where, places if any(places) and function_of(eqn) else ())
    ctx = RuleContext(avals_in, avals_out, lower, self.dimensions, eqn.primitive.name, where, self.destination)
    try:
      with eqn.ctx.manager:  # jax_threefry_partitionable, as it was when JAX traced the equation
        results = _spread(ctx, eqn, _results(ctx, eqn, operands))
      return [self._checked(tensor, aval, ctx) for tensor, aval in zip(results, avals_out, strict=True)]
    except Exception as error:
      if not getattr(error, "__notes__", None) and not isinstance(error, errors.LoweringError | errors.InternalError):
        error.add_note(f"while lowering '{eqn.primitive}' at {where()}")
      raise

  def _inner(self, where: Callable[[], str], places: Places, jaxpr: ClosedJaxpr, *operands: tf.Tensor) -> list[tf.Tensor]:
    return self.lower(where(), jaxpr, *operands, places=places)

  def _checked(self, tensor: Any, aval: Any, ctx: RuleContext) -> tf.Tensor:
    """The tensor with JAX's static shape; an InternalError when its dtype or shape is not JAX's."""
    if not hasattr(aval, "shape"):  # tokens carry no value
      return tensor
    sizes, dtype = physical(aval)
    shape = self.dimensions.static_shape(sizes)
    tensor = tf.convert_to_tensor(tensor)
    if tensor.dtype != dtype or not tensor.shape.is_compatible_with(shape):
      raise errors.InternalError(
        f"the lowering rule of '{ctx.primitive}' gave {tensor.dtype.name}{tensor.shape} where JAX has {aval.str_short()}, "
        f"at {ctx.where()}; please report this line"
      )
    if not tensor.shape.is_fully_defined():
      tensor.set_shape(shape)
    return tensor


def _results(ctx: RuleContext, eqn: Any, operands: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
  """What the rule of an equation gives, as a sequence."""
  rule = rule_for(eqn.primitive)
  if not takes_keys(eqn.primitive) and any(is_key(a.dtype) for a in (*ctx.avals_in, *ctx.avals_out)):
    return _lower_on_key_data(ctx, eqn, operands)
  if rule is None:  # preflight has seen the user's jaxpr; this one came from a rule
    ctx.refuse(*_gap(eqn))
  results = rule(ctx, *operands, **{k: v for k, v in eqn.params.items() if k not in PLACEMENT_PARAMS})
  if not eqn.primitive.multiple_results:
    return (results,)
  return results


def _spread(ctx: RuleContext, eqn: Any, results: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
  """The results, spread over devices as the equation or their avals say; inside of a call, a loop or a branch that was done."""
  if not ctx.destination.keep_shardings or inner_jaxprs(eqn):
    return results
  said = None if eqn.primitive.multiple_results else eqn.params.get("out_sharding", eqn.params.get("sharding"))
  free = eqn.params.get("unconstrained_dims", ())
  return [ctx.spread(y, said or _jax_compat.explicit_sharding(aval), free) for y, aval in zip(results, ctx.avals_out, strict=True)]


def _lower_on_key_data(ctx: RuleContext, eqn: Any, operands: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
  """A primitive that only moves data, on key arrays: the same primitive for each uint32 word of the keys."""

  def words(avals: Sequence[Any]) -> list[int | None]:
    return [-1 if is_key(aval.dtype) else None for aval in avals]

  axes_out = words(ctx.avals_out) if eqn.primitive.multiple_results else words(ctx.avals_out)[0]
  fun = jax.vmap(functools.partial(eqn.primitive.bind, **eqn.params), words(ctx.avals_in), axes_out)
  physical_avals = [_jax_compat.physical_aval(aval) for aval in ctx.avals_in]
  jaxpr = jax.make_jaxpr(fun)(*[jax.ShapeDtypeStruct(a.shape, a.dtype) for a in physical_avals])
  return ctx.lower(jaxpr, *operands)


def dimension_values(of: Callable[[Callable[..., list[tf.Tensor]]], DimensionValues]) -> DimensionValues:
  """Dimension variables, which are themselves lowered from jaxprs without symbolic shapes: `of` takes what lowers these."""
  return of(Lowering(DimensionValues({}, _no_dimensions)))


def _no_dimensions(*_: Any) -> list[tf.Tensor]:
  raise errors.InternalError("a formula for a dimension has symbolic shapes of its own")


def _scope(outer: str, path: str) -> contextlib.AbstractContextManager[Any]:
  """The TensorFlow scope of the user's; the trailing slash re-enters one that exists."""
  if not path:
    return contextlib.nullcontext()
  return tf.name_scope("/".join(part for part in (outer, scope_name(path)) if part) + "/")
