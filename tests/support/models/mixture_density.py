"""A mixture density network: the parameters of several normal distributions, and how likely an
outcome is under them."""

from __future__ import annotations

from typing import Any

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jax.scipy.stats import norm

from tests.support.models.entry import Entry
from tests.support.models.libraries import Function, of_haiku

COMPONENTS = 5


def log_likelihood(x: Any, y: Any) -> tuple[Any, Any, Any]:
  """x f32[b,2], y f32[b] -> log likelihood of y given x f32[b], mean and standard deviation of the
  mixture f32[b]."""
  hidden = hk.nets.MLP([32, 32], activation=jnp.tanh, activate_final=True)(x)
  log_shares = jax.nn.log_softmax(hk.Linear(COMPONENTS)(hidden))
  means, scales = (
    hk.Linear(COMPONENTS)(hidden),
    jax.nn.softplus(hk.Linear(COMPONENTS)(hidden)) + 1e-3,
  )
  shares = jnp.exp(log_shares)
  mean = jnp.sum(shares * means, -1)
  variance = jnp.sum(shares * (scales**2 + (means - mean[:, None]) ** 2), -1)
  return (
    logsumexp(log_shares + norm.logpdf(y[:, None], means, scales), -1),
    mean,
    jnp.sqrt(variance),
  )


def build() -> tuple[Function, Any]:
  return of_haiku(log_likelihood, np.zeros((1, 2), np.float32), np.zeros(1, np.float32))


ENTRY = Entry(
  "mixture_density",
  "Haiku",
  build,
  {"x": "f32[b,2]", "y": "f32[b]"},
  ["log_likelihood", "mean", "deviation"],
  {"b": (1, 5)},
)
