"""A jaxpr and its derivatives by JAX's rules, each a jaxpr too, traced when it is first needed.

The pullback that `jax.vjp` returns is a pytree. The forward jaxpr returns its leaves, the residuals,
next to the results; the backward jaxpr rebuilds it from them. The gradient of the gradient is again
JAX's: the pullback, as a function of primals and cotangents, has derivatives like any other function, and
so has the tangent function that `jax.jvp` makes for a tf.autodiff.ForwardAccumulator.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.extend.core.primitives as P
from jax import tree_util
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import jaxpr_as_fun
from jax.interpreters.ad import Zero

from jax2tf import _jax_checks, _tf_compat
from jax2tf.dtypes import is_differentiable
from jax2tf.effects import differing, repeated
from jax2tf.jaxprs import ClosedJaxpr, contains, equations, inner_jaxprs
from jax2tf.program import Prepare, Program, with_sources
from jax2tf.registry import IN_TENSORFLOW
from jax2tf.trace import BoundedCache

# Primitives that define their residuals, or that JAX differentiates as a more expensive equation.
_WITH_RESIDUALS = (P.cond_p, P.cumlogsumexp_p, P.custom_vjp_call_p, P.remat_p, P.scan_p, P.sort_p, P.svd_p, P.while_p)


@dataclass(frozen=True)
class Forward:
  """A forward pass, and what a backward pass rebuilds the pullback from.

  Attributes:
    program: primals -> results and residuals.
    residuals: their specs.
    structure: of the pullback, whose leaves they are.
    reached: filled by each trace of the pullback with the primals that have a cotangent.
    unless_asked: why it cannot run where perhaps no derivative is asked for: it has other effects than the function; or None.
  """

  program: Program
  residuals: Sequence[Any]
  structure: Any
  reached: set[int]
  unless_asked: Exception | None


@dataclass(frozen=True)
class Backward:
  """A backward pass.

  Attributes:
    program: (residuals, given cotangents) -> cotangents of the primals to differentiate in.
    reached: which of the primals have one; for the others there are zeros.
  """

  program: Program
  reached: frozenset[int]


class Derivative:
  """A jaxpr with its derivatives, each traced when first needed.

  Attributes:
    function: name of the user's function, for errors.
    wrt: positions of the floating point or complex arguments to differentiate in.
    results: positions of the floating point and complex results.
    prepare: makes programs.
    saved_orders: how many orders of derivatives a SavedModel holds; each one has a graph of its own there.
    is_repeated: what it computes is computed once more, beside its function, and so has no effects.
  """

  def __init__(
    self,
    make: Callable[[], ClosedJaxpr],
    function: str,
    wrt: Sequence[int],
    results: Sequence[int],
    prepare: Prepare,
    saved_orders: int,
    *,
    is_repeated: bool = False,
  ):
    self._make = make
    self.is_repeated = is_repeated
    self.prepare = prepare
    self.saved_orders = saved_orders
    self.function = function
    self.wrt = wrt
    self.results = results
    self._made = BoundedCache(maxsize=32)

  @functools.cached_property
  def jaxpr(self) -> ClosedJaxpr:
    """What is differentiated."""
    return self._make()

  @functools.cached_property
  def program(self) -> Program:
    """What is differentiated, ready to be emitted."""
    return self.prepare(repeated(self.function, self.jaxpr) if self.is_repeated else self.jaxpr, self.function, ())

  @property
  def forward(self) -> Forward | Exception:
    """Or what `jax.vjp` raises for a function that has no reverse-mode derivative, or preflight for one that has no lowering."""
    return self._made.get("forward", lambda: _or_error(self._trace_forward))

  def _trace_forward(self) -> Forward:
    structure: Any = None
    reached: set[int] = set()

    def forward(*primals: Any) -> tuple[Sequence[Any], list[Any]]:
      nonlocal structure
      outs, pull = self._vjp(primals, reached)
      residuals, structure = tree_util.tree_flatten(pull)
      return outs, residuals

    jaxpr, (_, residuals) = _trace(forward, *_specs(self.jaxpr.in_avals), return_shape=True)
    without_tape = "the function, and this graph is the same with a tape and without"
    unless_asked = differing(self.function, jaxpr, self.jaxpr, without_tape, "put the tape inside of the tf.function")
    if self.is_repeated or not self.keeps_values:  # the function itself runs too
      if unless_asked:
        raise unless_asked
      jaxpr = repeated(self.function, jaxpr)
    return Forward(self.prepare(jaxpr, self.function, ()), residuals, structure, reached, unless_asked)

  def backward(self, given: tuple[int, ...]) -> Backward | Exception:
    """Where cotangents of the results in `given` are given; or why there is none.

    The other results get symbolic-zero cotangents: JAX prunes their transposes, so 0 * inf never arises.
    """
    return self._made.get(("backward", given), lambda: _or_error(lambda: self._trace_backward(given)))

  def _trace_backward(self, given: tuple[int, ...]) -> Backward:
    if isinstance(forward := self.forward, Exception):
      raise forward

    def backward(residuals: Sequence[Any], cotangents: Sequence[Any]) -> Any:
      return tree_util.tree_unflatten(forward.structure, residuals)(self._with_zeros(given, cotangents))

    forward.reached.clear()  # only this trace can reach it, which holds the lock of the cache
    jaxpr = _trace(backward, forward.residuals, self._cotangents(given))
    # Equations on residuals and cotangents run where these are.
    places = forward.program.placement.of(forward.program.jaxpr.outvars)
    operands = [*places[len(self.jaxpr.out_avals) :], *(places[i] for i in given)]
    return Backward(self.prepare(jaxpr, f"gradient of {self.function}", operands), frozenset(forward.reached))

  @functools.cached_property
  def keeps_values(self) -> bool:
    """False where the forward pass is not what the function itself is.

    JAX's derivative rule of eigh symmetrises its operand, that of reduce starts from the identity of its monoid, that of
    rematerialisation leaves out the barrier before what is computed once more, and that of a loop leaves out the checks in its body.
    """
    barriers = (eqn.params["differentiated"] for eqn, _ in equations(self.jaxpr) if eqn.primitive is P.remat_p)
    loops = (eqn for eqn, _ in equations(self.jaxpr) if eqn.primitive in (P.scan_p, P.while_p))
    checks = (contains(body, (_jax_checks.check_p,)) for eqn in loops for body in inner_jaxprs(eqn))
    return not (contains(self.jaxpr, (P.eigh_p, P.reduce_p)) or any(barriers) or any(checks))

  @functools.cached_property
  def may_wait(self) -> bool:
    """Whether the residuals follow from values of the function itself, so that they can be computed when a tape needs them."""
    plain = self.keeps_values and not self.jaxpr.effects and not self.program.placement.values
    return plain and not contains(self.jaxpr, (*_WITH_RESIDUALS, *IN_TENSORFLOW))

  def pullback(self, given: tuple[int, ...]) -> Derivative:
    """(primals, cotangents of the results in `given`) -> cotangents of the primals in `wrt`."""

    def whole(primals: Sequence[Any], cotangents: Sequence[Any]) -> Any:
      return self._vjp(primals, set())[1](self._with_zeros(given, cotangents))

    def make() -> ClosedJaxpr:
      return _trace(whole, _specs(self.jaxpr.in_avals), self._cotangents(given))

    n_primals = len(self.jaxpr.in_avals)
    wrt = [*self.wrt, *range(n_primals, n_primals + len(given))]
    name, results, orders = f"gradient of {self.function}", range(len(self.wrt)), max(self.saved_orders - 1, 0)
    return self._made.get(("pullback", given), lambda: Derivative(make, name, wrt, results, self.prepare, orders, is_repeated=True))

  @functools.cached_property
  def pushforward(self) -> Derivative:
    """(primals, tangents of those in `wrt`) -> tangents of the results."""

    def whole(primals: Sequence[Any], tangents: Sequence[Any]) -> Any:
      of_differentiable = functools.partial(self._of_differentiable, primals)
      return jax.jvp(lambda *changing: of_differentiable(*changing)[0], [primals[i] for i in self.wrt], list(tangents))[1]

    def make() -> ClosedJaxpr:
      avals = _specs(self.jaxpr.in_avals)
      jaxpr = _trace(whole, avals, [avals[i] for i in self.wrt])
      ran = forward.program.jaxpr if isinstance(forward := self.forward, Forward) else self.jaxpr
      error = differing(self.function, jaxpr, ran, "the results, which have been computed before", "use jax.jvp before convert")
      if error and not self.is_repeated:
        raise error
      return jaxpr

    n_primals = len(self.jaxpr.in_avals)
    wrt = [*self.wrt, *range(n_primals, n_primals + len(self.wrt))]
    name, results, orders = f"tangents of {self.function}", range(len(self.results)), max(self.saved_orders - 1, 0)
    return Derivative(make, name, wrt, results, self.prepare, orders, is_repeated=True)

  def _vjp(self, primals: Sequence[Any], reached: set[int]) -> tuple[Sequence[Any], Callable[..., Any]]:
    of_differentiable = functools.partial(self._of_differentiable, primals)
    noted = _noting(lambda positions: reached.update(self.wrt[k] for k in positions))
    _, pull, outs = jax.vjp(lambda *changing: of_differentiable(*noted(*changing)), *(primals[i] for i in self.wrt), has_aux=True)
    return outs, pull

  def _of_differentiable(self, primals: Sequence[Any], *changing: Any) -> tuple[list[Any], list[Any]]:
    """(differentiable results, all results) for other values of the arguments in `wrt`."""
    operands = list(primals)
    for i, x in zip(self.wrt, changing, strict=True):
      operands[i] = x
    outs = jaxpr_as_fun(self.jaxpr)(*operands)
    return [outs[i] for i in self.results], outs

  def _cotangents(self, given: Sequence[int]) -> list[jax.ShapeDtypeStruct]:
    return _specs([self.jaxpr.out_avals[i] for i in given])

  def _with_zeros(self, given: Sequence[int], cotangents: Sequence[Any]) -> list[Any]:
    """A cotangent for each differentiable result, JAX's symbolic zero for those that are not given."""
    found = dict(zip(given, cotangents, strict=True))
    return [found[i] if i in found else Zero(self.jaxpr.out_avals[i]) for i in self.results]


