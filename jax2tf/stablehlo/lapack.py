"""Custom calls of LAPACK, which JAX writes for decompositions on CPU.

A name has LAPACK's letter for the dtype: `lapack_spotrf_ffi` is that of `lapack_potrf`. JAX up to
0.4.38 gives sizes and options as operands, later ones as `mhlo.backend_config`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from jax2tf import _jax_compat
from jax2tf.stablehlo.graph import Op
from jax2tf.stablehlo.linear_algebra import adjoint
from jax2tf.stablehlo.rules import CUSTOM_CALLS, Evaluation, Refusal, Rule

Options = dict[str, Any]


@dataclass(frozen=True)
class _Routine:
  """One routine of LAPACK.

  Attributes:
    function: `(options, op, *arrays)`, which gives the results of the call but `info`.
    arrays: how many operands are arrays; in old calls they stand last.
    has_info: whether the new call has `info` as its last result.
  """

  function: Callable[..., Any]
  arrays: int = 1
  has_info: bool = True


def _letter(options: Options, name: str) -> str:
  return chr(int(options[name])).upper()


def _potrf(options: Options, op: Op, matrix: Any) -> list[Any]:
  # LAPACK leaves the other triangle as it is.
  if _letter(options, "uplo") == "L":
    factor = lax.linalg.cholesky(matrix, symmetrize_input=False)
    return [jnp.tril(factor) + jnp.triu(matrix, 1)]
  factor = adjoint(lax.linalg.cholesky(adjoint(matrix), symmetrize_input=False))
  return [jnp.triu(factor) + jnp.tril(matrix, -1)]


def _getrf(options: Options, op: Op, matrix: Any) -> list[Any]:
  factors, pivots, _ = lax.linalg.lu(matrix)
  return [factors, pivots + np.array(1, pivots.dtype)]


def _geqrf(options: Options, op: Op, matrix: Any) -> list[Any]:
  return list(_jax_compat.geqrf_p.bind(jnp.asarray(matrix)))


def _geqp3(options: Options, op: Op, matrix: Any, pivots: Any) -> list[Any]:
  results = _jax_compat.geqp3_p.bind(jnp.asarray(matrix), jnp.asarray(pivots), use_magma=None)
  return list(results)


def _orgqr(options: Options, op: Op, matrix: Any, taus: Any) -> list[Any]:
  return [lax.linalg.householder_product(matrix, taus)]


def _trsm(options: Options, op: Op, matrix: Any, right: Any) -> list[Any]:
  return [
    lax.linalg.triangular_solve(
      matrix,
      right,
      left_side=_letter(options, "side") == "L",
      lower=_letter(options, "uplo") == "L",
      transpose_a=_letter(options, "trans_x") != "N",
      conjugate_a=_letter(options, "trans_x") == "C",
      unit_diagonal=_letter(options, "diag") == "U",
    )
  ]


def _syevd(options: Options, op: Op, matrix: Any) -> list[Any]:
  is_lower = _letter(options, "uplo") == "L"
  vectors, values = lax.linalg.eigh(matrix, lower=is_lower, symmetrize_input=False)
  return [vectors, values]


def _gesdd(options: Options, op: Op, matrix: Any) -> list[Any]:
  mode = _letter(options, "mode")
  if mode != "N":
    left, values, right = lax.linalg.svd(matrix, full_matrices=mode == "A")
    return [matrix, values, left, right]
  values = lax.linalg.svd(matrix, compute_uv=False)
  values = values[0] if isinstance(values, list | tuple) else values
  unused = [_unused(op, 2, matrix), _unused(op, 3, matrix)]
  return [matrix, values, *unused]


def _unused(op: Op, index: int, matrix: Any) -> Any:
  """Zeros for a result that the mode leaves undefined."""
  shape = list(op.results[index].shape)
  batch = matrix.shape[:-2]
  sizes = [*batch, *(_size(size, matrix) for size in shape[len(batch) :])]
  return jnp.zeros(sizes, op.results[index].dtype)


def _size(size: int | None, matrix: Any) -> Any:
  return min(matrix.shape[-2:]) if size is None else size


def _geev(options: Options, op: Op, matrix: Any) -> list[Any]:
  wants_left = _letter(options, "compute_left") == "V"
  wants_right = _letter(options, "compute_right") == "V"
  values, *vectors = lax.linalg.eig(
    matrix, compute_left_eigenvectors=wants_left, compute_right_eigenvectors=wants_right
  )
  nothing = jnp.zeros(matrix.shape, values.dtype)
  left = vectors.pop(0) if wants_left else nothing
  right = vectors.pop(0) if wants_right else nothing
  is_complex = jnp.iscomplexobj(matrix)
  parts = [values] if is_complex else [lax.real(values), lax.imag(values)]
  return [*parts, left, right]


def _gehrd(options: Options, op: Op, matrix: Any) -> list[Any]:
  return list(lax.linalg.hessenberg(matrix))


def _sytrd(options: Options, op: Op, matrix: Any) -> list[Any]:
  return list(lax.linalg.tridiagonal(matrix, lower=_letter(options, "uplo") == "L"))


def _gtsv(options: Options, op: Op, lower: Any, diagonal: Any, upper: Any, right: Any) -> list[Any]:
  solution = lax.linalg.tridiagonal_solve(*map(jnp.asarray, (lower, diagonal, upper, right)))
  return [lower, diagonal, upper, solution]


def _gees(options: Options, op: Op, matrix: Any) -> list[Any]:
  wants_vectors = _letter(options, "mode") == "V"
  form, vectors, *_ = [*lax.linalg.schur(matrix, compute_schur_vectors=wants_vectors), matrix]
  values = jnp.diagonal(form, axis1=-2, axis2=-1)
  nothing = jnp.zeros(matrix.shape[:-2], np.int32)
  is_complex = jnp.iscomplexobj(matrix)
  return [form, vectors, values, *([] if is_complex else [values]), nothing]


_ROUTINES: dict[str, _Routine] = {
  "potrf": _Routine(_potrf),
  "getrf": _Routine(_getrf),
  "geqrf": _Routine(_geqrf, has_info=False),
  "geqp3": _Routine(_geqp3, arrays=2, has_info=False),
  "orgqr": _Routine(_orgqr, arrays=2, has_info=False),
  "ungqr": _Routine(_orgqr, arrays=2, has_info=False),
  "trsm": _Routine(_trsm, arrays=2, has_info=False),
  "syevd": _Routine(_syevd),
  "heevd": _Routine(_syevd),
  "gesdd": _Routine(_gesdd),
  "gesvd": _Routine(_gesdd),
  "geev": _Routine(_geev),
  "gees": _Routine(_gees),
  "gehrd": _Routine(_gehrd),
  "sytrd": _Routine(_sytrd),
  "hetrd": _Routine(_sytrd),
  "gtsv": _Routine(_gtsv, arrays=4),
}
_LETTERS = {"s": np.float32, "d": np.float64, "c": np.complex64, "z": np.complex128}


def _by_configuration(routine: _Routine) -> Rule:
  def apply(evaluation: Evaluation, op: Op, *arrays: Any) -> list[Any]:
    options = op.get("mhlo.backend_config") or {}
    # The sizes of the results follow, if they are symbolic.
    results = routine.function(options, op, *arrays[: routine.arrays])
    info = [jnp.zeros(arrays[routine.arrays - 1].shape[:-2], np.int32)] if routine.has_info else []
    return [*results, *info]

  return Rule(apply)


# What the numbers mean that stand before, or between, the arrays of an old call.
def _old_options(name: str, numbers: list[int]) -> Options:
  if name in ("potrf", "syevd", "heevd"):
    return {"uplo": ord("L" if numbers[0] else "U")}
  if name == "gesdd":
    full, vectors = numbers[0], numbers[1]
    return {"mode": ord("N" if not vectors else "A" if full else "S")}
  if name == "trsm":
    left, lower, transposed, unit = numbers[:4]
    return {
      "side": ord("L" if left else "R"),
      "uplo": ord("L" if lower else "U"),
      "trans_x": ord("NTC"[transposed]),
      "diag": ord("U" if unit else "N"),
    }
  return {}


def _by_operands(name: str, routine: _Routine) -> Rule:
  def apply(evaluation: Evaluation, op: Op, *operands: Any) -> list[Any]:
    numbers = [int(each) for each in operands if _is_number(each)]
    arrays = [each for each in operands if not _is_number(each)][-routine.arrays :]
    results = routine.function(_old_options(name, numbers), op, *arrays)
    matrix = arrays[0]
    batch = matrix.shape[:-2]
    # `info` follows, then work space.
    for value in op.results[len(results) :]:
      shape = batch if value.dtype == np.int32 and len(value.shape) == len(batch) else value.shape
      results.append(jnp.zeros(shape, value.dtype))
    return results

  def check(op: Op) -> Refusal | None:
    if name in _OLD:
      return None
    return Refusal("this call of an old JAX has another layout", "export it with a newer JAX")

  return Rule(apply, check=check)


_OLD = frozenset({"potrf", "getrf", "geqrf", "orgqr", "ungqr", "trsm", "syevd", "heevd", "gesdd"})


def _is_number(operand: Any) -> bool:
  return isinstance(operand, np.ndarray | np.generic) and operand.ndim == 0


for _name, _routine in _ROUTINES.items():
  for _dtype_letter in _LETTERS:
    _target = f"{_dtype_letter}{_name}"
    CUSTOM_CALLS[f"lapack_{_target}_ffi"] = _by_configuration(_routine)
    _prefix = "blas" if _name == "trsm" else "lapack"
    CUSTOM_CALLS[f"{_prefix}_{_target}"] = _by_operands(_name, _routine)
