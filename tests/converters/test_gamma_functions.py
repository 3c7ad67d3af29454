"""The expansions of gamma functions, against SciPy in double precision: TensorFlow's own kernels
lose digits for large parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.special
import tensorflow as tf

from jax2tf.converters.export import freezing
from jax2tf.converters.export.expansion import EXPANSIONS

RNG = np.random.default_rng(0)
ONE = np.float32(1)


def expanded(op: str, **operands: np.ndarray) -> np.ndarray:
  """The op as an exporter writes it, without replacements."""
  assert op in EXPANSIONS

  def call(**tensors: tf.Tensor) -> dict[str, tf.Tensor]:
    return {"y": getattr(tf.raw_ops, op)(**tensors)}

  specs = {name: tf.TensorSpec(x.shape, x.dtype, name) for name, x in operands.items()}
  concrete = tf.function(call, autograph=False).get_concrete_function(**specs)
  frozen = freezing.frozen(concrete, {})
  assert op not in [node.type for node in frozen.graph.get_operations()]
  result: np.ndarray = frozen(**{name: tf.constant(x) for name, x in operands.items()})["y"].numpy()
  return result


def near_the_mean(mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
  return np.abs(mean + RNG.standard_normal(mean.shape) * np.sqrt(variance))


# Rounding of a number x changes a tail by x times as much; what is 1 minus the other function has
# an error of it.
@pytest.mark.parametrize(
  ("largest", "rtol"), [(1.0, 2e-6), (30.0, 1e-5), (1000.0, 2e-5), (1e5, 2e-5)]
)
def test_incomplete_gamma_functions(largest: float, rtol: float) -> None:
  a = RNG.uniform(largest / 10, largest, 400).astype("f")
  x = near_the_mean(a, a).astype("f")
  for op, exact in (("Igamma", scipy.special.gammainc), ("Igammac", scipy.special.gammaincc)):
    np.testing.assert_allclose(
      expanded(op, a=a, x=x), exact(a.astype(float), x), rtol=rtol, atol=3e-7
    )


@pytest.mark.parametrize(("largest", "atol"), [(1.0, 1e-6), (30.0, 1e-6), (1e4, 2e-5)])
def test_incomplete_beta_function(largest: float, atol: float) -> None:
  a, b = (RNG.uniform(largest / 100, largest, 400).astype("f") for _ in range(2))
  mean = a / (a + b)
  x = np.clip(near_the_mean(mean, mean * (ONE - mean) / (a + b + ONE)), 0, 1).astype("f")
  exact = scipy.special.betainc(a.astype(float), b.astype(float), x.astype(float))
  np.testing.assert_allclose(expanded("Betainc", a=a, b=b, x=x), exact, rtol=5e-5, atol=atol)


@pytest.mark.parametrize(
  ("op", "names", "exact"),
  [("Igammac", "ax", scipy.special.gammaincc), ("Betainc", "abx", scipy.special.betainc)],
)
def test_double_precision(op: str, names: str, exact: Callable[..., Any]) -> None:
  """Only ONNX has it."""
  operands = {name: RNG.uniform(0.5, 60, 400) for name in names}
  if op == "Betainc":
    operands["x"] = RNG.random(400)
  expected = exact(*operands.values())
  np.testing.assert_allclose(expanded(op, **operands), expected, rtol=2e-13, atol=1e-14)
