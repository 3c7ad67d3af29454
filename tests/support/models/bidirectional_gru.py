"""A tagger of two GRUs, one of which reads backwards."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax

from tests.support.models.entry import Entry
from tests.support.models.libraries import KEY, Function, of_equinox

FEATURES, WIDTH, TAGS = 8, 16, 5


class Tagger(eqx.Module):
  """xs f32[s,FEATURES] -> f32[s,TAGS]."""

  forwards: eqx.nn.GRUCell
  backwards: eqx.nn.GRUCell
  head: eqx.nn.Linear

  def __init__(self, key: Any):
    keys = jax.random.split(key, 3)
    self.forwards = eqx.nn.GRUCell(FEATURES, WIDTH, key=keys[0])
    self.backwards = eqx.nn.GRUCell(FEATURES, WIDTH, key=keys[1])
    self.head = eqx.nn.Linear(2 * WIDTH, TAGS, key=keys[2])

  def __call__(self, xs: Any) -> Any:
    def states(cell: eqx.nn.GRUCell, reverse: bool) -> Any:
      return lax.scan(lambda h, x: (cell(x, h),) * 2, jnp.zeros(WIDTH), xs, reverse=reverse)[1]

    both = jnp.concatenate([states(self.forwards, False), states(self.backwards, True)], -1)
    return jax.vmap(self.head)(both)


def build() -> tuple[Function, Any]:
  return of_equinox(Tagger(KEY))


ENTRY = Entry(
  "bidirectional_gru",
  "Equinox",
  build,
  {"xs": f"f32[b,s,{FEATURES}]"},
  ["scores"],
  {"b": (1, 3), "s": (6, 9)},
)
