"""Imports TensorFlow on the CPU without its start-up messages, which concern its build and not the
user's model.

This is not `jax2tf.tools.quiet`, because the serving examples run without JAX and jax2tf.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# On a GPU TensorFlow's products are less precise (TF32) than those of JAX on a CPU.
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")


@contextlib.contextmanager
def startup() -> Iterator[None]:
  """Hides stderr while TensorFlow is imported; its C++ code writes there before any log level
  applies."""
  stderr, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
  os.dup2(nowhere, 2)
  try:
    yield
    tf = sys.modules["tensorflow"]
    # the first graph looks for a GPU driver, and says so
    tf.function(lambda x: x + 1)(tf.constant(1))
  finally:
    os.dup2(stderr, 2)
    os.close(stderr)
    os.close(nowhere)
