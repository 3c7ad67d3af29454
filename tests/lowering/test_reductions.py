"""Rows for `jax2tf/lowering/reductions.py`."""

from __future__ import annotations

import functools
from typing import Any

import jax
import ml_dtypes
import numpy as np
from jax import lax
from jax import numpy as jnp

from tests.support.case import HOSTILE_F32, HOSTILE_I32, Case, run

QUICK = {"eager": "as in a graph", "saved": "as in a graph"}
FAST_MINMAX = {"xla": "TensorFlow's XLA compiles reductions with fast min and max, which lose NaN"}
INTS = ("int8", "int16", "int32", "uint8", "uint16", "uint32")
FLOATS = ("float16", "bfloat16", "float32")
MATRIX = np.array([[3, -7, 2, 5, 2], [1, 9, -9, 0, 4], [8, 6, -1, -1, 8]])
REDUCTIONS = {
  "sum": lax.reduce_sum,
  "max": lax.reduce_max,
  "min": lax.reduce_min,
  "prod": lax.reduce_prod,
}


def of(dtype: str) -> Any:
  return MATRIX.astype(getattr(ml_dtypes, dtype, None) or dtype)


NINE = np.sin(np.arange(2**9, dtype=np.float32)).reshape([2] * 9)
NINE[1, 0, 1, 0, 1, 1, 0, 1] = np.nan


def nans(*at: int) -> np.ndarray:
  x = np.arange(12, dtype=np.float32)
  x[[3, 7]] = np.inf, -np.inf
  x[list(at)] = np.nan
  return x.reshape(2, 6)


def argmax_and_min(index_dtype: Any, x: Any) -> Any:
  return lax.argmax(x, 1, index_dtype), lax.argmin(x, 1, index_dtype)


def argmax_reducer(left: Any, right: Any) -> Any:
  (a, i), (b, j) = left, right
  return jnp.maximum(a, b), jnp.where(a >= b, i, j)


def variadic(x: Any) -> Any:
  return lax.reduce(
    (x, lax.broadcasted_iota(jnp.int32, x.shape, 1)), (-jnp.inf, 0), argmax_reducer, (1,)
  )


def affine(left: Any, right: Any) -> Any:  # associative, not commutative
  return left[0] * right[0], left[1] * right[0] + right[1]


