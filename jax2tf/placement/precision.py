"""Products that ask for more precision than TensorFlow gives them on a GPU.

JAX and TensorFlow both multiply float32 in TensorFloat-32 on NVIDIA's GPUs since Ampere, which
keeps 10 bits of the mantissa. `jax.lax.Precision.HIGHEST` makes JAX keep all 23. TensorFlow has one
switch for the whole process, `tf.config.experimental.enable_tensor_float_32_execution`, and no op
has an attribute of its own.
"""

from __future__ import annotations

from typing import Any

import jax.extend.core.primitives as P
import numpy as np
import tensorflow as tf
from jax import lax

from jax2tf import _jax_compat
from jax2tf.jaxprs import Eqn
from jax2tf.placement.devices import Destination

_PRODUCTS = frozenset({P.dot_general_p, P.conv_general_dilated_p, _jax_compat.ragged_dot_general_p})

# The algorithms that keep more of a float32 than TensorFloat-32.
_MORE = frozenset(
  {
    lax.DotAlgorithmPreset.F32_F32_F32,
    lax.DotAlgorithmPreset.TF32_TF32_F32_X3,
    lax.DotAlgorithmPreset.BF16_BF16_F32_X3,
    lax.DotAlgorithmPreset.BF16_BF16_F32_X6,
    lax.DotAlgorithmPreset.BF16_BF16_F32_X9,
  }
)


def has_tf32(destination: Destination) -> bool:
  """Whether TensorFlow multiplies in TensorFloat-32 there: NVIDIA's GPUs, unless it is off."""
  on_nvidia = destination.on_gpu and destination.platforms != ("rocm",)
  return on_nvidia and tf.config.experimental.tensor_float_32_execution_enabled()


def exceeds_tf32(eqn: Eqn) -> bool:
  """Whether an equation multiplies 32-bit floats, and asks for more bits than TensorFloat-32 has.

  `lax.Precision.DEFAULT` and `HIGH` allow TensorFloat-32, as JAX's documentation of `Precision` has
  it.
  """
  if eqn.primitive not in _PRODUCTS:
    return False
  if not any(_is_32_bit(x.aval.dtype) for x in eqn.invars[:2]):
    return False
  precision: Any = eqn.params["precision"]
  if isinstance(precision, lax.DotAlgorithmPreset):
    return precision in _MORE
  return isinstance(precision, tuple) and lax.Precision.HIGHEST in precision


def _is_32_bit(dtype: Any) -> bool:
  return dtype in (np.float32, np.complex64)
