"""Gathers, scatters, sorts, segments."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
from jax import lax

from tests.shape_poly.row import Row, bools, floats, ints

_GATHERS = [
  Row(
    "take: rows",
    lambda x, i: jnp.take(x, i, axis=0),
    ("v, 3", ints("n")),
    second=True,
    eager=True,
    xla=True,
  ),
  Row("take: clip", lambda x, i: jnp.take(x, i, axis=1, mode="clip"), ("a, b", ints("n"))),
  Row(
    "take: fill",
    lambda x, i: jnp.take(x, i, axis=0, mode="fill", fill_value=7),
    ("v, 2", ints("n, 2")),
  ),
  Row("take: flat", lambda x, i: jnp.take(x, i), ("a, b", ints("n"))),
  Row("take: wrap", lambda x, i: jnp.take(x, i, axis=1, mode="wrap"), ("b, 4", ints("n", -20, 20))),
  Row(
    "take_along_axis",
    lambda x, i: jnp.take_along_axis(x, i, axis=1),
    ("a, b", ints("a, n", 0, 3)),
    xla=True,
  ),
  Row(
    "take_along_axis: first axis",
    lambda x, i: jnp.take_along_axis(x, i, axis=0),
    ("a, b", ints("n, b", -2, 3)),
  ),
  Row("index: rows by an array", lambda x, i: x[i], ("b, 3", ints("n"))),
  Row("index: columns by an array", lambda x, i: x[:, i], ("a, b", ints("2"))),
  Row("index: two arrays", lambda x, i, j: x[i, j], ("a, b, 2", ints("n"), ints("n")), second=True),
  Row("index: array, slice, array", lambda x, i, j: x[i, :, j], ("a, 2, b", ints("n"), ints("n"))),
  Row(
    "index: own positions",
    lambda x, i: x[jnp.arange(x.shape[0]), i],
    ("b, c", ints("b", 0, 4)),
    eager=True,
  ),
  Row("index: scalar", lambda x, i: (x[i], x[..., i]), ("a, b", ints("", -1, 1))),
  Row(
    "index: bf16 and bool operands",
    lambda x, m, i: (x[i], m[i]),
    (floats("b, 2", ml_dtypes.bfloat16), bools("b, 2"), ints("n")),
  ),
  Row(
    "gather: promise in bounds",
    lambda x, i: x.at[i].get(mode="promise_in_bounds"),
    ("b, d", ints("n", 0, 1)),
  ),
  Row(
    "gather: windows",
    lambda x, i: jax.vmap(lambda j: lax.dynamic_slice(x, (j,), (2,)))(i),
    ("b+1", ints("n")),
  ),
  Row(
    "gather: batched windows",
    lambda x, i: jax.vmap(lambda y, j: lax.dynamic_slice(y, (j,), (2,)))(x, i),
    ("a, b+1", ints("a")),
    second=True,
  ),
  Row(
    "nonzero: of symbolic size",
    lambda i: jnp.nonzero(i > 0, size=i.shape[0], fill_value=-1),
    ints("b"),
  ),
  Row(
    "embedding", lambda t, i: t[i] * jnp.sqrt(t.shape[1]), ("v, d", ints("b, t", 0, 6)), xla=True
  ),
  Row(
    "gather: n-d vectors", lambda x, i: x[i[..., 0], i[..., 1]], ("a, b, 2", ints("n, m, 2", 0, 4))
  ),
  Row(
    "index: by a size",
    lambda x: (x[jnp.array(x.shape[0] // 2)], jnp.take(x, jnp.array(x.shape) - 1, axis=0)),
    "b, 2",
  ),
]

_SCATTERS = [
  Row(
    "scatter: set a row",
    lambda x, y: x.at[0].set(y),
    ("b, 3", "3"),
    second=True,
    eager=True,
    xla=True,
  ),
  Row("scatter: set a slice", lambda x: x.at[1:].set(0.5), "b, 3"),
  Row("scatter: set by symbolic bound", lambda x, y: x.at[: y.shape[0]].set(y), ("a+b, 2", "b, 2")),
  Row("scatter: set strided", lambda x: x.at[::2].multiply(3), "b"),
  Row("scatter: add", lambda x, i, y: x.at[i].add(y), ("b, 3", ints("n"), "n, 3"), xla=True),
  Row(
    "scatter: add, drop", lambda x, i, y: x.at[i].add(y, mode="drop"), ("b", ints("n", -9, 9), "n")
  ),
  Row(
    "scatter: add, clip",
    lambda x, i, y: x.at[i].add(y, mode="clip"),
    ("b, d", ints("n", -9, 9), "n, d"),
  ),
  Row("scatter: max", lambda x, i, y: x.at[i].max(y), ("b, 3", ints("n"), "n, 3")),
  Row("scatter: min", lambda x, i, y: x.at[i].min(y), ("b", ints("n"), "n"), xla=True),
  Row(
    "scatter: mul", lambda x, i, y: x.at[i].mul(y, unique_indices=True), ("b, 2", ints("1"), "1, 2")
  ),
  Row(
    "scatter: two arrays",
    lambda x, i, j, y: x.at[i, j].add(y),
    ("a, b", ints("n"), ints("n"), "n"),
    second=True,
  ),
  Row("scatter: columns", lambda x, i, y: x.at[:, i].add(y), ("a, b", ints("n"), "a, n")),
  Row(
    "scatter: into zeros",
    lambda i, y: jnp.zeros((5, y.shape[1])).at[i].add(y),
    (ints("n", 0, 5), "n, d"),
  ),
  Row(
    "scatter: into symbolic zeros",
    lambda x, i, y: jnp.zeros(x.shape).at[i].add(y),
    ("b", ints("n", 0, 4), "n"),
    eager=True,
  ),
  Row(
    "scatter: batched",
    lambda x, i, y: jax.vmap(lambda x, i, y: x.at[i].add(y))(x, i, y),
    ("a, b", ints("a, n"), "a, n"),
    second=True,
  ),
  Row(
    "scatter: int and bool",
    lambda x, m, i: (x.at[i].add(2), m.at[i].set(True)),
    (ints("b", dtype="int16"), bools("b"), ints("n")),
  ),
  Row(
    "scatter: apply",
    lambda x, i: x.at[i].apply(jnp.sin),
    ("b", ints("1")),
    no_gradient="scatter_apply JVP not implemented",
  ),
  Row(
    "segment_sum",
    lambda x, i: jax.ops.segment_sum(x, i, num_segments=4),
    ("b, 2", ints("b", 0, 5)),
    xla=True,
  ),
  Row(
    "segment_sum: symbolic count",
    lambda x, i, y: jax.ops.segment_sum(x, i, num_segments=y.shape[0]) * y,
    ("b", ints("b", 0, 4), "c"),
    second=True,
  ),
  Row(
    "segment_max and min",
    lambda x, i: (jax.ops.segment_max(x, i, 3), jax.ops.segment_min(x, i, 3)),
    (ints("b"), ints("b", 0, 3)),
  ),
  Row("segment_max", lambda x, i: jax.ops.segment_max(x, i, 2), ("b", ints("b", 0, 1))),
  Row("bincount", lambda i, w: jnp.bincount(i, weights=w, length=6), (ints("b", 0, 6), "b")),
  Row("one_hot", lambda i, x: jax.nn.one_hot(i, 4) @ x, (ints("b, t", 0, 4), "4, d"), second=True),
  Row(
    "one_hot: symbolic classes",
    lambda i, x: jax.nn.one_hot(i, x.shape[0]) @ x,
    (ints("b", 0, 6), "c, 2"),
    eager=True,
    xla=True,
  ),
  Row(
    "graph layer",
    lambda x, s, r: jax.ops.segment_sum(jnp.tanh(x[s]), r, x.shape[0]),
    ("n, 3", ints("e", 0, 1), ints("e", 0, 1)),
    second=True,
  ),
]

_K = "b=1 3 6; k=1 2 5"
_SORTS = [
  Row("sort", lambda x: jnp.sort(x, 0), "b, 3", xla=True),
  Row("sort: last symbolic axis", lambda x: jnp.sort(x), "a, b"),
  Row("sort: descending", lambda x: jnp.sort(x, axis=0, descending=True), "b, 2"),
  Row("argsort", lambda x: jnp.argsort(x, axis=1), "a, b", eager=True),
  Row(
    "argsort: stable with ties",
    lambda x: (jnp.argsort(x), jnp.argsort(x, descending=True)),
    ints("b", 0, 3),
    xla=True,
  ),
  Row(
    "sort: two keys",
    lambda x, y, z: lax.sort((x, y, z), num_keys=2),
    (ints("b", 0, 2), ints("b", 0, 2), "b"),
    second=True,
  ),
  Row(
    "sort: key and values", lambda x, y: lax.sort((x, y), dimension=0, num_keys=1), ("b, 2", "b, 2")
  ),
  Row("sort: lexsort", lambda x, y: jnp.lexsort((x, y)), (ints("b", 0, 3), ints("b", 0, 3))),
  Row(
    "sort: bf16, int8, bool",
    lambda x, y, z: (jnp.sort(x), jnp.sort(y), jnp.sort(z)),
    (floats("b", ml_dtypes.bfloat16), ints("b", dtype="int8"), bools("b")),
  ),
  Row("sort: median of an odd number", lambda x: jnp.sort(x)[jnp.array(x.shape[0] // 2)], "b"),
  Row("top_k: of a symbolic axis", lambda x: lax.top_k(x, 2), "a, b+1"),
  Row(
    "top_k: symbolic k",
    lambda x, k: lax.top_k(x, k.shape[1]),
    ("3, 10", "0, k"),
    sizes="k=1 3 10",
    constraints=["k <= 10"],
    eager=True,
    xla=True,
  ),
  Row(
    "top_k: symbolic axis and k",
    lambda x, k: lax.top_k(x, k.shape[1]),
    ("2, b", "0, k"),
    sizes=_K,
    constraints=["k <= b"],
    second=True,
  ),
  Row(
    "top_k: ints, k from the axis",
    lambda x: lax.top_k(x, (x.shape[1] + 1) // 2),
    ints("a, b", 0, 4),
  ),
  Row("top_k: approx_max_k", lambda x: lax.approx_max_k(x, 2), "b, 8"),
  Row(
    "searchsorted: of a symbolic number",
    lambda x, y: jnp.searchsorted(jnp.sort(x), y),
    ("5", "a, b"),
    xla=True,
  ),
  Row("top_k: of merged axes", lambda x: lax.top_k(x.reshape(x.shape[0], -1), 2), "b, k+1, 3"),
  Row("ranks", lambda x: jnp.argsort(jnp.argsort(x)), "b"),
  Row("nucleus mask", lambda x: jnp.cumsum(jnp.sort(jax.nn.softmax(x), axis=-1), -1) > 0.5, "b, v"),
  Row(
    "digitize and unique sizes",
    lambda x: (
      jnp.digitize(x, jnp.array([-1.0, 0, 1])),
      jnp.unique(x.astype(int), size=3, fill_value=0),
    ),
    "b",
  ),
]

ROWS = [*_GATHERS, *_SCATTERS, *_SORTS]