CASES = [
  Case(
    "sum_some",
    lambda x: jnp.sum(x, (0, 2)),
    [np.arange(24, dtype=np.float32).reshape(2, 3, 4)],
    poly="b, c, _",
  ),
  Case("sum_all_hostile", jnp.sum, [HOSTILE_F32], poly="b"),
  Case("sum_no_axes", lambda x: lax.reduce_sum(x, axes=()), [HOSTILE_F32]),
  Case(
    "sum_empty",
    lambda x: (lax.reduce_sum(x, (1,)), lax.reduce_sum(x, (0,))),
    [np.zeros((2, 0), np.float32)],
  ),
  # One by one in f16, 2048 + 1 is 2048.
  Case(
    "sum_f16_many",
    lambda x: (lax.reduce_sum(x, (0,)), lax.reduce_sum(x, (0, 1))),
    [np.ones((6000, 3), np.float16)],
    poly="b, _",
  ),
  Case(
    "reduce_f16_many",
    lambda x: lax.reduce(x, np.float16(0), lax.add, (0,)),
    [np.ones((6000, 3), np.float16)],
    grad=False,
  ),
  Case(
    "sum_wraps", lambda x: lax.reduce_sum(x, (0,)), [np.array([2**31 - 1, 7, 2**31 - 1], np.int32)]
  ),
  Case("mean_var", lambda x: (jnp.mean(x, 1), jnp.var(x, 0)), [of("float32")], poly="b, _"),
  Case(
    "sum_c64",
    lambda x: lax.reduce_sum(x, (1,)),
    [of("float32") * (1 - 2j).__complex__() * np.complex64(1)],
  ),
  Case("sum_f64", lambda x: lax.reduce_sum(x, (1,)), [of("float64")], x64=True),
  Case(
    "sum_i64_u64",
    lambda x, y: (lax.reduce_sum(x, (1,)), lax.reduce_prod(y, (1,))),
    [of("int64") << 40, of("uint64")],
    x64=True,
  ),
  Case(
    "max_nan",
    lambda x: (jnp.max(x, 1), jnp.min(x, 1)),
    [nans(1, 9)],
    poly="b, _",
    grad=False,
    xfail=FAST_MINMAX,
  ),
  Case(
    "max_ties_gradient",
    lambda x: jnp.max(x, 1),
    [np.array([[1, 3, 3], [2, 2, 2]], np.float32)],
    poly="b, _",
  ),
  Case("max_infinite", lambda x: (jnp.max(x, 1), jnp.min(x, 0)), [nans()], poly="b, _"),
  Case("max_bool", lambda x: (lax.reduce_max(x, (1,)), lax.reduce_min(x, (1,))), [MATRIX > 2]),
  Case(
    "max_complex",
    lambda x: (jnp.max(x, 1), jnp.min(x, 1)),
    [np.array([[1 + 2j, 1 - 3j, 0 + 9j]], np.complex64)],
    grad=False,
  ),
  *[
    Case(
      f"{name}_{dtype}",
      functools.partial(lambda r, x: r(x, (1,)), reduction),
      [of(dtype)],
      skip=QUICK,
    )
    for name, reduction in REDUCTIONS.items()
    for dtype in (*INTS, *FLOATS)
    if (name, dtype) != ("prod", "float16")
  ],
  Case(
    "int4",
    lambda x: (
      lax.reduce_sum(x.astype("int4"), (1,)).astype(int),
      lax.reduce_max(x.astype("int4"), (1,)).astype(int),
      lax.argmax(x.astype("int4"), 1, np.int32),
    ),
    [of("int32") % 8],
  ),
  Case("logsumexp", lambda x: jax.nn.logsumexp(x, 1), [nans()], poly="b, _"),
  Case(
    "any_all",
    lambda x: (jnp.any(x, 1), jnp.all(x, 1), lax.reduce_xor(x, (1,))),
    [MATRIX > 2],
    poly="b, _",
  ),
  *[
    Case(
      f"bits_{dtype}",
      lambda x: (lax.reduce_and(x, (1,)), lax.reduce_or(x, (1,)), lax.reduce_xor(x, (1,))),
      [of(dtype)],
      skip=QUICK,
      poly="b, n" if dtype == "int32" else None,
    )
    for dtype in INTS
  ],
  Case(
    "argmax_nan_first",
    functools.partial(argmax_and_min, np.int32),
    [nans(1, 4)],
    poly="b, n",
    grad=False,
  ),
  Case(
    "argmax_inf_then_nan", functools.partial(argmax_and_min, np.int32), [nans(5, 8, 9)], grad=False
  ),
  Case(
    "argmax_ties",
    functools.partial(argmax_and_min, np.int32),
    [np.array([[0.0, -0.0, 0.0], [1, 2, 2]], np.float32)],
    grad=False,
  ),
  *[
    Case(
      f"argmax_{rank}_dimensions",
      lambda x: (lax.argmax(x, 3, np.int32), lax.argmin(x, 6, np.int32)),
      [x],
      grad=False,
      skip=QUICK,
    )
    for rank, x in ((8, NINE[0]), (9, NINE))
  ],
  Case("argmax_bool", functools.partial(argmax_and_min, np.int32), [MATRIX > 2]),
  *[
    Case(
      f"argmax_to_{dtype.__name__}",
      functools.partial(argmax_and_min, dtype),
      [of("float32")],
      grad=False,
      skip=QUICK,
    )
    for dtype in (np.int8, np.uint8, np.int16, np.uint16, np.uint32)
  ],
  Case(
    "argmax_to_i64_u64",
    lambda x: argmax_and_min(np.int64, x) + argmax_and_min(np.uint64, x),
    [of("float64")],
    grad=False,
    x64=True,
  ),
  *[
    Case(
      f"argmax_{dtype}",
      functools.partial(argmax_and_min, np.int32),
      [of(dtype)],
      grad=False,
      skip=QUICK,
    )
    for dtype in (*INTS, *FLOATS)
  ],
  Case("reduce_init", lambda x: lax.reduce(x, np.int32(5), lax.add, (0,)), [HOSTILE_I32], poly="b"),
  # JAX's derivative of `reduce` asks for an initial value that is an identity; integers have no
  # derivative.
  Case(
    "reduce_monoids",
    lambda x: [lax.reduce(x, np.int32(2), op, (1,)) for op in (lax.add, lax.mul, lax.max, lax.min)],
    [of("int32")],
    poly="b, n",
  ),
  Case(
    "reduce_sum_gradient",
    lambda x: lax.reduce(x, np.float32(0), lambda a, b: a + b, (1,)),
    [of("float32")],
  ),
  Case(
    "reduce_bits",
    lambda x: lax.reduce(x, np.int32(-1), lambda a, b: a & b, (0,)),
    [HOSTILE_I32[2:5]],
    poly="n",
  ),
  Case(
    "reduce_logical",
    lambda x: (
      lax.reduce(x, True, lax.bitwise_and, (0,)),
      lax.reduce(x, False, lax.bitwise_or, (0,)),
    ),
    [MATRIX > 2],
  ),
  Case("reduce_variadic", variadic, [of("float32")], poly="b, _", grad=False),
  Case("reduce_variadic_symbolic_axis", variadic, [of("float32")], poly="_, n", grad=False),
  Case(
    "reduce_not_commutative",
    lambda x, y: lax.reduce((x, y), (1, 0), affine, (0, 1)),
    [of("int32"), of("int32")],
  ),
  Case(
    "bits_empty",
    lambda x: (lax.reduce_and(x, ()), lax.reduce_or(x, (1,)), lax.reduce_xor(x, (0, 1))),
    [np.zeros((0, 2, 3), np.int32)],
  ),
  Case(
    "reduce_empty",
    lambda x, y: lax.reduce((x, y), (2, 3), affine, (1,)),
    [np.zeros((2, 0), np.int32)] * 2,
  ),
]
test_case, saved = run(CASES)
