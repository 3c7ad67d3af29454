"""A jaxpr and its derivatives by JAX's rules, each again a jaxpr, traced on first use.

The pullback that `jax.vjp` returns is a pytree. The forward jaxpr returns its leaves, the
residuals, next to the results; the backward jaxpr rebuilds it from them. The gradient of the
gradient is again JAX's: the pullback, as a function of primals and cotangents, has derivatives like
any other function, and so has the tangent function that `jax.jvp` makes for a
tf.autodiff.ForwardAccumulator.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.extend.core.primitives as P
from jax import tree_util
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import Literal, jaxpr_as_fun
from jax.interpreters.ad import Zero

from jax2tf import _jax_compat, _tf_compat, refs
from jax2tf._jax_compat import checkify
from jax2tf.caches import BoundedCache
from jax2tf.dtypes import is_differentiable
from jax2tf.effects import effects_mismatch
from jax2tf.errors import warn_user
from jax2tf.idioms.loop_counters import counter_p
from jax2tf.jaxprs import ClosedJaxpr, Eqn, contains, inner_jaxprs, walk
from jax2tf.program import Prepare, Program, Subject
from jax2tf.registry import IN_TENSORFLOW
from jax2tf.traits import LOOPS, OWN_RESIDUALS, UNDETERMINED


@dataclass(frozen=True)
class Forward:
  """A forward pass, and the data from which a backward pass rebuilds the pullback.

  Attributes:
    program: primals -> results and residuals.
    residuals: their specs.
    structure: of the pullback, whose leaves they are.
    refs: {position of a residual that is the value of a mutable array: whether the array's value is
      a result of the function}.
    counters: {position of a residual that `counter_p` makes: its params}.
    nonzero: filled by each trace of the pullback with the primals that have a cotangent.
    effects_error: the error if it runs although no derivative was requested, because its effects
      differ from the function's; or None.
  """

  program: Program
  residuals: Sequence[Any]
  structure: Any
  refs: Mapping[int, bool]
  counters: Mapping[int, Mapping[str, Any]]
  nonzero: set[int]
  effects_error: Exception | None


@dataclass(frozen=True)
class Backward:
  """A backward pass.

  Attributes:
    program: (residuals, given cotangents) -> cotangents of the primals to differentiate in.
    nonzero: which primals have a cotangent; the others get zeros.
  """

  program: Program
  nonzero: frozenset[int]


class Derivative:
  """A jaxpr with its derivatives, each traced when first needed.

  Attributes:
    subject: of the function; if it is recomputed, it must have no effects.
    wrt: positions of the floating point or complex arguments to differentiate in.
    results: positions of the floating point and complex results.
    prepare: makes programs.
    saved_orders: how many orders of derivatives a SavedModel holds; each one has a graph of its own
      there.

  Args:
    make: traces the jaxpr.
    program: of the jaxpr; None for one that is prepared when it is needed.
  """

  def __init__(
    self,
    make: Callable[[], ClosedJaxpr],
    subject: Subject,
    wrt: Sequence[int],
    results: Sequence[int],
    prepare: Prepare,
    saved_orders: int,
    program: Program | None = None,
  ):
    self._make = make
    self._prepared = program
    self.subject = subject
    self.prepare = prepare
    self.saved_orders = saved_orders
    self.wrt = wrt
    self.results = results
    self._cache: BoundedCache[Any, Any] = derivatives_of(subject.function)

  @property
  def function(self) -> str:
    """The name of the function, for errors."""
    return self.subject.function

  @property
  def _gradient(self) -> str:
    return f"gradient of {self.function}"

  @functools.cached_property
  def jaxpr(self) -> ClosedJaxpr:
    """The differentiated jaxpr."""
    return self._make()

  @functools.cached_property
  def program(self) -> Program:
    """The program of the differentiated jaxpr."""
    return self._prepared or self.prepare(self.jaxpr, self.subject)

  @property
  def forward(self) -> Forward | Exception:
    """The forward pass, or the error if the function has no reverse-mode derivative or no
    lowering."""
    return self._cache.get("forward", lambda: _or_error(self._trace_forward))

  def _trace_forward(self) -> Forward:
    structure: Any = None
    nonzero: set[int] = set()
    mutable: set[int] = set()
    of_refs: dict[int, bool] = {}

    def forward(*primals: Any) -> tuple[Sequence[Any], list[Any]]:
      nonlocal structure
      outs, pullback = self._vjp(primals, nonzero)
      residuals, structure = tree_util.tree_flatten(pullback)
      mutable.update(i for i, residual in enumerate(residuals) if _jax_compat.is_ref(residual))
      # The backward pass begins with the values that mutable arrays have now.
      return outs, [x[...] if i in mutable else x for i, x in enumerate(residuals)]

    try:
      jaxpr, (_, residuals) = _trace(forward, *_specs(self.jaxpr.in_avals), return_shape=True)
    except TypeError as error:  # JAX 0.12: vmap of a custom_jvp with a constant result
      error.add_note(
        f"JAX raised this when it differentiated '{self.function}' as traced, as "
        "jax.grad(jax.jit(f)) does. "
        "If jax.grad(f) is right, convert that: jax2tf.convert(jax.grad(f))"
      )
      raise
    if mutable:
      n = len(self.jaxpr.out_avals)
      jaxpr, are_results = refs.with_frozen(jaxpr, [n + i for i in sorted(mutable)])
      of_refs = {i - n: is_result for i, is_result in are_results.items()}
    without_tape = "the function, and this graph is the same with a tape and without"
    effects_error = effects_mismatch(
      self.function, jaxpr, self.jaxpr, without_tape, "put the tape inside of the tf.function"
    )
    # Of a function that runs too.
    is_recomputed = self.subject.is_recomputed or not self.forward_equals_function
    if is_recomputed and effects_error:
      raise effects_error
    program = self.prepare(jaxpr, replace(self.subject, is_recomputed=is_recomputed))
    counters = _counters(program.jaxpr.eqns, program.jaxpr.outvars[len(self.jaxpr.out_avals) :])
    return Forward(program, residuals, structure, of_refs, counters, nonzero, effects_error)

  def backward(self, with_cotangent: tuple[int, ...]) -> Backward | Exception:
    """The backward pass for cotangents of the results in `with_cotangent`; or the error.

    The other results get symbolic-zero cotangents: JAX prunes their transposes, so 0 * inf never
    arises.
    """
    return self._cache.get(
      ("backward", with_cotangent), lambda: _or_error(lambda: self._trace_backward(with_cotangent))
    )

  def _trace_backward(self, with_cotangent: tuple[int, ...]) -> Backward:
    if isinstance(forward := self.forward, Exception):
      raise forward

    def backward(residuals: Sequence[Any], cotangents: Sequence[Any]) -> Any:
      leaves = [jax.new_ref(x) if i in forward.refs else x for i, x in enumerate(residuals)]
      for i, numbers in forward.counters.items():  # so that a loop sees what they are
        leaves[i] = counter_p.bind(**numbers)
      return tree_util.tree_unflatten(forward.structure, leaves)(
        self._with_zeros(with_cotangent, cotangents)
      )

    forward.nonzero.clear()  # only this trace can reach it, which holds the lock of the cache
    jaxpr = _trace(backward, forward.residuals, self._cotangents(with_cotangent))
    subject = replace(self.subject, function=self._gradient, is_recomputed=False)
    results_of_refs = [i for i, is_result in forward.refs.items() if is_result]
    refs.check_backward(subject.function, jaxpr, results_of_refs)
    # Equations on residuals and cotangents run where these are.
    places = forward.program.placement.of(forward.program.jaxpr.outvars)
    operands = [*places[len(self.jaxpr.out_avals) :], *(places[i] for i in with_cotangent)]
    return Backward(self.prepare(jaxpr, subject, operands), frozenset(forward.nonzero))

  @functools.cached_property
  def forward_equals_function(self) -> bool:
    """Whether the forward pass returns the same values as the function.

    JAX's derivative rule of eigh symmetrises its operand, that of reduce starts from the identity
    of its monoid, that of rematerialisation omits the barrier before the recomputation, and that of
    a loop drops the checks in its body.
    """
    if contains(self.jaxpr, (P.eigh_p, P.reduce_p)):
      return False
    may_omit = contains(self.jaxpr, (P.remat_p, *LOOPS))
    return not (may_omit and any(map(_omits_effects, walk(self.jaxpr))))

  @functools.cached_property
  def residuals_can_be_lazy(self) -> bool:
    """Whether the residuals can be computed later, from values of the function, when a tape needs
    them."""
    plain = (
      self.forward_equals_function and not self.jaxpr.effects and not self.program.placement.values
    )
    return plain and not contains(self.jaxpr, (*OWN_RESIDUALS, *UNDETERMINED, *IN_TENSORFLOW))

  def pullback(self, with_cotangent: tuple[int, ...]) -> Derivative:
    """(primals, cotangents of the results in `with_cotangent`) -> cotangents of the primals in
    `wrt`."""

    def whole(primals: Sequence[Any], cotangents: Sequence[Any]) -> Any:
      return self._vjp(primals, set())[1](self._with_zeros(with_cotangent, cotangents))

    def make() -> ClosedJaxpr:
      return _trace(whole, _specs(self.jaxpr.in_avals), self._cotangents(with_cotangent))

    n_primals = len(self.jaxpr.in_avals)
    wrt = [*self.wrt, *range(n_primals, n_primals + len(with_cotangent))]
    subject = replace(self.subject, function=self._gradient, is_recomputed=True)
    orders = max(self.saved_orders - 1, 0)
    return self._cache.get(
      ("pullback", with_cotangent),
      lambda: Derivative(make, subject, wrt, range(len(self.wrt)), self.prepare, orders),
    )

  @functools.cached_property
  def pushforward(self) -> Derivative:
    """(primals, tangents of those in `wrt`) -> tangents of the results."""

    def whole(primals: Sequence[Any], tangents: Sequence[Any]) -> Any:
      of_differentiable = functools.partial(self._of_differentiable, primals)
      return jax.jvp(
        lambda *changing: of_differentiable(*changing)[0],
        [primals[i] for i in self.wrt],
        list(tangents),
      )[1]

    def make() -> ClosedJaxpr:
      avals = _specs(self.jaxpr.in_avals)
      jaxpr = _trace(whole, avals, [avals[i] for i in self.wrt])
      ran = forward.program.jaxpr if isinstance(forward := self.forward, Forward) else self.jaxpr
      error = effects_mismatch(
        self.function,
        jaxpr,
        ran,
        "the results, which have been computed before",
        "use jax.jvp before convert",
      )
      if error and not self.subject.is_recomputed:
        raise error
      return jaxpr

    n_primals = len(self.jaxpr.in_avals)
    wrt = [*self.wrt, *range(n_primals, n_primals + len(self.wrt))]
    subject = replace(self.subject, function=f"tangents of {self.function}", is_recomputed=True)
    orders = max(self.saved_orders - 1, 0)
    return Derivative(make, subject, wrt, range(len(self.results)), self.prepare, orders)

  def _vjp(
    self, primals: Sequence[Any], nonzero: set[int]
  ) -> tuple[Sequence[Any], Callable[..., Any]]:
    of_differentiable = functools.partial(self._of_differentiable, primals)
    noted = _recording_nonzero_cotangents(
      lambda positions: nonzero.update(self.wrt[k] for k in positions)
    )
    _, pullback, outs = jax.vjp(
      lambda *changing: of_differentiable(*noted(*changing)),
      *(primals[i] for i in self.wrt),
      has_aux=True,
    )
    return outs, pullback

  def _of_differentiable(
    self, primals: Sequence[Any], *changing: Any
  ) -> tuple[list[Any], list[Any]]:
    """(differentiable results, all results), as a function of the arguments in `wrt`."""
    operands = list(primals)
    for i, x in zip(self.wrt, changing, strict=True):
      operands[i] = x
    outs = jaxpr_as_fun(self.jaxpr)(*operands)
    return [outs[i] for i in self.results], outs

  def _cotangents(self, with_cotangent: Sequence[int]) -> list[jax.ShapeDtypeStruct]:
    return _specs([self.jaxpr.out_avals[i] for i in with_cotangent])

  def _with_zeros(self, with_cotangent: Sequence[int], cotangents: Sequence[Any]) -> list[Any]:
    """A cotangent for each differentiable result, JAX's symbolic zero for those that are not
    given."""
    known = dict(zip(with_cotangent, cotangents, strict=True))
    return [known[i] if i in known else Zero(self.jaxpr.out_avals[i]) for i in self.results]


# How many passes and derivatives of one function are kept, each for other results with a cotangent,
# or other watched arguments.
_MOST_DERIVATIVES = 64


def derivatives_of(function: str, count: int | None = None) -> BoundedCache[Any, Any]:
  """A cache of derivatives of `function`, or of what belongs to them; it warns when it first
  forgets one."""
  count = count or _MOST_DERIVATIVES
  return BoundedCache(count, functools.partial(_warn_of_many_derivatives, function, count))


def _warn_of_many_derivatives(function: str, count: int) -> None:
  warn_user(
    f"'{function}' was differentiated for more than {count} combinations of watched arguments and "
    "of results with a cotangent; "
    "those that come back are traced and built again. Differentiate inside a tf.function, which "
    "is built once, or use the same ones"
  )


def derivative(
  jaxpr: ClosedJaxpr,
  program: Program,
  subject: Subject,
  wrt: Sequence[int],
  prepare: Prepare,
  saved_orders: int = 1,
) -> Derivative:
  """The derivatives of a user's function, given its jaxpr and the program of that."""
  results = differentiable(jaxpr.out_avals)
  return Derivative(lambda: jaxpr, subject, wrt, results, prepare, saved_orders, program)


