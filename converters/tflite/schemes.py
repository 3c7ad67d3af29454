"""The size and the error of a LiteRT model with each quantization scheme."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from ..bundle import paths
from ..export import schemes as of_target
from ..export.quantization import LEAST_COSINE
from ..export.schemes import QuantizationReport
from ..saved_model.builder import Model
from .exporter import save_model

_ALL = (None, *LEAST_COSINE)


def quantization_report(
  model: Model | str | os.PathLike[str],
  folder: str | os.PathLike[str],
  schemes: Sequence[str | None] = _ALL,
  *,
  representative_dataset: Any = None,
  **options: Any,
) -> QuantizationReport:
  """Exports a model once per quantisation scheme, and reports the size and the error of every
  scheme. The scheme None means float32.

  Args:
    model: as for `save_model`.
    folder: the folder of the files, `<scheme>.tflite`, and `float32.tflite` for None. If the export
      by a scheme fails, its row says why.
    schemes: values of `quantization`.
    representative_dataset: as for `save_model`, for all schemes but None. Without it, the default
      schemes exclude "int8".
    options: other arguments of `save_model`, except rtol and atol. Options of one scheme apply to
      this scheme alone.

  Returns:
    one row per scheme.

  Raises:
    FileExistsError, FileNotFoundError, OSError, ImportError, ValueError: as `save_model`.

  Examples:
    >>> import numpy as np
    >>> from jax2tf.converters import saved_model, tflite
    >>> w = np.random.default_rng(0).standard_normal((256, 64)).astype(np.float32)
    >>> model = saved_model.Model(w).add(
    ...   lambda w, x: x @ w, inputs={"x": "f32[1,256]"}, outputs=["y"]
    ... )
    >>> report = tflite.quantization_report(model, ".", [None, "dynamic_int8"], samples=1)
    >>> [(row.scheme, row.size < 30_000) for row in report.rows]
    [('None', False), ('dynamic_int8', True)]
  """
  files = paths.of(folder, "folder")
  if representative_dataset is None and schemes == _ALL:
    schemes = [scheme for scheme in schemes if scheme != "int8"]
  return of_target.reported(
    save_model,
    model,
    lambda name: files / f"{name}.tflite",
    schemes,
    representative_dataset,
    options,
    ("inference_input_type", "inference_output_type"),
  )
