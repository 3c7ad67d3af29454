"""Rows for `jax2tf/lowering/windows.py` and `select_windows.py`."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from jax import lax
from jax import numpy as jnp

import jax2tf
from tests.support.case import Case, close, run

QUICK = {"eager": "as in a graph", "saved": "as in a graph"}
DILATED = [(2, 2, 2), (3, 2, 2), (3, 3, 3), (2, 3, 3)]  # window, stride, base dilation
CLOSE = {"rtol": 1e-5, "atol": 1e-6}  # the elements of a window meet in another order
MONOIDS = {
  "max": (lax.max, -np.inf),
  "min": (lax.min, np.inf),
  "sum": (lax.add, 0.0),
  "prod": (lax.mul, 1.0),
}


def pool(name: str, window: Any, strides: Any, padding: Any, **dilations: Any) -> Any:
  return functools.partial(_pool, name, window, strides, padding, tuple(dilations.items()))


def _pool(name: str, window: Any, strides: Any, padding: Any, dilations: Any, x: Any) -> Any:
  combine, identity = MONOIDS[name]
  if np.isinf(identity) and not jnp.issubdtype(x.dtype, jnp.inexact):
    identity = jnp.iinfo(x.dtype).max if identity > 0 else jnp.iinfo(x.dtype).min
  return lax.reduce_window(
    x, np.array(identity, x.dtype), combine, window, strides, padding, **dict(dilations)
  )


def jvp(f: Any) -> Any:
  return lambda x: jax.jvp(f, (x,), (jnp.arange(x.size, dtype=x.dtype).reshape(x.shape),))


def global_pool(x: Any) -> Any:
  return [
    lax.reduce_window(x, i, f, (1, *x.shape[1:3], 1), (1, 1, 1, 1), "VALID")
    for f, i in ((lax.max, -jnp.inf), (lax.add, 0.0))
  ]


def affine(left: Any, right: Any) -> Any:  # associative, not commutative
  return left[0] * right[0], left[1] * right[0] + right[1]


def sum_and_max(left: Any, right: Any) -> Any:
  return left[0] + right[0], jnp.maximum(left[1], right[1])


IMAGE = (
  np.random.RandomState(0).permutation(2 * 9 * 8 * 3).reshape(2, 9, 8, 3).astype(np.float32) / 7
  - 30
)
TIES = np.round(IMAGE / 20)
INTS = np.arange(60).reshape(5, 12) * 37 % 101 - 50
SQUARE = (1, 2, 2, 1)
HW = "b, h, w, _"
CASES = [
  *[
    Case(
      f"{name}_{padding}",
      pool(name, SQUARE, SQUARE, padding),
      [IMAGE],
      poly=HW if padding == "SAME" else "b, h + 1, w + 1, _",
      **CLOSE,
    )
    for name in ("max", "min", "sum")
    for padding in ("SAME", "VALID")
  ],
  *[
    Case(
      f"{name}_overlap",
      pool(name, (1, 3, 3, 1), SQUARE, ((0, 0), (1, 1), (1, 1), (0, 0))),
      [IMAGE],
      poly="b, _, _, _",
      **CLOSE,
    )
    for name in ("max", "min", "sum")
  ],
  Case(
    "prod",
    pool("prod", (1, 3, 2, 1), SQUARE, "SAME"),
    [IMAGE / 10],
    skip=QUICK,
    grad=False,
    rtol=1e-5,
  ),
  Case("max_ties", pool("max", (1, 3, 3, 1), SQUARE, "SAME"), [TIES], poly="b, _, _, _"),
  Case("max_nchw", pool("max", (1, 1, 3, 2), (1, 1, 2, 2), "SAME"), [IMAGE], poly="b, _, _, _"),
  Case("max_one_dimension", pool("max", (1, 3, 1), (1, 2, 1), "SAME"), [IMAGE[0]], poly="b, n, _"),
  *[
    Case(
      f"sum_of_ones_{padding}",
      lambda x, padding=padding: lax.floor(pool("sum", (1, 7, 5, 1), (1, 1, 1, 1), padding)(x)),
      [np.eye(15, dtype=np.float32).reshape(1, 15, 15, 1)],
      grad=False,
    )
    for padding in ("VALID", "SAME")
  ],
  Case(
    "sum_three_dimensions",
    pool("sum", (1, 2, 3, 2, 1), (1, 1, 2, 2, 1), "SAME"),
    [IMAGE[..., None]],
    **CLOSE,
  ),
  Case(
    "max_three_dimensions",
    pool("max", (1, 2, 3, 2, 1), (1, 1, 2, 2, 1), "SAME"),
    [IMAGE[..., None]],
    poly="b, _, _, _, _",
  ),
  Case("max_vector", pool("max", (4,), (3,), ((1, 2),)), [IMAGE.reshape(-1)[:31]]),
  Case("global", global_pool, [IMAGE], poly=HW, **CLOSE),
  Case(
    "max_infinite",
    pool("max", (1, 2, 2, 1), SQUARE, "VALID"),
    [np.where(IMAGE > 10, np.inf, IMAGE)],
  ),
  Case(
    "max_nan",
    pool("max", (1, 2, 2, 1), SQUARE, "VALID"),
    [np.where(IMAGE > 25, np.nan, IMAGE)],
    grad=False,
  ),
  Case(
    "min_nan_and_inf_same",
    pool("min", (1, 3, 3, 1), SQUARE, "SAME"),
    [np.where(IMAGE > 25, np.nan, np.where(IMAGE > 5, np.inf, IMAGE))],
    grad=False,
  ),
  Case(
    "max_all_minus_inf",
    pool("max", (1, 2, 2, 1), SQUARE, "VALID"),
    [np.full((1, 4, 4, 1), -np.inf, np.float32)],
    grad=False,
  ),
  Case(
    "max_nan_general",
    pool("max", (3,), (2,), "VALID"),
    [np.array([1, np.nan, 2, 3, 4, 5, np.inf], np.float32)],
    grad=False,
    xfail={"xla": "TensorFlow's XLA compiles with fast min and max, which lose NaN"},
  ),
  *[
    Case(
      f"{name}_dilated",
      pool(name, (2, 3), (1, 2), ((1, 2), (3, 0)), base_dilation=(2, 1), window_dilation=(1, 3)),
      [INTS.astype(np.float32) / 9],
      skip=QUICK,
      grad=name == "sum",
      **CLOSE,
    )
    for name in MONOIDS
  ],
  *[
    Case(
      f"{name}_larger_than_operand",
      pool(name, (1, 2), (1, 1), "VALID"),
      [IMAGE[0, :, :1, 0]],
      poly="b, _",
      grad=name != "prod",
    )
    for name in MONOIDS
  ],
  *[
    Case(
      f"{name}_of_nothing",
      pool(name, (2,), (1,), ((1, 0),)),
      [IMAGE[:0, 0, 0, 0]],
      grad=name != "prod",
    )
    for name in MONOIDS
  ],
  *[
    Case(
      f"{name}_larger_than_image",
      pool(name, (1, 4, 2, 1), SQUARE, "VALID"),
      [IMAGE[:, :3, :4]],
      poly="b, h, w, _",
    )
    for name in MONOIDS
    if name != "prod"
  ],
  *[
    Case(
      f"max_{name}_may_be_empty",
      lambda x, f=derivative: f(pool("max", (1, 2, 2, 1, 1), (1,) * 5, "VALID"), x[1:]),
      [IMAGE[:1, ..., None]],
      poly="b, _, _, _, _",
      skip=QUICK,
      grad=False,
    )
    for name, derivative in {
      "gradient": lambda f, x: jax.grad(lambda y: f(y).sum())(x),
      "tangent": lambda f, x: jax.jvp(f, [x], [x])[1],
    }.items()
  ],
  Case("max_without_batch", pool("max", SQUARE, SQUARE, "SAME"), [IMAGE[:0]], skip=QUICK),
  Case(
    "max_without_channels",
    pool("max", SQUARE, SQUARE, ((0, 0), (1, 0), (0, 1), (0, 0))),
    [IMAGE[..., :0]],
    skip=QUICK,
  ),
  Case(
    "sum_negative_padding",
    pool("sum", (2, 3), (1, 2), ((-1, 2), (3, -2))),
    [INTS.astype(np.float32)],
    **CLOSE,
  ),
  *[
    Case(
      f"{name}_{dtype.__name__}",
      pool(name, (2, 3), (2, 1), "SAME"),
      [INTS.astype(dtype)],
      skip=QUICK,
    )
    for name in ("max", "min", "sum")
    for dtype in (np.int8, np.int16, np.int32, np.uint8, np.uint16, np.uint32)
  ],
  *[
    # a last place of the largest partial sum
    Case(
      f"{name}_{dtype.__name__}",
      pool(name, SQUARE, SQUARE, "SAME"),
      [IMAGE.astype(dtype)],
      skip=QUICK,
      grad=False,
      rtol=2e-2,
      atol=1e-2,
    )
    for name in ("max", "min", "sum")
    for dtype in (np.float16, ml_dtypes.bfloat16)
  ],
  Case(
    "x64",
    lambda x, y: (
      pool("max", SQUARE, SQUARE, "SAME")(x),
      pool("sum", SQUARE, SQUARE, "SAME")(x),
      pool("sum", (2, 5), (1, 3), "SAME")(y),
    ),
    [IMAGE.astype(np.float64), INTS << 40],
    x64=True,
    rtol=1e-12,
  ),
  *[
    Case(
      f"base_dilation_of_{size}_symbolic",
      lambda x: [
        pool(name, (w,), (s,), "VALID", base_dilation=(d,))(x)
        for name in ("sum", "max")
        for w, s, d in DILATED
      ],
      [np.arange(1, size + 1, dtype=np.float32)],
      poly="n",
      skip=QUICK,
    )
    for size in (1, 5)
  ],
  *[
    Case(
      f"max_of_{size}_symbolic",
      lambda x: [jvp(pool("max", (w,), (s,), "VALID"))(x) for w, s in [(2, 1), (2, 2), (3, 2)]],
      [np.arange(1, size + 1, dtype=np.float32)],
      poly="n",
      skip=QUICK,
    )
    for size in (1, 5)
  ],
  Case(
    "generic_init",
    lambda x: lax.reduce_window(x, np.int32(5), lambda a, b: a + b, (2, 3), (1, 2), "SAME"),
    [INTS.astype("i")],
    poly="b, n",
  ),
  Case(
    "variadic",
    lambda x, y: lax.reduce_window(
      (x, y), (7, 3), sum_and_max, (2, 3), (1, 2), "SAME", base_dilation=(1, 2)
    ),
    [INTS.astype(np.int32)] * 2,
    poly=("b, _", "b, _"),
  ),
  Case(
    "not_commutative",
    lambda x, y: lax.reduce_window((x, y), (1, 0), affine, (5,), (2,), "SAME"),
    [INTS.reshape(-1).astype("i")] * 2,
  ),
  # With padding, XLA on CPU goes through a window in another order, and ends in another one of
  # equals.
  Case(
    "gather_add_same",
    jvp(pool("max", (1, 3, 3, 1), SQUARE, "SAME")),
    [IMAGE],
    skip=QUICK,
    grad=False,
  ),
  Case(
    "gather_add_ties",
    jvp(pool("max", (1, 3, 3, 1), SQUARE, "VALID")),
    [TIES],
    skip=QUICK,
    grad=False,
  ),
  Case(
    "gather_add_nan",
    jvp(pool("max", (4,), (2,), ((1, 2),))),
    [np.array([np.nan, 1, 3, 2, 1, np.nan, 5, -np.inf, -np.inf, -np.inf, -np.inf], np.float32)],
    skip=QUICK,
    grad=False,
    xfail={"xla": "TensorFlow's XLA compiles with fast min and max, which lose NaN"},
  ),
  Case(
    "cumulative_window",
    lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 12), (1, 1), ((0, 0), (11, 0))),
    [INTS.astype("f")],
    poly="b, _",
    **CLOSE,
  ),
]
test_case, saved = run(CASES)


@pytest.mark.parametrize("padding", ["VALID", "SAME", ((0, 0), (1, 1), (1, 0), (0, 0))])
@pytest.mark.parametrize(
  "shape", [(1, 4, 4, 2), (3, 4, 4, 1), (3, 2, 4, 3), (3, 1, 4, 3), (3, 5, 6, 3)]
)
def test_gradient_of_what_may_be_empty(shape: Any, padding: Any) -> None:
  """Sizes that only the graph knows: no image, no channel, no window, no row. It used to end the
  process."""
  converted, fun = _gradient_of_rest(padding)
  x = np.random.RandomState(0).permutation(math.prod(shape)).reshape(shape).astype(np.float32)
  close(converted(x), fun(x))


@functools.cache
def _gradient_of_rest(padding: Any) -> Any:
  def loss(x: Any) -> Any:
    return jnp.sum(pool("max", (1, 2, 3, 1), SQUARE, padding)(x[1:, 1:, 1:, 1:]))

  convert = jax2tf.convert(jax.value_and_grad(loss), polymorphic_shapes="b, h, w, c")
  return tf.function(
    convert, autograph=False, input_signature=[tf.TensorSpec([None] * 4)]
  ), jax.value_and_grad(loss)