def _omits_effects(eqn: Eqn) -> bool:
  """Whether JAX's derivative rule of an equation omits a barrier or a check."""
  if eqn.primitive is P.remat_p:
    return bool(eqn.params["differentiated"])
  bodies = inner_jaxprs(eqn) if eqn.primitive in LOOPS else []
  return any(contains(body, (checkify.check_p,)) for body in bodies)


def _counters(eqns: Sequence[Eqn], results: Sequence[Any]) -> dict[int, Mapping[str, Any]]:
  """{position of a result that `counter_p` makes: its params}."""
  params_of = {eqn.outvars[0]: eqn.params for eqn in eqns if eqn.primitive is counter_p}
  return {
    i: params_of[v] for i, v in enumerate(results) if not isinstance(v, Literal) and v in params_of
  }


def differentiable(avals: Sequence[Any]) -> list[int]:
  """Positions of the floating point and complex avals."""
  return [i for i, aval in enumerate(avals) if is_differentiable(aval.dtype)]


def _recording_nonzero_cotangents(note: Callable[[list[int]], None]) -> Callable[..., Any]:
  """The identity. Its backward pass calls `note` with which of the values have a cotangent that is
  not a symbolic zero."""

  @jax.custom_vjp
  def same(*xs: Any) -> Any:
    return xs

  def backward(_: None, cotangents: Sequence[Any]) -> tuple[Any, ...]:
    note([k for k, c in enumerate(cotangents) if not isinstance(c, SymbolicZero)])
    return tuple(None if isinstance(c, SymbolicZero) else c for c in cotangents)

  same.defvjp(lambda *xs: (tuple(x.value for x in xs), None), backward, symbolic_zeros=True)
  return same


