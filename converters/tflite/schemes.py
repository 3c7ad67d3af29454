"""The size and the error of a model with each quantization scheme."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..bundle import paths, tables
from ..export.calibration import Dataset
from ..export.quantization import LEAST_COSINE, QuantizedRow
from ..export.source import ExportError
from ..saved_model.builder import Model
from ..saved_model.draws import REPRESENTATIVE
from .exporter import save_model

# which float32 does not take
_OF_SCHEMES = ("least_cosine", "least_top_1", "scores", "narrow_inputs")


@dataclass(frozen=True)
class Quantized:
  """One scheme in a `QuantizationReport`.

  Attributes:
    size: the size of the file in bytes; None without a file.
    max_abs: the largest absolute difference of an output from the reference's.
    cosine: the least cosine between an output and the reference's; None for a scheme without
      quantisation.
    problem: why there is no file; empty otherwise.
  """

  scheme: str
  size: int | None
  max_abs: float | None
  cosine: float | None
  problem: str = ""


@dataclass(frozen=True)
class QuantizationReport:
  """The size and the error of each scheme.

  Attributes:
    rows: one for each scheme.
  """

  rows: tuple[Quantized, ...]

  def text(self) -> str:
    """The report as a table."""
    whole = next((row.size for row in self.rows if row.scheme == "None"), None)
    cells = [
      [
        row.scheme,
        "" if row.size is None else str(row.size),
        f"{row.size / whole:.2f}" if row.size and whole else "",
        "" if row.max_abs is None else f"{row.max_abs:.2g}",
        "" if row.cosine is None else f"{row.cosine:.6f}",
        row.problem,
      ]
      for row in self.rows
    ]
    titles = ("quantization", "bytes", "of float32", "max abs", "cosine", "problem")
    return tables.text(titles, cells) + "\n"


def quantization_report(
  model: Model | str | os.PathLike[str],
  folder: str | os.PathLike[str],
  schemes: Sequence[str | None] = (None, *LEAST_COSINE),
  *,
  representative_dataset: Any = None,
  **options: Any,
) -> QuantizationReport:
  """Exports a model once per quantisation scheme, and reports size and error of each. The scheme
  None means float32.

  Args:
    model: as for `save_model`.
    folder: the folder of the files, `<scheme>.tflite`, and `float32.tflite` for None. If the export
      by a scheme fails, its row says why.
    schemes: values of `quantization`.
    representative_dataset: as for `save_model`, for all schemes but None. Without it, the default
      schemes exclude "int8".
    options: other arguments of `save_model`, except rtol and atol. Those of one scheme apply to
      this scheme alone.

  Returns:
    one row for each scheme.

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
  folder = paths.of(folder, "folder")
  if representative_dataset is not None:
    # an iterator gives its samples once
    representative_dataset = Dataset.of(representative_dataset)
  rows = []
  for scheme in schemes:
    if scheme == "int8" and representative_dataset is None and schemes == (None, *LEAST_COSINE):
      continue
    rows.append(
      _measured(
        model, folder / f"{scheme or 'float32'}.tflite", scheme, representative_dataset, options
      )
    )
  return QuantizationReport(tuple(rows))


def _measured(
  model: Any,
  path: Path,
  scheme: str | None,
  representative_dataset: Any,
  options: Mapping[str, Any],
) -> Quantized:
  data = representative_dataset if scheme else None
  options_of_scheme = {
    name: value for name, value in options.items() if scheme or name not in _OF_SCHEMES
  }
  options_of_scheme = {
    name: value
    for name, value in options_of_scheme.items()
    if scheme == "int8" or not name.startswith("inference_")
  }
  try:
    file = save_model(
      model, path, quantization=scheme, representative_dataset=data, **options_of_scheme
    )
  except ExportError as error:
    return Quantized(str(scheme), None, None, None, " ".join(str(error).split()))
  rows = [row for row in file.report.rows if row.values in ("ordinary", "given", REPRESENTATIVE)]
  cosines = [row.cosine for row in rows if isinstance(row, QuantizedRow)]
  return Quantized(
    str(scheme),
    file.size,
    max((row.max_abs or 0.0 for row in rows), default=0.0),
    min(cosines, default=None),
  )
