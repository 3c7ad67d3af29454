"""The report of `verify`: figures for each output, as text, JSON and an HTML page."""

from __future__ import annotations

import base64
import collections
import datetime
import io
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .. import extras, stages
from ..bundle import paths, publish, tables
from ..saved_model.draws import HOSTILE, REPRESENTATIVE, SUBNORMAL

_WORDS = {
  HOSTILE: "hostile inputs (NaN, infinities, extreme numbers)",
  SUBNORMAL: "subnormal inputs",
}
_NOTE = (
  "Rows that are noted do not count: those of hostile inputs (NaN, infinities, extreme numbers), "
  "unless they were asked for, and those of "
  "subnormal inputs, which XLA and TensorFlow's kernels take for zero in different places "
  "(jax2tf's docs/limitations.md). "
  "Relative errors and units in the last place (ulp) are of elements above atol."
)
_ROW_TITLES = (
  "signature",
  "output",
  "sizes",
  "inputs",
  "dtype",
  "samples",
  "max abs",
  "max rel",
  "max ulp",
  "of tolerance",
  "agrees",
)
_LATENCY_TITLES = ("signature", "sizes", "model ms", "reference ms", "ratio")


# A gray with contrast on white and on black, because a picture cannot follow the theme of the page.
_GRAY = "#7d8590"
_STYLE = {f"{part}.color": _GRAY for part in ("text", "xtick", "ytick")} | {
  "axes.labelcolor": _GRAY,
  "axes.edgecolor": _GRAY,
}
_MOST_PICTURED = 40


class VerificationError(Exception):
  """A SavedModel differs from its reference. Only `Report.raise_for_mismatch` raises it."""


def machine() -> str:
  """A sentence about the machine: its cores and their load."""
  cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
  if not hasattr(os, "getloadavg"):  # Windows
    return f"Measured on {cores} cores."
  load = os.getloadavg()[0]
  busy = "; other programs ran too, which makes latencies longer" if load > 1.5 * cores else ""
  return f"Measured on {cores} cores, with a load of {load:.1f} in the last minute{busy}."


@dataclass(frozen=True)
class Row:
  """One output at one assignment of sizes, over all samples.

  Attributes:
    signature: the signature of the SavedModel.
    output: the name of the output.
    sizes: {symbolic dimension: its size}.
    values: the kind of inputs: "ordinary", "hostile" (NaN, infinities, -0.0, extreme integers),
      "subnormal", "given", which the caller passed, or "representative", from the data of a
      quantisation.
    dtype: the dtype of the output; empty if there is none to compare.
    samples: the number of inputs.
    counts: whether a problem makes the model wrong; otherwise the report only notes it.
    max_abs, max_rel, max_ulp: the largest differences; None if they are not available.
    of_tolerance: the largest difference as a fraction of the tolerance.
    problem: the difference in words; empty if there is none.
    steps: whether the output differs by more than rounding errors and is compared with a tolerance
      for steps, because it depends on a rounding to integers.
  """

  signature: str
  output: str
  sizes: Mapping[str, int]
  values: str
  dtype: str = ""
  samples: int = 0
  max_abs: float | None = None
  max_rel: float | None = None
  max_ulp: float | None = None
  of_tolerance: float | None = None
  problem: str = ""
  counts: bool = True
  steps: bool = False

  @property
  def ok(self) -> bool:
    return not self.problem or not self.counts

  @property
  def place(self) -> str:
    return f"{self.signature}, output {self.output!r}, {_text(self.sizes)}, {self.values} inputs"


@dataclass(frozen=True)
class Latency:
  """Median times of one call.

  Attributes:
    signature: the signature of the SavedModel.
    sizes: {symbolic dimension: its size}.
    model: seconds of the model, in the process without JAX.
    reference: seconds of the reference, in this process.
  """

  signature: str
  sizes: Mapping[str, int]
  model: float
  reference: float


