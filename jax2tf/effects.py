"""Effects under differentiation: finds effects that would be repeated or differ, and removes prints
from jaxprs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any

from jax.debug import DebugEffect, OrderedDebugEffect
from jax.extend.core import Primitive

from jax2tf import _jax_compat
from jax2tf.errors import UnsupportedEquation, lowering_error
from jax2tf.jaxprs import ClosedJaxpr, Eqn, contains, inner_jaxprs, located, map_inner, replaced
from jax2tf.traits import EFFECTFUL, LOOPS, PRINTS


def effects_mismatch(
  function: str, derivative: ClosedJaxpr, ran: ClosedJaxpr, otherwise: str, advice: str
) -> Exception | None:
  """The error for a derivative whose effects differ from those of `ran`, with the lines; None if
  they are equal.

  `otherwise` ends the reason. For example, a custom rule may print other text than its function.
  """
  if _effects(derivative) == _effects(ran):
    return None
  reason = f"its derivative has other effects than {otherwise}"
  gaps = {gap: None for one in (ran, derivative) for gap in _gaps(reason, advice, one, EFFECTFUL)}
  return lowering_error(function, gaps)


def repeated(function: str, jaxpr: ClosedJaxpr) -> ClosedJaxpr:
  """The jaxpr without its prints, for a recomputation.

  Raises:
    LoweringError: it has other effects, which would be repeated; with the lines.
  """
  reason = "the function calls back for its effects, which derivatives of this order would repeat"
  if jaxpr.effects and (
    gaps := _gaps(
      reason, "differentiate with JAX before convert", jaxpr, [_jax_compat.io_callback_p]
    )
  ):
    raise lowering_error(function, gaps)
  return without_prints(jaxpr)


def _effects(jaxpr: Any) -> Counter[Any]:
  """How often a jaxpr prints or calls back for its effects: {(what, in which loops): in how many
  places}.

  JAX's derivatives hoist loop-invariant equations out of a scan, even callbacks.
  """
  counts: Counter[Any] = Counter()
  for eqn in jaxpr.eqns if jaxpr.effects else ():
    if eqn.primitive in EFFECTFUL:
      counts[eqn.params.get("callback") or eqn.params["fmt"], ()] += 1
    for inner in inner_jaxprs(eqn):
      loop = (eqn.primitive,) if eqn.primitive in LOOPS else ()
      counts.update({(what, (*loop, *loops)): n for (what, loops), n in _effects(inner).items()})
  return counts


def _gaps(
  reason: str, advice: str, jaxpr: ClosedJaxpr, primitives: Collection[Primitive]
) -> list[UnsupportedEquation]:
  return [
    UnsupportedEquation(eqn.primitive.name, reason, advice, where())
    for eqn, where in located(jaxpr)
    if eqn.primitive in primitives
  ]


def without_prints(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
  """The jaxpr without prints; those in derivative rules that JAX has not applied yet stay."""
  if not (jaxpr.effects and contains(jaxpr, PRINTS)):
    return jaxpr
  eqns = [_without_prints_inside(eqn) for eqn in jaxpr.eqns if eqn.primitive not in PRINTS]
  return replaced(jaxpr, eqns=eqns, effects=_without_debug(jaxpr.effects))


def _without_prints_inside(eqn: Eqn) -> Eqn:
  inside = map_inner(eqn, without_prints)
  return eqn if inside is eqn else inside.replace(effects=_without_debug(eqn.effects))


def _without_debug(effects: Any) -> Any:
  return {effect for effect in effects if not isinstance(effect, DebugEffect | OrderedDebugEffect)}