def derivative(jaxpr: ClosedJaxpr, function: str, wrt: Sequence[int], prepare: Prepare, saved_orders: int = 1) -> Derivative:
  """Of a function of the user's."""
  return Derivative(lambda: with_sources(jaxpr), function, wrt, differentiable(jaxpr.out_avals), prepare, saved_orders)


def differentiable(avals: Sequence[Any]) -> list[int]:
  """Positions of the floating point and complex avals."""
  return [i for i, aval in enumerate(avals) if is_differentiable(aval.dtype)]


def _noting(note: Callable[[list[int]], None]) -> Callable[..., Any]:
  """The identity of several values; a backward pass calls `note` with which of them have a cotangent and not JAX's symbolic zero."""

  @jax.custom_vjp
  def same(*xs: Any) -> Any:
    return xs

  def backward(_: None, cotangents: Sequence[Any]) -> tuple[Any, ...]:
    note([k for k, c in enumerate(cotangents) if not isinstance(c, SymbolicZero)])
    return tuple(None if isinstance(c, SymbolicZero) else c for c in cotangents)

  same.defvjp(lambda *xs: (tuple(x.value for x in xs), None), backward, symbolic_zeros=True)
  return same


def _trace(fun: Callable[..., Any], *specs: Any, **options: Any) -> Any:
  with _tf_compat.recording_again():
    return jax.make_jaxpr(fun, **options)(*specs)


def _specs(avals: Sequence[Any]) -> list[jax.ShapeDtypeStruct]:
  return [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals]


def _or_error(make: Callable[[], Any]) -> Any:
  """What `make` returns, or raises."""
  try:
    return make()
  except Exception as error:
    return words_of(error)


def words_of(error: Exception) -> Exception:
  """The same type and words without the traceback, whose frames hold arrays. The type's own __init__ may need more arguments."""
  words = type(error).__new__(type(error), str(error))
  words.args = (str(error),)
  for note in getattr(error, "__notes__", ()):
    words.add_note(note)
  return words