def _trace(fun: Callable[..., Any], *specs: Any, **options: Any) -> Any:
  """As `jax.make_jaxpr`.

  Raises:
    ValueError: a custom rule kept a tracer of the trace of its function.
  """
  with _tf_compat.recording_again():
    traced = jax.make_jaxpr(fun, **options)(*specs)
  jaxpr = traced[0] if options else traced
  # JAX 0.10: scipy.special.expn
  if any(isinstance(const, jax.core.Tracer) for const in jaxpr.consts):
    raise ValueError(
      "a custom derivative rule uses a value of an earlier trace, so JAX cannot differentiate the "
      "function as traced, as "
      "jax.grad(jax.jit(f)) does. If jax.grad(f) is right, convert that: "
      "jax2tf.convert(jax.grad(f))"
    )
  return traced


def _specs(avals: Sequence[Any]) -> list[jax.ShapeDtypeStruct]:
  return [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals]


def _or_error(make: Callable[[], Any]) -> Any:
  """The result of `make`, or the exception that it raises."""
  try:
    return make()
  except Exception as error:
    return without_traceback(error)


def without_traceback(error: Exception) -> Exception:
  """A copy of the exception without its traceback, whose frames hold arrays. The type's __init__
  may need more arguments."""
  words = type(error).__new__(type(error), str(error))
  words.args = (str(error),)
  for note in getattr(error, "__notes__", ()):
    words.add_note(note)
  return words
