"""What to do instead of ops that no target has."""

from __future__ import annotations

from collections.abc import Mapping

_RANDOM = (
  "no file has TensorFlow's random numbers: take a key as an input, and draw them by jax.random"
)
_EIGENVALUES = (
  "no file has eigenvalues of general matrices: jnp.linalg.eigh has those of symmetric ones"
)
# {beginning of the types of ops: advice}. The random bits of jax.random are other ops.
_ADVICE = {
  "StatelessRandom": _RANDOM,
  "StatelessTruncated": _RANDOM,
  "StatelessMultinomial": _RANDOM,
  "StatelessShuffle": _RANDOM,
  "RandomUniform": _RANDOM,
  "RandomStandardNormal": _RANDOM,
  "Eig": _EIGENVALUES,
}


def reasons(ops: Mapping[str, str]) -> dict[str, str]:
  """{op: why a target refuses it, or what to do instead where that is known}, of {op: why}."""
  return {op: _advice(op) or why for op, why in ops.items()}


def _advice(op: str) -> str:
  return next((text for start, text in _ADVICE.items() if op.startswith(start)), "")
