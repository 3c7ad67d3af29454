"""Times a function in JAX, converted, and in TensorFlow as one writes it by hand."""

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
    in_tf: the same of variables and tensors, as a TensorFlow user writes it, if it is measured.
    args: the arrays.
    params: None, or a pytree of arrays.
    ways: how it is converted.
    reason: why the time of ours over that by hand, or of compiled over jax.jit, is above the aim.
    rtol: the largest relative difference of a finite result from JAX's. None: not compared.
  """

  in_jax: Function
  in_tf: Function | None
  args: Sequence[np.ndarray]
  params: Any = None
  ways: Sequence[str] = ("ours", "compiled")
  reason: str = ""
  rtol: float | None = 1e-4

  @property
  def operands(self) -> tuple[Any, ...]:
    """All arguments: the parameters, if there are any, and the arrays."""
    return (*([] if self.params is None else [self.params]), *self.args)


def measured(row: Row, seconds: float, gradient: bool = False) -> Numbers:
  """The times of a row, or of its value and gradient by the parameters, or by all arrays if there
  are none. Raises if values differ from JAX's."""
  in_jax, in_tf = _with_gradients(row) if gradient else _forward(row)
  arrays = jax.tree.map(jnp.asarray, row.operands)
  variables = [] if row.params is None else [tf.nest.map_structure(tf.Variable, row.params)]
  tensors = [tf.constant(x) for x in row.args]

  def graph(way: str) -> Any:
    function = in_tf[_COMPILED.get(way, way)]
    of_args = tf.function(
      lambda *xs: function(*variables, *xs), autograph=False, jit_compile=way in _COMPILED
    )
    return of_args.get_concrete_function(*tensors)

  graphs = {way: graph(way) for way in (*(["hand"] if row.in_tf else []), *row.ways)}
  jitted = jax.jit(in_jax)
  expected = jax.tree.leaves(jitted(*arrays))
  for way, function in graphs.items():
    if row.rtol is not None:
      _assert_close(tf.nest.flatten(function(*tensors)), expected, row.rtol, way)
  calls: dict[str, Callable[[], Any]] = {"jax": lambda: jax.block_until_ready(jitted(*arrays))}
  # On CPU the computation is done when the call of a graph returns.
  calls |= {way: functools.partial(function, *tensors) for way, function in graphs.items()}
  return measure.runs(calls, seconds)


def _conversions(row: Row) -> set[str]:
  return {_COMPILED.get(way, way) for way in row.ways}


def _forward(row: Row) -> tuple[Function, dict[str, Function]]:
  """(in JAX, {way: in TensorFlow}), functions of the operands."""
  # Nobody trains a function without parameters.
  convert = functools.partial(jax2tf.convert, with_gradient=row.params is not None)
  converted = {way: convert(row.in_jax, **_OPTIONS[way]) for way in _conversions(row)}
  return row.in_jax, converted | ({"hand": row.in_tf} if row.in_tf else {})


def _with_gradients(row: Row) -> tuple[Function, dict[str, Function]]:
  """As `_forward`, of the mean of the squared results and its gradient."""
  inexact = [i for i, x in enumerate(row.operands) if row.params is None and _is_inexact(x)]
  argnums = inexact or [0]

  def loss(*args: Any) -> Any:
    results = [y for y in jax.tree.leaves(row.in_jax(*args)) if _is_inexact(y)]
    return sum((jnp.mean(jnp.square(jnp.abs(y))) for y in results), jnp.zeros(()))

  def by_hand(*args: Any) -> Any:
    assert row.in_tf
    return tf.reduce_mean(tf.square(row.in_tf(*args)))

  def by_tape(loss: Function) -> Function:
    def value_and_gradient(*args: Any) -> Any:
      watched = [args[i] for i in argnums]
      with tf.GradientTape() as tape:
        tape.watch(tf.nest.flatten(watched))
        value = loss(*args)
      return value, tape.gradient(value, tf.nest.flatten(watched))

    return value_and_gradient

  losses = {way: jax2tf.convert(loss, **_OPTIONS[way]) for way in _conversions(row)}
  losses |= {"hand": by_hand} if row.in_tf else {}
  return jax.value_and_grad(loss, argnums), {way: by_tape(loss) for way, loss in losses.items()}


def _is_inexact(x: Any) -> bool:
  return bool(jnp.issubdtype(x.dtype, jnp.inexact))


def _assert_close(
  actual: Sequence[Any], expected: Sequence[Any], rtol: float, message: str
) -> None:
  """Raises unless values are equal up to rounding, relative to the largest value: some gradients,
  as of key biases, are only rounding."""
  inexact = [np.asarray(e) for e in expected if _is_inexact(e)]
  largest = max((float(np.abs(e).max()) for e in inexact), default=0.0)
  for a, e in zip(actual, expected, strict=True):
    if not _is_inexact(e):
      np.testing.assert_array_equal(np.asarray(a), np.asarray(e), err_msg=message)
      continue
    np.testing.assert_allclose(
      np.asarray(a), np.asarray(e), rtol=rtol, atol=2e-5 * largest, err_msg=message
    )
