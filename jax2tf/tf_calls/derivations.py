"""What JAX derives of a TensorFlow function: its linear map, the transpose of that, and its map over a batch.

Derivatives are made with tf.gradients inside a graph. A tape would stop recording where a converted function is inside, and a
ForwardAccumulator ignores tf.custom_gradient (TF 2.21).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import tensorflow as tf

from jax2tf import _tf_compat
from jax2tf.tf_calls.function import REPEATABLE, Options, Run, TfFunction, tensor_spec


@dataclass(frozen=True, eq=False)
class Linear:
  """The derivative of a function at primals: a linear map of tangents, and its transpose.

  Attributes:
    forward: (primals, tangents) -> tangents of the floating point and complex results.
    backward: (primals, cotangents of these) -> cotangents.
    n_primals: how many primals there are.
  """

  forward: TfFunction
  backward: TfFunction
  n_primals: int


def linear(function: TfFunction, wrt: tuple[int, ...]) -> Linear:
  """The derivative with respect to the arguments in `wrt`."""
  return function.kept(("linear", wrt), lambda: _linear(function, wrt))


def _linear(function: TfFunction, wrt: tuple[int, ...]) -> Linear:
  if isinstance(function, _Mapped):
    inner = linear(function.inner, wrt)
    in_batch = function.batched
    tangents = tuple(in_batch[i] for i in wrt)
    forward = vmapped(inner.forward, (*in_batch, *tangents), function.size)
    backward = vmapped(inner.backward, (*in_batch, *(True for _ in function.inexact_results)), function.size)
    return Linear(forward, _summed(backward, [k for k, is_in in enumerate(tangents) if not is_in]), len(in_batch))
  _check_repeatable(function)
  n, of = len(function.avals_in), function.inexact_results
  options = replace(function.options, has_side_effects=False, ordered=False, vmap_method=None)

  def values(*primals: tf.Tensor) -> list[tf.Tensor]:
    results = function.run(*primals)
    return [results[i] for i in of]

  def push(*operands: tf.Tensor) -> list[tf.Tensor]:
    primals, tangents = [tf.identity(x) for x in operands[:n]], operands[n:]
    outs = values(*primals)
    # The transpose of the transpose. Identities, since zeros that TensorFlow puts in by itself mean no cotangent to a converted function.
    seeds = [tf.identity(tf.zeros_like(y)) for y in outs]
    pulled = gradients(function, outs, [function.shadows.get(i, primals[i]) for i in wrt], seeds)
    found = [(g, t) for g, t in zip(pulled, tangents, strict=True) if g is not None]
    pushed = gradients(function, [g for g, _ in found], seeds, [t for _, t in found]) if found else [None] * len(seeds)
    return _dense(pushed, outs)

  def pull(*operands: tf.Tensor) -> list[tf.Tensor]:
    primals, cotangents = [tf.identity(x) for x in operands[:n]], operands[n:]
    sources = [function.shadows.get(i, primals[i]) for i in wrt]
    # TensorFlow's gradients of complex values are the conjugates of JAX's.
    pulled = gradients(function, values(*primals), sources, [_conjugate(c) for c in cotangents])
    return [_conjugate(g) for g in _dense(pulled, [primals[i] for i in wrt])]

  primal_avals, results = function.avals_in, [function.avals_out[i] for i in of]
  sources = [primal_avals[i] for i in wrt]
  return Linear(
    _Derived(function, f"the jvp of {function.name}", push, (*primal_avals, *sources), options, results),
    _Derived(function, f"the vjp of {function.name}", pull, (*primal_avals, *results), options, sources),
    n,
  )


class _Derived(TfFunction):
  """What was derived of a function: it exists in graphs only. The arguments of the function come first."""

  def __init__(self, function: TfFunction, name: str, run: Run, avals_in: Sequence[Any], options: Options, avals_out: Sequence[Any]):
    super().__init__(name, run, avals_in, options, avals_out)
    self.function, self.shadows, self.bound = function, function.shadows, function.bound

  @property
  def variables(self) -> Any:
    """Those of the function."""
    return self.function.variables

  def run_eagerly(self, *tensors: tf.Tensor) -> Sequence[tf.Tensor]:
    """As `TfFunction.run_eagerly`."""
    return self.flat_call(list(tensors))

  @property
  def avals_out(self) -> Any:
    """Known before the graph is made: JAX asks for those of a map that it then transposes, and TensorFlow may only have the transpose."""
    return tuple(self._declared or ())


class _Mapped(_Derived):
  """A function, called for each element of the arguments that are `batched`."""

  def __init__(self, inner: TfFunction, batched: tuple[bool, ...], size: int):
    self.inner, self.batched, self.size = inner, batched, size
    avals = [_with_batch(a, size) if is_in else a for a, is_in in zip(inner.avals_in, batched, strict=True)]
    results = [_with_batch(a, size) for a in inner.avals_out]
    super().__init__(inner, f"the vmap of {inner.name}", self._run, avals, inner.options, results)

  def _run(self, *operands: tf.Tensor) -> list[tf.Tensor]:
    method = self.inner.options.vmap_method
    if method in ("expand_dims", "broadcast_all", "legacy_vectorized"):
      return self._at_once(operands, method)
    if isinstance(self.size, int) and not self.size:
      return [tf.zeros(a.shape, a.dtype) for a in self.avals_out]

    def one(elements: Sequence[tf.Tensor]) -> list[tf.Tensor]:
      rows = iter(elements)
      return self.inner.run(*[next(rows) if is_in else x for x, is_in in zip(operands, self.batched, strict=True)])

    stacked = [x for x, is_in in zip(operands, self.batched, strict=True) if is_in]
    if method == "vectorized" or (method is None and not self.inner.stateful - {"ReadVariableOp"}):
      return list(tf.vectorized_map(one, stacked))
    signature = [tensor_spec(a) for a in self.inner.avals_out]
    return list(tf.map_fn(one, stacked, fn_output_signature=signature, parallel_iterations=1)) if signature else []

  def _at_once(self, operands: Sequence[tf.Tensor], method: str) -> list[tf.Tensor]:
    rows = next(tf.shape(x)[:1] for x, is_in in zip(operands, self.batched, strict=True) if is_in)
    whole = []
    for x, is_in in zip(operands, self.batched, strict=True):
      if is_in or method == "legacy_vectorized":
        whole.append(x)
      else:
        whole.append(tf.broadcast_to(x, tf.concat([rows, tf.shape(x)], 0)) if method == "broadcast_all" else x[None])
    return self.inner.run(*whole)


def vmapped(function: TfFunction, batched: tuple[bool, ...], size: int) -> TfFunction:
  """The function over a batch of `size`, in front of the arguments that are `batched` and of all results.

  Raises:
    NotImplementedError: the values of variables are batched: in TensorFlow a variable has one.
  """
  if function.bound and any(batched[i] for i in function.shadows):
    raise NotImplementedError(f"vmap over the variables of '{function.name}': a TensorFlow variable has one value. Use jax.lax.map")
  return function.kept(("vmap", batched, size), lambda: _Mapped(function, batched, size))


def _summed(function: TfFunction, over: Sequence[int]) -> TfFunction:
  """The function with some of its results summed over their batch: cotangents of what the elements of a batch share."""
  if not over:
    return function
  avals = [jax.ShapeDtypeStruct(a.shape[1:], a.dtype) if i in over else a for i, a in enumerate(function.avals_out)]

  def run(*operands: tf.Tensor) -> list[tf.Tensor]:
    return [tf.reduce_sum(y, 0) if i in over else y for i, y in enumerate(function.run(*operands))]

  return _Derived(function, function.name, run, function.avals_in, function.options, avals)


def gradients(function: TfFunction, ys: Sequence[Any], xs: Sequence[Any], seeds: Sequence[Any]) -> list[Any]:
  """tf.gradients, whose refusals are LookupErrors."""
  try:
    found = tf.gradients(ys, xs, [tf.identity(s) for s in seeds])
  except LookupError as error:
    raise LookupError(f"TensorFlow cannot differentiate '{function.name}': {error}") from error
  if any(g is None for g in found) and (blocked := _tf_compat.undifferentiated(ys)):
    raise LookupError(
      f"TensorFlow cannot differentiate '{function.name}': {blocked} has no gradient. Give it one with tf.custom_gradient, or put "
      "tf.stop_gradient around its result"
    )
  return [g if g is None else tf.convert_to_tensor(g) for g in found]


def _check_repeatable(function: TfFunction) -> None:
  if kinds := sorted(function.stateful - REPEATABLE):
    raise LookupError(
      f"'{function.name}' has no derivative, because that runs the function a second time, and {', '.join(kinds)} would give or do "
      "something else. Take the random numbers as arguments (tf.random.stateless_*), or write variables outside of what is differentiated"
    )


def _dense(found: Sequence[Any], like: Sequence[tf.Tensor]) -> list[tf.Tensor]:
  return [tf.zeros_like(x) if g is None else tf.cast(g, x.dtype) for g, x in zip(found, like, strict=True)]


def _conjugate(x: tf.Tensor) -> tf.Tensor:
  return tf.math.conj(x) if x.dtype.is_complex else x


def _with_batch(aval: Any, size: int) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct((size, *aval.shape), aval.dtype)
