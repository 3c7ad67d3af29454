"""Random bits and numbers."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from jax2tf.stablehlo.graph import Op
from jax2tf.stablehlo.rules import CUSTOM_CALLS, Evaluation, Refusal, rule
from jax2tf.stablehlo.shapes import static_sizes
from jax2tf.stablehlo.sizes import array

_ALGORITHMS = {
  "DEFAULT": lax.RandomAlgorithm.RNG_DEFAULT,
  "THREE_FRY": lax.RandomAlgorithm.RNG_THREE_FRY,
  "PHILOX": lax.RandomAlgorithm.RNG_PHILOX,
}


def _check_state(op: Op) -> Refusal | None:
  state = op.operands[0]
  if state.type is not None and state.shape in ((2,), (4,)):
    return None
  return Refusal(
    f"JAX generates random bits from a state of 128 bits, and this one is {state.text}",
    "write the model with an RBG key of JAX",
  )


@rule("rng_bit_generator", check=_check_state)
def _rng_bit_generator(evaluation: Evaluation, op: Op, state: Any) -> Any:
  return _generated(op, state, op.results[1].shape)


@rule("stablehlo.dynamic_rng_bit_generator", table=CUSTOM_CALLS, values=True, check=_check_state)
def _dynamic_rng_bit_generator(evaluation: Evaluation, op: Op, state: Any, shape: Any) -> Any:
  return _generated(op, array(state), static_sizes(shape))


def _generated(op: Op, state: Any, shape: Any) -> list[Any]:
  algorithm = _ALGORITHMS[op.get("rng_algorithm", "DEFAULT")]
  is_wide = state.dtype == np.uint64
  key = lax.bitcast_convert_type(state, np.uint32).reshape(-1) if is_wide else jnp.asarray(state)
  new, bits = lax.rng_bit_generator(key, shape, op.results[1].dtype, algorithm=algorithm)
  if is_wide:
    new = lax.bitcast_convert_type(new.reshape(-1, 2), np.uint64)
  return [new, bits]


def _check_distribution(op: Op) -> Refusal | None:
  if op.get("rng_distribution") == "UNIFORM":
    return None
  return Refusal(
    "it draws from a distribution without a key, which JAX does for the uniform one alone",
    "export the function with jax.random and a key",
  )


@rule("rng", values=True, check=_check_distribution)
def _rng(evaluation: Evaluation, op: Op, low: Any, high: Any, shape: Any) -> Any:
  return lax.rng_uniform(jnp.asarray(array(low)), jnp.asarray(array(high)), static_sizes(shape))
