"""A graph network: messages along edges, summed at their receivers by `segment_sum`; a graph of any
size."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from tests.support.models.entry import Entry, below
from tests.support.models.libraries import KEY, Function, weights

FEATURES, WIDTH, CLASSES = 8, 16, 3
NODES = (6, 10)


def graph_network(params: Any, nodes: Any, senders: Any, receivers: Any) -> tuple[Any, Any]:
  """nodes f32[n,FEATURES], senders and receivers i32[e] -> scores of the nodes f32[n,CLASSES], and
  of the graph f32[CLASSES]."""
  n = nodes.shape[0]
  degrees = jax.ops.segment_sum(jnp.ones(receivers.shape[0]), receivers, n)
  x = jnp.tanh(nodes @ params["in"])
  for layer in params["layers"]:
    messages = jax.nn.relu(jnp.concatenate([x[senders], x[receivers]], -1) @ layer["message"])
    received = jax.ops.segment_sum(messages, receivers, n) / jnp.maximum(degrees, 1)[:, None]
    x = x + jnp.tanh(jnp.concatenate([x, received], -1) @ layer["update"])
  return x @ params["out"], jnp.mean(x, 0) @ params["out"]


def build() -> tuple[Function, Any]:
  keys = iter(jax.random.split(KEY, 6))
  layers = [
    {name: weights(next(keys), 2 * WIDTH, WIDTH) for name in ("message", "update")}
    for _ in range(2)
  ]
  return graph_network, {
    "in": weights(next(keys), FEATURES, WIDTH),
    "out": weights(next(keys), WIDTH, CLASSES),
    "layers": layers,
  }


ENTRY = Entry(
  "graph_network",
  "plain JAX",
  build,
  {"nodes": f"f32[n,{FEATURES}]", "senders": "i32[e]", "receivers": "i32[e]"},
  ["node_scores", "graph_scores"],
  {"n": NODES, "e": (15, 24)},
  # Of nodes that there are at each size.
  draws=dict.fromkeys(("senders", "receivers"), below(min(NODES))),
)
