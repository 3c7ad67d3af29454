"""A mixture of experts: each token goes to the two that its router finds best, with `lax.top_k`."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.support.models.entry import Entry
from tests.support.models.libraries import Function, of_linen

EXPERTS, CHOSEN, WIDTH, HIDDEN = 4, 2, 16, 32


class MixtureOfExperts(nn.Module):
  """x f32[b,s,WIDTH] -> the same, and the load of each expert f32[EXPERTS]."""

  @nn.compact
  def __call__(self, x: Any) -> tuple[Any, Any]:
    init = nn.initializers.lecun_normal()
    up = self.param("up", init, (EXPERTS, WIDTH, HIDDEN))
    down = self.param("down", init, (EXPERTS, HIDDEN, WIDTH))
    scores, experts = lax.top_k(nn.Dense(EXPERTS)(x), CHOSEN)
    gates = jnp.sum(jax.nn.one_hot(experts, EXPERTS) * jax.nn.softmax(scores)[..., None], -2)
    hidden = nn.gelu(jnp.einsum("bsd,edh->bseh", x, up))
    y = jnp.einsum("bseh,ehd,bse->bsd", hidden, down, gates)
    return nn.LayerNorm()(x + y), jnp.mean(gates, (0, 1))


def build() -> tuple[Function, Any]:
  return of_linen(MixtureOfExperts(), np.zeros((1, 4, WIDTH), np.float32))


ENTRY = Entry(
  "mixture_of_experts",
  "Flax linen",
  build,
  {"x": f"f32[b,s,{WIDTH}]"},
  ["y", "load"],
  {"b": (1, 3), "s": (4, 7)},
)
