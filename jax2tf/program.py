"""The stage between tracing and emission: the list of passes, and what makes a program of a jaxpr.

`PASSES` has every rewriting of a jaxpr, in order. Exceptions, each where only its place knows what
it needs:
  trace: the user's function is traced again with arguments for the variables and refs that it
    captures (`shadows`, `refs.of_closed_over`). It is another trace, and rewrites no jaxpr.
  derivative_jaxprs: `refs.with_frozen` takes the values of refs that a backward pass begins with
    from a forward pass. It also says which results they are.
  widening: the bodies of a loop or a branch get casts at their ends when its rule lowers them, for
    dtypes that TensorFlow's loops and branches do not hold.
  native: modules are made of parts of a jaxpr, and of what a jaxpr calls that is one call.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.extend.core.primitives as P
import tensorflow as tf
from jax.extend.core import Jaxpr, check_jaxpr

from jax2tf import _jax_compat, effects, errors, idioms, jaxprs
from jax2tf.dtypes import data_of
from jax2tf.expansions import kernels, meshes
from jax2tf.expansions.libraries import expanded, why_not
from jax2tf.idioms import fused, loop_rows
from jax2tf.jaxprs import ClosedJaxpr, Eqn, opened, with_equations
from jax2tf.key_data import on_words
from jax2tf.normalise import normalised
from jax2tf.placement.devices import HERE, Destination, Place
from jax2tf.placement.propagation import Placement, propagate, with_sources
from jax2tf.registry import lowered_inside, refusal, rule_for

# Where the operands of a jaxpr are; empty if unspecified.
Places = Sequence[Place | None]


@dataclass(frozen=True)
class Subject:
  """What a pass may ask about the conversion of a jaxpr.

  Attributes:
    function: the name of the user's function, for errors.
    destination: where the ops will run.
    composites: names of the idioms that use TensorFlow's composite ops.
    is_native: whether JAX lowers the jaxpr, to a module.
    is_recomputed: whether the function runs too, so that the jaxpr repeats its effects.
    on_one_device: whether programs for several devices become programs for one.
  """

  function: str
  destination: Destination = HERE
  composites: frozenset[str] = frozenset()
  is_native: bool = False
  is_recomputed: bool = False
  on_one_device: bool = True


class Stage(enum.Enum):
  """Which jaxprs a pass rewrites, in the order of the stages."""

  TRACED = "the traced function"
  DIFFERENTIATED = "the function that JAX differentiates"
  OUTERMOST = "the function, and each pass of its derivatives"
  NORMALISED = "the same, and each inner jaxpr that a rule lowers or makes"
  EMITTED = "the same; the equations become ops, and values keep the names of the stage before"


@dataclass(frozen=True)
class Pass:
  """A rewriting of jaxprs that preserves their values.

  Attributes:
    name: for people.
    stage: which jaxprs it rewrites.
    run: the jaxpr, and its subject -> the new jaxpr; the same one if nothing changes.
    why: why it stands where it does.
    is_native: whether the native lowering has it too.
  """

  name: str
  stage: Stage
  run: Callable[[Any, Subject], Any]
  why: str
  is_native: bool = False


def _with_composite_ops(jaxpr: ClosedJaxpr, of: Subject) -> ClosedJaxpr:
  return fused.with_composite_ops(jaxpr, of.composites) if of.composites else jaxpr


def _without_prints(jaxpr: ClosedJaxpr, of: Subject) -> ClosedJaxpr:
  return effects.repeated(of.function, jaxpr) if of.is_recomputed else jaxpr


def _without_refs(jaxpr: ClosedJaxpr, of: Subject) -> ClosedJaxpr:
  if not jaxprs.contains(jaxpr, _jax_compat.NEW_REFS):
    return jaxpr
  # JAX has no rule to discharge it.
  _refuse(jaxpr, of, lambda eqn: eqn.primitive.name == "custom_lin")
  return _jax_compat.without_refs(jaxpr)


def _on_one_device(jaxpr: ClosedJaxpr, of: Subject) -> ClosedJaxpr:
  return meshes.on_one_device(jaxpr) if of.on_one_device else jaxpr


def _without_kernels(jaxpr: ClosedJaxpr, of: Subject) -> ClosedJaxpr:
  # What a kernel prints is an equation of its own only now.
  return _without_prints(kernels.on_arrays(jaxpr), of)


def _with_library_calls(jaxpr: Jaxpr, of: Subject) -> Jaxpr:
  return with_equations(jaxpr, expanded(jaxpr))


def _with_words_of_keys(jaxpr: Jaxpr, of: Subject) -> Jaxpr:
  return with_equations(jaxpr, list(map(on_words, jaxpr.eqns)))


def _with_idioms(jaxpr: Jaxpr, of: Subject) -> Jaxpr:
  return with_equations(jaxpr, idioms.rewritten(jaxpr.eqns, jaxpr.outvars))


PASSES: tuple[Pass, ...] = (
  Pass(
    "composite ops",
    Stage.TRACED,
    _with_composite_ops,
    "TensorFlow's composite ops have derivatives of their own, which JAX is to use",
  ),
  Pass(
    "normal form",
    Stage.DIFFERENTIATED,
    lambda jaxpr, _: normalised(jaxpr),
    "a loop may read its rows inside a call, and the next pass sees one jaxpr",
  ),
  Pass(
    "rows of loops",
    Stage.DIFFERENTIATED,
    lambda jaxpr, _: loop_rows.everywhere(jaxpr),
    "JAX differentiates a read of a row as a sum of whole arrays",
  ),
  Pass(
    "sources of device_put",
    Stage.DIFFERENTIATED,
    lambda jaxpr, _: with_sources(jaxpr),
    "JAX transposes a device_put to one that moves the cotangent back to the source",
    is_native=True,
  ),
  Pass(
    "no repeated effects",
    Stage.OUTERMOST,
    _without_prints,
    "JAX has applied its derivative rules, which may print too",
    is_native=True,
  ),
  Pass(
    "no refs",
    Stage.OUTERMOST,
    _without_refs,
    "a custom_vjp whose refs are discharged before is differentiated without its own rule",
  ),
  Pass(
    "one device",
    Stage.OUTERMOST,
    _on_one_device,
    "JAX has derived what several devices do, also by a user's own rules, and needs no refs for it",
  ),
  Pass(
    "kernels on arrays",
    Stage.OUTERMOST,
    _without_kernels,
    "JAX has taken the derivatives that users give their kernels, and would take others of loops; "
    "the next pass inlines the calls",
  ),
  Pass(
    "normal form",
    Stage.NORMALISED,
    lambda jaxpr, _: normalised(jaxpr),
    "JAX's derivatives and discharged refs have calls and dead equations again",
  ),
  Pass(
    "rows of loops",
    Stage.NORMALISED,
    lambda jaxpr, _: loop_rows.everywhere(jaxpr),
    "a backward pass has loops of its own, and takes no residuals that are counters",
  ),
  Pass(
    "normal form",
    Stage.NORMALISED,
    lambda jaxpr, _: normalised(jaxpr),
    "the loops are in calls; preflight, and the names of values, come next",
  ),
  Pass(
    "calls for libraries",
    Stage.EMITTED,
    _with_library_calls,
    "a primitive of a library may have another derivative than the function that defines it",
  ),
  Pass("words of keys", Stage.EMITTED, _with_words_of_keys, "idioms match arrays of numbers"),
  Pass(
    "idioms",
    Stage.EMITTED,
    _with_idioms,
    "they may use primitives that only our rules know, which JAX cannot differentiate",
  ),
)


def passed(stage: Stage, jaxpr: Any, of: Subject) -> Any:
  """A jaxpr after all passes of a stage."""
  for step in PASSES:
    if step.stage is stage and (step.is_native or not of.is_native):
      jaxpr = step.run(jaxpr, of)
  return jaxpr


@dataclass(frozen=True, eq=False)
class Program:
  """A jaxpr, ready to be emitted; equal only to itself.

  Attributes:
    jaxpr: in its normal form, with the values of its constants.
    equations: those to emit in its place, in order.
    placement: where they run.
  """

  jaxpr: ClosedJaxpr
  equations: Sequence[Eqn]
  placement: Placement


class Emitter(Protocol):
  """Emits programs as ops of one graph."""

  def __call__(self, program: Program, *operands: tf.Tensor) -> list[tf.Tensor]:
    """The results of a program."""

  def in_current_graph(self) -> Emitter:
    """The same for the graph under construction now, which may be that of a gradient function."""

  def alias(self, tensor: tf.Tensor, source: tf.Tensor) -> None:
    """Says that a tensor is the identity of another one: what is known of one holds for both."""

  def with_value_numbering(self) -> Memory | None:
    """The same with a cache of computed values; None where that is not possible."""


class Memory(Emitter, Protocol):
  """An emitter that caches computed values."""

  def emit_reusing(self, program: Program, *operands: tf.Tensor) -> list[tf.Tensor]:
    """The results of a program; cached values are not computed again."""


class Prepare(Protocol):
  """Makes a program of a jaxpr: `prepare`, or that of the native lowering."""

  def __call__(self, jaxpr: ClosedJaxpr, of: Subject, places: Places = (), /) -> Program:
    """`places` says where the operands of the jaxpr are."""


def prepare(jaxpr: ClosedJaxpr, of: Subject, places: Places = ()) -> Program:
  """The program of a jaxpr, for ordinary ops.

  Raises:
    LoweringError: it lists every primitive without a rule, in inner jaxprs too, with the user's
      lines.
    ValueError: an equation has operands in several places; JAX's words.
  """
  jaxpr = passed(Stage.NORMALISED, passed(Stage.OUTERMOST, jaxpr, of), of)
  _refuse(jaxpr, of, lambda eqn: rule_for(eqn.primitive) is None or _foreign(eqn))
  return Program(jaxpr, *_ready(opened(jaxpr), tuple(places) if any(places) else ()))


def program_of(jaxpr: ClosedJaxpr, places: Places = ()) -> Program:
  """As `prepare`, for an inner jaxpr, or one that a rule made: gaps are found when it is
  emitted."""
  jaxpr = passed(Stage.NORMALISED, jaxpr, _INNER)
  return Program(jaxpr, *_ready(opened(jaxpr), tuple(places) if any(places) else ()))


# The passes of these stages ask nothing.
_INNER = Subject("")


@_jax_compat.weakly_cached
def _ready(jaxpr: Jaxpr, places: tuple[Place | None, ...]) -> tuple[Sequence[Eqn], Placement]:
  """The equations to emit and their placement, cached by jaxpr. The result must not hold the jaxpr,
  or it would never be freed."""
  emitted = passed(Stage.EMITTED, jaxpr, _INNER)
  if jax.config.jax_enable_checks:
    check_jaxpr(emitted)
  return emitted.eqns, propagate(jaxpr.invars, emitted.eqns, places)


def _refuse(jaxpr: ClosedJaxpr, of: Subject, is_gap: Callable[[Eqn], Any]) -> None:
  """Raises one error for all equations that are gaps at the destination."""
  needed = lowered_equations(jaxpr, of.destination)
  gaps = [
    errors.UnsupportedEquation(eqn.primitive.name, *gap(eqn), where())
    for eqn, where in needed
    if is_gap(eqn)
  ]
  if gaps:
    raise errors.lowering_error(of.function, gaps)


def gap(eqn: Eqn) -> tuple[str, str]:
  """(reason, advice) for an equation without a rule."""
  if foreign := _foreign(eqn):
    reason = (
      f"{foreign} is an extended dtype, whose elements are arrays, or are added in a way "
      "of their own"
    )
    return reason, "use arrays of numbers, or typed PRNG keys (jax.random.key)"
  if why := meshes.why_not(eqn):
    return f"it runs on several devices, and for one device {why}", _LOWER_NATIVELY
  if kernels.is_kernel(eqn):
    return kernels.why_not(eqn)
  return refusal(eqn.primitive) or errors.no_rule(why_not(eqn))


_LOWER_NATIVELY = "rewrite this part for one device, or lower natively"


def _foreign(eqn: Eqn) -> Any:
  """An extended dtype of the equation, no typed PRNG key, whose data cannot stand for its elements;
  or None."""
  dtypes = (getattr(v.aval, "dtype", None) for v in (*eqn.invars, *eqn.outvars))
  adds = eqn.primitive.name == "add_any"  # of cotangents, by a rule of the dtype
  return next((dtype for dtype in dtypes if (data := data_of(dtype)) and (data[0] or adds)), None)


def lowered_equations(
  jaxpr: Any, destination: Destination
) -> Iterator[tuple[Eqn, Callable[[], str]]]:
  """(equation, a function that returns the user's line), of those that become ops at `destination`:
  no branch for another platform, nothing that a rule leaves out. Primitives of libraries are
  calls."""

  def inside(eqn: Eqn) -> Sequence[Any]:
    platforms = eqn.params.get("branches_platforms")
    if eqn.primitive is not P.cond_p or platforms is None:
      return lowered_inside(eqn)
    chosen = destination.branch(platforms)
    # Where there is not one branch, the rule of platform_index says so.
    return [eqn.params["branches"][i] for i in chosen if i is not None] if len(chosen) == 1 else []

  return jaxprs.located(jaxpr, inside, expanded)
