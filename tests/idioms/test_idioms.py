"""Idioms: each fires, does not fire on a near miss, and leaves values and gradients as JAX has
them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.extend.core.primitives as P
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import lax

import jax2tf
from jax2tf import program
from tests.support import onednn
from tests.support.case import HOSTILE_F32, Case, executed_op_types, op_types, run

RNG = np.random.default_rng(0)


def _f32(*shape: int) -> np.ndarray:
  return RNG.standard_normal(shape, np.float32)


def _hostile(*shape: int) -> np.ndarray:
  """Ordinary numbers, each hostile one in a row of its own where there are rows enough."""
  x = _f32(*shape)
  rows = x.reshape(-1, shape[-1])
  for i, value in enumerate(HOSTILE_F32[: len(rows)]):
    rows[i, i % shape[-1]] = value
  return x


X, W, B = _f32(5, 8), _f32(8, 6), _f32(6)
XS, SQUARE = _f32(2, 5, 8), _f32(6, 6)
CUBE = XS[:, :3, :2]
IMAGE, KERNEL = _f32(2, 7, 6, 3), _f32(3, 3, 3, 4)


def conv(
  image: Any, kernel: Any, stride: int = 1, padding: Any = "SAME", layout: str = "NHWC"
) -> jax.Array:
  return lax.conv_general_dilated(
    image, kernel, (stride, stride), padding, dimension_numbers=(layout, "HWIO", layout)
  )


@pytest.fixture(autouse=True)
def _well_formed() -> Iterator[None]:
  """JAX's own switch: each jaxpr is checked, those that idioms have rewritten too."""
  with jax.enable_checks(True):
    yield


def primitives(fun: Callable[..., Any], *args: Any) -> list[str]:
  """The primitives of a function after the idioms."""
  return [eqn.primitive.name for eqn in program.program_of(jax.make_jaxpr(fun)(*args)).equations]


def graph_ops(fun: Callable[..., Any], *args: Any, gradient: bool = False) -> list[str]:
  """The op types of the converted function, or of its gradient by all arguments."""
  converted = jax2tf.convert(fun)

  def gradients(*xs: tf.Tensor) -> Any:
    with tf.GradientTape() as tape:
      tape.watch(xs)
      y = converted(*xs)
    return tape.gradient(y, xs)

  return op_types(
    tf.function(gradients if gradient else converted, autograph=False)
    .get_concrete_function(*map(tf.constant, args))
    .graph
  )


def _apart(n: int, x: Any) -> jax.Array:
  """f32[a,b,c] -> f32[a,1,b,1,c,1]."""
  return lax.expand_dims(x, range(1, 2 * n, 2))


def _between(n: int, x: Any) -> jax.Array:
  """f32[a,b,c] -> f32[1,a,1,b,1,c]."""
  return lax.expand_dims(x, range(0, 2 * n, 2))


