"""Gradients on both sides of the bridge, in TensorFlow's convention: what every comparison of
derivatives calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf

Fun = Callable[..., Any]


def inexact(values: Sequence[Any]) -> list[int]:
  """Positions of the floating point and complex values."""
  return [i for i, x in enumerate(values) if jnp.issubdtype(jnp.result_type(x), np.inexact)]


def restricted(fun: Fun, args: Any, wrt: Sequence[int], results: Sequence[int]) -> Fun:
  """`fun` as a function of the leaves `wrt` of `args` alone, which returns the leaves `results`; a
  JAX or a converted function."""
  leaves, tree = jax.tree.flatten(args)

  def of_some(*changing: Any) -> list[Any]:
    operands = list(leaves)
    for i, x in zip(wrt, changing, strict=True):
      operands[i] = x
    ys = jax.tree.leaves(fun(*jax.tree.unflatten(tree, operands)))
    return [ys[i] for i in results]

  return of_some


def random_like(rng: np.random.Generator | np.random.RandomState, like: Any) -> np.ndarray:
  """A random cotangent of the shape and dtype of `like`."""
  values = rng.standard_normal(like.shape)
  if jnp.issubdtype(like.dtype, np.complexfloating):
    values = values + 1j * rng.standard_normal(like.shape)
  return np.asarray(values).astype(like.dtype)


def jax_pullback(fun: Fun, seeds: Sequence[Sequence[Any]], *xs: Any) -> list[Any]:
  """The VJP of `fun` at `xs`; of as many orders as there are `seeds`, each the cotangents of the
  one before.

  TensorFlow's gradient is the conjugate of JAX's, on both ends.
  """
  *inner, last = seeds
  _, pull = jax.vjp(lambda *xs: jax_pullback(fun, inner, *xs) if inner else fun(*xs), *xs)
  return [jnp.conj(x) for x in pull([jnp.conj(s) for s in last])]


def tf_pullback(fun: Fun, seeds: Sequence[Sequence[Any]], *xs: tf.Tensor) -> list[tf.Tensor]:
  """The same by nested GradientTapes.

  The cotangents should be arguments of a tf.function: Grappler multiplies constant ones into other
  factors, and overflows elsewhere.
  """
  *inner, last = seeds
  with tf.GradientTape() as tape:
    tape.watch(xs)
    ys = tf_pullback(fun, inner, *xs) if inner else fun(*xs)
  return tape.gradient(ys, list(xs), last)
