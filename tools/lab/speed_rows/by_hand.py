"""Times a function in JAX, in TensorFlow as one writes it by hand, and converted."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf

import jax2tf
from jax2tf.tools.lab import measure

Function = Callable[..., Any]
# {way: medians of five runs in milliseconds}
Numbers = dict[str, list[float]]

# Ways of conversion -> options of `convert`.
_OPTIONS: Mapping[str, Mapping[str, Any]] = {
  "ours": {},
  "fused": {"idioms": "fused"},
  "native": {"native_serialization": True},
}
# Ways that XLA compiles in TensorFlow, `jit_compile=True` -> the way that it compiles.
_COMPILED = {"compiled": "ours", "native xla": "native"}


@dataclass(frozen=True)
class Row:
  """A function to measure.

  Attributes:
    in_jax: a function of `params`, if there are any, and of arrays, as a JAX user writes it.
    in_tf: the same of variables and tensors, as a TensorFlow user writes it.
    args: the arrays.
    params: None, or a pytree of arrays.
    ways: how it is converted.
    reason: why the time of ours over that by hand, or of compiled over jax.jit, is above the aim.
    rtol: the largest relative difference of a finite result from JAX's.
  """

  in_jax: Function
  in_tf: Function
  args: Sequence[np.ndarray]
  params: Any = None
  ways: Sequence[str] = ("ours", "compiled")
  reason: str = ""
  rtol: float = 1e-4

  @property
  def held(self) -> tuple[Any, ...]:
    """What stands in front of the arrays."""
    return () if self.params is None else (self.params,)


def measured(row: Row, seconds: float, gradient: bool = False) -> Numbers:
  """The times of a row, or of its value and gradient by `params`. Raises if values differ from
  JAX's."""
  in_jax, in_tf = _functions(row, gradient)
  arrays = jax.tree.map(jnp.asarray, (*row.held, *row.args))
  variables = tf.nest.map_structure(tf.Variable, row.held)
  tensors = [tf.constant(x) for x in row.args]

  def graph(way: str) -> Any:
    function = in_tf[_COMPILED.get(way, way)]
    of_args = tf.function(
      lambda *xs: function(*variables, *xs), autograph=False, jit_compile=way in _COMPILED
    )
    return of_args.get_concrete_function(*tensors)

  graphs = {way: graph(way) for way in ("hand", *row.ways)}
  jitted = jax.jit(in_jax)
  expected = jax.tree.leaves(jitted(*arrays))
  for way, function in graphs.items():
    _assert_close(tf.nest.flatten(function(*tensors)), expected, row.rtol, way)
  calls: dict[str, Callable[[], Any]] = {"jax": lambda: jax.block_until_ready(jitted(*arrays))}
  # On CPU the computation is done when the call of a graph returns.
  calls |= {way: functools.partial(function, *tensors) for way, function in graphs.items()}
  return measure.runs(calls, seconds)


def _functions(row: Row, gradient: bool) -> tuple[Function, dict[str, Function]]:
  """(in JAX, {way: in TensorFlow}), functions of `held` and of arrays."""
  options = {_COMPILED.get(way, way) for way in row.ways}
  if not gradient:
    # Nobody trains a function without parameters.
    convert = functools.partial(jax2tf.convert, with_gradient=row.params is not None)
    converted = {way: convert(row.in_jax, **_OPTIONS[way]) for way in options}
    return row.in_jax, {"hand": row.in_tf, **converted}

  def loss(*args: Any) -> Any:
    return jnp.mean(jnp.square(row.in_jax(*args)))

  def by_hand(*args: Any) -> Any:
    return tf.reduce_mean(tf.square(row.in_tf(*args)))

  losses = {"hand": by_hand, **{way: jax2tf.convert(loss, **_OPTIONS[way]) for way in options}}
  return jax.value_and_grad(loss), {way: _with_gradient(f) for way, f in losses.items()}


def _with_gradient(loss: Function) -> Function:
  def value_and_gradient(params: Any, x: tf.Tensor) -> Any:
    with tf.GradientTape() as tape:
      value = loss(params, x)
    return value, tf.nest.pack_sequence_as(params, tape.gradient(value, tf.nest.flatten(params)))

  return value_and_gradient


def _assert_close(
  actual: Sequence[Any], expected: Sequence[Any], rtol: float, message: str
) -> None:
  """Raises unless values are equal up to rounding, relative to the largest value: some gradients,
  as of key biases, are only rounding."""
  inexact = [np.asarray(e) for e in expected if jnp.issubdtype(e.dtype, np.inexact)]
  largest = max((float(np.abs(e).max()) for e in inexact), default=0.0)
  for a, e in zip(actual, expected, strict=True):
    if not jnp.issubdtype(e.dtype, np.inexact):
      np.testing.assert_array_equal(np.asarray(a), np.asarray(e), err_msg=message)
      continue
    np.testing.assert_allclose(
      np.asarray(a), np.asarray(e), rtol=rtol, atol=2e-5 * largest, err_msg=message
    )
