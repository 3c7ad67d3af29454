"""Parameters of 4 and 8 bits, and their scales, for tests of exporters."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

RNG = np.random.default_rng(0)
X = RNG.standard_normal((4, 64)).astype("f")
BLOCK = 16


def quantized(dtype: str, *shape: int) -> np.ndarray:
  """Small integers, or floats, of a dtype."""
  least = 0 if dtype.startswith("u") else -7
  return RNG.integers(least, 8, shape).astype(jnp.dtype(dtype))


def scales(*shape: int) -> np.ndarray:
  return RNG.uniform(0.01, 0.1, shape).astype("f")


def wide(array: Any) -> Any:
  return array.astype(jnp.float32)
