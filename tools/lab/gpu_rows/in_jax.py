"""JAX's own times and errors on its GPU."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from jax2tf.tools.lab.gpu_rows.comparing import error, milliseconds
from jax2tf.tools.lab.gpu_rows.programs import Program
from tests.support.models.zoo import loss_of


def row(program: Program, seconds: float) -> dict[str, Any]:
  """Measures one program; see the columns in `__main__`."""
  fun, built = program.build()
  params, x = jax.tree.map(np.asarray, built), program.inputs()
  on_gpu = jax.device_put((params, x))
  forward = jax.jit(fun)
  found: dict[str, Any] = {
    "forward": milliseconds(lambda: forward(*on_gpu), jax.block_until_ready, seconds)
  }
  with jax.default_device(jax.local_devices(backend="cpu")[0]):
    expected = jax.tree.leaves(jax.jit(fun)(params, x))
  found["error"] = error(jax.tree.leaves(forward(*on_gpu)), expected)
  if program.differentiable:
    gradient = jax.jit(jax.value_and_grad(loss_of(fun), allow_int=True))
    found["gradient"] = milliseconds(lambda: gradient(*on_gpu), jax.block_until_ready, seconds)
  return found
