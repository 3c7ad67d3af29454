"""Rows for `jax2tf/lowering/elementwise.py`."""

from jax import numpy as jnp

from tests.case import HOSTILE_F32, Case, run

CASES = [
  Case("sin", jnp.sin, [HOSTILE_F32], poly="b"),
  Case("mul", lambda x, y: (x * y, {"a": x + 1}), [HOSTILE_F32, HOSTILE_F32[::-1]], poly="b"),
]
test_case, saved = run(CASES)
