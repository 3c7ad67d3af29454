"""Transforms and decompositions that StableHLO has as ops."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from jax2tf.stablehlo.graph import Op
from jax2tf.stablehlo.rules import Evaluation, rule


def adjoint(matrix: Any) -> Any:
  """The conjugate transposed matrix."""
  return jnp.conj(jnp.swapaxes(matrix, -1, -2))


@rule("fft")
def _fft(evaluation: Evaluation, op: Op, value: Any) -> Any:
  kind = getattr(lax.FftType, op.attributes["fft_type"])
  return lax.fft(value, kind, tuple(op.attributes["fft_length"]))


@rule("cholesky")
def _cholesky(evaluation: Evaluation, op: Op, matrix: Any) -> Any:
  if op.get("lower", False):
    return lax.linalg.cholesky(matrix, symmetrize_input=False)
  return adjoint(lax.linalg.cholesky(adjoint(matrix), symmetrize_input=False))


@rule("triangular_solve")
def _triangular_solve(evaluation: Evaluation, op: Op, matrix: Any, right: Any) -> Any:
  transposed = op.attributes["transpose_a"]
  return lax.linalg.triangular_solve(
    matrix,
    right,
    left_side=op.attributes["left_side"],
    lower=op.attributes["lower"],
    transpose_a=transposed != "NO_TRANSPOSE",
    conjugate_a=transposed == "ADJOINT",
    unit_diagonal=op.attributes["unit_diagonal"],
  )
