"""StableHLO artifacts as JAX functions: files of `jax.export`, and modules of any writer.

`load` is the way in. Each operation becomes the call of `jax.lax` that has its meaning, so the
result is a function like any other one.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
  from jax2tf.errors import ArtifactError
  from jax2tf.stablehlo.functions import Function
  from jax2tf.stablehlo.loading import load

__all__ = ["ArtifactError", "Function", "load"]

_HOMES = {
  "ArtifactError": "jax2tf.errors",
  "Function": "jax2tf.stablehlo.functions",
  "load": "jax2tf.stablehlo.loading",
}

if not TYPE_CHECKING:

  def __getattr__(name: str) -> Any:
    """A public name; the child process that parses imports neither TensorFlow nor the rules."""
    if name not in _HOMES:
      raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
