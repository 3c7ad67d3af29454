"""What a function would lack in a target, before anything is written: for `jax2tf check`.

The tables name TensorFlow ops that the target's converter or runtime is known not to take (each was tried, in November 2026, with
tf2onnx 1.17 and ONNX Runtime 1.31, LiteRT 2.3, tensorflowjs 4.22). Serving by TensorFlow itself takes every op.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import export

from jax2tf import survey
from jax2tf.converters import _signature
from jax2tf.errors import LoweringError
from jax2tf.tools._loading import UsageError

_COMPLEX = {"Complex", "Real", "Imag", "Conj", "ComplexAbs", "FFT", "FFT2D", "FFT3D", "IFFT", "IFFT2D", "IFFT3D"}
_LINALG = {"Cholesky", "Qr", "Svd", "SelfAdjointEigV2", "Eig", "Lu", "MatrixTriangularSolve", "MatrixSolve"}
_SPECIAL = {"Lgamma", "Digamma", "Igamma", "Igammac", "Polygamma", "Zeta", "Betainc", "NextAfter"}

LACKS: Mapping[str, frozenset[str]] = {
  "serving": frozenset(),
  "onnx": frozenset({"Erfc", "Log1p", "Expm1", "Bitcast", "IsFinite", "Case", "PreventGradient"} | _COMPLEX | _LINALG | _SPECIAL),
  "tflite": frozenset({"Erf", "Erfc", "Tan", "Sinh", "Cosh", "Case"} | _COMPLEX | _LINALG | _SPECIAL),
  "tfjs": frozenset({"Erfc", "TensorScatterAdd", "Einsum", "Case", "Bitcast"} | _LINALG | _SPECIAL),
}


def gaps(
  fun: Callable[..., Any], params: Any, inputs: Mapping[str, str], constraints: Sequence[str], targets: Sequence[str]
) -> dict[str, list[dict[str, str]]]:
  """{target: [{"op", "primitive", "where"}]}; for a primitive without a lowering the op is empty, and every target has it.

  Raises:
    UsageError: a target that is not known.
  """
  if unknown := [target for target in targets if target not in LACKS]:
    raise UsageError(f"--for={','.join(targets)}: {unknown[0]!r} is no target; name some of {', '.join(LACKS)}")
  arguments = _signature.Arguments.of(inputs, {}, export.SymbolicScope(constraints))
  specs = jax.tree.map(lambda x: jax.ShapeDtypeStruct(np.shape(x), np.asarray(x).dtype), params)
  try:
    uses = survey.ops_of(fun, specs, *arguments.unflatten(arguments.avals))
  except LoweringError as error:
    found = [{"op": "", "primitive": gap.primitive, "where": gap.where} for gap in error.gaps]
    return dict.fromkeys(targets, found)
  return {
    target: [{"op": use.op, "primitive": use.primitive, "where": use.where} for use in uses if use.op in LACKS[target]]
    for target in targets
  }


def text(found: Mapping[str, Sequence[Mapping[str, str]]]) -> str:
  """Lines for a terminal."""
  lines = []
  for target, missing in found.items():
    lines.append(f"{target}: {'nothing is missing' if not missing else f'{len(missing)} gaps'}")
    lines += [f"  {gap['op'] or 'no lowering'} (of '{gap['primitive']}') at {gap['where']}" for gap in missing]
  return "\n".join(lines)
