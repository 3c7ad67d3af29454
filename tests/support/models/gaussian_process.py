"""Regression by a Gaussian process: the Cholesky factor of the observations' covariance, two
triangular solves."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve, solve_triangular

from tests.support.models.entry import Entry
from tests.support.models.libraries import Function

OBSERVED = 12


def _covariance(params: Any, left: Any, right: Any) -> Any:
  difference = (left[:, None] - right[None]) / jnp.exp(params["log_length"])
  return jnp.exp(2 * params["log_scale"] - 0.5 * jnp.sum(difference**2, -1))


def predict(params: Any, observed_x: Any, observed_y: Any, x: Any) -> tuple[Any, Any, Any]:
  """observed_x f32[OBSERVED,2], observed_y f32[OBSERVED], x f32[b,2] -> mean and variance at x
  f32[b], log likelihood f32[]."""
  noise = jnp.exp(2 * params["log_noise"]) * jnp.eye(OBSERVED)
  factor = jnp.linalg.cholesky(_covariance(params, observed_x, observed_x) + noise)
  weights = cho_solve((factor, True), observed_y)
  across = _covariance(params, observed_x, x)
  explained = solve_triangular(factor, across, lower=True)
  variance = jnp.exp(2 * params["log_scale"]) - jnp.sum(explained**2, 0)
  log_likelihood = (
    -0.5 * observed_y @ weights
    - jnp.sum(jnp.log(jnp.diag(factor)))
    - 0.5 * OBSERVED * jnp.log(2 * jnp.pi)
  )
  return across.T @ weights, variance, log_likelihood


def build() -> tuple[Function, Any]:
  return predict, {
    "log_length": np.log(np.float32([0.8, 1.2])),
    "log_scale": np.float32(0.1),
    "log_noise": np.float32(-1.0),
  }


ENTRY = Entry(
  "gaussian_process",
  "plain JAX",
  build,
  {"observed_x": f"f32[{OBSERVED},2]", "observed_y": f"f32[{OBSERVED}]", "x": "f32[b,2]"},
  ["mean", "variance", "log_likelihood"],
  {"b": (1, 5)},
)
