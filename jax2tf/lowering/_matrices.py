"""Shared helpers for linear algebra: batches as rank 3, bodies as functions, NaN where LAPACK
reports a failure."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from jax2tf import _tf_compat
from jax2tf.context import RuleContext

# From this size on, a factorisation by columns works on blocks, the rest is matrix products.
BLOCK = 64


def call(
  ctx: RuleContext,
  body: Callable[..., Any],
  *operands: tf.Tensor,
  batch: int,
  shapes: Any = None,
  **static: Any,
) -> list[tf.Tensor]:
  """`body(*operands)` on one batch dimension, as a function of the graph that equal calls share.

  Args:
    ctx: tells the shapes of operands and results, unless `shapes` does.
    body: tensors `[batch, ...]` -> tuple of tensors `[batch, ...]`; it may read static sizes.
    operands: tensors with the same leading batch dimensions.
    batch: their number.
    shapes: of the operands, then of the results.
    static: keywords of `body`.
  """
  shapes = shapes or [aval.shape for aval in (*ctx.avals_in, *ctx.avals_out)]
  inputs, outputs = shapes[: len(operands)], shapes[len(operands) :]
  if batch != 1:
    operands = tuple(
      ctx.reshape(x, (math.prod(shape[:batch]), *shape[batch:]))
      for x, shape in zip(operands, inputs, strict=True)
    )
  specs = tuple(tf.TensorSpec([None, *x.shape[1:]], x.dtype) for x in operands)
  results = _function(body, specs, tuple(static.items()))(*operands)
  return [
    y if batch == 1 else ctx.reshape(y, shape) for y, shape in zip(results, outputs, strict=True)
  ]


@functools.lru_cache(maxsize=256)
def _function(
  body: Callable[..., Any], specs: tuple[tf.TensorSpec, ...], static: tuple[tuple[str, Any], ...]
) -> Any:
  def function(*operands: tf.Tensor) -> Any:
    return body(*operands, **dict(static))

  function.__name__ = body.__name__
  return tf.function(function, input_signature=specs, autograph=False)


def shared(body: Callable[..., Any], *operands: tf.Tensor) -> Any:
  """`body` as a function of the graph for tensors such as these, which several calls share."""
  return _function(body, tuple(tf.TensorSpec([None, *x.shape[1:]], x.dtype) for x in operands), ())


def unless_compiled(
  by_kernels: Callable[[], Any], by_xla: Callable[[], Any], by_pfor: bool = True
) -> Any:
  """`by_kernels()`, whose ops XLA need not know, and `by_xla()` where XLA compiles the graph.

  Without `by_pfor`, TensorFlow's pfor takes the latter too.

  TF 2.21: the kernel of DeviceIndex tells where it runs, and XLA takes it for a constant outside of
  the range of indices, so it compiles the default branch alone. Exporters do the same
  (converters/export/replay.py).
  """
  index = tf.raw_ops.DeviceIndex(device_names=["CPU"])
  if not by_pfor:
    _tf_compat.take_last_in_pfor(index)
  return tf.switch_case(index, [by_kernels], by_xla)


def refuse_xla(ctx: RuleContext, what: str) -> None:
  """Refuses what TensorFlow's XLA (2.21) has no kernel of, where it compiles the graph: its error
  would name neither line nor remedy."""
  if _tf_compat.is_compiled_by_xla():
    ctx.refuse(f"TensorFlow's XLA has no kernel of {what}", "leave out jit_compile")


def loop(steps: Any, body: Callable[..., Any], *state: tf.Tensor) -> tuple[tf.Tensor, ...]:
  """`body(k, *state) -> state` for k = 0, 1 ... steps - 1; shapes do not change."""

  def step(k: tf.Tensor, *state: tf.Tensor) -> tuple[tf.Tensor, ...]:
    results = body(k, *state)
    for x, y in zip(state, results, strict=True):
      y.set_shape(x.shape)
    return (k + 1, *results)

  limit = steps if isinstance(steps, int) else None
  return tuple(tf.while_loop(lambda k, *_: k < steps, step, (0, *state), maximum_iterations=limit))[
    1:
  ]


def size(x: tf.Tensor, axis: int) -> Any:
  """A size of an operand of a body: an int where the body is made for it, else a scalar."""
  static = tf.compat.dimension_value(x.shape[axis])  # an object in TensorFlow 1
  return static if static is not None else tf.shape(x)[axis]


def nan(dtype: tf.DType) -> tf.Tensor:
  """NaN, for complex dtypes in both parts."""
  return tf.constant(complex(math.nan, math.nan) if dtype.is_complex else math.nan, dtype)


def nan_unless(ok: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
  """x where ok bool[batch], else NaN in the whole element of the batch."""
  for _ in range(x.shape.rank - ok.shape.rank):
    ok = tf.expand_dims(ok, -1)
  return tf.where(ok, x, nan(x.dtype))


def all_finite(x: tf.Tensor) -> tf.Tensor:
  """x f32[batch,m,n] -> bool[batch]."""
  return tf.reduce_all(tf.math.is_finite(tf.abs(x) if x.dtype.is_complex else x), [-2, -1])


def modulus(x: tf.Tensor) -> tf.Tensor:
  """LAPACK's size of a pivot: |re| + |im|."""
  return tf.abs(tf.math.real(x)) + tf.abs(tf.math.imag(x)) if x.dtype.is_complex else tf.abs(x)


def largest(sizes: tf.Tensor) -> tf.Tensor:
  """sizes f32[batch,m,...] -> i64[batch,...], where the first of the largest is; NaN counts as
  infinite, which TF 2.21's ArgMax ignores."""
  known = tf.where(tf.math.is_nan(sizes), tf.constant(math.inf, sizes.dtype), sizes)
  return tf.argmax(known, 1)


def powers_of_two(sizes: tf.Tensor) -> tf.Tensor:
  """f32[...] -> the largest power of two that is not larger than each, by which a product is exact;
  1 for zero and infinity."""
  bits, exponent = (tf.int64, 0x7FF << 52) if sizes.dtype == tf.float64 else (tf.int32, 0xFF << 23)
  exponents = tf.bitwise.bitwise_and(tf.bitcast(sizes, bits), tf.constant(exponent, bits))
  in_range = (exponents > 0) & (exponents < exponent)
  return tf.where(in_range, tf.bitcast(exponents, sizes.dtype), tf.ones_like(sizes))


def conj(x: tf.Tensor) -> tf.Tensor:
  """The conjugate; nothing for real dtypes."""
  return tf.math.conj(x) if x.dtype.is_complex else x


def real(x: tf.Tensor) -> tf.Tensor:
  """The real part; nothing for real dtypes."""
  return tf.math.real(x) if x.dtype.is_complex else x


def adjoint(x: tf.Tensor) -> tf.Tensor:
  """The conjugate transpose of matrices."""
  return tf.linalg.adjoint(x) if x.dtype.is_complex else tf.linalg.matrix_transpose(x)


def outer(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
  """x[batch,m], y[batch,n] -> x y^T [batch,m,n]."""
  return x[:, :, tf.newaxis] * y[:, tf.newaxis, :]
