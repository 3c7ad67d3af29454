"""TensorFlow on the CPU, without its start-up notes, which are about its build and not about the user's model.

A file of its own and not `jax2tf.tools.quiet`: the examples that serve run where neither JAX nor jax2tf is.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# On a GPU TensorFlow multiplies with fewer bits (TF32), and would be compared with JAX on a CPU.
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")


@contextlib.contextmanager
def startup() -> Iterator[None]:
  """Hides the process's stderr while TensorFlow is imported; its C++ writes there before any log level applies."""
  stderr, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
  os.dup2(nowhere, 2)
  try:
    yield
    tf = sys.modules["tensorflow"]
    tf.function(lambda x: x + 1)(tf.constant(1))  # the first graph that runs looks for a GPU's driver, aloud
  finally:
    os.dup2(stderr, 2)
    os.close(stderr)
    os.close(nowhere)
