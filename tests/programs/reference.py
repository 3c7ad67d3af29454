"""Runs the functions by JAX on eight devices, in a process of its own: python -m
tests.programs.reference FILE."""

from __future__ import annotations

import os
import sys

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import jax
import numpy as np

from tests.programs.on_devices import CASES, floats_of, loss_of


def main(path: str) -> None:
  """Writes {"value/NAME/INDEX" or "gradient/NAME/INDEX": array} as an .npz file."""
  found = {}
  for name, case in CASES.items():
    values = jax.tree.leaves(jax.jit(case.fun)(*case.arguments))
    found.update({f"value/{name}/{i}": np.asarray(y) for i, y in enumerate(values)})
    if case.has_gradient:
      gradient = jax.jit(jax.grad(loss_of(case.fun), floats_of(case.arguments)))
      leaves = jax.tree.leaves(gradient(*case.arguments))
      found.update({f"gradient/{name}/{i}": np.asarray(y) for i, y in enumerate(leaves)})
  np.savez(path, **found)


if __name__ == "__main__":
  main(sys.argv[1])
