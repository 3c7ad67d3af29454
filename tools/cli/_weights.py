"""The differences between the variables of two SavedModels."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jax2tf.converters.saved_model import values

_MOST = 20  # rows of a table


def differences(before: Path, after: Path) -> list[dict[str, Any]]:
  """The variables that only one model has, or whose dtypes, shapes or bytes differ; the largest
  difference first.

  Each is {"path", "before", "after", "differing", "max_abs", "max_rel"}: the hashes, the number of
  elements whose bytes differ, the largest differences. None stands for what cannot be compared.
  """
  old, new = (
    values.readers(directory, values.meta_graph(directory)) for directory in (before, after)
  )
  changes = []
  for name in dict.fromkeys([*old, *new]):  # reads all of them, to detect truncated files
    x, y = (of[name]() if name in of else None for of in (old, new))
    if x is None or y is None or x.shape != y.shape or x.dtype != y.dtype:
      figures = dict.fromkeys(("differing", "max_abs", "max_rel"))
    elif _bytes(x) == _bytes(y):
      continue
    else:
      figures = _figures(x, y)
    hashes = [
      None if array is None else hashlib.sha256(_bytes(array)).hexdigest()[:12] for array in (x, y)
    ]
    changes.append({"path": name, "before": hashes[0], "after": hashes[1], **figures})
  return sorted(changes, key=lambda d: -(d["max_abs"] or 0))


def _bytes(x: np.ndarray) -> bytes:
  # an array of strings holds pointers
  return repr(x.tolist()).encode() if x.dtype == object else x.tobytes()


def _figures(x: np.ndarray, y: np.ndarray) -> dict[str, Any]:
  if x.dtype.kind in "OSU":
    return {"differing": int(np.count_nonzero(x != y)), "max_abs": None, "max_rel": None}
  # tells -0.0 from 0.0
  same = (x.reshape(-1).view(np.uint8) == y.reshape(-1).view(np.uint8)).reshape(x.size, -1).all(1)
  figures = {"differing": int(np.count_nonzero(~same)), "max_abs": None, "max_rel": None}
  if x.dtype.kind == "b":
    return figures
  x, y = x.reshape(-1)[~same], y.reshape(-1)[~same]
  if x.dtype.kind in "iu":
    a, b = (z if z.dtype == np.uint64 else z.astype(np.int64).view(np.uint64) for z in (x, y))
    apart = np.where(x > y, a - b, b - a)  # exact, whereas float64 rounds beyond 2**53
    size = np.abs(x.astype(np.float64))
  else:
    x, y = (a.astype(np.complex128 if a.dtype.kind == "c" else np.float64) for a in (x, y))
    with np.errstate(invalid="ignore"):
      apart = np.where(
        (x == y) | (np.isnan(x) & np.isnan(y)), 0, np.nan_to_num(np.abs(x - y), nan=np.inf)
      )
    size = np.abs(x)
  with np.errstate(invalid="ignore", divide="ignore"):
    share = np.where(apart == 0, 0, apart.astype(np.float64) / size)
  return figures | {"max_abs": apart.max().item(), "max_rel": float(np.nanmax(share))}


def rows(changes: Iterable[Mapping[str, Any]]) -> list[tuple[str, ...]]:
  """The rows of a table: path, elements that differ, largest difference, largest relative
  difference."""
  figures = ("differing", "max_abs", "max_rel")
  return [
    (d["path"], *("-" if d[key] is None else f"{d[key]:.4g}" for key in figures))
    for d in list(changes)[:_MOST]
  ]
