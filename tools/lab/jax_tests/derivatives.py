"""Compares derivatives: by a tape, by a tape of a tape, and by a ForwardAccumulator."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf

import jax2tf
from jax2tf.tools.lab.jax_tests import comparing, determined, evaluations, leaves, subjects
from jax2tf.tools.lab.jax_tests.comparing import Difference, Tolerance
from jax2tf.tools.lab.jax_tests.outcomes import Outcome, concluded, timed
from jax2tf.tools.lab.jax_tests.subjects import UntraceableError

Arrays = Sequence[Any]
Fun = Callable[..., Any]


class Derivative:
  """A function of inexact arrays only, with random cotangents, tangents and weights.

  Attributes:
    fun: the function, whose results are those that can be differentiated.
    xs: its arguments.
    cotangents: one for each result.
    tangents, weights: one for each argument.
  """

  def __init__(self, fun: Callable[..., Any], args: Sequence[Any], seed: int):
    found, tree = jax.tree.flatten(tuple(args))
    if any(map(leaves.is_ref, found)):
      raise UntraceableError("a Ref is an argument")
    arrays = [_canonical(x) if leaves.is_scalar(x) or leaves.is_array(x) else x for x in found]
    # TF 2.21: tapes watch no float8.
    inexact_at = [i for i, x in enumerate(arrays) if leaves.is_array(x) and leaves.is_inexact(x)]
    at = [i for i in inexact_at if arrays[i].dtype.itemsize > 1]
    if not at:
      raise UntraceableError("nothing to differentiate")

    def leaves_of(*xs: Any) -> list[Any]:
      operands = list(arrays)
      for i, x in zip(at, xs, strict=True):
        operands[i] = x
      return jax.tree.leaves(fun(*jax.tree.unflatten(tree, operands)))

    self.xs = [arrays[i] for i in at]
    results = subjects.by_jax(subjects.eval_shape, leaves_of, *self.xs)
    inexact = [i for i, y in enumerate(results) if leaves.is_inexact(y)]
    if not inexact:
      raise UntraceableError("no inexact result")
    rng = np.random.default_rng(seed)

    def of_arrays(*xs: Any) -> list[Any]:
      ys = leaves_of(*xs)
      return [ys[i] for i in inexact]

    self.fun = of_arrays
    self.cotangents = [_random(rng, results[i]) for i in inexact]
    self.tangents = [_random(rng, x) for x in self.xs]
    self.weights = [_random(rng, x) for x in self.xs]

  def moved(self) -> Derivative:
    """The same at arguments with other last bits."""
    other = copy.copy(self)
    other.xs = evaluations.shaken(self.xs)
    return other

  def pulled(self, fun: Callable[..., Any], xs: Arrays, cotangents: Arrays) -> list[Any]:
    """The cotangents of the arguments."""
    return list(subjects.vjp(fun, *xs)[1](list(cotangents)))


def _canonical(x: Any) -> np.ndarray:
  array = np.array(x)
  return array.astype(jax.dtypes.canonicalize_dtype(array.dtype))


def _random(rng: np.random.Generator, like: Any) -> np.ndarray:
  values = rng.standard_normal(like.shape)
  if jax.numpy.issubdtype(like.dtype, np.complexfloating):
    values = values + 1j * rng.standard_normal(like.shape)
  return np.asarray(values).astype(like.dtype)


def _tensors(arrays: Arrays) -> list[tf.Tensor]:
  return [tf.constant(x) for x in arrays]


def _in_graph(body: Callable[..., Any], *operands: Arrays) -> list[np.ndarray]:
  results = tf.function(body, autograph=False)(*map(_tensors, operands))
  return [leaves.as_numpy(x) for x in results]


def _zeros_for_none(gradients: Sequence[Any], xs: Sequence[Any]) -> list[tf.Tensor]:
  pairs = zip(gradients, xs, strict=True)
  return [tf.zeros_like(x) if g is None else tf.convert_to_tensor(g) for g, x in pairs]


# Each takes a derivative and its function, and returns (JAX's result, a function that gives ours).
_Pair = tuple[Callable[[], Any], Callable[[], list[np.ndarray]]]


def _first(d: Derivative, fun: Callable[..., Any]) -> _Pair:
  """TensorFlow's gradients are the conjugates of JAX's, on both ends."""

  def body(xs: Arrays, cotangents: Arrays) -> list[tf.Tensor]:
    with tf.GradientTape() as tape:
      tape.watch(xs)
      ys = jax2tf.convert(fun)(*xs)
    seeds = [tf.math.conj(c) for c in cotangents]
    gradients = tape.gradient(ys, xs, output_gradients=seeds)
    return [tf.math.conj(g) for g in _zeros_for_none(gradients, xs)]

  def by_jax() -> Any:
    return subjects.jit(lambda xs, cotangents: d.pulled(fun, xs, cotangents))(d.xs, d.cotangents)

  return by_jax, lambda: _in_graph(body, d.xs, d.cotangents)


def _second(d: Derivative, fun: Callable[..., Any]) -> _Pair:
  """The gradient of a weighted sum of the gradient; of real functions of one dtype."""
  if any(np.iscomplexobj(x) for x in (*d.xs, *d.cotangents)):
    raise UntraceableError("complex")
  if len({x.dtype for x in d.xs}) > 1:
    raise UntraceableError("several dtypes")

  def by_jax(xs: Arrays, cotangents: Arrays, weights: Arrays) -> Any:
    def total(*xs: Any) -> Any:
      pairs = zip(weights, d.pulled(fun, xs, cotangents), strict=True)
      return jnp.asarray(sum((w * g).sum() for w, g in pairs))

    value, pull = subjects.vjp(total, *xs)
    return list(pull(jnp.ones_like(value)))

  def body(xs: Arrays, cotangents: Arrays, weights: Arrays) -> list[tf.Tensor]:
    with tf.GradientTape() as outer:
      outer.watch(xs)
      with tf.GradientTape() as tape:
        tape.watch(xs)
        ys = jax2tf.convert(fun)(*xs)
      gradients = _zeros_for_none(tape.gradient(ys, xs, output_gradients=cotangents), xs)
      total = tf.add_n([tf.reduce_sum(w * g) for w, g in zip(weights, gradients, strict=True)])
    return _zeros_for_none(outer.gradient(total, xs), xs)

  operands = (d.xs, d.cotangents, d.weights)
  return lambda: subjects.jit(by_jax)(*operands), lambda: _in_graph(body, *operands)


def _tangent(d: Derivative, fun: Callable[..., Any]) -> _Pair:
  def body(xs: Arrays, tangents: Arrays) -> list[tf.Tensor]:
    with tf.autodiff.ForwardAccumulator(xs, tangents) as forward:
      ys = jax2tf.convert(fun)(*xs)
    return _zeros_for_none(forward.jvp(ys), ys)

  def pushed(xs: Arrays, tangents: Arrays) -> Any:
    return subjects.jvp(fun, list(xs), list(tangents))[1]

  by_jax = lambda: subjects.jit(pushed)(d.xs, d.tangents)  # noqa: E731
  return by_jax, lambda: _in_graph(body, d.xs, d.tangents)


_PAIRS: dict[str, Callable[[Derivative, Fun], _Pair]]
_PAIRS = {"gradient": _first, "second": _second, "tangent": _tangent}
WAYS = tuple(_PAIRS)


@timed
def check(fun: Fun, args: Sequence[Any], way: str, tolerance: Tolerance, seed: int) -> Outcome:
  """Compares the derivative of a function, by random cotangents or tangents.

  Args:
    fun: the function.
    args: its arguments; those that are inexact arrays or numbers are differentiated.
    way: gradient, second or tangent.
    tolerance: of the test.
    seed: of the random numbers.
  """
  derivative = Derivative(fun, args, seed)
  coarsest = comparing.coarsest_epsilon(derivative.xs)
  by_jax, ours = _PAIRS[way](derivative, derivative.fun)
  want = subjects.by_jax(by_jax)
  got = ours()
  difference = comparing.compare(want, got, tolerance, coarsest)
  if difference.kind not in ("rounding", "nan", "value"):
    return concluded(difference)
  try:
    return _explained(derivative, way, want, got, tolerance)
  except subjects.TooLongError:
    return concluded(difference)


def _explained(d: Derivative, way: str, want: Any, got: Any, tolerance: Tolerance) -> Outcome:
  """A difference from jax.jit that JAX has too op by op, or that comes of vectors of open signs."""
  coarsest = comparing.coarsest_epsilon(d.xs)
  difference = comparing.compare(want, got, tolerance, coarsest)
  by_jax, _ = _PAIRS[way](d, d.fun)
  op_by_op = evaluations.op_by_op(by_jax)
  if op_by_op is not None and not comparing.compare(op_by_op, got, tolerance, coarsest).kind:
    return concluded(Difference(), "op by op")
  if difference.kind == "rounding":
    return concluded(difference)
  against = ""
  if signed := determined.with_signs(d.fun, *d.xs):
    by_jax, ours = _PAIRS[way](d, signed)
    against, op_by_op, want, got = "determined signs", None, subjects.by_jax(by_jax), ours()
    difference = comparing.compare(want, got, tolerance, coarsest)
    if difference.kind in ("", "rounding"):
      return concluded(difference, against)
  moved = d.moved()
  shaken = evaluations.or_none(_PAIRS[way](moved, signed or moved.fun)[0])
  if np.isfinite(difference.size) and evaluations.explain(want, got, (op_by_op, shaken)):
    return concluded(dataclasses.replace(difference, kind="rounding"), "other last bits")
  return concluded(difference, against)
