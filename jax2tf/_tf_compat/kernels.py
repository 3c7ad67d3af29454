"""TensorFlow's registry of kernels: for which devices and dtypes an op has one, and which of its
operands and results are in host memory."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

try:
  # TF 2.21 has no public name for it.
  from tensorflow.python.framework.kernels import get_registered_kernels_for_op as _registered
except ImportError:  # pragma: no cover
  _registered = None


@functools.cache
def kernels_of(op: str) -> Sequence[Any]:
  """The KernelDefs of an op type, of all devices that this TensorFlow was built for, whether they
  are here or not.

  Raises:
    NotImplementedError: this TensorFlow does not say which kernels it has.
  """
  if _registered is None:
    raise NotImplementedError(
      f"TensorFlow {tf.__version__} does not say which kernels it has: "
      "tensorflow.python.framework.kernels.get_registered_kernels_for_op is gone; use the release "
      "that pyproject.toml names"
    )
  _register_xla()
  return tuple(_registered(op).kernel)


@functools.cache
def _register_xla() -> None:
  """Has TensorFlow register the kernels of XLA's devices, which it does when it first compiles."""
  tf.function(lambda: tf.constant(0.0), jit_compile=True, autograph=False)()
