"""Propagates placement through a jaxpr: from equations that specify a device to those that use
their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.extend.core.primitives as P
from jax.extend.core import Jaxpr, Literal

from jax2tf import _jax_compat
from jax2tf.jaxprs import ClosedJaxpr, Eqn, function_of, inner_jaxprs, opened, replaced
from jax2tf.lines import user_line
from jax2tf.placement.default_device import default_device_of
from jax2tf.placement.devices import HOST, Place, place_of


@dataclass(frozen=True)
class Placement:
  """Where the equations of a jaxpr run, and where their results then are.

  Attributes:
    runs: first result of an equation -> the place where it runs, for those that have one.
    values: variable -> its place, for those that were put somewhere.
  """

  runs: Mapping[Any, Place]
  values: Mapping[Any, Place]

  def of(self, atoms: Sequence[Any]) -> tuple[Place | None, ...]:
    """The places of variables and literals."""
    return tuple(None if isinstance(v, Literal) else self.values.get(v) for v in atoms)

  def run(self, eqn: Eqn) -> Place | None:
    """The place where an equation runs."""
    return self.runs.get(eqn.outvars[0]) if eqn.outvars else None


NOWHERE = Placement({}, {})


def placement(jaxpr: Any, operands: Sequence[Place | None] = ()) -> Placement:
  """Of a jaxpr whose operands are in these places.

  Raises:
    ValueError: an equation has operands in several places; JAX's words.
  """
  return _placement(opened(jaxpr), tuple(operands) if any(operands) else ())


@_jax_compat.weakly_cached
def _placement(jaxpr: Jaxpr, operands: tuple[Place | None, ...]) -> Placement:
  return propagate(jaxpr.invars, jaxpr.eqns, operands)


@_jax_compat.weakly_cached
def _places_any(jaxpr: Jaxpr) -> bool:
  return any(map(_names_place, jaxpr.eqns))


def _names_place(eqn: Eqn) -> bool:
  return bool(places_named_by(eqn)) or any(map(_places_any, inner_jaxprs(eqn)))


def propagate(
  invars: Sequence[Any], eqns: Sequence[Eqn], operands: Sequence[Place | None]
) -> Placement:
  """As `placement`, of equations."""
  if not any(operands) and not any(map(_names_place, eqns)):
    return NOWHERE
  placed = Placement(
    runs := {}, values := {v: p for v, p in zip(invars, operands, strict=False) if p}
  )
  for eqn in eqns:
    places = placed.of(eqn.invars)
    if eqn.primitive is P.device_put_p:
      results: Sequence[Place | None] = [
        _place_after(*put)
        for put in zip(eqn.params["devices"], eqn.params["srcs"], places, strict=True)
      ]
    else:
      inner = function_of(eqn)  # whose place takes precedence over that of the equation
      committed = None if inner else _common(eqn, places)
      # jax.default_device applies to values without a place; compute_on to all.
      here = _computed_on(eqn) or committed or default_device_of(eqn)
      if here and eqn.outvars:
        runs[eqn.outvars[0]] = here
      results = [committed] * len(eqn.outvars) if committed else _results(eqn, inner, places)
    values.update((v, place) for v, place in zip(eqn.outvars, results, strict=True) if place)
  return placed


def _place_after(target: Any, source: Any, before: Place | None) -> Place | None:
  """The place of a result of device_put. Without a target it stays, except for a transpose, which
  moves it back."""
  if target is not None:
    return place_of(target)
  return before if source is None else None


def _scope(eqn: Eqn) -> Place | None:
  """The place that a `compute_on` or `default_device` around the equation names."""
  return _computed_on(eqn) or default_device_of(eqn)


def _computed_on(eqn: Eqn) -> Place | None:
  return HOST if eqn.params.get("compute_type", eqn.ctx.compute_type) == "device_host" else None


def _common(eqn: Eqn, places: Sequence[Place | None]) -> Place | None:
  distinct = sorted({place for place in places if place})
  if len(distinct) > 1:
    raise ValueError(
      f"Received incompatible devices for '{eqn.primitive}': its operands are on "
      f"{' and '.join(distinct)}, at "
      f"{user_line(eqn)}; move them to one device with jax.device_put"
    )
  return distinct[0] if distinct else None


def _results(
  eqn: Eqn, inner: Jaxpr | None, places: Sequence[Place | None]
) -> Sequence[Place | None]:
  """The places of the results of an equation whose operands have no place: those on which its inner
  jaxprs agree."""
  if inner:
    return placement(inner, places).of(inner.outvars)
  bodies = [body for body in inner_jaxprs(eqn) if len(body.outvars) == len(eqn.outvars)]
  if not bodies:
    return [None] * len(eqn.outvars)
  outcomes = [placement(body).of(body.outvars) for body in bodies]
  return [p[0] if len(set(p)) == 1 else None for p in zip(*outcomes, strict=True)]


def places_named_by(eqn: Eqn) -> list[Place]:
  """The places that the equation itself specifies."""
  targets = eqn.params["devices"] if eqn.primitive is P.device_put_p else ()
  return [place for place in (_scope(eqn), *map(place_of, targets)) if place]


def with_sources(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
  """The same function: each device_put to a device names the device of its operand too, to which
  its transpose moves the cotangent back."""
  puts = [eqn for eqn in jaxpr.eqns if eqn.primitive is P.device_put_p]
  targets = {
    place_of(d): d for eqn in puts for d in eqn.params["devices"] if isinstance(d, jax.Device)
  }
  if not targets or not (placed := placement(jaxpr)).values:
    return jaxpr

  def known(eqn: Eqn) -> Eqn:
    if eqn.primitive is not P.device_put_p:
      return eqn
    before = [targets.get(place) for place in placed.of(eqn.invars)]
    puts = zip(eqn.params["devices"], eqn.params["srcs"], before, strict=True)
    # Without a target the value stays where it is, and so does its cotangent.
    srcs = tuple(src if target is None else src or source for target, src, source in puts)
    return eqn.replace(params=eqn.params | {"srcs": srcs})

  return replaced(jaxpr, eqns=[known(eqn) for eqn in jaxpr.eqns])
