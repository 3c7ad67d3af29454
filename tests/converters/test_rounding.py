"""Default tolerances: they accept what rounds elsewhere, and find one element in ten million that
is wrong."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jax2tf.converters import saved_model
from jax2tf.converters.export.source import ExportError, Runner, Source
from jax2tf.converters.verify import answers as compare
from jax2tf.converters.verify.float64 import Wide, longest_sum
from jax2tf.converters.verify.plan import Comparison
from jax2tf.converters.verify.rounding import Measure, Rounding

RNG = np.random.default_rng(0)
W = RNG.standard_normal((8, 8), np.float32)
X = RNG.standard_normal((4, 8), np.float32)


def loops(x: jax.Array) -> Any:
  last, sums = lax.scan(
    lambda c, row: (jnp.tanh(c @ W + row), c.sum()), jnp.zeros(8, jnp.float32), x
  )
  _, turned = lax.while_loop(
    lambda s: s[0] < 5, lambda s: (s[0] + 1, jnp.sin(s[1])), (jnp.int32(0), last)
  )
  return lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, turned), sums


# {name: (function of `X`, terms of its longest sum)}
FUNCTIONS: dict[str, tuple[Callable[..., Any], int]] = {
  "product": (lambda x: jax.nn.softmax(jax.nn.gelu(x @ W)), 8),
  "loops and branches": (loops, 8),
  "random numbers": (
    lambda x: (
      x + jax.random.normal(jax.random.key(0), x.shape) + jax.random.uniform(jax.random.key(1))
    ),
    1,
  ),
  "named dtypes": (
    lambda x: (x.astype(jnp.bfloat16) @ W.astype(jnp.bfloat16)).astype(jnp.float32),
    8,
  ),
  "a jaxpr as a parameter": (
    lambda x: lax.reduce(x, np.float32(0), lambda a, b: a + b * jnp.float32(1), (0,)),
    1,
  ),
  "scatter": (lambda x: x.at[jnp.array([1, 1, 2])].add(x[:3]), 24),
  "linear algebra": (lambda x: jnp.linalg.inv(x @ x.T + jnp.eye(4)), 8),
  "complex": (lambda x: jnp.fft.rfft(x), 1),
  "integers": (lambda x: jnp.take(W, jnp.argmax(x, 1), 0), 1),
  "callback": (lambda x: jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x), 1),
  "print": (lambda x: (jax.debug.print("{}", x[0, 0]), jnp.sin(x))[1], 1),
  "convolution": (lambda x: lax.conv(x[None, None], jnp.ones((2, 1, 3, 3)), (1, 1), "SAME"), 9),
  "gradient": (
    jax.grad(lambda x: jax.nn.relu(x @ W).sum() + jax.checkpoint(jax.nn.logsumexp)(x)),
    32,
  ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_equations_are_computed_in_float64(name: str) -> None:
  fun, terms = FUNCTIONS[name]
  wide = Wide.of(fun, X)
  assert wide.terms == terms
  for exact, y in zip(wide(X), jax.tree.leaves(jax.jit(fun)(X)), strict=True):
    assert exact.dtype == (np.complex128 if jnp.iscomplexobj(y) else np.float64)
    np.testing.assert_allclose(
      y, exact, rtol=0, atol=(1e-2 if name == "named dtypes" else 2e-6) * np.abs(exact).max()
    )


def test_the_longest_sum() -> None:
  jaxpr = jax.make_jaxpr(
    lambda x: jnp.cumsum(lax.scan(lambda c, row: (c + row.sum(), row), 0.0, x)[1], 0)
  )(np.zeros((50, 7), np.float32))
  assert longest_sum(jaxpr.jaxpr) == 50


def running_sums(w: np.ndarray, x: np.ndarray) -> np.ndarray:
  """x @ w, term by term."""
  total = np.zeros((len(x), w.shape[1]), np.float32)
  with np.errstate(invalid="ignore", over="ignore"):
    for row, column in zip(w, x.T, strict=True):
      total += column[:, None] * row
  return total


def one_wrong(y: np.ndarray, by: float) -> np.ndarray:
  wrong = y.copy()
  wrong[3, 5] += by * np.nanmax(np.abs(y))
  return wrong


def runner(name: str, fun: Callable[[np.ndarray], np.ndarray]) -> Runner:
  return lambda runs: [
    {"outputs": {"y": fun(run.inputs[name])}, "error": "", "seconds": None} for run in runs
  ]


@functools.cache
def wide_layer() -> tuple[Source, Any]:
  """A layer of 32,768 inputs, and the same in another order of sums, which the fixed tolerances
  refuse."""
  w = (np.random.default_rng(3).standard_normal((32768, 24)) / 181).astype(np.float32)
  model = saved_model.Model(w, trainable=False).add(
    lambda w, x: x @ w, inputs={"x": "f32[128,32768]"}, outputs=["y"]
  )
  return Source.of(model), functools.partial(running_sums, w)


def compared(fun: Callable[[np.ndarray], np.ndarray], **options: Any) -> Any:
  return wide_layer()[0].compared(
    runner("x", fun),
    "onnx",
    "a runtime",
    Comparison(samples=1, **options),
    versions={},
    timed=False,
  )


def test_another_order_of_sums_is_accepted() -> None:
  (_, summed), source = wide_layer(), wide_layer()[0]
  (run, *_) = source.runs(Comparison(samples=1))
  right = np.asarray(source.signatures["serving_default"].reference(run.inputs["x"]))
  assert "elements differ" in compare.problem(summed(run.inputs["x"]), right), (
    "the fixed tolerances refuse it"
  )
  (row,) = (row for row in compared(summed).rows if row.values == "ordinary")
  assert not row.problem and row.of_tolerance < 0.8


@pytest.mark.parametrize("by", [0.02, -0.02])
def test_one_wrong_element_is_found_with_its_share_of_the_tolerance(by: float) -> None:
  with pytest.raises(
    ExportError,
    match=r"output 'y'.*: 1 of 3072 elements differ; at \[3, 5\] .*; the largest is [\d.e+]+ "
    r"times the tolerance$",
  ):
    compared(lambda x: one_wrong(wide_layer()[1](x), by))


def test_one_wrong_element_in_ten_million_is_found() -> None:
  y = RNG.standard_normal(10_000_000, np.float32)
  # of a function that allows more than the limit
  rounding = Rounding(np.full(y.shape, 1e-4), terms=10**9)
  wrong = y.copy()
  wrong[7_654_321] += 0.02 * np.abs(y).max()
  found = compare._difference(wrong, y, None, None, rounding=rounding)
  assert found.problem.startswith("1 of 10000000 elements differ; at [7654321]")
  assert found.of_tolerance == pytest.approx(2, rel=0.01)


def test_the_message_names_tolerances_that_accept_it() -> None:
  y = np.float32([1, 2, 4])
  problem = compare.problem(y + np.float32([0, 0, 0.001]), y)
  assert problem.endswith(
    "; the largest is 7.71 times the tolerance: atol=8.8e-04 with rtol=3.1e-05 accepts it"
  )
  assert not compare._difference(y + np.float32([0, 0, 0.001]), y, 3.1e-5, 8.8e-4).problem
  assert compare.problem(y * 2, y).endswith("times the tolerance")  # no advice: it is wrong


def test_tolerances_of_the_caller_are_kept() -> None:
  with pytest.raises(
    ExportError,
    match=r"the largest is .* times the tolerance: atol=.* with rtol=0\.0e\+00 accepts it",
  ):
    compared(wide_layer()[1], rtol=0.0, atol=1e-6)


def test_rounding_without_a_jaxpr() -> None:
  """For a function in NumPy: how far inputs that differ in the last place move the results."""
  distances, terms = Measure(lambda x: {"y": np.asarray(x) - np.float32(1), "n": np.int32(3)}).of(
    1 + X / 1e3
  )
  assert 0 < distances["y"].max() <= 2**-23 and distances["n"] == 0 and terms > 1


def test_a_function_that_cannot_be_measured_keeps_the_fixed_tolerances() -> None:
  calls = []

  def once(x: np.ndarray) -> np.ndarray:
    calls.append(x)
    if len(calls) > 1:
      raise RuntimeError("a generator that is exhausted")
    return np.asarray(x)

  with pytest.raises(RuntimeError):
    Measure(once).of(X)


def test_pixels_are_compared_over_their_whole_range() -> None:
  def fun(
    p: Any, pixels: jax.Array, signed: jax.Array, index: jax.Array, n: jax.Array
  ) -> jax.Array:
    centred = jax.jit(lambda x: x.reshape(-1).astype(jnp.int32) - 128)(pixels).astype(jnp.float32)
    return centred.sum() + signed.astype(jnp.float32) / 128 + jnp.ones(9)[index] + n

  inputs = {"pixels": "u8[b,5,3]", "signed": "i8[64]", "index": "u8[64]", "n": "i32[64]"}
  source = Source.of(saved_model.Model({}).add(fun, inputs=inputs))
  run = next(
    run for run in source.runs(Comparison(samples=1, sizes={"b": 8})) if run.values == "ordinary"
  )
  assert run.inputs["pixels"].max() > 200 and run.inputs["pixels"].min() < 20
  assert run.inputs["signed"].max() > 64 and run.inputs["signed"].min() < -64
  assert max(run.inputs["index"].max(), run.inputs["n"].max()) <= 9
