"""Expansions: ops that targets lack, as TensorFlow functions of ops that they have. Each module
registers its own; see `jax2tf.converters.export.expansion`."""

from __future__ import annotations

from . import (  # noqa: F401
  bessel,
  diagonals,
  incomplete_beta,
  incomplete_gamma,
  jacobi,
  orthogonal,
  philox,
  polygamma,
  triangular,
  tridiagonal,
)