@dataclass(frozen=True)
class Report:
  """The result of `verify`.

  Attributes:
    model: the SavedModel or the file.
    rows: one row per output, assignment of sizes and kind of inputs.
    latencies: one per signature and assignment of sizes.
    skipped: {signature: why it was not compared}. If it is not empty, the model is only verified in
      part.
    versions: {package: version}.
    machine: the cores of the machine, and their load after the latencies were measured.
    created: the time in UTC, in the format of ISO 8601.
    remark: what else was compared, in words; it ends the verdict.
  """

  model: str
  rows: tuple[Row, ...]
  latencies: tuple[Latency, ...]
  skipped: Mapping[str, str]
  versions: Mapping[str, str]
  machine: str = field(default_factory=machine)
  created: str = field(
    default_factory=lambda: datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
  )
  remark: str = ""

  @property
  def ok(self) -> bool:
    """Whether all requested signatures were compared, and agree."""
    return bool(self.rows) and not self.skipped and all(row.ok for row in self.rows)

  @property
  def verdict(self) -> str:
    """The verdict in one sentence."""
    wrong, agree = (
      [row for row in self.rows if not row.ok],
      sum(not row.problem for row in self.rows),
    )
    skipped = "".join(f"; skipped: {name}" for name in self.skipped)
    if wrong:
      only = f", all of {_WORDS[HOSTILE]}" if {row.values for row in wrong} == {HOSTILE} else ""
      return f"NOT verified: {len(wrong)} of {len(self.rows)} comparisons differ{only}{skipped}"
    how = "verified" if self.ok else "verified in part" if self.rows else "NOT verified"
    noted = collections.Counter(row.values for row in self.rows if row.problem)
    differ = "".join(
      f", and {noted[kind]} of {words} differ" for kind, words in _WORDS.items() if noted[kind]
    )
    remark = f"; {self.remark}" if self.remark else ""
    return f"{how}: {agree} comparisons agree{differ}{skipped}{remark}"

  def raise_for_mismatch(self) -> None:
    """Returns if `ok` is true.

    Raises:
      VerificationError: `ok` is false; the message lists all differences and all skipped
        signatures.
    """
    if not self.ok:
      lines = [f"  {row.place}: {row.problem}" for row in self.rows if not row.ok]
      lines += [f"  {name}, skipped: {why}" for name, why in self.skipped.items()]
      raise VerificationError("\n".join([f"{self.model}: {self.verdict}", *lines]))

  def text(self) -> str:
    """The report as tables for a terminal."""
    problems = [
      f"{'' if row.ok else 'WRONG: '}{row.place}: {row.problem}" for row in self.rows if row.problem
    ]
    problems += [f"SKIPPED: {name}: {why}" for name, why in self.skipped.items()]
    parts = [
      f"{self.model}: {self.verdict}",
      tables.text(_ROW_TITLES, map(_cells, self.rows)),
      _NOTE,
      *problems,
    ]
    if self.latencies:
      parts += [self.machine, tables.text(_LATENCY_TITLES, map(_latency_cells, self.latencies))]
    return "\n\n".join(parts) + "\n"

  def json(self) -> str:
    """All figures as JSON. Non-finite numbers are the strings "inf", "-inf" and "nan"."""
    rows = [
      {key: _json_number(value) for key, value in asdict(row).items()} | {"ok": row.ok}
      for row in self.rows
    ]
    return (
      json.dumps(
        asdict(self) | {"ok": self.ok, "verdict": self.verdict, "rows": rows},
        indent=2,
        allow_nan=False,
      )
      + "\n"
    )

  def html(self) -> str:
    """The report as one HTML page with embedded pictures.

    Raises:
      ImportError: a package of jax2tf[verify] is missing.
    """
    template = (
      extra("jinja2")
      .Environment(autoescape=True)
      .from_string(Path(__file__).with_name("report.html.j2").read_text(encoding="utf-8"))
    )
    return template.render(
      report=self,
      note=_NOTE,
      row_titles=_ROW_TITLES,
      parts=self._parts(),
      latency_titles=_LATENCY_TITLES,
      latencies=[_latency_cells(x) for x in self.latencies],
      pictures={
        "errors": _errors_picture(self.rows),
        "latencies": _latencies_picture(self.latencies),
      },
    )

  def _parts(self) -> list[tuple[str, list[tuple[Row, list[str]]], bool]]:
    """(title, rows, whether they are expanded). Wrong rows come first; rows that agree are
    folded."""
    kinds = {
      "Differ": [row for row in self.rows if not row.ok],
      "Noted": [row for row in self.rows if row.ok and row.problem],
      "Agree": [row for row in self.rows if not row.problem],
    }
    return [
      (title, [(row, _cells(row)) for row in rows], title != "Agree")
      for title, rows in kinds.items()
      if rows
    ]

  def write(self, folder: str | os.PathLike[str]) -> Path:
    """Writes verification.txt, .json and .html. They replace the files of an earlier report when
    all of them are complete.

    Args:
      folder: the folder of the report; it is created if it does not exist.

    Returns:
      the folder.

    Raises:
      ImportError: a package of jax2tf[verify] is missing.
      OSError: the folder cannot be written.
      ValueError: the folder is in a file system that TensorFlow does not have.
    """
    folder = paths.of(folder, "folder")
    with stages.stage("write the report"), publish.beside(folder) as place:
      place.mkdir()
      for suffix, text in {"txt": self.text(), "json": self.json(), "html": self.html()}.items():
        (place / f"verification.{suffix}").write_text(text, encoding="utf-8")
      for file in [*place.iterdir()]:
        publish.move(file, folder / file.name)
    return folder