# What a function becomes: (name, function, arguments, primitives after the idioms).
FIRES: list[tuple[str, Callable[..., Any], list[Any], list[str]]] = [
  ("bias_of_dense", lambda x, w, b: x @ w + b, [X, W, B], ["dot_general", "bias_add"]),
  ("bias_first", lambda x, w, b: b + x @ w, [X, W, B], ["dot_general", "bias_add"]),
  (
    "bias_by_reshape",
    lambda x, w, b: x @ w + b.reshape(1, -1),
    [X, W, B],
    ["dot_general", "bias_add"],
  ),
  (
    "bias_of_dense_3d",
    lambda x, w, b: x @ w + b,
    [XS, W, B],
    ["reshape", "dot_general", "bias_add", "reshape"],
  ),
  (
    "bias_of_conv",
    lambda x, w, b: conv(x, w) + b,
    [IMAGE, KERNEL, _f32(4)],
    ["conv_general_dilated", "bias_add"],
  ),
  ("transposed_product", lambda x, w: (x @ w).T, [X, W], ["dot_general"]),
  ("transposed_operands", lambda x, w: x.T @ w.T, [_f32(8, 5), _f32(6, 8)], ["dot_general"]),
  (
    "reversed_kernel",
    lambda x, w: conv(x, w[::-1, ::-1]),
    [IMAGE, KERNEL],
    ["conv_general_dilated"],
  ),
  (
    "transposes_cancel",
    lambda x: lax.squeeze(x.transpose(0, 2, 1), (0,)).T + 1,
    [_f32(1, 4, 5)],
    ["reshape", "add"],
  ),
  (
    "transposes_merge",
    lambda x: x.transpose(1, 0, 2)[None].transpose(0, 1, 3, 2),
    [XS],
    ["transpose", "reshape"],
  ),
  (
    "reshapes_merge",
    lambda x: lax.squeeze(x.reshape(8, 5, 1), (2,)).reshape(4, 10) + 1,
    [X],
    ["reshape", "add"],
  ),
  (
    "sum_of_one_is_a_reshape",
    lambda x: x.reshape(5, 1, 8).sum(1)[:, :, None] + 1,
    [X],
    ["reshape", "add"],
  ),
  (
    "maximum_of_one_is_a_reshape",
    lambda x: lax.reduce_max(x.reshape(5, 1, 8), (1,)).reshape(4, 10) + 1,
    [X],
    ["reshape", "add"],
  ),
  ("maximum_over_no_axes", lambda x: lax.reduce_max(x, ()) + 1, [X], ["reshape", "add"]),
  (
    "windows_of_a_transposed_array",
    lambda x: x.transpose(0, 2, 1).reshape(2, 8, 1, 5).max(3),
    [XS],
    ["reshape", "reduce_max", "transpose"],
  ),
  (
    "means_of_a_transposed_array",
    lambda x: (x.transpose(2, 0, 1) * 2).reshape(4, 2, 2, 5).mean(1),
    [XS],
    ["mul", "reshape", "reduce_sum", "transpose", "div"],
  ),
  (
    "adaptive_pools",
    lambda x: (x.transpose(0, 2, 1).reshape(2, 2, 4, 5).min(2) / 2).transpose(0, 2, 1).sum(2),
    [XS],
    ["reshape", "reduce_min", "div", "reduce_sum"],
  ),
  (
    "joined_axes_stay_transposed",
    lambda x: x.transpose(0, 2, 1).reshape(2, 40).sum(1),
    [XS],
    ["transpose", "reshape", "reduce_sum"],
  ),
  (
    "sum_of_two_remains",
    lambda x: x.reshape(5, 2, 4).sum(1).reshape(4, 5),
    [X],
    ["reshape", "reduce_sum", "reshape"],
  ),
  (
    "row_into_columns",
    lambda x, y: x * lax.broadcast_in_dim(y, (5, 8), (0,)),
    [X, X[:, 0]],
    ["reshape", "mul"],
  ),
  (
    "too_many_dimensions",
    lambda x, y: _apart(3, x) * _between(3, y),
    [CUBE, XS[:, :4, :3]],
    [*["broadcast_in_dim"] * 4, "mul"],
  ),
  (
    "scalar_selected",
    lambda p, x: lax.select(p, x, lax.broadcast(x[0, 0], (5, 8))),
    [X > 0, X],
    ["slice", "squeeze", "select_n"],
  ),
]


@pytest.mark.parametrize(
  ("fun", "args", "expected"), [pytest.param(*row[1:], id=row[0]) for row in FIRES]
)
def test_fires(fun: Callable[..., Any], args: list[Any], expected: list[str]) -> None:
  assert primitives(fun, *args) == expected


# Near misses: (name, function, arguments, what must not be there).
SILENT: list[tuple[str, Callable[..., Any], list[Any], str]] = [
  ("bias_on_rows", lambda x, w, b: x @ w + b[:, None], [X, W, _f32(5)], "bias_add"),
  ("bias_of_size_one", lambda x, w, b: x @ w + b, [X, W, _f32(1)], "bias_add"),
  ("bias_of_each_row", lambda x, w, b: x @ w + b, [X, W, _f32(5, 6)], "bias_add"),
  ("bias_behind_used_product", lambda x, w, b: ((y := x @ w) + b, y), [X, W, B], "bias_add"),
  (
    "bias_of_integers",
    lambda x, w, b: x @ w + b,
    [X.astype(np.int32), W.astype(np.int32), B.astype(np.int32)],
    "bias_add",
  ),
  (
    "bias_of_halves",
    lambda x, w, b: x @ w + b,
    [X.astype(np.float16), W.astype(np.float16), B.astype(np.float16)],
    "bias_add",
  ),
  ("bias_of_batches", lambda x, w, b: jnp.matmul(x, w) + b, [XS, _f32(2, 8, 6), B], "bias_add"),
  ("bias_of_sum", lambda x, b: x + b, [X, _f32(8)], "bias_add"),
  (
    "bias_of_channels_first",
    lambda x, w, b: conv(x, w, layout="NCHW") + b,
    [_f32(2, 3, 7, 6), KERNEL, B],
    "bias_add",
  ),
]


