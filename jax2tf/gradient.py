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
from typing import Any

import jax
import jax.extend.core.primitives as P
import tensorflow as tf
from jax import tree_util
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import jaxpr_as_fun
from jax.interpreters.ad import Zero

from jax2tf import _tf_compat
from jax2tf.dtypes import is_differentiable
from jax2tf.jaxprs import ClosedJaxpr, contains, equations
from jax2tf.program import Emitter, Prepare, Program, with_sources
from jax2tf.trace import BoundedCache


class Derivative:
  """A jaxpr with its derivatives, each traced when asked for.

  Attributes:
    function: name of the user's function, for errors.
    wrt: positions of the floating point or complex arguments to differentiate in.
    results: positions of the floating point and complex results.
    prepare: makes programs.
  """

  def __init__(self, make: Callable[[], ClosedJaxpr], function: str, wrt: Sequence[int], results: Sequence[int], prepare: Prepare):
    self._make = make
    self.prepare = prepare
    self.function = function
    self.wrt = wrt
    self.results = results
    self._made = BoundedCache(maxsize=32)
    self._reached: set[int] = set()  # by the backward pass that is being traced

  @functools.cached_property
  def jaxpr(self) -> ClosedJaxpr:
    """What is differentiated."""
    return self._make()

  @functools.cached_property
  def program(self) -> Program:
    """What is differentiated, ready to be emitted."""
    return self.prepare(self.jaxpr, self.function, ())

  @functools.cached_property
  def refusal(self) -> Exception | None:
    """What `jax.vjp` raises for a function that has no reverse-mode derivative, or preflight for one that has no lowering."""
    try:
      self.backward(tuple(self.results))
    except Exception as error:
      return error
    return None

  @property
  def forward(self) -> Program:
    """primals -> results and residuals."""
    return self._forward[0]

  @functools.cached_property
  def _forward(self) -> tuple[Program, Sequence[Any], Any]:
    structure: Any = None

    def forward(*primals: Any) -> tuple[Sequence[Any], list[Any]]:
      nonlocal structure
      outs, pull = self._vjp(primals)
      residuals, structure = tree_util.tree_flatten(pull)
      return outs, residuals

    jaxpr, (_, residuals) = _trace(forward, *_specs(self.jaxpr.in_avals), return_shape=True)
    return self.prepare(jaxpr, self.function, ()), residuals, structure

  def backward(self, given: tuple[int, ...]) -> Program:
    """(residuals, cotangents of the results in `given`) -> cotangents of the primals in `wrt`.

    The other results have none, which is not the same as zeros: JAX then leaves out what leads to them, and with it 0 * inf.
    """
    return self._backward(given)[0]

  def reached(self, given: tuple[int, ...]) -> frozenset[int]:
    """Which of the primals have a cotangent; for the others `backward` returns zeros."""
    return self._backward(given)[1]

  def _backward(self, given: tuple[int, ...]) -> tuple[Program, frozenset[int]]:
    forward, residuals, structure = self._forward

    def backward(residuals: Sequence[Any], cotangents: Sequence[Any]) -> Any:
      return tree_util.tree_unflatten(structure, residuals)(self._with_zeros(given, cotangents))

    def make() -> tuple[Program, frozenset[int]]:
      self._reached.clear()
      jaxpr = _trace(backward, residuals, self._cotangents(given))
      places = forward.placement.of(forward.jaxpr.outvars)  # what runs on residuals and cotangents follows them to where they are
      operands = [*places[len(self.jaxpr.out_avals) :], *(places[i] for i in given)]
      return self.prepare(jaxpr, f"gradient of {self.function}", operands), frozenset(self._reached)

    return self._made.get(("backward", given), make)

  @functools.cached_property
  def keeps_values(self) -> bool:
    """False where the forward pass is not what the function itself is.

    JAX's derivative rule of eigh symmetrises its operand, that of reduce starts from the identity of its monoid, and that of
    rematerialisation leaves out the barrier before what is computed once more.
    """
    barriers = (eqn.params["differentiated"] for eqn, _ in equations(self.jaxpr) if eqn.primitive is P.remat_p)
    return not (contains(self.jaxpr, (P.eigh_p, P.reduce_p)) or any(barriers))

  def pullback(self, given: tuple[int, ...]) -> Derivative:
    """(primals, cotangents of the results in `given`) -> cotangents of the primals in `wrt`."""

    def whole(primals: Sequence[Any], cotangents: Sequence[Any]) -> Any:
      return self._vjp(primals)[1](self._with_zeros(given, cotangents))

    def make() -> ClosedJaxpr:
      return _trace(whole, _specs(self.jaxpr.in_avals), self._cotangents(given))

    n_primals = len(self.jaxpr.in_avals)
    wrt = [*self.wrt, *range(n_primals, n_primals + len(given))]
    return self._made.get(
      ("pullback", given), lambda: Derivative(make, f"gradient of {self.function}", wrt, range(len(self.wrt)), self.prepare)
    )

  @functools.cached_property
  def pushforward(self) -> Derivative:
    """(primals, tangents of those in `wrt`) -> tangents of the results."""

    def whole(primals: Sequence[Any], tangents: Sequence[Any]) -> Any:
      of_differentiable = functools.partial(self._of_differentiable, primals)
      return jax.jvp(lambda *changing: of_differentiable(*changing)[0], [primals[i] for i in self.wrt], list(tangents))[1]

    def make() -> ClosedJaxpr:
      avals = _specs(self.jaxpr.in_avals)
      return _trace(whole, avals, [avals[i] for i in self.wrt])

    n_primals = len(self.jaxpr.in_avals)
    wrt = [*self.wrt, *range(n_primals, n_primals + len(self.wrt))]
    return Derivative(make, f"tangents of {self.function}", wrt, range(len(self.results)), self.prepare)

  def _vjp(self, primals: Sequence[Any]) -> tuple[Sequence[Any], Callable[..., Any]]:
    of_differentiable = functools.partial(self._of_differentiable, primals)
    noted = _noting(lambda reached: self._reached.update(self.wrt[k] for k in reached))
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
  n_out = len(of.jaxpr.out_avals)
  residuals: list[tf.Tensor] = []

  def results() -> list[tf.Tensor]:
    if of.refusal:  # which concerns the user only if the derivative is asked for
      return run(of.program, *primals)
    outs = run(of.forward, *primals)
    residuals.extend(map(_cut, outs[n_out:]))
    return outs[:n_out] if of.keeps_values else run(of.program, *primals)

  def backward(run: Emitter, given: tuple[int, ...], *seeds: tf.Tensor) -> list[tf.Tensor]:
    # Identities, because a nested gradient function may only close over tensors of its own graph.
    return run(of.backward(given), *map(tf.identity, residuals), *seeds)

  return _node(of, run, results, n_out, backward, primals, order=1)


