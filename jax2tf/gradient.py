"""JAX's own derivatives behind TensorFlow's tapes and accumulators, with nothing computed twice.

The pullback that `jax.vjp` returns is a pytree. The forward jaxpr returns its leaves, the residuals,
next to the results; the backward jaxpr rebuilds it from them. The gradient of the gradient is again
JAX's: the pullback, as a function of primals and cotangents, has derivatives like any other function, and
so has the tangent function that `jax.jvp` makes for a tf.autodiff.ForwardAccumulator.

Complex cotangents: TensorFlow's gradient is the conjugate of JAX's, so both ends are conjugated and
the tape sees what it would see for the same function written in TensorFlow. Tangents are the same in both.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.extend.core.primitives as P
import tensorflow as tf
from jax import tree_util
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import jaxpr_as_fun
from jax.interpreters.ad import Zero

from jax2tf import _jax_checks, _tf_compat, _tf_patches
from jax2tf.dtypes import is_differentiable
from jax2tf.effects import differing, repeated
from jax2tf.jaxprs import ClosedJaxpr, contains, equations, inner_jaxprs
from jax2tf.program import Emitter, Prepare, Program, with_sources
from jax2tf.trace import BoundedCache


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
  """A jaxpr with its derivatives, each traced when asked for.

  Attributes:
    function: name of the user's function, for errors.
    wrt: positions of the floating point or complex arguments to differentiate in.
    results: positions of the floating point and complex results.
    prepare: makes programs.
    is_repeated: what it computes is computed once more, beside its function, and so has no effects.
  """

  def __init__(
    self,
    make: Callable[[], ClosedJaxpr],
    function: str,
    wrt: Sequence[int],
    results: Sequence[int],
    prepare: Prepare,
    *,
    is_repeated: bool = False,
  ):
    self._make = make
    self._is_repeated = is_repeated
    self.prepare = prepare
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
    return self.prepare(repeated(self.function, self.jaxpr) if self._is_repeated else self.jaxpr, self.function, ())

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
    if self._is_repeated or not self.keeps_values:  # then the function itself runs too
      if unless_asked:
        raise unless_asked
      jaxpr = repeated(self.function, jaxpr)
    return Forward(self.prepare(jaxpr, self.function, ()), residuals, structure, reached, unless_asked)

  def backward(self, given: tuple[int, ...]) -> Backward | Exception:
    """Where cotangents of the results in `given` are given; or why there is none.

    The other results have none, which is not the same as zeros: JAX then leaves out what leads to them, and with it 0 * inf.
    """
    return self._made.get(("backward", given), lambda: _or_error(lambda: self._trace_backward(given)))

  def _trace_backward(self, given: tuple[int, ...]) -> Backward:
    if isinstance(forward := self.forward, Exception):
      raise forward

    def backward(residuals: Sequence[Any], cotangents: Sequence[Any]) -> Any:
      return tree_util.tree_unflatten(forward.structure, residuals)(self._with_zeros(given, cotangents))

    forward.reached.clear()  # only this trace can reach it, which holds the lock of the cache
    jaxpr = _trace(backward, forward.residuals, self._cotangents(given))
    # What runs on residuals and cotangents follows them to where they are.
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

  def pullback(self, given: tuple[int, ...]) -> Derivative:
    """(primals, cotangents of the results in `given`) -> cotangents of the primals in `wrt`."""

    def whole(primals: Sequence[Any], cotangents: Sequence[Any]) -> Any:
      return self._vjp(primals, set())[1](self._with_zeros(given, cotangents))

    def make() -> ClosedJaxpr:
      return _trace(whole, _specs(self.jaxpr.in_avals), self._cotangents(given))

    n_primals = len(self.jaxpr.in_avals)
    wrt = [*self.wrt, *range(n_primals, n_primals + len(given))]
    name, results = f"gradient of {self.function}", range(len(self.wrt))
    return self._made.get(("pullback", given), lambda: Derivative(make, name, wrt, results, self.prepare, is_repeated=True))

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
      if error and not self._is_repeated:
        raise error
      return jaxpr

    n_primals = len(self.jaxpr.in_avals)
    wrt = [*self.wrt, *range(n_primals, n_primals + len(self.wrt))]
    return Derivative(make, f"tangents of {self.function}", wrt, range(len(self.results)), self.prepare, is_repeated=True)

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


def derivative(jaxpr: ClosedJaxpr, function: str, wrt: Sequence[int], prepare: Prepare) -> Derivative:
  """Of a function of the user's."""
  return Derivative(lambda: with_sources(jaxpr), function, wrt, differentiable(jaxpr.out_avals), prepare)


# Derivatives of a SavedModel: beyond these orders the loaded function refuses. Each one saved holds a graph of its own.
_SAVED_ORDERS = 2


def call(of: Derivative, run: Emitter, *primals: tf.Tensor) -> list[tf.Tensor]:
  """The results of `of.jaxpr`, which TensorFlow differentiates with JAX's derivatives.

  Args:
    of: the function and its derivatives.
    run: emits programs, or calls them.
    primals: its arguments.
  """
  if not (of.wrt and of.results):
    return run(of.program, *primals)
  is_asked = any(_tf_compat.is_watched(primals[i]) for i in of.wrt)
  return _Differentiable(of, run, primals).call(functools.partial(_forward, of, run, primals, is_asked), of.jaxpr)


def _forward(of: Derivative, run: Emitter, primals: Sequence[tf.Tensor], is_asked: bool) -> tuple[list[tf.Tensor], Any]:
  """(results, residuals or why there are none); `is_asked` if a tape around is known to ask for derivatives."""
  if isinstance(forward := of.forward, Exception):  # which concerns the user only if the derivative is asked for
    return run(of.program, *primals), forward
  if forward.unless_asked and not is_asked:
    return run(of.program, *primals), forward.unless_asked
  n_out = len(of.jaxpr.out_avals)
  outs = run(forward.program, *primals)
  return outs[:n_out] if of.keeps_values else run(of.program, *primals), [*map(_cut, outs[n_out:])]