@pytest.mark.parametrize(
  ("fun", "args", "name"), [pytest.param(*row[1:], id=row[0]) for row in SILENT]
)
def test_does_not_fire(fun: Callable[..., Any], args: list[Any], name: str) -> None:
  assert name not in primitives(fun, *args)


KEPT: list[tuple[str, Callable[..., Any], list[Any], str]] = [
  ("used_product", lambda x, w: ((y := x @ w).T, y), [X, W], "transpose"),
  ("other_permutation", lambda x, w: (x @ w).transpose(1, 0, 2), [XS, W], "transpose"),
  ("free_dimensions_swapped", lambda x, w: x.transpose(1, 0, 2) @ w, [XS, W], "transpose"),
  ("half_reversed", lambda x, w: conv(x, w[::-1]), [IMAGE, KERNEL], "rev"),
  ("reversed_features", lambda x, w: conv(x, w[..., ::-1, :]), [IMAGE, KERNEL], "rev"),
  ("used_reversed", lambda x, w: (conv(x, (k := w[::-1, ::-1])), k), [IMAGE, KERNEL], "rev"),
  (
    "used_transpose",
    lambda x: ((y := x.transpose(1, 0, 2)).transpose(0, 2, 1), y),
    [XS],
    "transpose",
  ),
  (
    "returned_broadcast",
    lambda x, y: (x * (z := lax.broadcast(y, (5,))), z),
    [X, X[0]],
    "broadcast_in_dim",
  ),
  (
    "both_broadcast",
    lambda x, y: lax.broadcast(x, (5,)) * lax.broadcast(y, (5,)),
    [X[0], X[0]],
    "broadcast_in_dim",
  ),
]


@pytest.mark.parametrize(
  ("fun", "args", "name"), [pytest.param(*row[1:], id=row[0]) for row in KEPT]
)
def test_keeps(fun: Callable[..., Any], args: list[Any], name: str) -> None:
  assert primitives(fun, *args).count(name) == [
    e.primitive.name for e in jax.make_jaxpr(fun)(*args).eqns
  ].count(name)


def test_bias_add_is_fused() -> None:
  args = [tf.constant(a) for a in (XS, W, B)]
  function = tf.function(jax2tf.convert(lambda x, w, b: x @ w + b), autograph=False)
  assert "_FusedMatMul" in executed_op_types(function, *args)


def test_gradient_of_a_dense_layer_transposes_nothing() -> None:
  ops = graph_ops(lambda x, w, b: jnp.sum(jnp.tanh(x @ w + b)), XS, W, B, gradient=True)
  assert ops.count("MatMul") == 3 and "Transpose" not in ops and "BroadcastTo" not in ops


def test_gradient_of_a_convolution_reverses_nothing() -> None:
  ops = graph_ops(lambda x, w: jnp.sum(conv(x, w) ** 2), IMAGE, KERNEL, gradient=True)
  assert "Conv2DBackpropInput" in ops and "ReverseV2" not in ops and "Transpose" not in ops


def test_a_scan_stacks_what_its_gradient_cannot_compute() -> None:
  def rnn(w: Any, xs: Any) -> Any:
    def step(h: Any, x: Any) -> tuple[Any, Any]:
      h = jnp.tanh(x + h @ w)
      return h, h

    return jnp.sum(lax.scan(step, jnp.zeros(6), xs)[1])

  # Forward: h and the h before it, and not the derivative of tanh; backward: the cotangents of xs.
  ops = graph_ops(rnn, SQUARE, _f32(53, 6), gradient=True)  # a prime number: one step in a turn
  assert ops.count("TensorListStack") == 3
  # xs, and two kinds of cotangents; the residuals of the forward loop are read as it has written
  # them.
  assert ops.count("TensorListFromTensor") == 3


