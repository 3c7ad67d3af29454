"""One function for each way of each costly lowering rule, with arguments of any size."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


@dataclass(frozen=True)
class Row:
  """A function to measure.

  Attributes:
    fun: a function of arrays.
    args: a function from n to NumPy arrays.
    n: the size, at which the kernel takes much longer than its launch.
    differentiable: whether to measure a gradient too.
  """

  fun: Callable[..., Any]
  args: Callable[[int], Sequence[np.ndarray]]
  n: int
  differentiable: bool = True


def _normal(*shape: int) -> np.ndarray:
  return np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)


def _integers(most: int, *shape: int) -> np.ndarray:
  return np.random.default_rng(most).integers(0, most, shape).astype(np.int32)


def _definite(n: int) -> np.ndarray:
  """A well-conditioned symmetric positive definite matrix."""
  a = _normal(n, n)
  return a @ a.T / n + 2 * np.eye(n, dtype=np.float32)


def _triangle(n: int) -> np.ndarray:
  return np.linalg.cholesky(_definite(n))


_KEY = np.array([1, 2], np.uint32)


def _only(x: Callable[[int], np.ndarray]) -> Callable[[int], list[np.ndarray]]:
  return lambda n: [x(n)]


def _vector(n: int) -> list[np.ndarray]:
  return [_normal(n)]


def _square(n: int) -> list[np.ndarray]:
  return [_normal(n, n)]


def _window(
  reducer: Any,
  init: float,
  window: Sequence[int],
  strides: Sequence[int] | None = None,
  **dilations: Any,
) -> Callable[..., Any]:
  strides = strides or (1,) * len(window)
  return lambda x: lax.reduce_window(
    x, np.float32(init), reducer, window, strides, "SAME" if not dilations else "VALID", **dilations
  )


def _pooled_back(window: Sequence[int], strides: Sequence[int]) -> Callable[..., Any]:
  """The gradient of max pooling, which is select_and_scatter_add."""
  pool = _window(lax.max, -np.inf, window, strides)
  return lambda x: jax.vjp(pool, x)[1](pool(x))[0]


def _conv(
  rank: int, groups: int = 1, batch_groups: int = 1, stride: int = 1, lhs: int = 1, rhs: int = 1
) -> Callable[..., Any]:
  spatial = "XYZ"[:rank]
  return functools.partial(
    lax.conv_general_dilated,
    window_strides=(stride,) * rank,
    padding="SAME" if lhs == 1 else [(2, 2)] * rank,
    lhs_dilation=(lhs,) * rank,
    rhs_dilation=(rhs,) * rank,
    dimension_numbers=(f"N{spatial}C", f"{spatial}IO", f"N{spatial}C"),
    feature_group_count=groups,
    batch_group_count=batch_groups,
  )


def _image(*rest: int, kernel: Sequence[int], batch: int = 2) -> Callable[[int], list[np.ndarray]]:
  return lambda n: [_normal(batch, n, *rest), _normal(*kernel)]


def _set_64(x: jax.Array) -> jax.Array:
  """Updates one element after another."""
  return lax.fori_loop(0, 64, lambda i, x: lax.dynamic_update_slice(x, jnp.ones(1) * i, (i,)), x)


def _linear_recurrence(a: jax.Array, b: jax.Array) -> Any:
  return lax.associative_scan(lambda x, y: (x[0] * y[0], x[1] * y[0] + y[1]), (jnp.tanh(a), b))


# Names begin with the family.
ROWS: dict[str, Row] = {
  "gather: rows": Row(lambda x, i: x[i], lambda n: [_normal(n, 32), _integers(n, n)], 65536),
  "gather: elements": Row(lambda x, i: x[i], lambda n: [_normal(n), _integers(n, n)], 524288),
  "gather: filled outside": Row(
    lambda x, i: x.at[i].get(mode="fill"), lambda n: [_normal(n), _integers(2 * n, n)], 524288
  ),
  "gather: along the last axis": Row(
    lambda x, i: jnp.take_along_axis(x, i, -1),
    lambda n: [_normal(n, 64), _integers(64, n, 64)],
    16384,
  ),
  "gather: windows": Row(
    lambda x, i: jax.vmap(lambda j: lax.dynamic_slice(x, (j,), (16,)))(i),
    lambda n: [_normal(n), _integers(n, n // 4)],
    262144,
  ),
  "scatter: add rows": Row(
    lambda x, i, y: x.at[i].add(y),
    lambda n: [_normal(n, 32), _integers(n, n), _normal(n, 32)],
    65536,
  ),
  "scatter: add elements": Row(
    lambda x, i, y: x.at[i].add(y), lambda n: [_normal(n), _integers(n, n), _normal(n)], 524288
  ),
  "scatter: set elements": Row(
    lambda x, i, y: x.at[i].set(y), lambda n: [_normal(n), _integers(n, n), _normal(n)], 524288
  ),
  "scatter: max of elements": Row(
    lambda x, i, y: x.at[i].max(y),
    lambda n: [_normal(n), _integers(n, n), _normal(n)],
    524288,
    differentiable=False,
  ),
  "scatter: multiply elements": Row(
    lambda x, i, y: x.at[i].multiply(y),
    lambda n: [_normal(n), _integers(n, n), _normal(n)],
    524288,
    differentiable=False,
  ),
  "scatter: apply": Row(
    lambda x, i: x.at[i].apply(jnp.sin),
    lambda n: [_normal(n), _integers(n, n)],
    8192,
    differentiable=False,
  ),
  "sort: f32": Row(jnp.sort, _vector, 131072),
  "sort: rows": Row(jnp.sort, lambda n: [_normal(64, n)], 4096),
  "sort: argsort": Row(jnp.argsort, _vector, 131072, differentiable=False),
  "sort: 2 keys of 3 operands": Row(
    lambda i, x, y: lax.sort((i, x, y), num_keys=2),
    lambda n: [_integers(64, n), _normal(n), _normal(n)],
    131072,
  ),
  "sort: top 16": Row(lambda x: lax.top_k(x, 16), _vector, 524288),
  "cumulative: sum": Row(jnp.cumsum, _vector, 524288),
  "cumulative: prod": Row(jnp.cumprod, lambda n: [1 + _normal(n) / n], 524288),
  "cumulative: max": Row(lax.cummax, _vector, 524288),
  "cumulative: logsumexp": Row(lax.cumlogsumexp, _vector, 524288),
  "associative_scan: add": Row(lambda x: lax.associative_scan(jnp.add, x), _vector, 524288),
  "associative_scan: linear recurrence": Row(
    _linear_recurrence, lambda n: [_normal(n), _normal(n)], 262144
  ),
  "reduce_window: mean of images": Row(
    _window(lax.add, 0, (1, 3, 3, 1)), lambda n: [_normal(4, n, 32, 16)], 128
  ),
  "reduce_window: max of images, stride": Row(
    _window(lax.max, -np.inf, (1, 2, 2, 1), (1, 2, 2, 1)), lambda n: [_normal(4, n, 64, 16)], 128
  ),
  "reduce_window: add, rank 1": Row(_window(lax.add, 0, (33,)), _vector, 262144),
  "reduce_window: window dilation": Row(
    _window(lax.max, -np.inf, (5, 3), window_dilation=(2, 3)),
    lambda n: [_normal(n, 64)],
    4096,
    differentiable=False,
  ),
  "reduce_window: reducer a+b+ab": Row(
    _window(lambda a, b: a + b + a * b, 0, (5, 3)),
    lambda n: [_normal(n, 64) / 9],
    4096,
    differentiable=False,
  ),
  "select_and_scatter_add: images": Row(
    _pooled_back((1, 2, 2, 1), (1, 2, 2, 1)),
    lambda n: [_normal(4, n, 32, 16)],
    128,
    differentiable=False,
  ),
  "select_and_scatter_add: rank 1": Row(
    _pooled_back((8,), (4,)), _vector, 131072, differentiable=False
  ),
  "conv: 2-D": Row(_conv(2), _image(32, 16, kernel=(3, 3, 16, 32)), 128),
  "conv: 3-D": Row(_conv(3), _image(16, 16, 8, kernel=(3, 3, 3, 8, 16)), 64),
  "conv: dilation": Row(_conv(2, rhs=2), _image(32, 16, kernel=(3, 3, 16, 32)), 128),
  "conv: transposed": Row(_conv(2, lhs=2), _image(16, 16, kernel=(3, 3, 16, 32)), 128),
  "conv: depthwise": Row(_conv(2, groups=32), _image(32, 32, kernel=(3, 3, 1, 32)), 256),
  "conv: 2 batch groups": Row(_conv(2, batch_groups=2), _image(32, 16, kernel=(3, 3, 16, 32)), 128),
  "dot: matrix, matrix": Row(jnp.matmul, lambda n: [_normal(n, n), _normal(n, n)], 512),
  "dot: batched": Row(jnp.matmul, lambda n: [_normal(n, 32, 32), _normal(n, 32, 32)], 512),
  "dot: i32": Row(
    jnp.matmul, lambda n: [_integers(99, n, n), _integers(99, n, n)], 256, differentiable=False
  ),
  "dynamic_update_slice: 64 times": Row(_set_64, _vector, 131072, differentiable=False),
  "linalg: cholesky": Row(
    lambda a: lax.linalg.cholesky(a, symmetrize_input=False), _only(_definite), 512
  ),
  "linalg: triangular_solve": Row(
    lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True, lower=True),
    lambda n: [_triangle(n), _normal(n, 64)],
    512,
  ),
  "linalg: lu": Row(lambda a: lax.linalg.lu(a)[0], _square, 512),
  "linalg: solve": Row(jnp.linalg.solve, lambda n: [_definite(n), _normal(n)], 512),
  "linalg: qr": Row(lambda a: lax.linalg.qr(a, full_matrices=False), _square, 256),
  "linalg: qr, pivoting": Row(
    lambda a: lax.linalg.qr(a, pivoting=True, full_matrices=False),
    _square,
    256,
    differentiable=False,
  ),
  "linalg: hessenberg": Row(lax.linalg.hessenberg, _square, 256, differentiable=False),
  "linalg: eigh": Row(lax.linalg.eigh, _only(_definite), 256),
  "linalg: svd": Row(lambda a: lax.linalg.svd(a, full_matrices=False), _square, 256),
  "linalg: eig": Row(
    lambda a: lax.linalg.eig(a, compute_left_eigenvectors=False), _square, 256, differentiable=False
  ),
  "linalg: tridiagonal_solve": Row(
    lax.linalg.tridiagonal_solve,
    lambda n: [_normal(n), 4 + _normal(n) ** 2, _normal(n), _normal(n, 4)],
    131072,
  ),
  "fft: complex": Row(jnp.fft.fft, _vector, 262144),
  "fft: 2-D": Row(jnp.fft.fft2, lambda n: [_normal(n, 256)], 256),
  "random: normal": Row(
    lambda key, x: jax.random.normal(key, x.shape),
    lambda n: [_KEY, _normal(n)],
    131072,
    differentiable=False,
  ),
  "random: gamma": Row(
    lambda key, a: jax.random.gamma(key, jnp.abs(a) + 1), lambda n: [_KEY, _normal(n)], 32768
  ),
  "random: permutation": Row(jax.random.permutation, lambda n: [_KEY, _normal(n)], 131072),
}

_SCATTER = "TensorFlow's scatter kernels process the indices in one thread, at about 50 ns each"
_NO_KERNEL = "TensorFlow has no such kernel, so a loop applies one reflection after another"
# Why a slow row cannot be faster, by the beginning of its name.
_REASONS = {
  "gather": "TensorFlow's Gather checks and copies one element after another; its gradient is a "
  "scatter",
  "scatter: add": _SCATTER,
  "scatter: set": _SCATTER,
  "scatter: max": f"{_SCATTER}; a second scatter propagates the NaNs that the first ignores",
  "scatter: multiply": "TensorFlow has no multiplying scatter: segment products run over the "
  "operand and the updates in one array",
  "scatter: apply": "an index may occur twice, so a loop applies the updates in order; "
  "`unique_indices=True` takes a single step",
  "associative_scan": "the log n steps are separate ops, and TensorFlow does not fuse them",
  "reduce_window: max of images": "TensorFlow's MaxPool ignores NaN, so a second one finds NaNs",
  "select_and_scatter_add: rank 1": "TensorFlow pools images only, so the windows are "
  "materialised and reduced",
  "linalg: qr, pivoting": _NO_KERNEL,
  "linalg: hessenberg": _NO_KERNEL,
  "linalg: eig": "TensorFlow's kernel (Eigen) works column by column; JAX's (LAPACK) works in "
  "blocks",
  "random": "a hash or a rejection loop has some hundred ops, each a pass over memory; XLA fuses "
  "them",
}


def reason(name: str) -> str:
  """Why a slow row cannot be faster."""
  found = (why for start, why in _REASONS.items() if re.match(rf"{start}\b", name))
  return next(found, "no reason known")
