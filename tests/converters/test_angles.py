"""sin, cos and tan of large angles, in float32 against float64: NumPy's own reduction is exact."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

from jax2tf.converters.export import angles

LARGEST = np.finfo(np.float32).max


@pytest.mark.parametrize(
  ("ours", "exact"), [(angles.sin, np.sin), (angles.cos, np.cos), (angles.tan, np.tan)]
)
def test_every_size_of_angle(ours: Callable[..., Any], exact: Callable[..., np.ndarray]) -> None:
  rng = np.random.default_rng(0)
  x = np.concatenate(
    [
      rng.uniform(-1, 1, 50_000) * 10.0 ** rng.uniform(-3, 38.5, 50_000),
      np.arange(1, 50_000) * np.pi,  # next to the zeros of one, and to the poles of another
      np.arange(1, 50_000) * (np.pi / 2),
      # next to a multiple of pi / 2 as no other float32 is (Kahan's and Muller's worst cases)
      [
        16367173 * 2.0**72,
        16367173 * -(2.0**72),
        LARGEST,
        -LARGEST,
        4,
        -4,
        2.0**13,
        2.0**24,
        2.0**35,
      ],
    ]
  ).astype(np.float32)
  expected = exact(x.astype(np.float64))
  found = ours(tf.constant(x)).numpy()
  units = np.abs(found - expected) / np.spacing(np.abs(expected).astype(np.float32))
  assert units.max() < 4  # a product with pi, the kernel's own error, and for tan a quotient


@pytest.mark.parametrize("ours", [angles.sin, angles.cos, angles.tan])
def test_what_is_no_angle_and_zeros(ours: Callable[..., Any]) -> None:
  found = ours(tf.constant([np.inf, -np.inf, np.nan])).numpy()
  assert np.isnan(found).all()
  zeros = ours(tf.constant([0.0, -0.0])).numpy()
  np.testing.assert_array_equal(zeros, [1, 1] if ours is angles.cos else [0, 0])
  assert np.signbit(zeros).tolist() == [False, ours is not angles.cos]


@pytest.mark.parametrize("target", ["tflite", "tfjs"])
def test_in_the_runtimes_themselves(
  target: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
  """Each loses digits of large angles by its own kernels, and TF.js lacks ops that TensorFlow makes
  of short sums."""
  if target == "tfjs":
    request.getfixturevalue("tfjs_packages")
  rng = np.random.default_rng(1)
  x = (rng.uniform(-1, 1, 500) * 10.0 ** rng.uniform(-3, 38, 500)).astype(np.float32)
  exporter = importlib.import_module(f"jax2tf.converters.{target}")
  exporter.save(
    lambda _, x: [jnp.sin(x), jnp.cos(x), jnp.tan(x)],
    {},
    tmp_path / "m",
    inputs={"x": "f32[500]"},
    examples={"x": x},
  )
  found = exporter.run(tmp_path / "m", {"x": x})
  for name, exact in (("output_0", np.sin), ("output_1", np.cos)):
    # Four units of 1: what TF.js' wasm makes of sines of small angles; it was off by up to 2
    # before.
    np.testing.assert_allclose(found[name], exact(x.astype(np.float64)), rtol=0, atol=5e-7)