def _node(
  of: Derivative,
  run: Emitter,
  results: Callable[[], list[tf.Tensor]],
  n_out: int,
  backward: Callable[..., list[tf.Tensor]],
  primals: Sequence[tf.Tensor],
  order: int,
) -> list[tf.Tensor]:
  """The `n_out` results, with derivatives; `backward(run, given, *cotangents)` gives the cotangents of the primals in `of.wrt`."""
  operands = [primals[i] for i in of.wrt]

  @_in_scope("jax2tf_vjp")
  def pull(*cotangents: tf.Tensor) -> Sequence[tf.Tensor]:
    if order > _SAVED_ORDERS and _tf_compat.is_saving():
      return _refuse(LookupError(f"a SavedModel holds derivatives up to order {_SAVED_ORDERS}"), operands)
    if of.refusal:
      if order == 1 and _tf_compat.is_saving():
        warnings.warn(
          f"the SavedModel is written without the gradient of '{of.function}', which has none: {of.refusal}. To save it without "
          "this warning, convert with with_gradient=False",
          UserWarning,
          stacklevel=2,
        )
      return _refuse(of.refusal, operands)
    given = tuple(i for i in of.results if not _tf_compat.is_missing(cotangents[i]))
    pullback, here = of.pullback(given), run.here()
    own = [tf.identity(p, f"jax2tf_arg_{i}") for i, p in enumerate(primals)]
    seeds = [tf.identity(_conjugate(cotangents[i]), f"jax2tf_arg_{len(own) + i}") for i in given]

    def backward_of_pullback(run: Emitter, given: tuple[int, ...], *seeds_of_pullback: tf.Tensor) -> list[tf.Tensor]:
      residuals = run(pullback.forward, *map(tf.identity, own), *map(tf.identity, seeds))[len(of.wrt) :]
      return run(pullback.backward(given), *residuals, *seeds_of_pullback)

    results = functools.partial(backward, here, given, *seeds)
    found = _node(pullback, here, results, len(of.wrt), backward_of_pullback, [*own, *seeds], order + 1)
    named, reached = [tf.identity(_conjugate(x), "jax2tf_out") for x in found], of.reached(given)
    return [x if i in reached else _tf_compat.missing(x) for i, x in zip(of.wrt, named, strict=True)]

  @_in_scope("jax2tf_jvp")
  def push(*tangents: tf.Tensor) -> list[tf.Tensor | None]:
    found = dict(zip(of.results, call(of.pushforward, run.here(), *primals, *tangents), strict=True))
    return [found.get(i) for i in range(n_out)]

  return _tf_compat.with_derivatives(results, operands, pull, push)


def _refuse(error: Exception, operands: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
  """Raises the error; in a SavedModel, where no Python runs, cotangents that are an InvalidArgumentError of the same words."""
  if not _tf_compat.is_saving():
    raise error
  # TensorFlow takes no fill that is known to fail, so the condition is one that only the loaded graph knows.
  condition = tf.compat.v1.placeholder_with_default(False, [])
  with tf.control_dependencies([tf.debugging.Assert(condition, [str(error)])]):
    failing = _tf_compat.fails_under_xla(condition, str(error))
  with tf.control_dependencies([failing]):
    return [tf.identity(x) for x in operands]  # of the right shapes, and never seen


def _in_scope(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
  """The decorated function, its ops in a TensorFlow scope."""

  def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
    def scoped(*tensors: tf.Tensor) -> Any:
      with tf.name_scope(name):
        return function(*tensors)

    return scoped

  return wrap


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


def _conjugate(x: tf.Tensor) -> tf.Tensor:
  return tf.math.conj(x) if x.dtype.is_complex else x
