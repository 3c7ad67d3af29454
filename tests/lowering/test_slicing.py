"""slice, dynamic_slice and dynamic_update_slice."""

from functools import partial

import jax
import ml_dtypes
import numpy as np
from jax import lax

from tests.support.case import DTYPES, NARROW, Case, run

X = np.arange(20, dtype=np.float32).reshape(4, 5)
HIGH = np.arange(2**9, dtype=np.float32).reshape([2] * 9)
FEW = {"saved": "a sweep over dtypes", "eager": "a sweep over dtypes"}


def of(dtype, x=X):
  return x.astype(getattr(ml_dtypes, dtype, dtype))


def i32(i):
  return np.int32(i)


def read(*sizes):
  return lambda x, i: lax.dynamic_slice_p.bind(x, i, i.dtype.type(1), slice_sizes=sizes)


def write(x, update, i):
  return lax.dynamic_update_slice_p.bind(x, update, i, i.dtype.type(2))


def bounds_of(dtype):
  info = np.iinfo(dtype)
  return [np.array(i, dtype) for i in (info.min, info.max, info.max // 2 + 1, 2)]


def reads_and_writes(x, *starts):
  return [(read(2, 3)(x, i), write(x, x[:2, :2] + x[2:, 2:4], i)) for i in starts]


def every_slice(x):
  return [x[1:3], x[::2, 1::3], read(2, 3)(x, i32(1)), write(x, x[:2, 2:4], i32(1))]


def last_rows(x):
  n = x.shape[0]
  return [x[n - 1 :], x[: n - 1, 1:], x[n // 2 : n], x[:n:2], x[n - 1 :: 2]]


def loop(x):
  return lax.fori_loop(
    0, x.shape[0], lambda i, x: lax.dynamic_update_index_in_dim(x, x[i] * 2 + i, i, 0), x
  )


WIDE = np.arange(4 * 24 * 35, dtype=np.float32).reshape(4, 24, 35)
OF_ROWS = {  # as many elements as rows have; one more; starts and ends inside of a row; both axes
  "whole": np.s_[:, ::2],
  "more": np.s_[:, :, ::4],
  "inside": np.s_[1:, 3:20:4],
  "last": np.s_[:, 23::5, 30::3],
  "both": np.s_[::3, 1::6, 2:34:7],
  "none": np.s_[:, 24::2],
}

CASES = [
  *[
    Case(f"slice-strides-{name}", lambda x, index=index: x[index], [WIDE])
    for name, index in OF_ROWS.items()
  ],
  Case(
    "slice-strides-batch",
    lambda x: lax.slice(x, (0, 1, 0), (x.shape[0], 24, 35), (1, 5, 2)),
    [WIDE],
    poly="b, _, _",
  ),
  Case("slice-strides-bool", lambda x: (x > 9)[:, ::2, ::4], [WIDE], grad=False),
  Case("slice", lambda x: x[1:3, 2:], [X], poly=["_, b"]),
  Case("slice-empty", lambda x: [x[2:2], x[4:]], [X]),
  Case("slice-strides", lambda x: lax.slice(x, (0, 1), (4, 5), (3, 2)), [X]),
  Case("slice-strides-cut", lambda x: lax.slice(x, (1, 0), (4, 4), (2, 3)), [X]),
  Case("slice-stride-over-all", lambda x: lax.slice(x, (0, 0), (4, 5), (9, 9)), [X]),
  Case("slice-symbolic", last_rows, [X], poly=["a, b"]),
  Case("slice-scalar-nothing", lambda x: lax.slice(x, (), ()), [np.float32(3)]),
  Case(
    "slice-nine-dimensions",
    lambda x: [x[:, 1:, :, :1], x[..., ::2]],
    [HIGH],
    grad=False,
    skip={"saved": "the same graph"},
  ),
  Case("dynamic-slice", read(2, 3), [X, i32(1)], poly=["a + 1, b + 2", ""]),
  *[
    Case(f"dynamic-slice-clamps-{i}", read(2, 3), [X, i32(i)], poly=["a + 1, _", ""], skip=FEW)
    for i in (-(2**31), -1, 3, 9, 2**31 - 1)
  ],
  Case("dynamic-slice-whole", read(4, 5), [X, i32(3)]),
  Case("dynamic-slice-empty", read(0, 5), [X, i32(9)]),
  Case(
    "dynamic-slice-symbolic-sizes",
    lambda x, i: lax.dynamic_slice(x, (i, 0), (x.shape[0] - 1, x.shape[1])),
    [X, i32(7)],
    poly=["a, b", ""],
  ),
  Case(
    "dynamic-slice-index",
    lambda x, i: [x[i], x[:, i], lax.dynamic_index_in_dim(x, i, 1, keepdims=False)],
    [X, i32(-2)],
    poly=["a, b", ""],
  ),
  Case(
    "dynamic-slice-vmap",
    jax.vmap(read(2, 3), (None, 0)),
    [X, np.array([-3, 0, 1, 9], np.int32)],
    poly=["a + 1, b + 2", "c"],
  ),
  Case(
    "dynamic-slice-vmap-both",
    jax.vmap(lambda x, i: lax.dynamic_slice(x, (i,), (2,)), (1, 0), 1),
    [X, np.array([-3, 0, 1, 9, 3], np.int32)],
    poly=["a + 1, b", "b"],
  ),
  *[
    Case(
      f"starts-{dtype}", reads_and_writes, [X, *bounds_of(dtype)], x64=True, skip=FEW, grad=False
    )
    for dtype in ("int8", "int16", "int64", "uint8", "uint16", "uint32", "uint64")
  ],
  Case("update", write, [X, -X[:2, :2], i32(1)], poly=["a + 1, b + 1", "_, _", ""]),
  *[
    Case(
      f"update-clamps-{i}", write, [X, -X[:2, :2], i32(i)], poly=["a + 1, _", "_, _", ""], skip=FEW
    )
    for i in (-(2**31), -1, 3, 2**31 - 1)
  ],
  Case(
    "update-symbolic",
    lambda x, u, i: lax.dynamic_update_slice(x, u, (i, 0)),
    [X, -X[:2], i32(9)],
    poly=["a + 1, b", "2, b", ""],
  ),
  Case("update-whole", lambda x, u, i: lax.dynamic_update_slice(x, u, (i, i)), [X, -X, i32(1)]),
  Case("update-empty", lambda x, i: lax.dynamic_update_slice(x, x[:0], (i, i)), [X, i32(1)]),
  Case(
    "update-vmap",
    jax.vmap(lambda x, u, i: lax.dynamic_update_slice(x, u, (i,))),
    [X, -X[:, :2], np.array([-3, 0, 2, 9], np.int32)],
    poly=["a, b + 1", "a, 2", "a"],
  ),
  Case("update-loop", loop, [X]),
  Case(
    "update-nine-dimensions",
    lambda x, i: lax.dynamic_update_slice(x, x[..., :1] * 2, [i] * 9),
    [HIGH, i32(1)],
    grad=False,
    skip={"saved": "the same graph"},
  ),
  *[
    Case(
      f"every-slice-{dtype}",
      every_slice,
      [of(dtype)],
      x64="64" in dtype or dtype == "complex128",
      skip=FEW,
    )
    for dtype in DTYPES
  ],
  *[
    Case(
      f"every-slice-{dtype}",
      partial(
        lambda x, dtype: [y.astype(x.dtype) for y in every_slice(x.astype(dtype))], dtype=dtype
      ),
      [X % 5],
      grad=False,
      skip=FEW,
    )
    for dtype in NARROW
  ],
]

test_case, saved = run(CASES)
