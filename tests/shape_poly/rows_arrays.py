"""Reshapes, concatenations, pads, slices, sizes as values, broadcasts, specs of arguments,
dtypes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
from jax import lax

from tests.shape_poly.row import Row, bools, floats, ints

_RESHAPES = [
  Row("reshape: flatten", lambda x: x.reshape(-1), "b, 3", eager=True, xla=True),
  Row("reshape: ravel two symbolic", lambda x: jnp.sin(x).ravel(), "a, b", second=True),
  Row("reshape: merge leading", lambda x: x.reshape(-1, 3), "b, 4, 3"),
  Row("reshape: merge trailing", lambda x: x.reshape(x.shape[0], -1), "b, 4, 3", xla=True),
  Row("reshape: merge two symbolic", lambda x: x.reshape(-1, 2), "a, b, 2"),
  Row("reshape: split by a constant", lambda x: x.reshape(-1, 4), "4*b"),
  Row("reshape: split with a spec 2*d", lambda x: x.reshape(x.shape[0], 2, -1), "b, 2*d"),
  Row(
    "reshape: divisible by constraint",
    lambda x: x.reshape(x.shape[0] // 4, 4) ** 2,
    "b",
    sizes="b=4 12 20",
    constraints=["mod(b, 4) == 0"],
    second=True,
  ),
  Row(
    "reshape: divided size",
    lambda x: x.reshape(2, x.shape[0] // 2),
    "b",
    sizes="b=2 6 10",
    constraints=["mod(b, 2) == 0"],
  ),
  Row(
    "reshape: product of an equation",
    lambda x, y: x.reshape(y.shape[0], y.shape[1]) * y,
    ("c", "a, b"),
    sizes="a=1 3 2; b=1 5 4; c=1 15 8",
    constraints=["a*b == c"],
  ),
  Row("reshape: unit dimensions", lambda x: x[:, None, :, None].reshape(1, *x.shape), "b, d"),
  Row(
    "reshape: heads", lambda x: x.reshape(*x.shape[:2], 2, -1).transpose(0, 2, 1, 3), "b, t, 2*d"
  ),
  Row("reshape: swap symbolic", lambda x: x.reshape(x.shape[1], x.shape[0]), "a, b"),
  Row("reshape: fortran order", lambda x: x.reshape(-1, order="F"), "a, b"),
  Row("reshape: lax.collapse", lambda x: lax.collapse(x, 1, 3), "b, h, w, 2"),
  Row("transpose", lambda x: x.transpose(2, 0, 1), "a, b, 3"),
  Row("squeeze and expand", lambda x: jnp.expand_dims(jnp.squeeze(x, 1), (0, -1)), "b, 1, d"),
  Row("moveaxis", lambda x: jnp.moveaxis(x, 0, -1), "a, 2, b"),
]

_JOINS = [
  Row(
    "concatenate: symbolic with symbolic",
    lambda x, y: jnp.concatenate([x, jnp.cos(y), x]),
    ("a, 2", "b, 2"),
    second=True,
    eager=True,
    xla=True,
  ),
  Row(
    "concatenate: symbolic with constant",
    lambda x: jnp.concatenate([x, jnp.ones((2, 3))], 0),
    "b, 3",
  ),
  Row(
    "concatenate: along a static axis", lambda x, y: jnp.concatenate([x, y], 1), ("b, 2", "b, 3")
  ),
  Row("stack", lambda x, y: jnp.stack([x, y, x], 1), ("b, d", "b, d")),
  Row("hstack and vstack", lambda x, y: (jnp.hstack([x, y]), jnp.vstack([x, y])), ("b", "b")),
  Row("split: in halves", lambda x: jnp.split(x, 2, axis=1), "b, 2*d"),
  Row("split: at an index", lambda x: jnp.split(x, [1], axis=0), "b+1, 2"),
  Row(
    "split: symbolic sizes",
    lambda x, y: lax.split(x, (y.shape[0], x.shape[0] - y.shape[0])),
    ("a+b, 2", "a"),
  ),
  Row("unstack", lambda x: [y * i for i, y in enumerate(jnp.unstack(x, axis=1))], "b, 3"),
  Row("block", lambda x: jnp.block([[x, x], [x, -x]]), "a, b"),
  Row(
    "append and insert at the ends",
    lambda x: jnp.append(jnp.concatenate([jnp.zeros(1), x]), 7.0),
    "b",
  ),
]

_PADS = [
  Row("pad: low and high", lambda x: jnp.pad(x, ((1, 2), (0, 3))), "b, d", eager=True, xla=True),
  Row("pad: negative", lambda x: lax.pad(x, 0.0, [(-1, 2, 0), (1, -1, 0)]), "b+1, d", second=True),
  Row("pad: interior", lambda x: lax.pad(x, 1.0, [(0, 0, 2), (1, 1, 1)]), "b, d", xla=True),
  Row("pad: interior and negative", lambda x: lax.pad(x, 0.0, [(-1, -1, 2)]), "b+1"),
  Row("pad: traced value", lambda x, v: lax.pad(x, v, [(2, 1, 0), (0, 1, 0)]), ("b, d", "")),
  Row("pad: by symbolic amounts", lambda x: jnp.pad(x, ((0, x.shape[1]), (x.shape[0], 0))), "a, b"),
  Row(
    "pad: up to a fixed size",
    lambda x: jnp.pad(x, ((0, 8 - x.shape[0]), (0, 0))),
    "b, 2",
    constraints=["b <= 8"],
  ),
  Row(
    "pad: cut by a symbolic amount",
    lambda x, y: lax.pad(x, 0.0, [(0, -y.shape[0], 0)]),
    ("a+b", "b"),
  ),
  Row("pad: edge", lambda x: jnp.pad(x, ((1, 2), (0, 0)), mode="edge"), "b, 2"),
  Row("pad: reflect", lambda x: jnp.pad(x, (1, 1), mode="reflect"), "b+1"),
]

_SLICES = [
  Row("slice: all but the ends", lambda x: x[1:-1], "b+2, 3", xla=True),
  Row("slice: differences", lambda x: (x[1:] - x[:-1]) ** 2, "b+1, 2", second=True),
  Row("slice: by a symbolic bound", lambda x, y: x[y.shape[0] :] * 2, ("a+b", "a")),
  Row(
    "slice: first half",
    lambda x: x[: x.shape[0] // 2],
    "b",
    sizes="b=2 5 6",
    constraints=["b >= 2"],
  ),
  Row("slice: strided", lambda x: x[::2], "b, 2"),
  Row("slice: strided from one", lambda x: x[:, 1::3], "b, d+1"),
  Row("slice: backwards", lambda x: x[::-1, ::-2], "b, d"),
  Row("slice: first and last", lambda x: (x[0], x[-1]), "b, 3"),
  Row(
    "slice: fixed length by constraint",
    lambda x: x[:4],
    "b",
    sizes="b=4 5 9",
    constraints=["b >= 4"],
  ),
  Row("slice: min of sizes", lambda x: lax.slice(x, (0,), (jax.core.min_dim(x.shape[0], 3),)), "b"),
  Row("slice: ellipsis and new axis", lambda x: x[..., None, :2], "a, b, 3"),
  Row(
    "dynamic_slice: fixed size",
    lambda x, i: lax.dynamic_slice(x, (i, 0), (2, 3)),
    ("b+1, 3", ints("", -2, 9)),
    eager=True,
    xla=True,
  ),
  Row(
    "dynamic_slice: symbolic size",
    lambda x, i: lax.dynamic_slice_in_dim(x, i, x.shape[0] - 1),
    ("b+1, 3", ints("", 0, 3)),
    second=True,
  ),
  Row(
    "dynamic_slice: two indices",
    lambda x, i, j: lax.dynamic_slice(x, (i, j), (1, x.shape[1])),
    ("a, b", ints(""), ints("")),
  ),
  Row(
    "dynamic_index_in_dim",
    lambda x, i: lax.dynamic_index_in_dim(x, i, 1, keepdims=False),
    ("a, b", ints("")),
  ),
  Row(
    "dynamic_update_slice",
    lambda x, y, i: lax.dynamic_update_slice(x, y, (i, 0)),
    ("b+2, 3", "2, 3", ints("", -3, 9)),
    second=True,
    eager=True,
  ),
  Row(
    "dynamic_update_slice: symbolic update",
    lambda x, y, i: lax.dynamic_update_slice(x, y, (i, i)),
    ("a+b, 4", "a, 2", ints("")),
    xla=True,
  ),
  Row(
    "dynamic_update_index",
    lambda x, y, i: lax.dynamic_update_index_in_dim(x, y, i, 0),
    ("b, d", "d", ints("", 0, 9)),
  ),
]

_SIZES = [
  Row("sizes: arange", lambda x: jnp.arange(x.shape[0]) * x, "b", xla=True),
  Row("sizes: arange with bounds", lambda x: jnp.arange(1, x.shape[0] + 1) + x, "b"),
  Row("sizes: arange with a step", lambda x: jnp.arange(0, x.shape[0], 2), "b"),
  Row(
    "sizes: float arange", lambda x: jnp.arange(x.shape[0], dtype=jnp.float32) / x.shape[0] * x, "b"
  ),
  Row("sizes: linspace", lambda x: jnp.linspace(0.0, x[0], x.shape[0] + 1), "b"),
  Row(
    "sizes: iota", lambda x: lax.broadcasted_iota(jnp.int32, (x.shape[0], 2, x.shape[1]), 2), "a, b"
  ),
  Row("sizes: eye", lambda x: jnp.eye(x.shape[0]) * x, "b, b"),
  Row(
    "sizes: zeros, ones, full",
    lambda x: (
      jnp.zeros(x.shape),
      jnp.ones((x.shape[0],), jnp.int8),
      jnp.full((x.shape[1], 2), x.sum()),
    ),
    "a, b",
  ),
  Row("sizes: as values", lambda x: jnp.array(x.shape) * 2, "a, b", eager=True),
  Row(
    "sizes: times a float", lambda x: x * x.shape[0] + x.shape[1] / 2, "a, b", second=True, xla=True
  ),
  Row(
    "sizes: expressions",
    lambda x: jnp.array([x.shape[0] // 2, x.shape[0] % 3, 2 * x.shape[0] - 1, x.shape[0] ** 2]),
    "b",
  ),
  Row(
    "sizes: max and min",
    lambda x: jnp.ones((jax.core.max_dim(*x.shape), jax.core.min_dim(*x.shape))) * x.sum(),
    "a, b",
  ),
  Row(
    "sizes: floordiv and mod as shapes",
    lambda x: jnp.ones((x.shape[0] // 2 + 1, x.shape[0] % 3 + 1)) * x.sum(),
    "b",
    xla=True,
  ),
  Row("sizes: product", lambda x: jnp.zeros(x.shape[0] * x.shape[1]) + x.size, "a, b"),
  Row(
    "sizes: negative floordiv", lambda x: jnp.array([-x.shape[0] // 2, (1 - x.shape[0]) % 3]), "b"
  ),
  Row("sizes: ceil of division", lambda x: jnp.zeros(-(-x.shape[0] // 3)) + x[0], "b"),
  Row("sizes: of an offset", lambda x: x[:-1] * (x.shape[0] - 1), "b+1"),
  Row("sizes: of a product", lambda x, y: x * (y.shape[0] * x.shape[0]) + y.sum(), ("a, a*b", "b")),
]

_BROADCASTS = [
  Row("broadcast: row and column", lambda x, y: x[:, None] * y, ("a", "b"), xla=True),
  Row(
    "broadcast: to another's shape", lambda x, y: jnp.broadcast_to(x, y.shape) + 1, ("d", "a, b, d")
  ),
  Row("broadcast: new leading dimension", lambda x: lax.broadcast(x, (2, x.shape[0])), "b"),
  Row("broadcast: of a scalar", lambda x, y: jnp.broadcast_to(x, y.shape), ("", "a, b")),
  Row("broadcast: size 1 to symbolic", lambda x, y: x + y, ("1, d", "b, 1")),
  Row("tile", lambda x: jnp.tile(x, (2, 3)), "a, b", second=True),
  Row("tile: symbolic", lambda x: jnp.tile(x, (x.shape[0], 1)), "b, 2"),
  Row("repeat", lambda x: jnp.repeat(x, 3, axis=0), "b, 2"),
  Row("repeat: flat", lambda x: jnp.repeat(x, 2), "a, b"),
  Row(
    "repeat: counts",
    lambda x, n: jnp.repeat(x, n, total_repeat_length=2 * x.shape[0]),
    ("b", ints("b", 0, 4)),
  ),
  Row("roll", lambda x: jnp.roll(x, 1, axis=0), "b, 3", xla=True),
  Row("roll: backwards and two axes", lambda x: jnp.roll(x, (-1, 2), (0, 1)), "a, b", second=True),
  Row("roll: traced shift", lambda x, i: jnp.roll(x, i, axis=0), ("b, 2", ints("", -9, 9))),
  Row("flip", lambda x: (jnp.flip(x), jnp.flip(x, 0), x[:, ::-1]), "a, b", eager=True),
  Row("rot90", lambda x: jnp.rot90(x), "a, b"),
  Row("tril", lambda x: jnp.tril(x, -1), "b, b"),
  Row("triu: rectangular", lambda x: jnp.triu(x, 1), "2, a, b"),
  Row(
    "causal mask",
    lambda x: jnp.where(jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool)), x, -jnp.inf),
    "b, t, t",
    xla=True,
  ),
  Row(
    "causal mask: by positions",
    lambda x: jnp.where(jnp.arange(x.shape[0])[:, None] >= jnp.arange(x.shape[1]), x, 0),
    "a, b",
  ),
  Row(
    "length mask",
    lambda x, n: jnp.where(jnp.arange(x.shape[1]) < n[:, None], x, 0).sum(1),
    ("b, t", ints("b", 0, 6)),
    second=True,
  ),
  Row(
    "where: three arguments",
    lambda c, x, y: jnp.where(c, x, y),
    (bools("b, d"), "b, d", "d"),
    eager=True,
  ),
  Row(
    "select_n: cases", lambda c, x, y, z: lax.select_n(c, x, y, z), (ints("b", 0, 3), "b", "b", "b")
  ),
  Row("clip by size", lambda x: jnp.clip(x * 5, 0, x.shape[0]), "b"),
  Row("diag", lambda x: (jnp.diag(x), jnp.diagonal(x[:, None] * x)), "b"),
  Row("trace", lambda x: jnp.trace(x) * jnp.trace(x, axis1=1, axis2=2), "b, b, b"),
  Row("meshgrid", lambda x, y: jnp.meshgrid(x, y, indexing="ij"), ("a", "b")),
  Row("kron and outer", lambda x, y: (jnp.kron(x, y), jnp.outer(x, y)), ("a", "b")),
]

_SPECS = [
  Row("spec: None among args", lambda x, y: x @ y, ("b, 3", "3, 2"), poly=["b, 3", None]),
  Row("spec: ellipsis", lambda x: x.reshape(x.shape[0], -1) * 2, "b, 3, 4", poly=["b, ..."]),
  Row("spec: underscore", lambda x: x.sum(1), "b, 3", poly=["b, _"]),
  Row("spec: one string for all", lambda x, y: x * y, ("b, 2", "b, 2"), poly="b, ..."),
  Row(
    "spec: pytree prefix",
    lambda p, x: {"y": x @ p["w"] + p["b"][0]},
    ({"w": "3, d", "b": ["d"]}, "b, 3"),
    poly=[{"w": "3, d", "b": "d"}, "b, _"],
    second=True,
  ),
  Row(
    "spec: prefix over a tuple",
    lambda xs: xs[0] + xs[1][0],
    (("b, 2", ("b, 2",)),),
    poly=["b, _"],
    eager=True,
  ),
  Row("spec: parentheses", lambda x: x - x.mean(), "a, b", poly=["(a, b)"]),
  Row("spec: shared dimensions", lambda x, y, z: x @ y + z, ("a, b", "b, d", "a, d"), xla=True),
  Row("spec: square and double", lambda x: x.sum((0, 1)) * x.shape[2], "b, b, 2*d"),
  Row("spec: difference of sizes", lambda x: x.reshape(-1) * (x.shape[1] - x.shape[0]), "a, a+b"),
  Row("spec: product solved", lambda x: x.reshape(x.shape[0], x.shape[0], -1).sum(1), "a, a*b"),
  Row("spec: square of a size", lambda x, y: x.reshape(y.shape[0], y.shape[0]) @ y, ("b*b", "b")),
  Row("spec: power", lambda x, y: x.reshape(*y.shape, -1) * y[:, None], ("b^2", "b")),
  Row(
    "spec: floordiv",
    lambda x, y: x.reshape(-1, 2)[: y.shape[0]] + y[:, None],
    ("2*b", "floordiv(b + 1, 2)"),
  ),
  Row("spec: mod", lambda x, y: jnp.concatenate([x, y]), ("b", "mod(b, 3) + 1")),
  Row(
    "spec: max and min",
    lambda x, y, z: (x.sum() + y, x.sum() * z),
    ("a, b", "max(a, b)", "min(a, b)"),
  ),
  Row("spec: linear with constants", lambda x: x[2:] + x.shape[0], "3*b + 2"),
]

_DTYPES = [
  Row(
    "dtype: bf16",
    lambda x: jnp.tanh(x.reshape(-1, 2)) * x.shape[0],
    floats("b, 4", ml_dtypes.bfloat16),
    rtol=2e-2,
    second=True,
  ),
  Row(
    "dtype: f16 concatenate",
    lambda x: jnp.concatenate([x, x[:1] * 2]),
    floats("b, 2", "float16"),
    rtol=2e-3,
  ),
  Row(
    "dtype: int8 wraps", lambda x: x * x + x.shape[0], ints("b, d", -100, 100, "int8"), eager=True
  ),
  Row("dtype: uint32 bits", lambda x: (x << 3) ^ (x >> 2), ints("b", 0, 2**31, "uint32")),
  Row(
    "dtype: bool logic",
    lambda x, y: (x & y).any(0) | ~y[0],
    (bools("b, d"), bools("b, d")),
    xla=True,
  ),
  Row(
    "dtype: complex", lambda x, y: lax.complex(x, y) * jnp.conj(lax.complex(y, x)), ("b, 2", "b, 2")
  ),
  Row("dtype: int division", lambda x: (x // 3, x % 3, lax.div(x, 3)), ints("b, d")),
  Row(
    "dtype: casts",
    lambda x: (x.astype(jnp.int32), x.astype(jnp.bfloat16), (x > 0).astype(jnp.int8)),
    "b, d",
  ),
]

ROWS = [*_RESHAPES, *_JOINS, *_PADS, *_SLICES, *_SIZES, *_BROADCASTS, *_SPECS, *_DTYPES]
