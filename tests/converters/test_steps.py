"""Networks that round: a whole step that the last bit decides on is accepted, a wrong network is
not, and functions without a rounding get nothing."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jax2tf.converters import saved_model
from jax2tf.converters.export.source import ExportError, Source
from jax2tf.converters.verify.float64 import Wide
from jax2tf.converters.verify.plan import Comparison
from jax2tf.converters.verify.rounding import Rounding

RNG = np.random.default_rng(0)
SIZES = (32, 16, 8)
X = RNG.standard_normal((4, 32)).astype("f")
WEIGHTS = [
  (
    RNG.integers(-127, 128, sizes).astype(np.int8),
    RNG.uniform(0.002, 0.004, sizes[1]).astype(np.float32),
  )
  for sizes in itertools.pairwise(SIZES)
]


def quantized(xp: Any, params: Any, x: Any) -> Any:
  """int8 weights and activations, whose scale makes the largest one a tie, 127.5."""
  for w, scale in params:
    step = xp.max(xp.abs(x), axis=-1, keepdims=True) / 127.5
    whole = xp.clip(xp.round(x / step), -128, 127).astype(np.int8)
    x = xp.tanh(xp.matmul(whole.astype(np.float32), w.astype(np.float32)) * step * scale)
  return x


# {name: (function, whether each of its results depends on a rounding)}
FUNCTIONS: dict[str, tuple[Callable[[jax.Array], Any], list[bool]]] = {
  "none": (lambda x: jnp.tanh(x), [False]),
  "one of two": (lambda x: (x + 1, jnp.round(x) * x), [False, True]),
  "of integers": (lambda x: (jnp.arange(4) // 2).astype(jnp.float32) + x[0, :4], [False]),
  "to integers": (lambda x: x.astype(jnp.int8).astype(jnp.float32), [True]),
  "to float8": (lambda x: x.astype(jnp.float8_e4m3fn).astype(jnp.float32), [True]),
  "in a loop": (lambda x: lax.scan(lambda c, r: (c + jnp.floor(r), c), x[0], x)[0], [True]),
  "in a call": (jax.jit(lambda x: jax.checkpoint(jnp.ceil)(x)), [True]),
  "of a constant": (lambda x: x * jnp.round(jnp.asarray(X[0])), [True]),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_which_results_depend_on_a_rounding(name: str) -> None:
  fun, expected = FUNCTIONS[name]
  wide = Wide.of(fun, X)
  assert list(wide.steps) == expected
  # what moves the operands of a rounding moves nothing else
  for exact, moved, steps in zip(wide(X), wide.moved(X), expected, strict=True):
    assert steps or (exact == moved).all()


@functools.cache
def source() -> Source:
  model = saved_model.Model(WEIGHTS, trainable=False)
  model.add(functools.partial(quantized, jnp), inputs={"x": "f32[4,32]"}, outputs=["y"])
  return Source.of(model)


def compared(params: Any) -> Any:
  """The report on a runtime that computes ordinary inputs in float64, which decides on ties
  otherwise than float32."""

  def answered(run: Any) -> Any:
    x = run.inputs["x"]
    if run.values == "ordinary":
      y = quantized(np, params, x.astype(np.float64)).astype(np.float32)
    else:
      y = np.asarray(jax.jit(functools.partial(quantized, jnp))(params, x))
    return {"outputs": {"y": y}, "error": "", "seconds": None}

  return source().compared(
    lambda runs: [answered(run) for run in runs],
    "onnx",
    "a runtime",
    Comparison(samples=4),
    versions={},
    timed=False,
  )


def test_steps_of_a_right_network_are_accepted_and_reported() -> None:
  report = compared(WEIGHTS)
  (row,) = (row for row in report.rows if row.values == "ordinary")
  # more than float32 differs by, and a share of JAX's own change
  assert row.steps and row.max_abs > 1e-4 and row.of_tolerance < 1
  assert "y rounds, and differs by steps: cosine 1.0000, top-1 100.0% of" in report.verdict


def test_a_wrong_scale_is_found() -> None:
  (first, (w, scale)) = WEIGHTS
  with pytest.raises(ExportError, match=r"output 'y'.*: \d+ of 32 elements differ"):
    compared([first, (w, scale * np.float32(1.2))])


def test_nothing_is_allowed_without_a_rounding() -> None:
  expected, distances = np.ones(100), np.full(100, 0.02)
  assert Rounding(distances, 8).allowed(expected).max() == pytest.approx(0.01)
  assert 0.05 < Rounding(distances, 8, has_steps=True).allowed(expected).max() <= 0.1
