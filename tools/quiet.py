"""Suppresses TensorFlow's start-up messages, which concern its build and not the user's model."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def startup(*, lean: bool = False) -> Iterator[None]:
  """Hides the process's stderr while TensorFlow is imported; its C++ (2.21) writes there before any
  log level applies.

  Args:
    lean: TensorFlow imports neither JAX, as it does for its TFLite converter, nor Keras, which
      imports scikit-learn and Matplotlib, where these are installed. SavedModels need none of them.
      An import of TensorFlow (2.21) takes 2.1 s of CPU time in place of 3.9 s, and 100 MB less.
      Programs import them afterwards if they want to.
  """
  with contextlib.ExitStack() as stack:
    for package in ("jax", "keras") if lean else ():
      stack.enter_context(_hidden(package))
    stack.enter_context(_silent())
    yield


@contextlib.contextmanager
def _hidden(module: str) -> Iterator[None]:
  """Nothing imports a module that has not been imported before."""
  if module in sys.modules:
    yield
    return
  sys.modules[module] = None  # type: ignore[assignment]
  try:
    yield
  finally:
    del sys.modules[module]


@contextlib.contextmanager
def _silent() -> Iterator[None]:
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
  stderr, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
  os.dup2(nowhere, 2)
  try:
    yield
    tf = sys.modules["tensorflow"]
    # the first graph looks for a GPU driver, and says so
    tf.function(lambda x: x + 1, autograph=False)(tf.constant(1))
  finally:
    os.dup2(stderr, 2)
    os.close(stderr)
    os.close(nowhere)


def sentence(message: str) -> str:
  """The message of an Assert op or a kernel, without the list of graph nodes."""
  lines = [line.strip() for line in message.splitlines()]
  lines_kept = [
    line
    for line in lines
    if line
    and not line.startswith(
      ("Graph execution error", "Detected at node", "File ", "[[", "Node:", "<stack")
    )
  ]
  return (
    re.sub(r"\{\{.*?\}\} | ?\[Op:\w+\] name:.*", "", " ".join(lines_kept))[:1000]
    or "no reason given"
  )
