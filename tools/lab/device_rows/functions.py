"""Functions whose ops have few kernels on a GPU: random bits, sorting, indices, arithmetic of
integers. Keys and sizes are arguments, so Grappler cannot compute anything before the call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import tensorflow as tf
from jax import lax, random

import jax2tf
from jax2tf.tools.lab.device_rows import counts

_FIXED = tf.TensorSpec([64], tf.float32)  # where JAX wants to know the size
_X, _ROWS = tf.TensorSpec([None], tf.float32), tf.TensorSpec([None, 16], tf.float32)
_KEY, _INDEX = tf.TensorSpec([2], tf.uint32), tf.TensorSpec([], tf.int32)
_INTEGERS, _BITS = tf.TensorSpec([None], tf.int32), tf.TensorSpec([None], tf.uint32)
_SHAPES = {1: "b", 2: "b, 16"}


@dataclass(frozen=True)
class Row:
  """A function of arrays, and the specs of its arguments."""

  fun: Callable[..., Any]
  specs: Sequence[tf.TensorSpec]


def _dropout(x: Any, key: Any) -> Any:
  return jnp.where(random.bernoulli(key, 0.9, x.shape), x / 0.9, 0)


def _dropout_in_a_loop(x: Any, key: Any) -> Any:
  def layer(x: Any, key: Any) -> tuple[Any, None]:
    return _dropout(jnp.tanh(x), key), None

  return lax.scan(layer, x, random.split(key, 32))[0]


def _sampling(logits: Any, key: Any) -> Any:
  def step(carry: Any, i: Any) -> tuple[Any, Any]:
    token = random.categorical(random.fold_in(key, i), carry)
    return carry + jax.nn.one_hot(token, 16), token

  return lax.scan(step, logits, jnp.arange(32))[1]


def _rows_by_counter(x: Any) -> Any:
  return lax.fori_loop(0, 32, lambda i, total: total + x[i % x.shape[0]], jnp.zeros(16))


FUNCTIONS = {
  "uniform": Row(lambda x, key: random.uniform(key, x.shape), (_ROWS, _KEY)),
  "normal": Row(lambda x, key: random.normal(key, x.shape), (_ROWS, _KEY)),
  "randint": Row(lambda x, key: random.randint(key, x.shape, 0, 9), (_ROWS, _KEY)),
  "categorical": Row(lambda x, key: random.categorical(key, x), (_ROWS, _KEY)),
  "permutation": Row(lambda x, key: random.permutation(key, x), (_FIXED, _KEY)),
  "split": Row(lambda key: random.split(key, 3), (_KEY,)),
  "fold_in": Row(random.fold_in, (_KEY, _INDEX)),
  "dropout": Row(_dropout, (_ROWS, _KEY)),
  "dropout in a loop": Row(_dropout_in_a_loop, (_ROWS, _KEY)),
  "sampling in a loop": Row(_sampling, (_ROWS, _KEY)),
  "sort": Row(jnp.sort, (_X,)),
  "argsort": Row(jnp.argsort, (_X,)),
  "median": Row(jnp.median, (_X,)),
  "quantile": Row(lambda x: jnp.quantile(x, 0.3), (_X,)),
  "top_k": Row(lambda x: lax.top_k(x, 3), (_ROWS,)),
  "searchsorted": Row(lambda x: jnp.searchsorted(x, x), (_FIXED,)),
  "interp": Row(lambda x: jnp.interp(x, x, x), (_FIXED,)),
  "x[i]": Row(lambda x, i: x[i], (_ROWS, _INDEX)),
  "x[i] in a loop": Row(_rows_by_counter, (_ROWS,)),
  "dynamic_slice": Row(lambda x, i: lax.dynamic_slice(x, (i,), (2,)), (_FIXED, _INDEX)),
  "dynamic_update_slice": Row(
    lambda x, i: lax.dynamic_update_slice(x, jnp.ones(2), (i,)), (_FIXED, _INDEX)
  ),
  "take": Row(lambda x, i: jnp.take(x, i, axis=0), (_ROWS, _INTEGERS)),
  "x.at[i].add": Row(lambda x, i: x.at[i].add(1.0), (_ROWS, _INTEGERS)),
  "u // v": Row(lambda x, y: x // y, (_BITS, _BITS)),
  "u % v": Row(lambda x, y: x % y, (_BITS, _BITS)),
  "i // j": Row(lambda x, y: x // y, (_INTEGERS, _INTEGERS)),
  "population_count": Row(lax.population_count, (_BITS,)),
  "cumsum": Row(lambda x: jnp.cumsum(x, 0), (_ROWS,)),
  "one_hot": Row(lambda i: jax.nn.one_hot(i, 16), (_INTEGERS,)),
}


def rows() -> list[str]:
  """The names of the functions."""
  return [*FUNCTIONS]


def measured(names: Sequence[str]) -> Iterator[tuple[str, counts.Numbers]]:
  """Reads the graph of each function."""
  for name in names:
    row = FUNCTIONS[name]
    shapes = [_SHAPES.get(spec.shape.rank) if None in spec.shape else None for spec in row.specs]
    converted = jax2tf.convert(row.fun, polymorphic_shapes=shapes, platforms=counts.PLATFORMS)
    yield name, counts.of_function(converted, row.specs)
