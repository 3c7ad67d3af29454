"""The stage between tracing and emission: the only one that rewrites a jaxpr. Its result can be
emitted directly."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.extend.core.primitives as P
import tensorflow as tf
from jax.extend.core import Jaxpr, Primitive

from jax2tf import _jax_compat, errors, idioms, jaxprs, key_data
from jax2tf.dtypes import data_of
from jax2tf.expansion import expanded, why_not
from jax2tf.jaxprs import ClosedJaxpr, opened
from jax2tf.normalise import normalised
from jax2tf.placement.devices import HERE, Destination, Place, place_of
from jax2tf.placement.propagation import Placement, placement, propagate
from jax2tf.registry import UNSUPPORTED, lowered_inside, rule_for

# Where the operands of a jaxpr are; empty if unspecified.
Places = Sequence[Place | None]


@dataclass(frozen=True, eq=False)
class Program:
  """A jaxpr, ready to be emitted; equal only to itself.

  Attributes:
    jaxpr: in its normal form, with the values of its constants.
    equations: those to emit in its place, in order.
    placement: where they run.
  """

  jaxpr: ClosedJaxpr
  equations: Sequence[Any]
  placement: Placement


class Emitter(Protocol):
  """Emits programs as ops of one graph."""

  def __call__(self, program: Program, *operands: tf.Tensor) -> list[tf.Tensor]:
    """The results of a program."""

  def here(self) -> Emitter:
    """The same for the graph under construction now, which may be that of a gradient function."""

  def remembering(self) -> Memory | None:
    """The same with a cache of computed values; None where that is not possible."""


class Memory(Emitter, Protocol):
  """An emitter that caches computed values."""

  def again(self, program: Program, *operands: tf.Tensor) -> list[tf.Tensor]:
    """The results of a program; cached values are not computed again."""


# (jaxpr, name of the function for errors, where its operands are) -> program.
Prepare = Callable[[ClosedJaxpr, str, Places], Program]


def prepare(
  jaxpr: ClosedJaxpr, function: str, places: Places = (), destination: Destination = HERE
) -> Program:
  """The program of a jaxpr, for ordinary ops that run at `destination`.

  Raises:
    LoweringError: it lists every primitive without a rule, in inner jaxprs too, with the user's
      lines.
    ValueError: an equation has operands in several places; JAX's words.
  """
  # After differentiation: a custom_vjp whose refs are discharged before it would be differentiated
  # without its own rule.
  if jaxprs.contains(jaxpr, _jax_compat.NEW_REFS):
    # JAX has no rule to discharge it.
    _refuse(function, jaxpr, destination, lambda eqn: eqn.primitive.name == "custom_lin")
    jaxpr = _jax_compat.without_refs(jaxpr)
  jaxpr = normalised(jaxpr)
  _refuse(
    function, jaxpr, destination, lambda eqn: rule_for(eqn.primitive) is None or _foreign(eqn)
  )
  return program_of(jaxpr, places)


def _refuse(
  function: str, jaxpr: ClosedJaxpr, destination: Destination, is_gap: Callable[[Any], Any]
) -> None:
  """Raises one error for all equations that are gaps at `destination`."""
  needed = lowered_equations(jaxpr, destination)
  found = [(eqn, where()) for eqn, where in needed if is_gap(eqn)]
  if found:
    gaps = [errors.Gap(eqn.primitive.name, *gap(eqn), where) for eqn, where in found]
    raise errors.lowering_error(function, gaps)


def program_of(jaxpr: ClosedJaxpr, places: Places = ()) -> Program:
  """As `prepare`, for an inner jaxpr, or one that a rule made: gaps are found when it is
  emitted."""
  jaxpr = normalised(jaxpr)
  return Program(jaxpr, *_ready(opened(jaxpr), tuple(places) if any(places) else ()))


def gap(eqn: Any) -> tuple[str, str]:
  """(reason, advice) for an equation without a rule."""
  if foreign := _foreign(eqn):
    reason = (
      f"{foreign} is an extended dtype, whose elements are arrays, or are added in a way "
      "of their own"
    )
    return reason, "use arrays of numbers, or typed PRNG keys (jax.random.key)"
  return UNSUPPORTED.get(eqn.primitive.name) or errors.no_rule(why_not(eqn))


def _foreign(eqn: Any) -> Any:
  """An extended dtype of the equation, no typed PRNG key, whose data cannot stand for its elements;
  or None."""
  found = (getattr(v.aval, "dtype", None) for v in (*eqn.invars, *eqn.outvars))
  adds = eqn.primitive.name == "add_any"  # of cotangents, by a rule of the dtype
  return next((dtype for dtype in found if (data := data_of(dtype)) and (data[0] or adds)), None)


def equations(
  jaxpr: Any, inside: Callable[[Any], Sequence[Any]] = jaxprs.inner_jaxprs
) -> Iterator[tuple[Any, Callable[[], str]]]:
  """As `jaxprs.equations`, with calls of JAX functions for the primitives of libraries."""
  return jaxprs.equations(jaxpr, inside, expanded)


def lowered_equations(
  jaxpr: Any, destination: Destination
) -> Iterator[tuple[Any, Callable[[], str]]]:
  """As `equations`, those that become ops at `destination`: no branch for another platform, nothing
  that a rule leaves out."""

  def inside(eqn: Any) -> Sequence[Any]:
    platforms = eqn.params.get("branches_platforms")
    if eqn.primitive is not P.cond_p or platforms is None:
      return lowered_inside(eqn)
    chosen = destination.branch(platforms)
    # Where there is not one branch, the rule of platform_index says so.
    return [eqn.params["branches"][i] for i in chosen if i is not None] if len(chosen) == 1 else []

  return equations(jaxpr, inside)


@_jax_compat.weakly_cached
def _ready(jaxpr: Jaxpr, places: tuple[Place | None, ...]) -> tuple[Sequence[Any], Placement]:
  """The equations to emit and their placement, cached by jaxpr. The result must not hold the jaxpr,
  or it would never be freed."""
  eqns = idioms.rewritten([key_data.on_words(eqn) for eqn in expanded(jaxpr)], jaxpr.outvars)
  if jax.config.jax_enable_checks:
    _jax_compat.check_jaxpr(jaxpr.replace(eqns=list(eqns)))
  return eqns, propagate(jaxpr.invars, eqns, places)


@_jax_compat.weakly_cached
def parts(jaxpr: Jaxpr, primitives: tuple[Primitive, ...]) -> Sequence[tuple[bool, ClosedJaxpr]]:
  """(whether it contains one of these primitives, a run of consecutive equations as a jaxpr), in
  order; the runs alternate."""

  def holds(eqn: Any) -> bool:
    inner = (e for body in jaxprs.inner_jaxprs(eqn) for e, _ in equations(body))
    return eqn.primitive in primitives or any(e.primitive in primitives for e in inner)

  eqns = expanded(jaxpr)
  uses = {v: place for place, eqn in enumerate(eqns) for v in jaxprs.variables(eqn.invars)}
  uses |= dict.fromkeys(jaxprs.variables(jaxpr.outvars), len(eqns))
  found = []
  for held, group in itertools.groupby(enumerate(eqns), key=lambda item: holds(item[1])):
    numbers, some = zip(*group, strict=True)
    found.append(
      (
        held,
        jaxprs.part(
          jaxpr, some, [v for eqn in some for v in eqn.outvars if uses.get(v, -1) > numbers[-1]]
        ),
      )
    )
  return found


def with_sources(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
  """The same, to be differentiated: each device_put has the device of its operand, and its
  transpose moves the cotangent back there."""
  placed = placement(jaxpr)
  puts = [eqn for eqn in jaxpr.eqns if eqn.primitive is P.device_put_p]
  targets = {
    place_of(d): d for eqn in puts for d in eqn.params["devices"] if isinstance(d, jax.Device)
  }
  if not (placed.values and targets):
    return jaxpr

  def known(eqn: Any) -> Any:
    if eqn.primitive is not P.device_put_p:
      return eqn
    before = [targets.get(place) for place in placed.of(eqn.invars)]
    srcs = tuple(src or found for src, found in zip(eqn.params["srcs"], before, strict=True))
    return eqn.replace(params=eqn.params | {"srcs": srcs})

  return jaxprs.replaced(jaxpr, eqns=[known(eqn) for eqn in jaxpr.eqns])
