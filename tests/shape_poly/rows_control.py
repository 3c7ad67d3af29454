"""Loops, branches, vmap, calls and custom derivatives, with symbolic shapes inside."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import lax

from tests.shape_poly.row import Row, bools, floats, ints, positive


def _leaky(c, x):
  c = 0.5 * c + jnp.tanh(x)
  return c, c * x


def _rnn(x, w, h):
  return lax.scan(lambda h, x: (jnp.tanh(h @ w + x), h.sum()), h, x)


def _gru(x, h, w):
  def step(h, x):
    z = jax.nn.sigmoid(x @ w[0] + h @ w[1])
    return (1 - z) * h + z * jnp.tanh(x @ w[2] + (z * h) @ w[3]), None

  return lax.scan(step, h, jnp.swapaxes(x, 0, 1))[0]


_SCANS = [
  Row(
    "scan: symbolic length",
    lambda x: lax.scan(_leaky, jnp.zeros(3), x),
    "t, 3",
    second=True,
    eager=True,
  ),
  Row("scan: reverse", lambda x: lax.scan(_leaky, jnp.ones(2), x, reverse=True), "t, 2"),
  Row("scan: symbolic carry", lambda x: lax.scan(_leaky, jnp.zeros(x.shape[1]), x), "t, b"),
  Row(
    "scan: fixed length over a batch",
    lambda x: lax.scan(_leaky, x, jnp.arange(4.0)),
    "b, 2",
    xla=True,
  ),
  Row(
    "scan: many carries",
    lambda x, y: lax.scan(
      lambda c, a: ((c[1], c[0] + a[0] * a[1]), c[0]), (y[0], y[0] * 2), (x, y)
    ),
    ("t, 2", "t, 2"),
  ),
  Row("scan: rnn", _rnn, ("t, b, 3", "3, 3", "b, 3"), second=True),
  Row("scan: gru over time", _gru, ("b, t, 2", "b, 3", ("2, 3", "3, 3", "2, 3", "3, 3"))),
  Row("scan: unrolled", lambda x: lax.scan(_leaky, x[0], x, unroll=2), "2*t, 3"),
  Row("scan: integer counter", lambda x: lax.scan(lambda i, a: (i + 1, a * i), 0, x), "t"),
  Row(
    "scan: without xs",
    lambda x: lax.scan(lambda c, _: (c * 0.9 + x, c.sum()), x, None, length=3),
    "b",
  ),
  Row(
    "scan: over positions",
    lambda x: lax.scan(lambda c, i: (c * 0.5 + i, c), x[0], jnp.arange(x.shape[0])),
    "b, 2",
  ),
  Row(
    "scan: no steps, stacked sizes",
    lambda x: lax.scan(lambda c, a: (c, jnp.outer(a, c)), x[0], x[1:])[1],
    "t, d",
  ),
  Row(
    "scan: stacked sizes", lambda x: lax.scan(lambda c, a: (c, jnp.outer(a, c)), x[0], x)[1], "t, d"
  ),
  Row(
    "scan: nested",
    lambda x: lax.scan(lambda c, row: (c + lax.scan(_leaky, 0.0, row)[0], c), 0.0, x),
    "a, b",
  ),
  Row("map", lambda x: lax.map(lambda row: jnp.cumsum(row) * row.sum(), x), "a, b", eager=True),
  Row("map: pairs", lambda x, y: lax.map(lambda p: p[0] @ p[1], (x, y)), ("b, 2, t", "b, t, 2")),
  Row("map: of batches", lambda x: lax.map(jnp.sin, x, batch_size=2), "6, b"),
  Row(
    "associative_scan: over a fixed axis",
    lambda x: lax.associative_scan(jnp.add, x, axis=1),
    "b, 5",
  ),
]

_LOOPS = [
  Row(
    "fori: fixed bounds",
    lambda x: lax.fori_loop(0, 3, lambda i, c: c * 0.5 + i + jnp.roll(c, 1), x),
    "b, 2",
    second=True,
    eager=True,
    xla=True,
  ),
  Row(
    "fori: symbolic bound",
    lambda x: lax.fori_loop(
      0, x.shape[0], lambda i, c: c + lax.dynamic_index_in_dim(x, i, 0, False) * i, jnp.zeros(3)
    ),
    "b, 3",
    no_gradient="Reverse-mode differentiation does not work",
  ),
  Row(
    "while: until a bound",
    lambda x: lax.while_loop(lambda c: jnp.sum(c) < 20, lambda c: c * 2, x),
    positive("b, 2"),
    xla=True,
    no_gradient="Reverse-mode differentiation does not work",
  ),
  Row(
    "while: over a batch",
    lambda x: jax.vmap(lambda y: lax.while_loop(lambda c: c < 20, lambda c: c * 2, y))(x),
    positive("b"),
    eager=True,
    no_gradient="Reverse-mode differentiation does not work",
  ),
  Row(
    "while: symbolic shape in the state",
    lambda x: lax.while_loop(
      lambda c: c[0] < x.shape[0], lambda c: (c[0] + 1, c[1] + x), (0, x * 0)
    ),
    "a, b",
    no_gradient="Reverse-mode differentiation does not work",
  ),
  Row(
    "cond: on a value",
    lambda x: lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x),
    "b, 2",
    second=True,
    xla=True,
  ),
  Row(
    "cond: on a size",
    lambda x: lax.cond(jnp.array(x.shape[0]) > 2, lambda y: y * 2, lambda y: y - 1, x),
    "b, 2",
    xla=True,
  ),
  Row(
    "cond: closes over symbolic shapes",
    lambda x, p: lax.cond(p, lambda: x.sum(0) + x.shape[0], lambda: jnp.zeros(x.shape[1])),
    ("a, b", bools("")),
    second=True,
  ),
  Row(
    "switch",
    lambda x, i: lax.switch(i, [jnp.sin, lambda y: y * y.shape[0], jnp.zeros_like], x),
    ("b, 2", ints("", 0, 3)),
  ),
  Row(
    "cond: of a batch",
    lambda x: jax.vmap(lambda y: lax.cond(y.sum() > 0, jnp.tanh, lambda z: z * 2, y))(x),
    "b, 3",
  ),
  Row(
    "cond: in scan",
    lambda x: lax.scan(
      lambda c, a: (lax.cond(a.sum() > 0, lambda: c + a, lambda: c * 0.5), c), x[0], x
    ),
    "t, b",
  ),
  Row(
    "newton with fori",
    lambda x: lax.fori_loop(0, 4, lambda _, y: 0.5 * (y + x / y), jnp.ones_like(x)),
    positive("b"),
    second=True,
  ),
]

_VMAPS = [
  Row(
    "vmap: symbolic batch",
    lambda x, w: jax.vmap(lambda a: jnp.tanh(w @ a))(x),
    ("b, 3", "2, 3"),
    eager=True,
    xla=True,
  ),
  Row(
    "vmap: of dynamic_slice",
    lambda x, i: jax.vmap(lambda a, j: lax.dynamic_slice(a, (j,), (2,)))(x, i),
    ("b, 5", ints("b")),
  ),
  Row(
    "vmap: of dynamic_update_slice",
    lambda x, y, i: jax.vmap(lambda a, u, j: lax.dynamic_update_slice(a, u, (j,)))(x, y, i),
    ("b, 5", "b, 2", ints("b")),
  ),
  Row(
    "vmap: of sort and top_k",
    lambda x: jax.vmap(lambda a: (jnp.sort(a), lax.top_k(a, 2)[0]))(x),
    "b, 4",
  ),
  Row("vmap: of cumsum", lambda x: jax.vmap(jnp.cumsum, 1, 1)(x), "a, b"),
  Row(
    "vmap: of scan", lambda x: jax.vmap(lambda a: lax.scan(_leaky, 0.0, a))(x), "b, t", second=True
  ),
  Row(
    "vmap: of while",
    lambda x: jax.vmap(lambda a: lax.fori_loop(0, 3, lambda i, c: c * a + i, a))(x),
    "b, 2",
  ),
  Row(
    "vmap: of pad and concatenate",
    lambda x: jax.vmap(lambda a: jnp.concatenate([jnp.pad(a, 1), a]))(x),
    "b, d",
  ),
  Row("vmap: of gather", lambda x, i: jax.vmap(lambda a, j: a[j])(x, i), ("b, v, 2", ints("b, n"))),
  Row(
    "vmap: of a convolution",
    lambda x, w: jax.vmap(lambda a: lax.conv_general_dilated(a[None], w, (1,), "SAME")[0])(x),
    ("b, 2, t", "3, 2, 3"),
  ),
  Row(
    "vmap: twice",
    lambda x, y: jax.vmap(jax.vmap(jnp.dot, (None, 0)), (0, None))(x, y),
    ("a, 3", "b, 3"),
  ),
  Row(
    "vmap: of linalg",
    lambda x: jax.vmap(lambda a: jnp.linalg.inv(a @ a.T + 5 * jnp.eye(3)))(x),
    "b, 3, 3",
    rtol=1e-5,
  ),
  Row(
    "vmap: of a gradient",
    lambda x, w: jax.vmap(jax.grad(lambda a: jnp.sum(jnp.tanh(a * w) ** 2)))(x),
    ("b, 3", "3"),
    second=True,
  ),
  Row(
    "vmap: of random bits",
    lambda x: jax.vmap(lambda k, a: jax.random.normal(k, (2,)) * a)(
      jax.random.split(jax.random.key(0), x.shape[0]), x
    ),
    "b, 2",
  ),
  Row("vmap: out_axes", lambda x: jax.vmap(lambda a: a * 2, out_axes=1)(x), "a, b"),
  Row(
    "vmap: with axis_name",
    lambda x: jax.vmap(
      lambda a: a * lax.psum(a, "i") - lax.pmax(a, "i") + lax.pmin(a, "i"), axis_name="i"
    )(x),
    "b, 3",
    no_gradient="Differentiation rule for 'pmax' not implemented",
  ),
  Row(
    "vmap: centred over axis_name",
    lambda x: jax.vmap(lambda a: jnp.tanh(a - lax.psum(a, "i")), axis_name="i")(x),
    "b, 3",
    second=True,
    eager=True,
  ),
]


@jax.custom_vjp
def _clipped_gradient(x):
  return jnp.sin(x) * x.shape[0]


_clipped_gradient.defvjp(
  lambda x: (_clipped_gradient(x), x),
  lambda x, g: (jnp.clip(g * jnp.cos(x), -0.5, 0.5) * x.shape[0],),
)


@jax.custom_jvp
def _log1pexp(x):
  return jnp.log1p(jnp.exp(x))


_log1pexp.defjvps(lambda t, y, x: t * jax.nn.sigmoid(x))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _scaled(n, x):
  return x * n


_scaled.defvjp(lambda n, x: (x * n, None), lambda n, _, g: (g * n,))


@functools.partial(jax.jit, static_argnames="n")
def _static(x, n):
  return x * n + x.shape[0]


_CALLS = [
  Row("jit: nested", lambda x: jax.jit(lambda y: jax.jit(jnp.sin)(y) * y.shape[0])(x) + 1, "a, b"),
  Row(
    "jit: shared by two shapes", lambda x, y: _static(x, n=2).sum() * _static(y, n=2), ("a", "b")
  ),
  Row("jit: with a symbolic static argument", lambda x: _static(x, n=x.shape[0]), "b"),
  Row("custom_vjp", _clipped_gradient, "b, 2", second=True, eager=True, xla=True),
  Row("custom_vjp: symbolic nondiff argument", lambda x: _scaled(x.shape[0], x), "b, 2"),
  Row("custom_jvp", lambda x: _log1pexp(x) * x, "a, b"),
  Row(
    "custom_vjp: in scan",
    lambda x: lax.scan(lambda c, a: (c + _clipped_gradient(a), None), x[0], x)[0],
    "t, 2",
  ),
  Row(
    "checkpoint",
    lambda x, w: jax.checkpoint(lambda y: jnp.tanh(jnp.tanh(y @ w) @ w))(x),
    ("b, 3", "3, 3"),
    second=True,
    eager=True,
  ),
  Row(
    "checkpoint: with a policy",
    lambda x: jax.checkpoint(
      lambda y: jnp.sin(y) @ y.T, policy=jax.checkpoint_policies.dots_saveable
    )(x),
    "b, 3",
  ),
  Row("checkpoint: in scan", lambda x: lax.scan(jax.checkpoint(_leaky), x[0], x), "t, b"),
  Row("grad inside", lambda x: jax.grad(lambda y: jnp.sum(y**3) / y.shape[0])(x), "b, 2"),
  Row("jvp inside", lambda x: jax.jvp(jnp.tanh, (x,), (x * 2,)), "b"),
  Row(
    "hessian vector product",
    lambda x, v: jax.jvp(jax.grad(lambda y: jnp.sum(jnp.sin(y) * y[::-1])), (x,), (v,))[1],
    ("b", "b"),
  ),
  Row(
    "jacobian over a fixed axis",
    lambda x: jax.vmap(jax.jacfwd(lambda a: jnp.sin(a) * a.sum()))(x),
    "b, 3",
  ),
  Row("stop_gradient", lambda x: x * lax.stop_gradient(x.mean(0)), "b, d"),
  Row(
    "custom_root of linear solve",
    lambda a, b: lax.custom_linear_solve(lambda v: a * v, b, lambda _, y: y / a, symmetric=True),
    (positive("b"), "b"),
  ),
  Row(
    "integer pytrees",
    lambda x: {"n": x["n"] + 1, "y": (x["y"] * x["n"], None)},
    {"n": ints("b"), "y": floats("b")},
  ),
]

ROWS = [*_SCANS, *_LOOPS, *_VMAPS, *_CALLS]