def check_writable(folder: paths.Given) -> None:
  """Raises the errors of `Report.write`, before the comparison that takes long.

  Raises:
    OSError: the folder is not writable.
    ImportError: the packages of jax2tf[verify] are missing.
  """
  with stages.stage("import what the report needs"):
    for package in ("jinja2", "matplotlib"):
      extra(package)
  publish.check_writable(paths.of(folder, "report"))


def extra(module: str) -> Any:
  """A module of jax2tf[verify]."""
  return extras.module(module, "verify", "the report of a verification")


def _text(sizes: Mapping[str, int]) -> str:
  return ", ".join(f"{name}={size}" for name, size in sizes.items()) or "-"


def _cells(row: Row) -> list[str]:
  figures = [
    "" if x is None else f"{x:.2g}"
    for x in (row.max_abs, row.max_rel, row.max_ulp, row.of_tolerance)
  ]
  agrees = "NO" if not row.ok else "noted" if row.problem else "yes"
  return [
    row.signature,
    row.output,
    _text(row.sizes),
    row.values,
    row.dtype,
    str(row.samples),
    *figures,
    agrees,
  ]


def _latency_cells(x: Latency) -> list[str]:
  return [
    x.signature,
    _text(x.sizes),
    f"{1e3 * x.model:.3g}",
    f"{1e3 * x.reference:.3g}",
    f"{x.model / x.reference:.2f}",
  ]


def _json_number(x: Any) -> Any:
  return str(x) if isinstance(x, float) and not math.isfinite(x) else x


def _errors_picture(rows: Sequence[Row]) -> str:
  """A chart of the largest differences as fractions of the tolerances; "" if there are none.
  Infinities are at the right edge."""
  shown: dict[str, dict[str, float]] = {}  # {line: {kind of inputs: share}}, the largest first
  for row in sorted(rows, key=lambda row: -(row.of_tolerance or 0.0)):
    if row.of_tolerance is not None:
      shown.setdefault(f"{row.signature}: {row.output}, {_text(row.sizes)}", {})[row.values] = (
        row.of_tolerance
      )
  lines = [*shown][:_MOST_PICTURED]
  edge = 10 * max(
    [10.0, *(share for line in lines for share in shown[line].values() if math.isfinite(share))]
  )
  kinds = {
    "ordinary": ("tab:blue", -0.2),
    "given": ("tab:blue", -0.2),
    REPRESENTATIVE: ("tab:blue", -0.2),
    HOSTILE: ("tab:orange", 0),
    SUBNORMAL: ("tab:purple", 0.2),
  }

  def draw(axes: Any) -> None:
    for values, (colour, shift) in kinds.items():
      at = [i for i, line in enumerate(lines) if values in shown[line]]
      if at:
        shares = [min(shown[lines[i]][values], edge) for i in at]
        axes.scatter(shares, [i + shift for i in at], s=18, color=colour, label=f"{values} inputs")
    axes.axvline(1, color="tab:red", linewidth=1, label="the tolerance")
    axes.set_xscale("symlog", linthresh=1e-3)
    axes.set_xlim(0, 2 * edge)
    axes.set_xlabel("largest difference, as a share of the tolerance")
    axes.set_yticks(range(len(lines)), [*map(_short, lines)], fontsize=8)

  return _picture(draw, len(lines)) if lines else ""


def _latencies_picture(latencies: Sequence[Latency]) -> str:
  def draw(axes: Any) -> None:
    for shift, side, label in ((-0.2, "model", "model"), (0.2, "reference", "reference, JAX")):
      axes.barh(
        [i + shift for i in range(len(latencies))],
        [1e3 * getattr(x, side) for x in latencies],
        0.4,
        label=label,
      )
    axes.set_xlabel("median latency of a call, milliseconds")
    axes.set_yticks(
      range(len(latencies)),
      [_short(f"{x.signature}, {_text(x.sizes)}") for x in latencies],
      fontsize=8,
    )

  return _picture(draw, 2 * len(latencies)) if latencies else ""


def _short(text: str) -> str:
  return text if len(text) <= 60 else f"{text[:59]}…"


def _picture(draw: Callable[[Any], None], lines: int) -> str:
  """Draws on a pair of axes, and returns an SVG image as a data URL."""
  with extra("matplotlib").rc_context(_STYLE):
    figure = extra("matplotlib.figure").Figure(
      figsize=(11, 1.3 + 0.2 * lines), layout="constrained"
    )
    axes = figure.add_subplot()
    draw(axes)
    axes.invert_yaxis()
    figure.legend(loc="outside upper right", ncols=4, fontsize=8, frameon=False)
    data = io.BytesIO()
    figure.savefig(data, format="svg", transparent=True)
  return "data:image/svg+xml;base64," + base64.b64encode(data.getvalue()).decode()
