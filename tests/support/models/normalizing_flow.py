"""A normalizing flow (RealNVP): affine couplings with permutations between them, and the density of
a point."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.stats import norm

from tests.support.models.entry import Entry
from tests.support.models.libraries import KEY, Function, of_equinox

SIZE, COUPLINGS = 4, 4


class RealNVP(eqx.Module):
  """x f32[SIZE] -> z f32[SIZE], its log density f32[], and x again from z."""

  couplings: list[eqx.nn.MLP]

  def __init__(self, key: Any):
    self.couplings = [
      eqx.nn.MLP(SIZE // 2, SIZE, 16, 1, activation=jnp.tanh, key=k)
      for k in jax.random.split(key, COUPLINGS)
    ]

  def __call__(self, x: Any) -> tuple[Any, Any, Any]:
    z, log_determinant = x, jnp.zeros(())
    for coupling in self.couplings:
      kept, moved = jnp.split(z, 2)
      scale, shift = jnp.split(coupling(kept), 2)
      scale = jnp.tanh(scale)
      z = jnp.concatenate([moved * jnp.exp(scale) + shift, kept])
      log_determinant = log_determinant + jnp.sum(scale)
    return z, jnp.sum(norm.logpdf(z)) + log_determinant, self.inverse(z)

  def inverse(self, z: Any) -> Any:
    for coupling in reversed(self.couplings):
      moved, kept = jnp.split(z, 2)
      scale, shift = jnp.split(coupling(kept), 2)
      z = jnp.concatenate([kept, (moved - shift) * jnp.exp(-jnp.tanh(scale))])
    return z


def build() -> tuple[Function, Any]:
  return of_equinox(RealNVP(KEY))


ENTRY = Entry(
  "normalizing_flow",
  "Equinox",
  build,
  {"x": f"f32[b,{SIZE}]"},
  ["z", "log_density", "x_again"],
  {"b": (1, 5)},
)
