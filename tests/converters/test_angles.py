"""sin, cos and tan of large angles, in float32 against float64: NumPy's own reduction is exact."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from jax2tf.converters import _angles

LARGEST = np.finfo(np.float32).max


@pytest.mark.parametrize(("ours", "exact"), [(_angles.sin, np.sin), (_angles.cos, np.cos), (_angles.tan, np.tan)])
def test_every_size_of_angle(ours: Callable[..., Any], exact: Callable[..., np.ndarray]) -> None:
  rng = np.random.default_rng(0)
  x = np.concatenate([
    rng.uniform(-1, 1, 50_000) * 10.0 ** rng.uniform(-3, 38.5, 50_000),
    np.arange(1, 50_000) * np.pi,  # next to the zeros of one, and to the poles of another
    np.arange(1, 50_000) * (np.pi / 2),
    # next to a multiple of pi / 2 as no other float32 is (Kahan's and Muller's worst cases)
    [16367173 * 2.0**72, 16367173 * -(2.0**72), LARGEST, -LARGEST, 4, -4, 2.0**13, 2.0**24, 2.0**35],
  ]).astype(np.float32)  # fmt: skip
  expected = exact(x.astype(np.float64))
  found = ours(tf.constant(x)).numpy()
  units = np.abs(found - expected) / np.spacing(np.abs(expected).astype(np.float32))
  assert units.max() < 4  # a product with pi, the kernel's own error, and for tan a quotient


@pytest.mark.parametrize("ours", [_angles.sin, _angles.cos, _angles.tan])
def test_what_is_no_angle_and_zeros(ours: Callable[..., Any]) -> None:
  found = ours(tf.constant([np.inf, -np.inf, np.nan])).numpy()
  assert np.isnan(found).all()
  zeros = ours(tf.constant([0.0, -0.0])).numpy()
  np.testing.assert_array_equal(zeros, [1, 1] if ours is _angles.cos else [0, 0])
  assert np.signbit(zeros).tolist() == [False, ours is not _angles.cos]
