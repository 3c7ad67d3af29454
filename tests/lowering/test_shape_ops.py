"""reshape, broadcast, transpose, concatenate, pad, iota and the other moves without indices."""

from functools import partial

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import tensorflow as tf
from jax import lax

import jax2tf
from tests.support.case import DTYPES, HOSTILE_F32, NARROW, Case, run

X = np.arange(12, dtype=np.float32).reshape(3, 4) - 5
CUBE = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
FEW = {"saved": "a sweep over dtypes", "eager": "a sweep over dtypes"}


def of(dtype, x=X):
  return (
    np.abs(x).astype(dtype) if dtype.startswith("u") else x.astype(getattr(ml_dtypes, dtype, dtype))
  )


def every_move(x):
  """One of each, for sweeps over dtypes."""
  zero = jnp.zeros((), x.dtype)
  return [
    x.reshape(2, 6),
    jnp.broadcast_to(x, (2, 3, 4)),
    x.T,
    jnp.concatenate([x, x], 1),
    lax.rev(x, (0, 1)),
    *jnp.split(x, 2, 1),
    lax.pad(x, zero + x[0, 0], [(1, -1, 1), (-1, 2, 0)]),
    lax.full((2, 2), x[1, 1]),
    jnp.stack([x, x]),
    jnp.tile(x, (1, 2)),
    x[:, 1:2].squeeze(1),
  ]


def narrow_moves(move):
  """Of dtypes that TensorFlow cannot feed, move int8 or f32 through them."""
  return lambda x, dtype: [y.astype(x.dtype) for y in move(x.astype(dtype))]


def pad(*config):
  return lambda x: lax.pad(x, np.float32(7), config)


