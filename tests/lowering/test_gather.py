"""gather: the plain ops, every mode, every form of the dimension numbers."""

from functools import partial

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax

from tests.support.case import DTYPES, NARROW, Case, concrete_function, op_types, run

TABLE = np.arange(20, dtype=np.float32).reshape(5, 4)
CUBE = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
FAR = np.array([0, 3, -1, 5, -6, 2**31 - 1, -(2**31), 2], np.int32)
PAIRS = np.array([[0, 1], [2, 3], [-1, 0], [1, 9], [3, 4]], np.int32)
MODES = ("clip", "fill", "promise_in_bounds")
FEW = {"saved": "a sweep", "eager": "a sweep"}


def gather(sizes, *, offset=(), collapsed=(), start, batching=((), ()), mode="fill", fill=None):
  """`lax.gather` with all its numbers; `sizes` may be a function of the operand's shape."""
  numbers = lax.GatherDimensionNumbers(offset, collapsed, start, *batching)

  def fun(x, i):
    return lax.gather(
      x, i, numbers, sizes(*x.shape) if callable(sizes) else sizes, mode=mode, fill_value=fill
    )

  return fun


def rows(mode="fill", **options):
  return gather(lambda n, m: (1, m), offset=(1,), collapsed=(0,), start=(0,), mode=mode, **options)


def by_value(x, i):
  return [jnp.take(x, i, axis=0, mode=mode) for mode in ("clip", "fill")]


def columns_of(*dtypes):
  return [
    Case(
      f"indices-{dtype}",
      lambda x, i: [rows(mode)(x, i) for mode in MODES],
      [
        np.arange(600, dtype=np.float32).reshape(300, 2),
        np.array([[np.iinfo(dtype).min], [np.iinfo(dtype).max], [100], [7]], dtype),
      ],
      x64=True,
      skip=FEW,
    )
    for dtype in dtypes
  ]


def loss(x, labels):
  return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(x), labels[:, None], axis=1))


