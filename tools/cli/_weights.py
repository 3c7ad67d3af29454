"""The values of a SavedModel's variables, and the differences between those of two."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import trackable_object_graph_pb2

from jax2tf.converters.saved_model.manifest import hash_of_arrays

_MOST = 20  # rows of a table
_GRAPH, _VALUE = "_CHECKPOINTABLE_OBJECT_GRAPH", "VARIABLE_VALUE"


def readers(directory: Path) -> dict[str, Callable[[], np.ndarray]]:
  """{name of a variable: a function that reads its value}, of a version's directory.

  Raises:
    ValueError: the files are damaged or missing. Reading a value may raise it too.
  """
  place = directory / "variables" / "variables"

  def read(key: str) -> Any:
    try:
      value = tf.train.load_checkpoint(str(place)).get_tensor(key)
      return value if key == _GRAPH else np.asarray(value)
    except (tf.errors.OpError, RuntimeError, IndexError, ValueError) as error:
      raise ValueError(f"{place.parent} is damaged: {str(error).splitlines()[0]}; save the model again") from error

  if not Path(f"{place}.index").exists():  # a model without variables
    return {}
  graph = trackable_object_graph_pb2.TrackableObjectGraph.FromString(read(_GRAPH))
  found = sorted((a.full_name, a.checkpoint_key) for node in graph.nodes for a in node.attributes if a.name == _VALUE)
  names = collections.Counter(name for name, _ in found)
  # The model chooses the names; several variables may share one.
  return {name if name and names[name] == 1 else f"{name} ({key})": functools.partial(read, key) for name, key in found}


def differences(before: Path, after: Path) -> list[dict[str, Any]]:
  """The variables that both models have with equal shapes and dtypes but different bytes, the largest difference first.

  Each is {"path", "before", "after", "differing", "max_abs", "max_rel"}: the hashes, the number of elements, the largest differences.
  """
  old, new = readers(before), readers(after)
  found = []
  for name in [*old, *(name for name in new if name not in old)]:  # reads all of them, to detect truncated files
    x, y = (of[name]() if name in of else None for of in (old, new))
    if x is None or y is None or x.shape != y.shape or x.dtype != y.dtype or x.tobytes() == y.tobytes():
      continue
    hashes = [hash_of_arrays([array])[:12] for array in (x, y)]
    found.append({"path": name, "before": hashes[0], "after": hashes[1], **_figures(x, y)})
  return sorted(found, key=lambda d: -(d["max_abs"] or 0))


def _figures(x: np.ndarray, y: np.ndarray) -> dict[str, Any]:
  if x.dtype.kind in "OSUb":
    return {"differing": int(np.count_nonzero(x != y)), "max_abs": None, "max_rel": None}
  x, y = (a.astype(np.complex128 if a.dtype.kind == "c" else np.float64) for a in (x, y))
  with np.errstate(invalid="ignore", divide="ignore"):
    apart = np.where((x == y) | (np.isnan(x) & np.isnan(y)), 0, np.nan_to_num(np.abs(x - y), nan=np.inf))
    share = np.where(apart == 0, 0, apart / np.abs(x))
  return {"differing": int(np.count_nonzero(apart)), "max_abs": float(apart.max()), "max_rel": float(np.nanmax(share))}


def rows(found: Iterable[Mapping[str, Any]]) -> list[tuple[str, ...]]:
  """The rows of a table: path, elements that differ, largest difference, largest relative difference."""
  figures = ("differing", "max_abs", "max_rel")
  return [(d["path"], *("-" if d[key] is None else f"{d[key]:.4g}" for key in figures)) for d in list(found)[:_MOST]]
