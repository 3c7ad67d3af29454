"""Compares derivatives: by a tape, by a tape of a tape, and by a ForwardAccumulator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf

import jax2tf
from jax2tf.tools.lab.jax_tests import determined, explaining, leaves, subjects
from jax2tf.tools.lab.jax_tests.comparing import Tolerance
from jax2tf.tools.lab.jax_tests.outcomes import Outcome, timed
from jax2tf.tools.lab.jax_tests.subjects import Fun, Subject, UntraceableError

Arrays = Sequence[Any]


class Derivative:
  """A function of inexact arrays only, with random cotangents, tangents and weights.

  Attributes:
    fun: the function, whose results are those that can be differentiated.
    xs: its arguments.
    cotangents: one for each result.
    tangents, weights: one for each argument.
  """

  def __init__(self, fun: Fun, args: Sequence[Any], seed: int):
    subject = Subject(fun, jax.tree.map(_canonical, tuple(args)), {})
    # TF 2.21: tapes watch no float8.
    wide = [leaves.is_inexact(x) and x.dtype.itemsize > 1 for x in subject.arrays]
    if not any(wide):
      raise UntraceableError("nothing to differentiate")

    def results_of(*xs: Any) -> list[Any]:
      given = iter(xs)
      pairs = zip(wide, subject.arrays, strict=True)
      return jax.tree.leaves(subject.fun(*[next(given) if one else x for one, x in pairs]))

    self.xs = [x for one, x in zip(wide, subject.arrays, strict=True) if one]
    results = subjects.by_jax(subjects.eval_shape, results_of, *self.xs)
    inexact = [i for i, y in enumerate(results) if leaves.is_inexact(y)]
    if not inexact:
      raise UntraceableError("no inexact result")
    rng = np.random.default_rng(seed)

    def of_arrays(*xs: Any) -> list[Any]:
      ys = results_of(*xs)
      return [ys[i] for i in inexact]

    self.fun = of_arrays
    self.cotangents = [_random(rng, results[i]) for i in inexact]
    self.tangents = [_random(rng, x) for x in self.xs]
    self.weights = [_random(rng, x) for x in self.xs]

  def pulled(self, xs: Arrays, cotangents: Arrays) -> list[Any]:
    """JAX's cotangents of the arguments."""
    return list(subjects.vjp(self.fun, *xs)[1](list(cotangents)))


def _canonical(x: Any) -> Any:
  if not (leaves.is_scalar(x) or leaves.is_array(x)):
    return x
  array = np.array(x)
  return array.astype(jax.dtypes.canonicalize_dtype(array.dtype))


def _random(rng: np.random.Generator, like: Any) -> np.ndarray:
  values = rng.standard_normal(like.shape)
  if jax.numpy.issubdtype(like.dtype, np.complexfloating):
    values = values + 1j * rng.standard_normal(like.shape)
  return np.asarray(values).astype(like.dtype)


def _zeros_for_none(gradients: Sequence[Any], xs: Sequence[Any]) -> list[tf.Tensor]:
  pairs = zip(gradients, xs, strict=True)
  return [tf.zeros_like(x) if g is None else tf.convert_to_tensor(g) for g, x in pairs]


# (JAX's derivative at some arrays, ours of the same tensors, the arrays other than `xs`)
_Way = tuple[Fun, Fun, list[Arrays]]


def _gradient(d: Derivative) -> _Way:
  """TensorFlow's gradients are the conjugates of JAX's, on both ends."""

  def ours(xs: Arrays, cotangents: Arrays) -> list[tf.Tensor]:
    with tf.GradientTape() as tape:
      tape.watch(xs)
      ys = jax2tf.convert(d.fun)(*xs)
    seeds = [tf.math.conj(c) for c in cotangents]
    gradients = tape.gradient(ys, xs, output_gradients=seeds)
    return [tf.math.conj(g) for g in _zeros_for_none(gradients, xs)]

  return d.pulled, ours, [d.cotangents]


def _second(d: Derivative) -> _Way:
  """The gradient of a weighted sum of the gradient; of real functions of one dtype."""
  if any(np.iscomplexobj(x) for x in (*d.xs, *d.cotangents)):
    raise UntraceableError("complex")
  if len({x.dtype for x in d.xs}) > 1:
    raise UntraceableError("several dtypes")

  def by_jax(xs: Arrays, cotangents: Arrays, weights: Arrays) -> Any:
    def total(*xs: Any) -> Any:
      pairs = zip(weights, d.pulled(xs, cotangents), strict=True)
      return jnp.asarray(sum((w * g).sum() for w, g in pairs))

    value, pull = subjects.vjp(total, *xs)
    return list(pull(jnp.ones_like(value)))

  def ours(xs: Arrays, cotangents: Arrays, weights: Arrays) -> list[tf.Tensor]:
    with tf.GradientTape() as outer:
      outer.watch(xs)
      with tf.GradientTape() as tape:
        tape.watch(xs)
        ys = jax2tf.convert(d.fun)(*xs)
      gradients = _zeros_for_none(tape.gradient(ys, xs, output_gradients=cotangents), xs)
      total = tf.add_n([tf.reduce_sum(w * g) for w, g in zip(weights, gradients, strict=True)])
    return _zeros_for_none(outer.gradient(total, xs), xs)

  return by_jax, ours, [d.cotangents, d.weights]


def _tangent(d: Derivative) -> _Way:
  def by_jax(xs: Arrays, tangents: Arrays) -> Any:
    return subjects.jvp(d.fun, list(xs), list(tangents))[1]

  def ours(xs: Arrays, tangents: Arrays) -> list[tf.Tensor]:
    with tf.autodiff.ForwardAccumulator(xs, tangents) as forward:
      ys = jax2tf.convert(d.fun)(*xs)
    return _zeros_for_none(forward.jvp(ys), ys)

  return by_jax, ours, [d.tangents]


_WAYS: dict[str, Callable[[Derivative], _Way]]
_WAYS = {"gradient": _gradient, "second": _second, "tangent": _tangent}


@timed
def check(fun: Fun, args: Sequence[Any], way: str, seed: int) -> Outcome:
  """Compares the derivative of a function, by random cotangents or tangents.

  Args:
    fun: the function.
    args: its arguments; those that are inexact arrays or numbers are differentiated.
    way: gradient, second or tangent.
    seed: of the random numbers.
  """
  d = Derivative(fun, args, seed)
  by_jax, ours, others = _WAYS[way](d)
  want = subjects.by_jax(subjects.jit(by_jax), d.xs, *others)
  tensors = [[tf.constant(x) for x in arrays] for arrays in (d.xs, *others)]
  got = [leaves.as_numpy(x) for x in tf.function(ours, autograph=False)(*tensors)]

  def op_by_op() -> Any:
    with jax.disable_jit():
      return subjects.by_jax(by_jax, d.xs, *others)

  def refuse_open() -> None:
    if determined.is_open(d.fun, d.xs):
      raise UntraceableError("JAX leaves the results open, and so their derivatives")

  shaken = lambda: subjects.by_jax(subjects.jit(by_jax), leaves.shaken(d.xs), *others)  # noqa: E731
  evaluations = explaining.Evaluations(d.xs, op_by_op, shaken, refuse_open)
  return explaining.outcome(want, got, Tolerance(), evaluations)
