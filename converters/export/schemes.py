"""The size and the error of a model with each quantization scheme of a target."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..bundle import tables
from ..saved_model.draws import REPRESENTATIVE
from .calibration import Dataset
from .quantization import QuantizedRow
from .source import ExportError

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
    variation: of representative samples, the least cosine without the mean of the reference; None
      without such samples.
    top_1: of representative samples, the least share of rows with the reference's first class; None
      without scores.
  """

  scheme: str
  size: int | None
  max_abs: float | None
  cosine: float | None
  problem: str = ""
  variation: float | None = None
  top_1: float | None = None


@dataclass(frozen=True)
class QuantizationReport:
  """The size and the error of every scheme.

  Attributes:
    rows: one per scheme.
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
        "" if row.variation is None else f"{row.variation:.6f}",
        "" if row.top_1 is None else f"{row.top_1:.1%}",
        row.problem,
      ]
      for row in self.rows
    ]
    titles = (
      "quantization",
      "bytes",
      "of float32",
      "max abs",
      "cosine",
      "without mean",
      "top-1",
      "problem",
    )
    return tables.text(titles, cells) + "\n"


def reported(
  save_model: Callable[..., Any],
  model: Any,
  path_of: Callable[[str], Path],
  schemes: Sequence[str | None],
  representative_dataset: Any,
  options: Mapping[str, Any],
  options_of_int8: Sequence[str] = (),
) -> QuantizationReport:
  """Exports the model by each scheme; None means float32.

  Args:
    save_model: that of the target.
    model: as for `save_model`.
    path_of: {name of a scheme, or "float32": the file}.
    schemes: values of `quantization`.
    representative_dataset: as for `save_model`, for all schemes but None.
    options: other arguments of `save_model`.
    options_of_int8: those of them that only "int8" takes.
  """
  if representative_dataset is not None:
    # an iterator gives its samples once
    representative_dataset = Dataset.of(representative_dataset)
  rows = []
  for scheme in schemes:
    left_out = {*(() if scheme == "int8" else options_of_int8), *(() if scheme else _OF_SCHEMES)}
    rows.append(
      _measured(
        scheme,
        save_model,
        model,
        path_of(scheme or "float32"),
        quantization=scheme,
        representative_dataset=representative_dataset if scheme else None,
        **{name: value for name, value in options.items() if name not in left_out},
      )
    )
  return QuantizationReport(tuple(rows))


def _measured(
  scheme: str | None, save_model: Callable[..., Any], model: Any, path: Path, **options: Any
) -> Quantized:
  try:
    file = save_model(model, path, **options)
  except ExportError as error:
    return Quantized(str(scheme), None, None, None, " ".join(str(error).split()))
  rows = [row for row in file.report.rows if row.values in ("ordinary", "given", REPRESENTATIVE)]
  quantized = [row for row in rows if isinstance(row, QuantizedRow)]
  variations = [row.variation for row in quantized if row.variation is not None]
  shares = [row.top_1 for row in quantized if row.top_1 is not None]
  return Quantized(
    str(scheme),
    file.size,
    max((row.max_abs or 0.0 for row in rows), default=0.0),
    min((row.cosine for row in quantized), default=None),
    variation=min(variations, default=None),
    top_1=min(shares, default=None),
  )
