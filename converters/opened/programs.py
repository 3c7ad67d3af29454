"""What closed ops compute, as JAX functions."""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf

from jax2tf.stablehlo.functions import Function


@dataclass(frozen=True, eq=False)
class Program:
  """What an op computes.

  Attributes:
    function: in JAX.
    inputs: which inputs of the op it takes, in their order.
    specs: of these.
    arguments: of `function`, each as the position of an input in `inputs`, and None; or which of
      its entries, in one line, is the number that becomes a dimension variable.
    checks_sizes: whether there are sizes that must be equal, not above others, or not 0. Without
      these, sizes of 0 are right, which a check would refuse: JAX's symbolic sizes are 1 or more.
  """

  function: Function
  inputs: tuple[int, ...]
  specs: tuple[tf.TensorSpec, ...]
  arguments: tuple[tuple[int, int | None], ...]
  checks_sizes: bool = True