# Why these are no idioms: the day TensorFlow has JAX's values, an xfail passes and the idiom may
# come.
NO_IDIOMS = [
  (
    "relu",
    lambda x, w, b: tf.nn.relu(tf.nn.bias_add(tf.matmul(x, w), b)),
    lambda x, w, b: jax.nn.relu(x @ w + b),
    np.nan,
  ),
  (
    "softmax_of_infinity",
    lambda x, w, b: tf.nn.softmax(x),
    lambda x, w, b: jax.nn.softmax(x),
    np.inf,
  ),
  ("softmax_of_nan", lambda x, w, b: tf.nn.softmax(x), lambda x, w, b: jax.nn.softmax(x), np.nan),
]


@pytest.mark.xfail(onednn.ENABLED, strict=True, reason="oneDNN loses NaN")
@pytest.mark.parametrize(
  ("in_tf", "in_jax", "bad"), [pytest.param(*row[1:], id=row[0]) for row in NO_IDIOMS]
)
def test_tensorflow_keeps_nan(
  in_tf: Callable[..., Any], in_jax: Callable[..., Any], bad: float
) -> None:
  x = np.ones((64, 16), np.float32)
  x[3, 5] = bad
  w, b = np.eye(16, dtype=np.float32), np.zeros(16, np.float32)
  found = tf.function(in_tf)(*map(tf.constant, (x, w, b))).numpy()
  np.testing.assert_array_equal(np.isnan(found), np.isnan(np.asarray(in_jax(x, w, b))))


def _attention(x: Any, w: Any) -> jax.Array:
  q, k = ((x @ w).reshape(2, 5, 2, 3).transpose(0, 2, 1, 3) for _ in range(2))
  return jax.nn.softmax(q @ k.swapaxes(-1, -2) / 3)


def _scan(w: Any, xs: Any) -> Any:
  def step(c: Any, x: Any) -> tuple[Any, Any]:
    c = jnp.tanh(c @ w + x)
    return c, (c, 1 - c * c, x * c, jnp.exp(x), c > x, (c > x).astype(jnp.int8), 2.0 * (x * c))

  return lax.scan(step, jnp.zeros(6), xs, reverse=True)


_BINARY = (lax.sub, lax.pow, lax.atan2, lax.gt, lambda x, y: jnp.where(x > y, x, y))
# Sums of products of hostile numbers cancel in another order than XLA's; see the rows of
# tests/lowering/test_dot.py.
_SUM = {"rtol": 2e-5}
HOSTILE_ROWS, EYE = _hostile(18, 8), np.eye(8, dtype=np.float32)