CASES = [
  Case("take", by_value, [TABLE, FAR], poly=["a, b", "c"]),
  Case(
    "take-filled-with-a-size",
    lambda x, i: x.take(i, mode="fill", fill_value=x.size),
    [TABLE, FAR],
    poly=["a, b", "c"],
  ),
  Case("take-wrap", lambda x, i: jnp.take(x, i, axis=0, mode="wrap"), [TABLE, FAR]),
  Case(
    "take-axis",
    lambda x, i: jnp.take(x, i.reshape(2, 4), axis=1),
    [CUBE, FAR],
    poly=["a, b, c", "_"],
  ),
  Case("take-flat", jnp.take, [CUBE, FAR], poly=["_, b, c", "d"]),
  Case("column", lambda x, i: x[:, i], [TABLE, np.int32(-2)], poly=["a, b", ""]),
  Case(
    "along-axis",
    lambda x, i: jnp.take_along_axis(x, i, 1),
    [CUBE, np.array([[[0, 3, -1, 9, 2]]] * 3, np.int32)],
    poly=["a, b, c", "a, 1, c"],
  ),
  Case(
    "along-axis-last",
    lambda x, i: jnp.take_along_axis(x, i, -1),
    [CUBE, np.array([[[0], [4], [-5], [7]]] * 3, np.int32)],
    poly=["a, b, c", "a, b, 1"],
  ),
  Case("labels", loss, [TABLE, FAR[:5] % 4], poly=["a, b", "a"]),
  Case("points", lambda x, i, j: x[i, j], [CUBE, FAR[:4], FAR[:4]], poly=["a, b, c", "d", "d"]),
  Case(
    "points-apart", lambda x, i, j: x[i, :, j], [CUBE, FAR[:4], FAR[:4]], poly=["a, b, c", "d", "d"]
  ),
  Case(
    "points-last",
    lambda x, i, j: x[..., i, j],
    [CUBE, FAR[:4], FAR[:4, None]],
    poly=["a, b, c", "d", "d, 1"],
  ),
  Case("points-repeated", lambda x, i: x[i][:, i], [CUBE, FAR[:4]], poly=["a, b, c", "d"]),
  Case("mask", lambda x: x[np.array([True, False, True]), 1:], [CUBE]),
  Case("step-backwards", lambda x: x[::-2, 3:0:-1], [CUBE]),
  Case("empty-indices", lambda x, i: x[i], [TABLE, FAR[:0]], poly=["a, b", "_"]),
  Case("empty-windows", lambda x, i: x[:, :0][i], [TABLE, FAR]),
  Case("empty-operand", lambda x, i: x[i], [TABLE[:0], FAR[:0]]),
  *[
    Case(f"rows-{mode}", rows(mode), [TABLE, FAR[:, None]], poly=["a, b", "c, 1"]) for mode in MODES
  ],
  *[
    Case(
      f"kept-{mode}",
      gather((1, 4), offset=(1, 2), start=(0,), mode=mode),
      [TABLE, FAR[:, None]],
      poly=["a, _", "c, 1"],
    )
    for mode in MODES
  ],
  *[
    Case(
      f"windows-{mode}",
      gather((2, 3), offset=(1, 2), start=(0, 1), mode=mode),
      [TABLE, PAIRS],
      poly=["a + 1, b + 2", "c, 2"],
    )
    for mode in MODES
  ],
  *[
    Case(
      f"whole-{mode}",
      gather((5, 4), offset=(1, 2), start=(0, 1), mode=mode),
      [TABLE, np.array([[0, 0], [0, 1], [-1, 0]], np.int32)],
    )
    for mode in MODES
  ],
  *[
    Case(
      f"swapped-{mode}",
      gather((1, 1), collapsed=(0, 1), start=(1, 0), mode=mode),
      [TABLE, PAIRS],
      poly=["a, b", "c, 2"],
    )
    for mode in MODES
  ],
  Case("one-window", gather((2, 1), offset=(0,), collapsed=(1,), start=(0, 1)), [TABLE, PAIRS[1]]),
  Case(
    "one-window-outside",
    gather((2, 1), offset=(0,), collapsed=(1,), start=(0, 1)),
    [TABLE, PAIRS[3]],
  ),
  Case(
    "offset-first", gather((5, 1), offset=(0,), collapsed=(1,), start=(1,)), [TABLE, FAR[:, None]]
  ),
  Case(
    "offset-between",
    gather((2, 1, 5), offset=(1, 3), collapsed=(1,), start=(0, 1)),
    [CUBE, PAIRS.reshape(5, 1, 2)],
  ),
  Case(
    "no-index-sizes", gather((2, 3), offset=(1, 2), start=()), [TABLE, np.zeros((3, 0), np.int32)]
  ),
  Case(
    "no-index-whole", gather((5, 4), offset=(0, 1), start=()), [TABLE, np.zeros((3, 0), np.int32)]
  ),
  Case(
    "narrow-other",
    gather((1, 2, 3), offset=(1, 2), collapsed=(0,), start=(0,)),
    [CUBE, FAR[:, None]],
    poly=["a, _, _", "b, 1"],
  ),
  Case(
    "collapsed-without-index", gather((1, 1), collapsed=(0, 1), start=(0,)), [TABLE, FAR[:, None]]
  ),
  Case(
    "collapsed-size-one",
    gather((1, 1, 4), offset=(1,), collapsed=(0, 1), start=(0,)),
    [TABLE[:, None], FAR[:, None]],
  ),
  Case(
    "batching",
    gather((1, 1, 5), offset=(2,), collapsed=(1,), start=(1,), batching=((0,), (0,))),
    [CUBE, PAIRS[:3, :, None]],
    poly=["a, b, _", "a, c, 1"],
  ),
  Case(
    "batching-swapped",
    gather((1, 1, 2), offset=(2,), start=(2,), batching=((0, 1), (1, 0))),
    [CUBE, np.arange(12, dtype=np.int32).reshape(4, 3, 1) - 4],
    poly=["a, b, _", "b, a, 1"],
  ),
  Case(
    "batching-last",
    gather((1, 4, 1), collapsed=(0,), offset=(1,), start=(0,), batching=((2,), (0,))),
    [CUBE, FAR[:5, None]],
  ),
  Case(
    "batching-only",
    gather((1, 4, 5), offset=(1, 2), start=(), batching=((0,), (0,))),
    [CUBE, np.zeros((3, 0), np.int32)],
  ),
  Case(
    "vmap",
    jax.vmap(jax.vmap(lambda x, i: x[i], (0, 0)), (0, None)),
    [CUBE, FAR[:4]],
    poly=["a, b, c", "b"],
  ),
  Case(
    "vmap-rows",
    jax.vmap(lambda x, i: x[i, 1:]),
    [CUBE, FAR[:6].reshape(3, 2)],
    poly=["a, b, c", "a, d"],
  ),
  Case("fill-value", rows(fill=7), [TABLE, FAR[:, None]]),
  Case("fill-bool", lambda x, i: rows()(x > 5, i), [TABLE, FAR[:, None]], grad=False),
  Case("fill-key", lambda i: jax.random.key_data(jax.random.split(jax.random.key(0), 4)[i]), [FAR]),
  *columns_of("int8", "uint8", "int16", "uint16", "uint32", "int64", "uint64"),
  Case(
    "indices-wrap",
    lambda x, i: [rows(mode)(x, i) for mode in MODES],
    [TABLE, np.array([[2**32 + 1], [-(2**32) + 2], [2**40]])],
    x64=True,
    skip=FEW,
  ),
  Case(
    "second-order",
    lambda x, i: jax.grad(lambda x: (x[i] ** 3).sum())(x),
    [TABLE, FAR],
    poly=["a, b", "c"],
  ),
  Case(
    "nine-dimensions",
    lambda x, i: x[i, ..., i],
    [np.ones([2] * 9, np.float32), FAR],
    grad=False,
    skip=FEW,
  ),
  *[
    Case(
      f"dtype-{dtype}",
      by_value,
      [TABLE.astype(getattr(ml_dtypes, dtype, dtype)), FAR],
      x64="64" in dtype or dtype == "complex128",
      skip=FEW,
    )
    for dtype in DTYPES
  ],
  *[
    Case(
      f"dtype-{dtype}",
      partial(
        lambda x, i, dtype: jnp.take(x.astype(dtype), i, axis=0, mode="clip").astype(x.dtype),
        dtype=dtype,
      ),
      [TABLE % 5, FAR],
      grad=False,
      skip=FEW,
    )
    for dtype in NARROW
  ],
]

test_case, saved = run(CASES)


@pytest.mark.parametrize(
  ("fun", "args", "op"),
  [
    (rows("clip"), [TABLE, FAR[:, None]], "GatherV2"),
    (lambda x, i: jnp.take_along_axis(x, i, 1, mode="clip"), [TABLE, PAIRS], "GatherV2"),
    (lambda x, i: x.at[i[:, 0], i[:, 1]].get(mode="clip"), [TABLE, PAIRS], "GatherNd"),
  ],
)
def test_plain_op(fun, args, op):
  """The common forms are one op on clamped indices, without index arithmetic."""
  ops = op_types(concrete_function(Case("", fun, args)).graph)
  assert ops.count(op) == 1
  assert not {"Mul", "Sum", "Range", "Transpose", "Cast"} & set(ops)
