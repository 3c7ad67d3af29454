"""Columns as an input takes them: dtypes that hold every value, and shapes; a row that does not fit has a reason."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Faults = dict[int, str]


@dataclass(frozen=True)
class Answer:
  """What became of some rows.

  Attributes:
    rows: the numbers of those that were run, ascending.
    outputs: name -> an array of these rows, or an object array with an array for each row if a dimension is no number.
    types: name -> dtype, and the dimensions of a row.
    faults: row -> why it was not run.
  """

  rows: np.ndarray
  outputs: Mapping[str, np.ndarray]
  types: Mapping[str, tuple[np.dtype[Any], Sequence[str]]]
  faults: Faults


def is_fixed(dims: Sequence[str]) -> bool:
  """Whether every row has this one shape."""
  return all(dim.isdecimal() for dim in dims)


def check_names(carried: Iterable[str], answer: Answer) -> None:
  """Raises ValueError: a column that is carried has the name of an output."""
  if twice := answer.outputs.keys() & set(carried):
    raise ValueError(f"{min(twice)!r} is a column that is carried along, and an output; leave the column out of the file")


def _as_str(array: np.ndarray) -> np.ndarray:
  """TensorFlow's strings, which are bytes, as str."""
  return np.array([v.decode() if isinstance(v, bytes) else v for v in array.ravel()] + [None], object)[:-1].reshape(array.shape)


def plain(value: Any) -> Any:
  """A cell as JSON has it."""
  array = np.asarray(value)
  return _as_str(array).tolist() if array.dtype.kind == "O" or array.dtype.kind == "S" else array.tolist()


def convert(name: str, column: np.ndarray, dtype: np.dtype[Any], dims: Sequence[str]) -> tuple[np.ndarray, Faults]:
  """A column -> an array of all rows, or an object array of arrays if a dimension is no number; and what is wrong with rows.

  Args:
    name: of the input, for reasons.
    column: rows first; an object array where rows differ, are texts or are missing (None).
    dtype: of the input; that of objects for strings.
    dims: of a row; each a number, or else any size.
  """
  fixed = is_fixed(dims)
  if fixed and (dense := _dense(column, dtype)) is not None:
    shape = tuple(map(int, dims))
    if dense.ndim <= 2 and dense.shape[1:] != shape and math.prod(dense.shape[1:]) == math.prod(shape):
      dense = dense.reshape(len(dense), *shape)  # a flat row, as TFRecord and CSV have them
    if dense.shape[1:] == shape:
      values, wrong = _cast(dense, dtype)
      rows = np.flatnonzero(wrong.reshape(len(wrong), -1).any(1)) if wrong.size else ()
      return values, {int(i): _does_not_hold(name, dtype, dense[i][wrong[i]]) for i in rows}
  found = np.empty(len(column), object)
  faults: Faults = {}
  for i, value in enumerate(column):
    try:
      found[i] = _row(name, value, dtype, dims)
    except ValueError as error:
      faults[i] = str(error)
  if not fixed:
    return found, faults
  values = np.zeros((len(column), *map(int, dims)), dtype)
  for i, row in enumerate(found):
    if i not in faults:
      values[i] = row[()]  # of an array of no dimensions its element
  return values, faults


def _dense(column: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray | None:
  """The column as one array of numbers, if it is one."""
  if dtype.kind == "O":
    return None
  if column.dtype.kind != "O":
    return column if column.dtype.kind not in "SU" else None
  try:
    found = np.array(column.tolist())
  except ValueError:  # rows of several sizes
    return None
  # Integers and floats side by side become floats, which have not all integers.
  return None if found.dtype.kind in "OSU" or (found.dtype.kind == "f" and dtype.kind in "iu") else found


def _row(name: str, value: Any, dtype: np.dtype[Any], dims: Sequence[str]) -> np.ndarray:
  if value is None:
    raise ValueError(f"{name!r} is missing")
  if dtype.kind == "O":
    return _texts(name, value, dims)
  array = np.asarray(parsed(value))
  if array.dtype.kind not in "biuf" and array.dtype.name != "bfloat16":
    raise ValueError(f"{name!r} is {str(value)[:60]!r}, where numbers of one shape are expected")
  if array.size == 0:
    array = array.astype(dtype)
  if array.ndim <= 1 and is_fixed(dims) and array.size == math.prod(map(int, dims)):
    array = array.reshape(tuple(map(int, dims)))
  if not _fits(array, dims):
    raise ValueError(f"{name!r} has the shape {list(array.shape)}, where [{','.join(dims)}] is expected")
  values, wrong = _cast(array, dtype)
  if wrong.any():
    raise ValueError(_does_not_hold(name, dtype, array[wrong]))
  return values


def _fits(array: np.ndarray, dims: Sequence[str]) -> bool:
  return array.ndim == len(dims) and all(not dim.isdecimal() or int(dim) == size for dim, size in zip(dims, array.shape, strict=True))


def _texts(name: str, value: Any, dims: Sequence[str]) -> np.ndarray:
  array = np.empty((), object) if isinstance(value, str | bytes) else np.asarray(value, object)
  if array.ndim == 0:
    array[()] = value
  if array.ndim == 1 and array.size == 1 and not dims:
    array = array.reshape(())
  if not _fits(array, dims):
    raise ValueError(f"{name!r} has the shape {list(array.shape)}, where [{','.join(dims)}] is expected")
  if strange := [each for each in array.ravel() if not isinstance(each, str | bytes)]:
    raise ValueError(f"{name!r} is {strange[0]!r}, where a text is expected")
  return array


def parsed(value: Any) -> Any:
  """A cell of CSV that has a number, or a JSON list of numbers; any other value as it is."""
  if not isinstance(value, str | bytes):
    return value
  for parse in (json.loads, float):
    with contextlib.suppress(ValueError):
      return parse(value)
  return value


def _cast(array: np.ndarray, dtype: np.dtype[Any]) -> tuple[np.ndarray, np.ndarray]:
  """The array in another dtype, and which of its elements that dtype does not hold; a float may be rounded to a narrower one."""
  if array.dtype == dtype:
    return array, np.zeros(array.shape, bool)
  with np.errstate(all="ignore"):
    found = array.astype(dtype)
    if array.dtype.kind == "b":
      return found, np.zeros(array.shape, bool)
    if array.dtype.kind in "iu":
      return found, (found.astype(array.dtype) != array) | ((found < 0) != (array < 0))
    if dtype.kind in "iub":
      return found, found.astype(array.dtype) != array
    return found, np.isfinite(array) & ~np.isfinite(found)


def _does_not_hold(name: str, dtype: np.dtype[Any], values: np.ndarray) -> str:
  return f"{name!r} has {np.ravel(values)[0]}, which {dtype.name} does not hold"
