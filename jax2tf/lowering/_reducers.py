"""Reducers `a, b -> a op b`: which ones are one primitive, and reductions by all the others, in
JAX, for `lower_fun`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import jaxpr_as_fun

from jax2tf.jaxprs import ClosedJaxpr

# (lefts, rights) -> results, each as many arrays as the reducer takes pairs
Combine = Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]]


def binary_primitive(jaxpr: ClosedJaxpr) -> Any:
  """The primitive of a reducer `a, b -> a op b`, or None for every other reducer."""
  eqns, inputs = jaxpr.eqns, jaxpr.invars
  plain = (
    len(eqns) == 1
    and len(inputs) == 2
    and set(eqns[0].invars) == set(inputs)
    and eqns[0].outvars == jaxpr.outvars
  )
  return eqns[0].primitive if plain else None


def combine_by(jaxpr: ClosedJaxpr, rank: int) -> Combine:
  """The reducer of scalars, applied to the elements of arrays of `rank` dimensions."""
  reducer = jaxpr_as_fun(jaxpr)
  for _ in range(rank):
    reducer = jax.vmap(reducer)
  return lambda lefts, rights: reducer(*lefts, *rights)


def reduced(
  combine: Combine, operands: Sequence[Any], inits: Sequence[Any], axes: Sequence[int]
) -> list[Any]:
  """`operands` reduced over `axes`, neighbours first, in log n steps; a symbolic n takes a loop."""
  rest = [d for axis, d in enumerate(operands[0].shape) if axis not in axes]
  # not -1: beside an empty `rest` it could be anything
  size = math.prod(operands[0].shape[axis] for axis in axes)
  xs = [jnp.moveaxis(x, axes, range(len(axes))).reshape((size, *rest)) for x in operands]
  accumulators = [jnp.broadcast_to(init, rest) for init in inits]
  if not isinstance(size, int):

    def step(i: Any, accumulators: Any) -> list[Any]:
      return list(
        combine(accumulators, [lax.dynamic_index_in_dim(x, i, keepdims=False) for x in xs])
      )

    return lax.fori_loop(0, size, step, accumulators)
  while size > 1:
    half = size // 2
    pairs = [x[: 2 * half].reshape((half, 2, *rest)) for x in xs]
    joined = jax.vmap(combine)([p[:, 0] for p in pairs], [p[:, 1] for p in pairs])
    xs = [
      jnp.concatenate([y, x[2 * half :]]) if size % 2 else y
      for x, y in zip(xs, joined, strict=True)
    ]
    size -= half
  return list(combine(accumulators, [x[0] for x in xs])) if size else accumulators
