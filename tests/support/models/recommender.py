"""A recommender as in DLRM: embeddings of categories, their products in pairs, and a dense part."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.support.models.entry import Entry, below
from tests.support.models.libraries import KEY, Function, weights

DENSE, CATEGORIES, VALUES, WIDTH = 13, 6, 100, 8
PAIRS = np.triu_indices(CATEGORIES + 1, 1)


def click_probability(params: Any, dense: Any, categories: Any) -> Any:
  """dense f32[b,DENSE], categories i32[b,CATEGORIES] -> f32[b]."""
  bottom = jax.nn.relu(jnp.log1p(jnp.abs(dense)) @ params["bottom"])
  embedded = params["tables"][jnp.arange(CATEGORIES), categories]
  vectors = jnp.concatenate([bottom[:, None], embedded], 1)
  products = (vectors @ vectors.swapaxes(1, 2))[:, *PAIRS]
  hidden = jax.nn.relu(jnp.concatenate([bottom, products], -1) @ params["hidden"])
  return jax.nn.sigmoid(hidden @ params["top"])


def build() -> tuple[Function, Any]:
  keys = jax.random.split(KEY, 4)
  return click_probability, {
    "bottom": weights(keys[0], DENSE, WIDTH),
    "tables": np.asarray(jax.random.normal(keys[1], (CATEGORIES, VALUES, WIDTH))) / WIDTH**0.5,
    "hidden": weights(keys[2], WIDTH + len(PAIRS[0]), 16),
    "top": weights(keys[3], 16),
  }


ENTRY = Entry(
  "recommender",
  "plain JAX",
  build,
  {"dense": f"f32[b,{DENSE}]", "categories": f"i32[b,{CATEGORIES}]"},
  ["probability"],
  {"b": (1, 5)},
  draws={"categories": below(VALUES)},
)
