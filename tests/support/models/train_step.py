"""A whole step of training: the loss of a small transformer, its gradient, and AdamW under a
clipped norm; see examples/train_step.py."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import optax

from jax2tf.examples import train_step
from tests.support.models.entry import Entry, below
from tests.support.models.libraries import Function


def build() -> tuple[Function, Any]:
  """(step of ((params, optimiser state), tokens, targets), the state after a few steps)."""
  rng = np.random.default_rng(0)
  optimiser = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(3e-3))
  update = train_step.make_step(train_step.loss, optimiser)

  def step(state: Any, tokens: Any, targets: Any) -> dict[str, Any]:
    params, opt_state, loss = update(*state, {"tokens": tokens, "targets": targets})
    return {"loss": loss, "params": params, "opt_state": opt_state}

  params, jitted = train_step.init(rng), jax.jit(step)
  state = params, optimiser.init(params)
  # Adam divides by the size of the gradients so far: after one step that is a division of a number
  # by itself.
  for _ in range(5):
    tokens = rng.integers(0, train_step.VOCABULARY, (8, train_step.LENGTH), np.int32)
    result = jitted(state, tokens, tokens[:, ::-1])
    state = result["params"], result["opt_state"]
  return step, state


_BATCH = f"i32[b,{train_step.LENGTH}]"

ENTRY = Entry(
  "train_step",
  "plain JAX, Optax",
  build,
  {"tokens": _BATCH, "targets": _BATCH},
  None,
  {"b": (2, 5)},
  draws=dict.fromkeys(("tokens", "targets"), below(train_step.VOCABULARY)),
)
