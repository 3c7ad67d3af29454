"""Compares derivatives: by a tape, by a tape of a tape, and by a ForwardAccumulator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import tensorflow as tf

import jax2tf
from jax2tf.tools.lab.jax_tests import determined, explaining, leaves, subjects
from jax2tf.tools.lab.jax_tests.comparing import Tolerance
from jax2tf.tools.lab.jax_tests.outcomes import Outcome, timed
from jax2tf.tools.lab.jax_tests.subjects import Fun, Subject, UntraceableError
from tests.support.derivatives import jax_pullback, random_like, restricted, tf_pullback

Arrays = Sequence[Any]


@timed
def check(fun: Fun, args: Sequence[Any], way: str, seed: int) -> Outcome:
  """Compares the derivative of a function, by random cotangents or tangents.

  Args:
    fun: the function.
    args: its arguments; those that are inexact arrays or numbers are differentiated.
    way: gradient, second or tangent.
    seed: of the random numbers.
  """
  smooth, xs, ys = _inexact_part(Subject(fun, jax.tree.map(_canonical, tuple(args)), {}))
  rng = np.random.default_rng(seed)
  vectors = {
    "gradient": [[random_like(rng, y) for y in ys]],
    "second": [[random_like(rng, y) for y in ys], [random_like(rng, x) for x in xs]],
    "tangent": [[random_like(rng, x) for x in xs]],
  }[way]
  by_jax = _pushed if way == "tangent" else _pulled
  ours = _forward if way == "tangent" else _tapes
  jitted = subjects.jit(lambda xs, vectors: by_jax(smooth, xs, vectors))
  want = subjects.by_jax(jitted, xs, vectors)
  in_graph = tf.function(lambda *given: ours(jax2tf.convert(smooth), *given), autograph=False)
  got = list(map(leaves.as_numpy, in_graph(*jax.tree.map(tf.constant, (xs, vectors)))))

  def op_by_op() -> Any:
    with jax.disable_jit():
      return subjects.by_jax(by_jax, smooth, xs, vectors)

  def refuse_open() -> None:
    if determined.is_open(smooth, xs):
      raise UntraceableError("JAX leaves the results open, and so their derivatives")

  shaken = lambda: subjects.by_jax(jitted, leaves.shaken(xs), vectors)  # noqa: E731
  evaluations = explaining.Evaluations(xs, op_by_op, shaken, refuse_open)
  return explaining.outcome(want, got, Tolerance(), evaluations)


def _canonical(x: Any) -> Any:
  if not (leaves.is_scalar(x) or leaves.is_array(x)):
    return x
  array = np.array(x)
  return array.astype(jax.dtypes.canonicalize_dtype(array.dtype))


def _inexact_part(subject: Subject) -> tuple[Fun, list[Any], list[Any]]:
  """(a function of the inexact arrays alone, with its inexact results; the arrays; the results)."""
  arrays = subject.arrays
  # TF 2.21: tapes watch no float8.
  wrt = [i for i, x in enumerate(arrays) if leaves.is_inexact(x) and x.dtype.itemsize > 1]
  if not wrt:
    raise UntraceableError("nothing to differentiate")
  every = subjects.by_jax(
    subjects.eval_shape, lambda *xs: jax.tree.leaves(subject.fun(*xs)), *arrays
  )
  results = [i for i, y in enumerate(every) if leaves.is_inexact(y)]
  if not results:
    raise UntraceableError("no inexact result")
  smooth = restricted(subject.fun, tuple(arrays), wrt, results)
  return smooth, [arrays[i] for i in wrt], [every[i] for i in results]


def _pulled(fun: Fun, xs: Arrays, cotangents: Sequence[Arrays]) -> list[Any]:
  return jax_pullback(fun, cotangents, *xs)


def _tapes(fun: Fun, xs: Arrays, cotangents: Sequence[Arrays]) -> list[Any]:
  """Gradients by a tape for each order. Those of what does not depend on an argument are zeros."""
  *inner, last = cotangents
  of_order = (lambda *xs: _tapes(fun, xs, inner)) if inner else fun
  return _zeros_for_none(tf_pullback(of_order, [last], *xs), xs)


def _pushed(fun: Fun, xs: Arrays, tangents: Sequence[Arrays]) -> list[Any]:
  return list(subjects.jvp(fun, list(xs), list(tangents[0]))[1])


def _forward(fun: Fun, xs: Arrays, tangents: Sequence[Arrays]) -> list[Any]:
  with tf.autodiff.ForwardAccumulator(list(xs), list(tangents[0])) as forward:
    ys = fun(*xs)
  return _zeros_for_none(forward.jvp(ys), ys)


def _zeros_for_none(gradients: Sequence[Any], xs: Sequence[Any]) -> list[Any]:
  pairs = zip(gradients, xs, strict=True)
  return [tf.zeros_like(x) if g is None else tf.convert_to_tensor(g) for g, x in pairs]