@dataclass(frozen=True)
class _Differentiable:
  """A function on its arguments, and what TensorFlow asks it for: cotangents of them, or tangents of its results.

  Attributes:
    of: the function and its derivatives.
    run: emits programs where the arguments are, or calls them.
    primals: the arguments.
    order: of the derivative that its gradient is.
  """

  of: Derivative
  run: Emitter
  primals: Sequence[tf.Tensor]
  order: int = 1

  def call(self, compute: Callable[[], tuple[list[tf.Tensor], Any]], of: ClosedJaxpr) -> list[tf.Tensor]:
    """The results, with derivatives; `compute`, which has the effects of `of`, gives them and the residuals, None for later, or why not."""
    operands = [self.primals[i] for i in self.of.wrt]
    pull, push = _in_scope("jax2tf_vjp", self.pull), _in_scope("jax2tf_jvp", self.push)
    return _tf_compat.with_derivatives(compute, operands, pull, push, bool(of.effects))

  def pull(self, residuals: Sequence[tf.Tensor] | Exception | None, *cotangents: tf.Tensor) -> Sequence[tf.Tensor]:
    """Cotangents of the results -> those of the arguments."""
    if isinstance(residuals, Exception):
      return self._refuse(residuals)
    if self.order > _SAVED_ORDERS and _tf_compat.is_saving():
      return self._refuse(LookupError(f"a SavedModel holds derivatives up to order {_SAVED_ORDERS}"))
    given = tuple(i for i in self.of.results if not _tf_patches.is_missing(cotangents[i]))
    if isinstance(backward := self.of.backward(given), Exception):
      return self._refuse(backward)
    here = self.run.here()
    # Identities, because a nested gradient function may only close over tensors of its own graph.
    own = [tf.identity(p, f"jax2tf_arg_{i}") for i, p in enumerate(self.primals)]
    seeds = [tf.identity(_conjugate(cotangents[i]), f"jax2tf_arg_{len(own) + i}") for i in given]

    def compute() -> tuple[list[tf.Tensor], None]:
      held = self._residuals(here) if residuals is None else residuals
      return here(backward.program, *map(tf.identity, held), *seeds), None

    found = _Differentiable(self.of.pullback(given), here, [*own, *seeds], self.order + 1).call(compute, backward.program.jaxpr)
    named = [tf.identity(_conjugate(x), "jax2tf_out") for x in found]
    return [x if i in backward.reached else _tf_patches.missing(x) for i, x in zip(self.of.wrt, named, strict=True)]

  def _residuals(self, run: Emitter) -> list[tf.Tensor]:
    forward = self.of.forward
    assert isinstance(forward, Forward)
    return run(forward.program, *map(tf.identity, self.primals))[len(self.of.jaxpr.out_avals) :]

  def _refuse(self, error: Exception) -> Sequence[tf.Tensor]:
    """Raises the error; in a SavedModel, where no Python runs, cotangents that are an InvalidArgumentError of the same words."""
    if not _tf_compat.is_saving():
      raise _words_of(error)
    if self.order == 1:
      warnings.warn(
        f"the SavedModel is written without the gradient of '{self.of.function}', which has none: {error}. To save it without "
        "this warning, convert with with_gradient=False",
        UserWarning,
        stacklevel=2,
      )
    # TensorFlow takes no fill that is known to fail, so the condition is one that only the loaded graph knows.
    condition = tf.compat.v1.placeholder_with_default(False, [])
    with tf.control_dependencies([tf.debugging.Assert(condition, [str(error)])]):
      failing = _tf_compat.fails_under_xla(condition, str(error))
    with tf.control_dependencies([failing]):
      return [tf.identity(self.primals[i]) for i in self.of.wrt]  # of the right shapes, and never seen

  def push(self, *tangents: tf.Tensor) -> list[tf.Tensor | None]:
    """Tangents of the arguments -> those of the results."""
    found = dict(zip(self.of.results, call(self.of.pushforward, self.run.here(), *self.primals, *tangents), strict=True))
    return [found.get(i) for i in range(len(self.of.jaxpr.out_avals))]


def _in_scope(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
  """The function, its ops in a TensorFlow scope."""

  def scoped(*args: Any) -> Any:
    with tf.name_scope(name):
      return function(*args)

  return scoped


def differentiable(avals: Sequence[Any]) -> list[int]:
  """Positions of the floating point and complex avals."""
  return [i for i, aval in enumerate(avals) if is_differentiable(aval.dtype)]


def _cut(residual: tf.Tensor) -> tf.Tensor:
  """The residual, which has no derivative: all derivatives go through the primals.

  TensorFlow would differentiate what a gradient function captures (a persistent tape around a tf.function does), by the gradients of the
  ops if they have any, and 0 * inf is NaN there.
  """
  if tf.executing_eagerly():  # where recording is stopped
    return residual
  with tf.device(residual.device):
    return tf.stop_gradient(residual)


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
    return _words_of(error)


def _words_of(error: Exception) -> Exception:
  """The same type and words without the traceback, whose frames hold arrays. The type's own __init__ may ask for more."""
  words = type(error).__new__(type(error), str(error))
  words.args = (str(error),)
  for note in getattr(error, "__notes__", ()):
    words.add_note(note)
  return words


def _conjugate(x: tf.Tensor) -> tf.Tensor:
  return tf.math.conj(x) if x.dtype.is_complex else x