CASES = [
  Case("bias", lambda x, w, b: x @ w + b, [X, W, B], poly=["b, _", None, None], **_SUM),
  Case("bias_3d", lambda x, w, b: x @ w + b, [XS, W, B], poly=["b, c, _", None, None], **_SUM),
  Case(
    "bias_hostile",
    lambda x, b: x @ jnp.ones((8, 1)) + b,
    [np.where(np.isfinite(HOSTILE_ROWS), 1, HOSTILE_ROWS), _f32(1)],
  ),
  Case("hostile_bias", lambda x, b: x @ jnp.eye(16) + b, [_f32(4, 16), HOSTILE_F32]),
  Case(
    "bias_tanh", lambda x, b: jnp.tanh(x @ jnp.eye(16) + b), [_f32(4, 16), HOSTILE_F32], rtol=5e-6
  ),
  Case(
    "bias_sigmoid",
    lambda x, b: jax.nn.sigmoid(x @ jnp.eye(16) + b),
    [_f32(4, 16), HOSTILE_F32],
    rtol=5e-6,
  ),
  Case("bias_relu", lambda x, b: jax.nn.relu(x @ jnp.eye(16) + b), [_f32(4, 16), HOSTILE_F32]),
  Case(
    "bias_gelu",
    lambda x, b: jax.nn.gelu(x @ jnp.eye(16) + b),
    [abs(_f32(4, 16)), abs(HOSTILE_F32)],
    rtol=1e-5,
  ),
  Case(
    "bias_f64",
    lambda x, w, b: x @ w + b,
    [X.astype(np.float64), W.astype(np.float64), B.astype(np.float64)],
    x64=True,
  ),
  Case(
    "bias_of_conv",
    lambda x, w, b: conv(x, w) + b,
    [IMAGE, KERNEL, np.array([np.nan, np.inf, -0.0, 1], np.float32)],
    **_SUM,
    atol=2e-6,
  ),
  Case(
    "product_transposed",
    lambda x, w: jnp.matmul(x, w).swapaxes(-1, -2),
    [XS, _f32(2, 8, 6)],
    poly=["b, _, _", "b, _, _"],
    **_SUM,
    atol=2e-6,
  ),
  Case(
    "operands_transposed",
    lambda x, w: jnp.einsum("bki,bjk->bij", x, w),
    [XS, _f32(2, 6, 5)],
    poly=["b, _, _", "b, _, _"],
    **_SUM,
    atol=2e-6,
  ),
  Case("attention", _attention, [XS, W], rtol=1e-4),
  Case(
    "kernel_reversed",
    lambda x, w: conv(x, w[::-1, ::-1]),
    [IMAGE, KERNEL],
    poly=["b, ...", None],
    **_SUM,
    atol=2e-6,
  ),
  Case(
    "kernel_reversed_strides",
    lambda x, w: conv(x, w[::-1, ::-1], 2),
    [IMAGE, KERNEL],
    **_SUM,
    atol=2e-6,
  ),
  Case(
    "kernel_reversed_valid",
    lambda x, w: conv(x, w[::-1, ::-1], 1, "VALID"),
    [IMAGE, KERNEL],
    **_SUM,
    atol=2e-6,
  ),
  Case(
    "conv_transposed",
    lambda x, w: lax.conv_transpose(x, w, (2, 2), "SAME", transpose_kernel=True),
    [IMAGE, _f32(3, 3, 4, 3)],
    **_SUM,
    atol=2e-6,
  ),
  Case(
    "reshapes",
    lambda x: x.reshape(-1, 4, 1).sum(2).reshape(-1, 2, 1, 2) + 1,
    [_hostile(3, 4, 16)],
    poly=["b, _, _"],
  ),
  Case(
    "moves",
    lambda x: lax.squeeze(x[None].transpose(0, 2, 1, 3), (0,)).transpose(2, 0, 1),
    [_hostile(3, 4, 16)],
    poly=["b, c, _"],
  ),
  Case(
    "rows_repeated",
    lambda x, y: x + y[:, None] * x - y[:, None] / x,
    [_hostile(16, 16), HOSTILE_F32],
    poly=["b, c", "b"],
    grad=False,
  ),
  Case(
    "select_repeated",
    lambda x, y: jnp.where(x > y[:, None], x * y, y[0]),
    [_hostile(16, 16), HOSTILE_F32],
    grad=False,
  ),
  Case("kron", jnp.kron, [CUBE, XS[:, :4, :3]], poly=["a, b, c", "d, e, f"]),
  Case(
    "broadcast_both_ways",
    lambda x, y: [f(_apart(4, x), _between(4, y)) for f in _BINARY],
    [X[:2, :4].reshape(2, 2, 1, 2) ** 2, X[2:4, :4].reshape(1, 2, 2, 2) ** 2],
  ),
  Case(
    "betainc_both_ways",
    P.regularized_incomplete_beta_p.bind,
    [abs(X[:3, :1]), abs(X[:1, :2]), np.full((3, 2), 0.3, "f")],
    grad=False,
    rtol=1e-5,  # as betainc in tests/lowering/test_special.py
  ),
  Case("scan", _scan, [SQUARE, _f32(5, 6)], rtol=1e-5, atol=1e-6, poly=[None, "b, _"]),
  Case("scan_hostile", _scan, [0 * SQUARE, _hostile(16, 6)], rtol=1e-5, grad=False),
]

test_case, saved = run(CASES)


@pytest.mark.parametrize("shape", [(1, 1, 5, 5), (3, 1, 5, 1), (1, 1, 5, 1)])
def test_an_addend_of_scores_is_repeated_along_batch_and_keys(shape: tuple[int, ...]) -> None:
  """TF 2.21: the op that Grappler makes of product, number and sum takes hundreds of times as long
  otherwise."""
  x, bias = _f32(3, 5, 2, 4), _f32(*shape)
  scores = jax2tf.convert(
    lambda x, bias: jnp.einsum("bqhd,bkhd->bhqk", x, x) / 2 + bias, with_gradient=False
  )
  graph = tf.function(scores, autograph=False).get_concrete_function(x, bias).graph
  assert [3, 1, 5, 5] in [
    operand.shape.as_list()
    for op in graph.get_operations()
    if op.type == "AddV2"
    for operand in op.inputs
  ]
  np.testing.assert_allclose(
    scores(x, bias), jnp.einsum("bqhd,bkhd->bhqk", x, x) / 2 + bias, rtol=1e-5, atol=1e-6
  )
