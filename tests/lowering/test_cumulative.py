"""Rows for `jax2tf/lowering/cumulative.py`."""

from __future__ import annotations

import functools

import ml_dtypes
import numpy as np
import pytest
from jax import lax

import jax2tf
from tests.support.case import Case, run

QUICK = {"eager": "as in a graph", "saved": "as in a graph"}
X = np.array([[3, -7, 2, 5, 2, -8, 1], [1, 9, -9, 0, 4, 1, -3]])
INTS = ("int8", "int16", "int32", "uint8", "uint16", "uint32")
OPS = {
  "cumsum": lax.cumsum,
  "cumprod": lax.cumprod,
  "cummax": lax.cummax,
  "cummin": lax.cummin,
  "cumlogsumexp": lax.cumlogsumexp,
}
INFINITE = np.array([-np.inf, -np.inf, 1, np.inf, 2, -np.inf, -0.0, 0.0], np.float32)
NAN = np.array([-np.inf, 2, np.nan, 3, np.inf], np.float32)

CASES = [
  *[
    # the sums meet in another order
    Case(
      f"{name}_{'reverse' if reverse else 'forward'}",
      functools.partial(op, axis=reverse * 1, reverse=reverse),
      [X.astype(np.float32)],
      poly="b, n",
      rtol=1e-5 if name == "cumlogsumexp" else None,
    )
    for name, op in OPS.items()
    for reverse in (False, True)
  ],
  *[
    Case(
      f"{name}_infinite",
      functools.partial(op, axis=0),
      [INFINITE],
      poly="b",
      grad=name != "cumlogsumexp" and name != "cumprod",
    )
    for name, op in OPS.items()
  ],
  *[
    Case(
      f"{name}_nan",
      functools.partial(op, axis=0),
      [NAN],
      skip=QUICK,
      grad=False,
      xfail={"xla": "TensorFlow's XLA compiles with fast min and max, which lose NaN"}
      if name in ("cummax", "cummin")
      else {},
    )
    for name, op in OPS.items()
  ],
  *[
    Case(f"{name}_{dtype}", functools.partial(OPS[name], axis=1), [X.astype(dtype)], skip=QUICK)
    for name in ("cumsum", "cumprod", "cummax", "cummin")
    for dtype in INTS
    if not (name == "cumprod" and dtype == "int16")
  ],
  *[
    Case(
      f"{name}_{dtype.__name__}",
      functools.partial(op, axis=1),
      [X.astype(dtype)],
      skip=QUICK,
      grad=False,
    )
    for name, op in OPS.items()
    for dtype in (np.float16, ml_dtypes.bfloat16)
  ],
  *[
    # one by one, not in a tree
    Case(
      f"{name}_c64",
      functools.partial(OPS[name], axis=1),
      [(X * (1 + 2j) / 5).astype(np.complex64)],
      rtol=2e-5,
    )
    for name in ("cumsum", "cumprod")
  ],
  Case(
    "x64",
    lambda x, y, z: (lax.cumsum(x, 1), lax.cumprod(y, 1), lax.cummax(z, 1), lax.cumsum(z, 0)),
    [X.astype(np.float64), X.astype(np.int64), X.astype(np.uint64)],
    x64=True,
  ),
  Case("long_half", lax.cumsum, [np.ones(3000, np.float16)], grad=False),
  Case("empty", lambda x: [op(x, axis=0) for op in OPS.values()], [np.zeros((0, 3), np.float32)]),
  Case(
    "one",
    lambda x: [op(x, axis=0) for op in OPS.values()],
    [np.ones((1, 3), np.float32)],
    poly="n, _",
  ),
]
test_case, saved = run(CASES)


def test_cumlogsumexp_of_integers_is_refused() -> None:
  """JAX traces it and raises OverflowError when it compiles."""
  with pytest.raises(NotImplementedError, match=r"JAX itself cannot compile it for integers"):
    jax2tf.convert(lax.cumlogsumexp)(np.arange(3))
