"""Rows for `jax2tf/lowering/control_flow.py`."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import lax

import jax2tf
from tests.support.case import Case, run

X = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)
T, F = np.bool_(True), np.bool_(False)
KEY = np.array([0, 7], np.uint32)
SAME_GRAPH = {"eager": "as in a graph", "saved": "as in a graph"}
BRANCHES = [jnp.sin, jnp.cos, jnp.tanh, jnp.abs, lambda x: x * 2]


def cumulate(x, reverse=False, unroll=1):
  return lax.scan(
    lambda c, y: (c * 0.5 + y, {"c": c, "n": jnp.int32(1)}),
    jnp.zeros(x.shape[1:]),
    x,
    reverse=reverse,
    unroll=unroll,
  )


def countdown(n, x):
  return lax.while_loop(lambda c: c[0] > 0, lambda c: (c[0] - 1, c[1] * 2), (n, x))


def narrow_scan(x):
  return lax.scan(lambda c, y: (c + y * x[1], {"c": c, "y": y * y}), x[0], x)


def narrow_while(x):
  def doubled(n, y):
    return lax.while_loop(
      lambda c: (c[0] > 0) & (c[1] < 9), lambda c: (c[0] - 1, c[1] + y), (n, y)
    )[1]

  return jax.vmap(doubled)(jnp.arange(50) % 3, x[:, 0])


def narrow_cond(x):
  return lax.cond(x[1, 0] > 0, lambda y: (y * x[2], y), lambda y: (y, y * y), x[:7])


def doubled(x):
  return lax.while_loop(lambda x: x < 100, lambda x: 2 * x, x)


def raw_cond(index, x):
  """A cond whose index is not clamped before: XLA takes the last branch."""
  return lax.cond_p.bind(index, x, branches=tuple(jax.make_jaxpr(f)(x) for f in BRANCHES[:3]))


CASES = [
  *[
    Case(
      f"cond_{p}", lambda p, x: lax.cond(p, jnp.sin, lambda x: -x, x), [p, X], poly=(None, "b, _")
    )
    for p in (T, F)
  ],
  Case(
    "cond_captures",
    lambda p, x: lax.cond(p, lambda: x + 1, lambda: x[::-1]),
    [T, X],
    poly=(None, "b, _"),
  ),
  Case("cond_no_results", lambda p, x: lax.cond(p, lambda: (), lambda: ()) or x, [T, X]),
  Case(
    "cond_trees",
    lambda p, x: lax.cond(
      p, lambda x: {"a": x, "b": (1, 2.0)}, lambda x: {"a": -x, "b": (3, 4.0)}, x
    ),
    [F, X],
  ),
  Case(
    "cond_vmapped",
    lambda p, x: jax.vmap(lambda p, x: lax.cond(p, jnp.sin, jnp.cos, x))(p, x),
    [X[:, 0] > 0, X],
    poly=("b", "b, _"),
  ),
  *[
    Case(
      f"switch_{i}", lambda i, x: lax.switch(i, BRANCHES, x), [np.int32(i), X], poly=(None, "b, _")
    )
    for i in (-7, 0, 1, 3, 4, 99)
  ],
  Case("switch_one_branch", lambda i, x: lax.switch(i, BRANCHES[:1], x), [np.int32(3), X]),
  # 1 - tanh(x)**2 cancels
  Case(
    "switch_vmapped",
    lambda i, x: jax.vmap(lambda i, x: lax.switch(i, BRANCHES, x))(i, x),
    [np.array([4, 0, -1, 9, 2]), X],
    rtol=1e-5,
  ),
  *[Case(f"cond_unclamped_{i}", raw_cond, [np.int32(i), X], grad=False) for i in (-1, 2, 5)],
  # TensorFlow's loops, branches and lists have few kernels for these dtypes.
  *[
    Case(
      f"{kind}_{dtype}",
      lambda x, dtype=dtype, fun=fun: jax.tree.map(
        lambda y: y.astype(np.float32), fun(x.astype(dtype))
      ),
      [np.arange(50, dtype=np.float32).reshape(50, 1) % 5],
      grad=False,
      poly=None if kind == "while" else "b, _",
      skip=SAME_GRAPH,
    )
    for dtype in ("int4", "uint4", "float8_e5m2", "float8_e4m3fn")
    for kind, fun in {"scan": narrow_scan, "while": narrow_while, "cond": narrow_cond}.items()
  ],
  Case("while", countdown, [np.int32(3), X], poly=(None, "b, _"), grad=False),
  Case("while_never", countdown, [np.int32(0), X], grad=False),
  Case(
    "while_vmapped_predicate",
    lambda n, x: jax.vmap(countdown)(n, x),
    [np.array([0, 3, 1, 5, 2], np.int32), X],
    poly=("b", "b, _"),
    grad=False,
  ),
  Case(
    "while_vmapped_twice",
    lambda n, x: jax.vmap(jax.vmap(countdown, (None, 0)), (0, 0))(n, x[:, :, None]),
    [np.arange(5, dtype=np.int32), X],
    grad=False,
  ),
  Case(
    "while_vmapped_only_carry",
    lambda n, x: jax.vmap(countdown, (None, 0))(n, x),
    [np.int32(4), X],
    grad=False,
  ),
  Case(
    "while_key",
    lambda k: lax.while_loop(
      lambda c: c[0] < 3,
      lambda c: (c[0] + 1, jax.random.split(c[1], 1)[0]),
      (0, jax.random.wrap_key_data(k)),
    )[1],
    [KEY],
    grad=False,
  ),
  Case(
    "fori_loop",
    lambda n, x: lax.fori_loop(0, n, lambda i, x: x + i, x),
    [np.int32(4), X],
    grad=False,
  ),
  Case(
    "fori_loop_static",
    lambda x: lax.fori_loop(0, 4, lambda i, x: jnp.sin(x) * i, x),
    [X],
    poly="b, _",
  ),
  Case("scan", cumulate, [X], poly="b, _"),
  Case("scan_reversed", lambda x: cumulate(x, reverse=True), [X], poly="b, _"),
  # TensorFlow reverses 8 dimensions at most.
  Case(
    "scan_reversed_of_nine_dimensions",
    lambda x: cumulate(x.reshape(-1, *[1] * 8), reverse=True),
    [np.ones(50, np.float32)],
  ),
  Case("scan_unrolled", lambda x: cumulate(x, unroll=2), [X]),
  Case("scan_fully_unrolled", lambda x: cumulate(x, reverse=True, unroll=5), [X]),
  Case("scan_length_1", cumulate, [X[:1]]),
  Case("scan_length_0", cumulate, [X[:0]], skip={"xla": "the same code"}),
  Case(
    "scan_over_nothing",
    lambda x: lax.scan(lambda c, _: (jnp.sin(c), None), x, None, length=3),
    [X],
    poly="b, _",
  ),
  Case(
    "scan_no_carry", lambda x: lax.scan(lambda _, y: (None, jnp.cos(y)), None, x), [X], poly="b, _"
  ),
  Case(
    "scan_nested",
    lambda x: lax.scan(
      lambda c, y: (c + lax.scan(lambda d, z: (d * z, d), 1.0, y)[0], y.sum()), 0.0, x
    ),
    [X],
    poly="b, _",
  ),
  Case("scan_vmapped", lambda x: jax.vmap(cumulate)(x[:, :, None]), [X], poly="b, _"),
  Case(
    "scan_of_cond_of_while",
    lambda x: lax.scan(
      lambda c, y: (
        lax.cond(
          c > 0, lambda: lax.while_loop(lambda v: v > 0.1, lambda v: v / 2, c), lambda: c + 1
        ),
        y,
      ),
      1.0,
      x,
    ),
    [X],
    grad=False,
  ),
  Case(
    "scan_bool_and_int",
    lambda x: lax.scan(lambda c, y: ((~c[0], c[1] + 1), c), (True, jnp.int8(120)), x),
    [X],
    grad=False,
  ),
  Case("associative_scan", lambda x: lax.associative_scan(jnp.add, x), [X]),
  Case("map", lambda x: lax.map(jnp.sin, x), [X], poly="b, _"),
  # A map of scalars is lowered as its vmap.
  Case(
    "map_of_scalars",
    lambda x: lax.map(lambda v: lax.while_loop(lambda v: v > 0.1, lambda v: v / 2, v), x[0]),
    [X],
    poly="b, _",
    grad=False,
  ),
  Case(
    "map_of_scalars_reversed",
    lambda x: lax.scan(lambda _, v: ((), v * x[0, 1]), (), x[0], reverse=True),
    [X],
    poly="b, n",
  ),
  # Under vmap, the loop of the branch not taken would never end.
  Case(
    "map_of_guarded_loops",
    lambda x: lax.map(lambda v: lax.cond(v > 0, doubled, jnp.negative, v), x),
    [np.array([1, 0, -3], np.float32)],
    grad=False,
  ),
  Case("map_of_no_scalars", lambda x: lax.map(jnp.sin, x[0, :0]), [X]),
  Case(
    "scan_of_keys",
    lambda k: lax.scan(
      lambda c, _: tuple(jax.random.split(c)), jax.random.wrap_key_data(k), None, length=3
    ),
    [KEY],
    grad=False,
  ),
  Case(
    "platform_dependent",
    lambda x: lax.platform_dependent(x, cpu=jnp.sin, default=jnp.cos),
    [X],
    poly="b, _",
  ),
  Case(
    "custom_root",
    lambda x: lax.custom_root(
      lambda y: y**3 - x,
      x,
      lambda f, y: lax.fori_loop(0, 20, lambda _, y: y - f(y) / jax.grad(f)(y), y),
      lambda g, y: y / g(1.0),
    ),
    [np.float32(8)],
  ),
  Case(
    "linalg_cg",
    lambda x: jax.scipy.sparse.linalg.cg(lambda v: v * jnp.arange(1.0, 4.0), x)[0],
    [X[0]],
    rtol=1e-5,
  ),
]
test_case, saved = run(CASES)
test_case = pytest.mark.usefixtures("one_step")(test_case)  # loops of 5 rows, as loops


def by_platform(x):
  return lax.platform_dependent(x, cpu=jnp.sin, cuda=jnp.cos, default=jnp.tanh)


@pytest.mark.parametrize(
  ("platforms", "expected"),
  [(None, jnp.sin), (["cpu"], jnp.sin), (["cuda"], jnp.cos), (["tpu", "rocm"], jnp.tanh)],
)
def test_the_branch_of_the_platform_that_the_graph_will_run_on(platforms, expected):
  for call in (
    jax2tf.convert(by_platform, platforms=platforms),
    tf.function(jax2tf.convert(by_platform, platforms=platforms)),
  ):
    np.testing.assert_allclose(call(X), expected(X), rtol=1e-6)


def test_platforms_of_different_branches_are_refused():
  with pytest.raises(
    NotImplementedError,
    match=r"(?s)branches \(cpu, cuda, default\) differ for cpu, cuda.* at "
    r".*test_control_flow.py:\d+",
  ):
    jax2tf.convert(by_platform, platforms=["cpu", "cuda"])(X)


def test_a_platform_without_a_branch_is_refused():
  with pytest.raises(
    NotImplementedError,
    match=r"(?s)branches \(cuda\) have none for cpu.* at .*test_control_flow.py:\d+",
  ):
    jax2tf.convert(lambda x: lax.platform_dependent(x, cuda=jnp.cos), platforms=["cpu"])(X)
