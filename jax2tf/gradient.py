"""JAX's own VJP behind `tf.custom_gradient`, with nothing computed twice.

The pullback that `jax.vjp` returns is a pytree. The forward jaxpr returns its leaves, the residuals,
next to the results; the backward jaxpr rebuilds it from them. The gradient of the gradient is again
JAX's: the pullback, as a function of primals and cotangents, has a VJP like any other function.

Complex cotangents: TensorFlow's gradient is the conjugate of JAX's, so both ends are conjugated and
the tape sees what it would see for the same function written in TensorFlow.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend.core.primitives as P
import tensorflow as tf
from jax import tree_util
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from jax2tf import _tf_compat
from jax2tf.dtypes import is_differentiable
from jax2tf.interpreter import contains, preflight

Run = Callable[..., list[tf.Tensor]]


class Pullback:
  """The VJP of a jaxpr in its differentiable arguments, traced when asked for.

  Attributes:
    jaxpr: what is differentiated.
    wrt: positions of the floating point or complex arguments to differentiate in.
    results: positions of its floating point and complex results.
  """

  def __init__(self, jaxpr: ClosedJaxpr, function: str, wrt: Sequence[int]):
    self.jaxpr = jaxpr
    self.function = function
    self.wrt = wrt
    self.results = differentiable(jaxpr.out_avals)

  @functools.cached_property
  def halves(self) -> tuple[ClosedJaxpr, ClosedJaxpr]:
    """(primals -> results and residuals, residuals and cotangents -> cotangents of the primals).

    Raises:
      what `jax.vjp` raises for a function that has no reverse-mode derivative.
    """
    structure: Any = None

    def forward(*primals: Any) -> tuple[Sequence[Any], list[Any]]:
      nonlocal structure
      outs, pull = self._vjp(primals)
      residuals, structure = tree_util.tree_flatten(pull)
      return outs, residuals

    def backward(residuals: Sequence[Any], cotangents: Sequence[Any]) -> Any:
      return tree_util.tree_unflatten(structure, residuals)(list(cotangents))

    forward_jaxpr, (_, residuals) = jax.make_jaxpr(forward, return_shape=True)(*_specs(self.jaxpr.in_avals))
    backward_jaxpr = jax.make_jaxpr(backward)(residuals, self._cotangents())
    preflight(forward_jaxpr, self.function)
    preflight(backward_jaxpr, f"gradient of {self.function}")
    return forward_jaxpr, backward_jaxpr

  @functools.cached_property
  def keeps_values(self) -> bool:
    """False where JAX's derivative rule computes other results than the primitive itself does.

    That of eigh symmetrises its operand, that of reduce starts from the identity of its monoid.
    """
    return not contains(self.jaxpr, (P.eigh_p, P.reduce_p))

  @functools.cached_property
  def next_order(self) -> Pullback:
    """The VJP of (primals, cotangents) -> cotangents of the primals."""

    def whole(primals: Sequence[Any], cotangents: Sequence[Any]) -> Any:
      return self._vjp(primals)[1](list(cotangents))

    jaxpr = jax.make_jaxpr(whole)(_specs(self.jaxpr.in_avals), self._cotangents())
    n_primals = len(self.jaxpr.in_avals)
    cotangents = range(n_primals, n_primals + len(self.results))
    return Pullback(jaxpr, f"gradient of {self.function}", [*self.wrt, *cotangents])

  def _vjp(self, primals: Sequence[Any]) -> tuple[Sequence[Any], Callable[..., Any]]:
    def of_differentiable(*changing: Any) -> tuple[list[Any], list[Any]]:
      operands = list(primals)
      for i, x in zip(self.wrt, changing, strict=True):
        operands[i] = x
      outs = jaxpr_as_fun(self.jaxpr)(*operands)
      return [outs[i] for i in self.results], outs

    _, pull, outs = jax.vjp(of_differentiable, *(primals[i] for i in self.wrt), has_aux=True)
    return outs, pull

  def _cotangents(self) -> list[jax.ShapeDtypeStruct]:
    return _specs([self.jaxpr.out_avals[i] for i in self.results])


def call(pullback: Pullback, run: Run, *primals: tf.Tensor) -> list[tf.Tensor]:
  """The results of `pullback.jaxpr`, which TensorFlow differentiates with JAX's VJP.

  Args:
    pullback: the function and its derivative.
    run: `run(jaxpr, *tensors) -> tensors`, lowers or calls a jaxpr.
    primals: its arguments.
  """
  if not (pullback.wrt and pullback.results):
    return run(pullback.jaxpr, *primals)
  try:
    forward, backward = pullback.halves
  except Exception as error:  # whatever JAX has against this derivative; it is the user's when asked for
    return refused(lambda: run(pullback.jaxpr, *primals), error, primals)

  n_out = len(pullback.jaxpr.out_avals)
  residuals: list[tf.Tensor] = []

  def results() -> list[tf.Tensor]:
    outs = run(forward, *primals)
    residuals.extend(outs[n_out:])
    return outs[:n_out] if pullback.keeps_values else run(pullback.jaxpr, *primals)

  def gradient(cotangents: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    # Identities, because a nested custom gradient may only close over tensors of its own graph.
    own = [tf.identity(r) for r in residuals]
    return _pulled(pullback, run, lambda *seeds: run(backward, *own, *seeds), primals, cotangents)

  return _with_gradient(results, gradient, primals)


def _pulled(
  pullback: Pullback, run: Run, backward: Run, primals: Sequence[tf.Tensor], cotangents: Sequence[tf.Tensor]
) -> list[tf.Tensor | None]:
  """The cotangents of all primals, themselves differentiable."""
  seeds = [_conjugate(cotangents[i]) for i in pullback.results]

  def gradient(cotangents: Sequence[tf.Tensor]) -> list[tf.Tensor | None]:
    following = pullback.next_order

    def both(*seeds: tf.Tensor) -> list[tf.Tensor]:
      forward_jaxpr, backward_jaxpr = following.halves
      n_out = len(following.jaxpr.out_avals)
      return run(backward_jaxpr, *run(forward_jaxpr, *operands)[n_out:], *seeds)

    operands = [*(tf.identity(p) for p in primals), *(tf.identity(s) for s in seeds)]
    return _pulled(following, run, both, operands, cotangents)

  found = iter(_with_gradient(lambda: backward(*seeds), gradient, [*primals, *seeds]))
  return [_conjugate(next(found)) if i in pullback.wrt else None for i in range(len(primals))]


def _with_gradient(
  results: Callable[[], list[tf.Tensor]], gradient: Callable[[Sequence[tf.Tensor]], Any], operands: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
  @tf.custom_gradient
  def function(*_: tf.Tensor) -> tuple[list[tf.Tensor], Callable[..., Any]]:
    @_tf_compat.errors_as_raised()
    def grad(*cotangents: tf.Tensor, variables: Any = None) -> Any:
      found = gradient(cotangents)
      return (found, [None] * len(variables)) if variables else found

    # A tape would prepare TensorFlow's own gradient of every loop and branch inside, for nobody.
    with _tf_compat.stop_recording():
      return results(), grad

  return list(function(*operands))


DISABLED = (
  "Gradient explicitly disabled. Reason: The jax2tf-converted function does not support gradients. "
  "Convert with with_gradient=True to enable them"
)


def refused(results: Callable[[], list[tf.Tensor]], error: Exception, operands: Sequence[tf.Tensor]) -> list[tf.Tensor]:
  """The results, with a gradient that raises `error`."""

  def gradient(_: Sequence[tf.Tensor]) -> Any:
    raise error

  return _with_gradient(results, gradient, operands)


def disabled(results: Callable[[], list[tf.Tensor]], operands: Sequence[tf.Tensor]) -> list[tf.Tensor]:
  """The results, with a gradient that raises LookupError: `convert(..., with_gradient=False)`.

  After a SavedModel round trip, where no Python runs, it is an InvalidArgumentError of the same words.
  """

  def gradient(_: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    if not _tf_compat.is_saving():
      raise LookupError(DISABLED)
    with tf.control_dependencies([tf.debugging.Assert(False, [DISABLED])]):
      return [tf.identity(x) for x in operands]  # of the right shapes, and never seen

  return _with_gradient(results, gradient, operands)


def differentiable(avals: Sequence[Any]) -> list[int]:
  """Positions of the floating point and complex avals."""
  return [i for i, aval in enumerate(avals) if is_differentiable(aval.dtype)]


def _specs(avals: Sequence[Any]) -> list[jax.ShapeDtypeStruct]:
  return [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals]


def _conjugate(x: tf.Tensor) -> tf.Tensor:
  return tf.math.conj(x) if x.dtype.is_complex else x
