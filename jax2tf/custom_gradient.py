"""Provides JAX's derivatives to TensorFlow's tapes and accumulators, without recomputation.

Complex cotangents: TensorFlow's gradient is the conjugate of JAX's, so cotangents are conjugated on
both sides. Tangents follow the same convention in both.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import tensorflow as tf

from jax2tf import _tf_compat, nans
from jax2tf._tf_compat import patches, scopes
from jax2tf.derivative_jaxprs import Derivative, Forward, without_traceback
from jax2tf.errors import warn_user
from jax2tf.graph_context import asserted
from jax2tf.jaxprs import ClosedJaxpr
from jax2tf.messages import Argument, Message, Text
from jax2tf.program import Emitter, Memory


def call(derivative: Derivative, run: Emitter, *primals: tf.Tensor) -> list[tf.Tensor]:
  """The results of `derivative.jaxpr`, which TensorFlow differentiates with JAX's derivatives.

  Args:
    derivative: the function and its derivatives.
    run: emits programs, or calls them.
    primals: its arguments.
  """
  if not (derivative.wrt and derivative.results):
    return run(derivative.program, *primals)
  is_watched = any(_tf_compat.is_watched(primals[i]) for i in derivative.wrt)
  function = _Differentiable(derivative, run, primals, is_watched)
  is_lazy = derivative.residuals_can_be_lazy and not _tf_compat.is_saving()
  if is_lazy and (numbering := run.with_value_numbering()):
    compute = functools.partial(_results, derivative, numbering, primals)
  else:
    compute = functools.partial(_forward, derivative, run, primals, is_watched)
  return function.call(compute, derivative.jaxpr)


# (emitter of a gradient function's graph) -> the residuals in that graph; or the error.
_Residuals = Callable[[Emitter], Sequence[tf.Tensor]] | Exception


def _forward(
  derivative: Derivative, run: Emitter, primals: Sequence[tf.Tensor], is_watched: bool
) -> tuple[list[tf.Tensor], _Residuals]:
  """(results, residuals), both computed now; `is_watched` if a tape around is known to ask for
  derivatives."""
  forward = derivative.forward
  if isinstance(forward, Exception):  # which matters only if the derivative is used
    return run(derivative.program, *primals), forward
  if forward.effects_error and not is_watched:
    return run(derivative.program, *primals), forward.effects_error
  n_out = len(derivative.jaxpr.out_avals)
  outs = run(forward.program, *primals)
  residuals = _stop_gradients(run, outs[n_out:])
  results = outs[:n_out]
  if not derivative.forward_equals_function:
    results = run(derivative.program, *primals)
  return results, lambda here: residuals


def _results(
  derivative: Derivative, run: Memory, primals: Sequence[tf.Tensor]
) -> tuple[list[tf.Tensor], _Residuals]:
  """(results, residuals). Residuals are computed when a tape needs them, in the same scope, reusing
  its tensors.

  The graph may still grow while TensorFlow builds gradients, which capture more of its tensors. A
  function that is saved is complete.
  """
  outs = run(derivative.program, *primals)
  scope, device = next(scopes.scopes_around()), primals[0].device
  name_scope = f"{tf.get_current_name_scope()}/"

  @functools.cache
  def residuals() -> list[tf.Tensor]:
    # TF 2.21: Grappler reorders products within a scope, which changes where they overflow.
    with scope.entered(), tf.device(device), tf.name_scope(name_scope):
      everything = run.emit_reusing(_forward_of(derivative).program, *primals)
      return _stop_gradients(run, everything[len(outs) :])

  def residuals_in(emitter: Emitter) -> list[tf.Tensor]:
    return _recomputed(derivative, primals, emitter) if _tf_compat.is_saving() else residuals()

  return outs, residuals_in


def _recomputed(
  derivative: Derivative, primals: Sequence[tf.Tensor], here: Emitter
) -> list[tf.Tensor]:
  """The residuals, from the primals alone."""
  return here(_forward_of(derivative).program, *map(tf.identity, primals))[
    len(derivative.jaxpr.out_avals) :
  ]


def _forward_of(derivative: Derivative) -> Forward:
  assert isinstance(derivative.forward, Forward)  # because there is a backward pass
  return derivative.forward


@dataclass(frozen=True)
class _Differentiable:
  """A function applied to arguments, with its VJP and JVP for TensorFlow.

  Attributes:
    derivative: the function and its derivatives.
    run: emits programs where the arguments are, or calls them.
    primals: the arguments.
    is_watched: whether a tape around is known to ask for derivatives.
  """

  derivative: Derivative
  run: Emitter
  primals: Sequence[tf.Tensor]
  is_watched: bool = False

  def call(
    self, compute: Callable[[], tuple[list[tf.Tensor], _Residuals]], jaxpr: ClosedJaxpr
  ) -> list[tf.Tensor]:
    """The results, with derivatives; `compute`, which has the effects of `jaxpr`, gives them and
    the residuals."""
    operands = [self.primals[i] for i in self.derivative.wrt]
    vjp, jvp = _in_scope("jax2tf_vjp", self.vjp), _in_scope("jax2tf_jvp", self.jvp)
    return _tf_compat.with_derivatives(compute, operands, vjp, jvp, bool(jaxpr.effects))

  def vjp(self, residuals: _Residuals, *cotangents: tf.Tensor) -> Sequence[tf.Tensor]:
    """Cotangents of the results -> those of the arguments."""
    if isinstance(residuals, Exception):
      return self._refuse(residuals)
    if not self.derivative.saved_orders and patches.is_saved_gradient():
      return self._refuse(
        LookupError(
          "the SavedModel holds no derivative of this order: save it with a larger gradient_orders"
        )
      )
    with_cotangent = tuple(
      i for i in self.derivative.results if not patches.is_missing(cotangents[i])
    )
    if isinstance(backward := self.derivative.backward(with_cotangent), Exception):
      return self._refuse(backward)
    if not self.is_watched and (error := _forward_of(self.derivative).effects_error):
      return self._refuse(error)
    here = self.run.in_current_graph()
    # Identities, because a nested gradient function may only close over tensors of its own graph.
    own = [tf.identity(p, f"jax2tf_arg_{i}") for i, p in enumerate(self.primals)]
    seeds = [
      tf.identity(_conjugate(cotangents[i]), f"jax2tf_arg_{len(own) + i}") for i in with_cotangent
    ]

    pullback, arguments = self.derivative.pullback(with_cotangent), [*own, *seeds]

    def compute() -> tuple[list[tf.Tensor], _Residuals]:
      results = here(backward.program, *map(_tf_compat.captured, residuals(here)), *seeds)
      return results, functools.partial(_recomputed, pullback, arguments)

    cotangents_in = _Differentiable(pullback, here, arguments).call(compute, backward.program.jaxpr)
    named = [
      tf.identity(_conjugate(x), "jax2tf_out")
      for x in nans.checked(cotangents_in, f"the gradient of '{self.derivative.function}'")
    ]
    return [
      x if i in backward.nonzero else patches.missing(x)
      for i, x in zip(self.derivative.wrt, named, strict=True)
    ]

  def _refuse(self, error: Exception) -> Sequence[tf.Tensor]:
    """Raises the error. In a SavedModel, where no Python runs, the cotangents raise an
    InvalidArgumentError with the same message."""
    if not _tf_compat.is_saving():
      raise without_traceback(error)
    if not self.derivative.subject.is_recomputed:
      warn_user(
        Message(
          problem="the SavedModel is written without the gradient of "
          f"'{self.derivative.function}', which has none: {error}",
          advice=Text(
            "give ", Argument("with_gradient", False), " to save it without this warning"
          ),
        )
      )
    # TensorFlow rejects a fill that is known to fail, so the condition has a value in the loaded
    # graph only.
    condition = tf.compat.v1.placeholder_with_default(False, [])
    with tf.control_dependencies([asserted(condition, [str(error)], str(error))]):
      like = functools.cache(lambda shape, dtype: tf.fill(shape, tf.zeros([], dtype)))
      # Built from shapes, not from the primals, which would become arguments of the saved function.
      # The assertion fails first.
      wrt = [self.primals[i] for i in self.derivative.wrt]
      return [
        like(tuple(x.shape.as_list()), x.dtype) if x.shape.is_fully_defined() else tf.identity(x)
        for x in wrt
      ]

  def jvp(self, *tangents: tf.Tensor) -> list[tf.Tensor | None]:
    """Tangents of the arguments -> those of the results."""
    by_position = dict(
      zip(
        self.derivative.results,
        call(self.derivative.pushforward, self.run.in_current_graph(), *self.primals, *tangents),
        strict=True,
      )
    )
    return [by_position.get(i) for i in range(len(self.derivative.jaxpr.out_avals))]


def _in_scope(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
  """The function, its ops in a TensorFlow scope, with the 64-bit types that JAX has now: a tape may
  ask for it later."""
  has_x64 = jax.config.jax_enable_x64

  def scoped(*args: Any) -> Any:
    with tf.name_scope(name), jax.enable_x64(has_x64):
      return function(*args)

  return scoped


def _stop_gradients(run: Emitter, residuals: Sequence[tf.Tensor]) -> list[tf.Tensor]:
  """The residuals, which have no derivatives: all derivatives go through the primals.

  Otherwise TensorFlow differentiates the captures of a gradient function (under a persistent tape
  around a tf.function) by the gradients of their ops, where 0 * inf is NaN.
  """
  if tf.executing_eagerly():  # where recording is stopped
    return [*residuals]
  # Outside the function's scope: the arguments of saved gradient functions have these names, so
  # short ones make small files.
  outer = tf.get_current_name_scope().rpartition("/")[0]
  cut = []
  with tf.name_scope(f"{outer}/" if outer else ""):
    for residual in residuals:
      with tf.device(residual.device):
        cut.append(_without_gradient(residual, "jax2tf_r"))
      run.alias(cut[-1], residual)
  return cut


def _without_gradient(residual: tf.Tensor, name: str) -> tf.Tensor:
  if residual.dtype != tf.int32:
    return tf.stop_gradient(residual, name)
  # TF 2.21: on GPUs StopGradient takes an int32 to host memory, IdentityN does not.
  (same,) = tf.identity_n([residual], name)
  return same


def _conjugate(x: tf.Tensor) -> tf.Tensor:
  return tf.math.conj(x) if x.dtype.is_complex else x