CASES = [
  Case("reshape", lambda x: x.reshape(2, 6), [X]),
  Case("reshape-inferred", lambda x: x.reshape(x.shape[0], -1), [CUBE], poly=["b, 3, 4"]),
  Case("reshape-merge", lambda x: x.reshape(-1, x.shape[2]), [CUBE], poly=["b, n, m"]),
  Case("reshape-to-scalar", lambda x: x.reshape(()), [np.ones((1, 1), np.float32)]),
  Case("reshape-empty", lambda x: x.reshape(4, 0), [np.ones((0, 3), np.float32)]),
  Case("reshape-dimensions", lambda x: lax.reshape(x, (6, 2), dimensions=(1, 0)), [X]),
  Case("broadcast-scalar", lambda x: lax.full((2, 3), x), [np.float32(-0.0)]),
  Case(
    "broadcast-new",
    lambda x: lax.broadcast_in_dim(x, (x.shape[0], 2, x.shape[1]), (0, 2)),
    [X],
    poly=["a, b"],
  ),
  Case(
    "broadcast-one", lambda x, y: jnp.broadcast_to(x, y.shape), [X[:1], X], poly=["1, b", "a, b"]
  ),
  Case(
    "broadcast-to-symbolic",
    lambda x, y: lax.full(y.shape, 2.0) * x,
    [np.float32(3), X],
    poly=["", "a, b"],
  ),
  Case(
    "broadcast-expand",
    lambda x: lax.broadcast_in_dim(x, (1, x.shape[0], 1, x.shape[1]), (1, 3)),
    [X],
    poly=["a, b"],
  ),
  Case(
    "broadcast-six",
    lambda x: jnp.broadcast_to(x, (x.shape[0], 3, x.shape[2], 3, x.shape[4], 3)),
    [np.ones((2, 1, 2, 1, 2, 1), np.float32)],
    poly=["a, 1, b, 1, c, 1"],
  ),
  Case("transpose", lambda x: x.transpose(2, 0, 1), [CUBE], poly=["a, b, c"]),
  Case("transpose-ones", lambda x: x[:, None, :, None].transpose(3, 0, 2, 1), [X], poly=["a, b"]),
  Case("transpose-ones-of-a-size", lambda x: x[:, :, None].transpose(2, 0, 1), [X], poly=["a, _"]),
  Case("reshape-ones", lambda x: x.reshape(1, x.shape[0], 1, x.shape[1]), [X], poly=["a, b"]),
  Case("transpose-identity", lambda x: lax.transpose(x, (0, 1)), [X]),
  Case(
    "squeeze",
    lambda x: lax.squeeze(x, (0, 2)),
    [np.ones((1, 3, 1, 1), np.float32)],
    poly=["1, b, 1, 1"],
  ),
  Case("expand-dims", lambda x: lax.expand_dims(x, (0, 2)), [X], poly=["a, b"]),
  Case(
    "concatenate", lambda x, y: jnp.concatenate([x, y, x], 1), [X, X[:, :1]], poly=["a, b", "a, 1"]
  ),
  Case("concatenate-one", lambda x: lax.concatenate([x], 0), [X]),
  Case("concatenate-empty", lambda x: jnp.concatenate([x[:0], x, x[:0]]), [X]),
  Case("pad", pad((1, 2, 0), (0, 3, 0)), [X], poly=["a, b"]),
  Case("pad-zero", lambda x: jnp.pad(x, 1), [X]),
  Case(
    "pad-minus-zero",
    lambda x: jnp.copysign(1.0, lax.pad(x, np.float32(-0.0), [(1, 1, 0)])),
    [HOSTILE_F32],
    grad=False,
  ),
  Case("pad-nan", lambda x: lax.pad(x, np.float32(np.nan), [(1, 1, 1)]), [HOSTILE_F32]),
  Case("pad-interior", pad((0, 0, 2), (0, 0, 1)), [X], poly=["a, b"]),
  Case("pad-interior-negative", pad((-2, -1, 2), (3, -4, 3)), [X], poly=["a + 1, b"]),
  Case("pad-negative", pad((-1, -1, 0), (-2, 0, 0)), [X], poly=["a + 1, b + 1"]),
  Case("pad-negative-and-positive", pad((-4, 9, 0), (1, -5, 0)), [X]),
  Case("pad-all-away", pad((-1, -2, 0), (0, 0, 0)), [X]),
  Case("pad-one-element", pad((0, 0, 5)), [X[0, :1]]),
  Case("pad-empty", pad((1, 2, 3)), [X[0, :0]]),
  Case(
    "pad-symbolic",
    lambda x: lax.pad(x, np.float32(1), [(x.shape[1], 0, 0), (0, x.shape[0], 0)]),
    [X],
    poly=["a, b"],
  ),
  Case(
    "pad-symbolic-sign",
    lambda x: lax.pad(x, np.float32(1), [(x.shape[0] - 3, 5 - x.shape[0], 1)]),
    [X[0]],
    poly=["a"],
  ),
  Case(
    "pad-symbolic-sign-negative",
    lambda x: lax.pad(x, np.float32(1), [(2 - x.shape[0], x.shape[0] - 4, 0)]),
    [np.ones(5, np.float32)],
    poly=["a + 2"],
  ),
  Case(
    "pad-symbolic-empty",
    lambda x: lax.pad(x[1:], np.float32(1), [(0, 1, 2)]),
    [X[0, :1]],
    poly=["a"],
  ),
  Case(
    "pad-value-gradient", lambda x, v: lax.pad(x, v, [(1, 1, 1), (-1, 1, 0)]), [X, np.float32(2)]
  ),
  Case(
    "pad-nine-dimensions",
    pad(*[(1, 0, 0), (0, 0, 1), (0, -1, 0)] * 3),
    [np.ones([2] * 9, np.float32)],
    grad=False,
    skip={"saved": "the same graph"},
  ),
  Case(
    "rev-nine-dimensions",
    lambda x: (lax.rev(x, (0, 8)), lax.rev(x, (1, 2, 5)), lax.rev(x, ())),
    [np.arange(2**9, dtype=np.float32).reshape([2] * 9)],
    poly=["a" + ", _" * 8],
    skip={"saved": "the same graph"},
  ),
  Case(
    "where-nine-dimensions",
    lambda x: (
      jnp.where(x > 3, x, -x),
      jnp.where(x[:1] > 3, 0.0, x),
      jnp.sort(x, 3),
      lax.top_k(x, 1),
      jnp.clip(x, 3, 9),
    ),
    [np.arange(2**9, dtype=np.float32).reshape([2] * 9)],
    skip={"saved": "the same graph"},
  ),
  Case("iota-float8", lambda: lax.iota(ml_dtypes.float8_e5m2, 6).astype(np.float32), []),
  Case("iota-int4", lambda: lax.broadcasted_iota("int4", (2, 3), 1).astype(np.int32), []),
  Case("iota", lambda: jnp.arange(5), []),
  Case(
    "iota-symbolic",
    lambda x: [jnp.arange(x.shape[0]), lax.broadcasted_iota(np.int32, (2, *x.shape), 2)],
    [X],
    poly=["a, b"],
    grad=False,
  ),
  Case("iota-inside", lambda: lax.broadcasted_iota(np.float32, (2, 3, 4), 1), []),
  Case("iota-empty", lambda: jnp.arange(0), []),
  Case("iota-int8-wraps", lambda: lax.iota(np.int8, 300), []),
  Case("iota-complex", lambda: lax.iota(np.complex64, 3), []),
  Case(
    "iota-x64",
    lambda x: [jnp.arange(3), lax.iota(np.uint64, x.shape[0])],
    [X],
    grad=False,
    x64=True,
    skip={"saved": "saving traces once more, when x64 is off again"},
  ),
  Case("rev", lambda x: lax.rev(x, (0, 2)), [CUBE], poly=["a, b, c"]),
  Case("rev-nothing", lambda x: lax.rev(x, ()), [X]),
  Case("split-equal", lambda x: jnp.split(x, 2, 1), [X], poly=["a, _"]),
  Case("split-unequal", lambda x: lax.split(x, (1, 0, 3), 1), [X], poly=["a, _"]),
  Case(
    "split-symbolic",
    lambda x, y: lax.split(jnp.concatenate([x, y]), (x.shape[0], y.shape[0])),
    [X[0], X[:, 0]],
    poly=["a", "b"],
  ),
  Case("split-one", lambda x: lax.split(x, (4,), 1), [X]),
  Case("stack", lambda x, y: jnp.stack([x, y, x], 1), [X, -X], poly=["a, b", "a, b"]),
  Case("unstack", lambda x: jnp.unstack(x, axis=1), [X], poly=["a, _"]),
  Case("unstack-empty", lambda x: [x.sum(), *jnp.unstack(x[:0])], [X]),
  Case("tile", lambda x: jnp.tile(x, (2, 1, 3)), [X], poly=["a, b"]),
  Case("copy", lambda x: [jnp.copy(x), jnp.array(x, copy=True)], [X]),
  Case("empty", lambda x: lax.empty((2, x.shape[0]), np.float32) * 0 + x[:, 0], [X], poly=["a, b"]),
  # The gradient sums a dozen cotangents in the dtype: in half precision the roundings on the way
  # show, and XLA skips some.
  *[
    Case(
      f"every-move-{dtype}",
      every_move,
      [of(dtype)],
      x64="64" in dtype or dtype == "complex128",
      skip=FEW,
      rtol=2e-2 if dtype in ("bfloat16", "float16") else None,
    )
    for dtype in DTYPES
  ],
  *[
    Case(
      f"every-move-{dtype}",
      partial(narrow_moves(every_move), dtype=dtype),
      [np.abs(X[:, :4]) % 5 if dtype[0] == "u" else X % 5],
      grad=False,
      skip=FEW,
    )
    for dtype in NARROW
  ],
]

test_case, saved = run(CASES)


def test_constants_of_no_elements_can_be_read() -> None:
  """TensorFlow's own reader raises ValueError for some, which exporters would meet."""
  converted = jax2tf.convert(lambda x: jnp.lcm(x, x + 1))
  function = tf.function(converted, autograph=False)
  graph = function.get_concrete_function(tf.TensorSpec([0], tf.uint32)).graph.as_graph_def()
  nodes = [*graph.node, *(node for f in graph.library.function for node in f.node_def)]
  constants = [node for node in nodes if node.op == "Const"]
  assert constants
  for node in constants:
    tf.make_ndarray(node.attr["value"].tensor)
