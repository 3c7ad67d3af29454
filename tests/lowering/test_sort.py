"""Rows for `jax2tf/lowering/sort.py`."""

from __future__ import annotations

import jax
import ml_dtypes
import numpy as np
import tensorflow as tf
from jax import lax
from jax import numpy as jnp

import jax2tf
from tests.support.case import HOSTILE_I32, Case, run

QUICK = {"eager": "as in a graph", "saved": "as in a graph"}
NAN, INF = np.float32(np.nan), np.float32(np.inf)
HOSTILE = np.array(
  [1, NAN, 3, -0.0, 0.0, -0.0, INF, -INF, NAN, -NAN, 3, -3, 6e4, 1e-3, -1e-3], np.float32
)
X = np.array([[3, -7, 2, 5, 2, -7], [1, 9, -9, 0, 4, 1], [0, 0, 1, 1, 0, 1]])
INTS = ("int8", "int16", "int32", "uint8", "uint16", "uint32")
FLOATS = (np.float16, ml_dtypes.bfloat16)


def argsort(x):
  return lax.sort((x, lax.iota(jnp.int32, x.shape[0])), num_keys=1)


CASES = [
  Case("sort_hostile", argsort, [HOSTILE], poly="n", grad=False),
  Case("sort_nan_only", lax.sort, [HOSTILE], poly="n", grad=False),
  Case("sort_extreme_ints", argsort, [HOSTILE_I32], poly="n"),
  Case("sort_gradient", lambda x: lax.sort(x, dimension=0), [X.astype(np.float32)], poly="b, _"),
  Case(
    "sort_middle_axis",
    lambda x: lax.sort(x, dimension=1),
    [np.random.RandomState(0).randn(2, 5, 3).astype("f")],
    poly="b, n, _",
  ),
  Case(
    "sort_two_keys",
    lambda x, y, z: lax.sort((x, y, z), dimension=1, num_keys=2),
    [X[[2, 2, 2]].astype(np.float32), X.astype(np.int32), np.arange(18).reshape(3, 6)],
    poly=("b, n",) * 3,
  ),
  Case(
    "sort_stable",
    lambda x, y: lax.sort((x, y), dimension=1, num_keys=1),
    [X > 1, X.astype(np.float32)],
  ),
  Case(
    "sort_complex",
    lambda x, y: lax.sort((x, y), num_keys=1),
    [
      np.array(
        [
          1 + 2j,
          complex(NAN, 1),
          complex(1, NAN),
          1 + 1j,
          complex(-0.0, 1),
          0,
          complex(-INF, NAN),
          complex(NAN, 0),
        ],
        "F",
      ),
      np.arange(8),
    ],
    grad=False,
  ),
  *[
    Case(
      f"sort_{dtype}",
      lambda x: (lax.sort(x), lax.sort(x, dimension=0)),
      [X.astype(dtype)],
      skip=QUICK,
    )
    for dtype in (*INTS, bool)
  ],
  *[
    Case(f"sort_{dtype.__name__}", argsort, [HOSTILE.astype(dtype)], skip=QUICK, grad=False)
    for dtype in FLOATS
  ],
  Case(
    "sort_x64",
    lambda x, y, z: (argsort(x), lax.sort(y), lax.sort(z)),
    [
      HOSTILE.astype(np.float64),
      np.array([2**63 - 1, -(2**63), 0, 5]),
      np.array([2**64 - 1, 2**63, 0], np.uint64),
    ],
    x64=True,
    grad=False,
  ),
  Case("sort_int4", lambda x: lax.sort(x.astype("int4")).astype(int), [X.astype(np.int32) % 8 - 4]),
  Case(
    "sort_empty", lambda x: (lax.sort(x), lax.sort(x, dimension=0)), [np.zeros((2, 0), np.float32)]
  ),
  Case(
    "argsort_median",
    lambda x: (jnp.argsort(x, 1), jnp.median(x, 1), jnp.argsort(x, 1, descending=True)),
    [X.astype("f")],
    poly="b, _",
  ),
  Case("top_k_hostile", lambda x: lax.top_k(x, 15), [HOSTILE], grad=False),
  Case("top_k_gradient", lambda x: lax.top_k(x, 3), [X.astype(np.float32)], poly="b, _"),
  Case("top_k_symbolic_k", lambda x: lax.top_k(x, x.shape[1]), [X.astype(np.float32)], poly="_, n"),
  Case("top_k_symbolic_axis", lambda x: lax.top_k(x, 2), [X.astype(np.float32)], poly="_, n + 1"),
  Case("top_k_axis", lambda x: lax.top_k(x, 2, axis=0), [X.astype(np.float32)], poly="b + 1, _"),
  Case("top_k_zero", lambda x: lax.top_k(x, 0), [X.astype(np.float32)]),
  *[
    Case(f"top_k_{dtype}", lambda x: lax.top_k(x, 4), [X.astype(dtype)], skip=QUICK)
    for dtype in (*INTS, bool)
  ],
  *[
    Case(
      f"top_k_{dtype.__name__}",
      lambda x: lax.top_k(x, 15),
      [HOSTILE.astype(dtype)],
      skip=QUICK,
      grad=False,
    )
    for dtype in FLOATS
  ],
  Case(
    "top_k_x64",
    lambda x, y: (lax.top_k(x, 15), lax.top_k(y, 3)),
    [HOSTILE.astype(np.float64), np.array([2**63 - 1, -(2**63), 0, 5])],
    x64=True,
    grad=False,
  ),
  Case("top_k_vmap", jax.vmap(lambda x: lax.top_k(x, 2)[0]), [X.astype(np.float32)], poly="b, _"),
  Case(
    "approx_top_k",
    lambda x: (lax.approx_max_k(x, 2), lax.approx_min_k(x, 2, reduction_dimension=0)),
    [X[:2].astype("f")],
    grad=False,
  ),
]
test_case, saved = run(CASES)


def test_top_k_of_floats_is_that_of_xla_under_xla():
  """Of integers XLA sorts the whole array, of f32 it has a kernel, in JAX's order."""
  made = {}
  for compiled in (False, True):
    converted = tf.function(
      jax2tf.convert(lambda x: lax.top_k(x, 2)), autograph=False, jit_compile=compiled
    )
    made[compiled] = {
      op.type for op in converted.get_concrete_function(tf.TensorSpec([5])).graph.get_operations()
    }
  assert "TopKV2" in made[True]
  assert made[False] - made[True] >= {"Bitcast", "GatherV2"}
