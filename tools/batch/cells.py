"""Converts columns to the dtype and shape of an input. Each row that does not fit gets a reason."""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Faults = dict[int, str]

_BOOLS: dict[str | bytes, bool] = {"True": True, "False": False}  # as pandas writes them
# The dtype represents all integers up to this magnitude.
_INTEGERS = {"bfloat16": 2**8, "float16": 2**11, "float32": 2**24, "float64": 2**53}
# The deepest nesting of lists and objects in a row. Python's limit is 1,000 calls, and writing a
# row needs some as well.
DEEPEST = 500


@dataclass(frozen=True)
class Answer:
  """The result of running some rows.

  Attributes:
    rows: the indices of the rows that ran, ascending.
    outputs: name -> an array of these rows, or an object array with an array for each row if a
      dimension is symbolic.
    types: name -> (dtype, dimensions of a row).
    faults: row -> why it did not run.
  """

  rows: np.ndarray
  outputs: Mapping[str, np.ndarray]
  types: Mapping[str, tuple[np.dtype[Any], Sequence[str]]]
  faults: Faults


def is_fixed(dims: Sequence[str]) -> bool:
  """Whether all dimensions are numbers."""
  return all(dim.isdecimal() for dim in dims)


def check_names(carried: Iterable[str], outputs: Iterable[str]) -> None:
  """Raises ValueError if a carried column has the name of an output."""
  if twice := set(outputs).intersection(carried):
    raise ValueError(
      f"{min(twice)!r} is the name of a column and of an output; remove the column from the file"
    )


def _as_str(array: np.ndarray) -> np.ndarray:
  """Decodes TensorFlow's strings, which are bytes."""
  return np.array(
    [v.decode() if isinstance(v, bytes) else v for v in array.ravel()] + [None], object
  )[:-1].reshape(array.shape)


def objects(rows: Sequence[Any]) -> np.ndarray:
  """An object array with one element for each row."""
  return np.fromiter(rows, object, len(rows))


def plain(value: Any) -> Any:
  """A cell as a JSON value. Values other than arrays stay unchanged, because NumPy would give [1,
  "a"] one dtype."""
  if not isinstance(value, np.ndarray | np.generic):
    return value.decode() if isinstance(value, bytes) else value
  array = np.asarray(value)
  return _as_str(array).tolist() if array.dtype.kind in "OS" else array.tolist()


def convert(
  name: str, column: np.ndarray, dtype: np.dtype[Any], dims: Sequence[str]
) -> tuple[np.ndarray, Faults]:
  """Converts a column to an array of all rows, or to an object array of arrays if a dimension is
  symbolic. Also returns {row: fault}.

  Args:
    name: the name of the input, for messages.
    column: dimension 0 is the rows; an object array if rows have several shapes, are strings or are
      missing (None).
    dtype: the dtype of the input; object for strings.
    dims: the dimensions of a row. A number is a fixed size; anything else is any size.
  """
  fixed = is_fixed(dims)
  if fixed and (dense := _dense(column, dtype)) is not None:
    shape = tuple(map(int, dims))
    if (
      dense.ndim <= 2
      and dense.shape[1:] != shape
      and math.prod(dense.shape[1:]) == math.prod(shape)
    ):
      dense = dense.reshape(len(dense), *shape)  # TFRecord and CSV have flat rows
    if dense.shape[1:] == shape:
      values, wrong = _cast(dense, dtype)
      rows = np.flatnonzero(wrong.reshape(len(wrong), -1).any(1)) if wrong.size else ()
      return values, {int(i): _does_not_hold(name, dtype, dense[i][wrong[i]]) for i in rows}
  converted = np.empty(len(column), object)
  faults: Faults = {}
  for i, value in enumerate(column):
    try:
      converted[i] = _row(name, value, dtype, dims)
    except ValueError as error:
      faults[i] = str(error)
  if not fixed:
    return converted, faults
  values = np.zeros((len(column), *map(int, dims)), dtype)
  for i, row in enumerate(converted):
    if i not in faults:
      values[i] = row[()]  # of a 0-dimensional array its element
  return values, faults


def _dense(column: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray | None:
  """The column as one array of numbers, or None."""
  if dtype.kind == "O":
    return None
  if column.dtype.kind != "O":
    return column if _is_numeric(column.dtype, dtype) else None
  try:
    parsed_values = np.array([parsed(value) for value in column.tolist()])
  except ValueError:  # rows of several sizes
    return None
  if not _is_numeric(parsed_values.dtype, dtype):
    return None
  # NumPy makes floats of a mix of integers and floats, and floats do not represent all integers.
  # Such rows are checked one by one.
  return (
    None
    if parsed_values.dtype.kind == "f"
    and (np.abs(parsed_values) >= _INTEGERS.get(dtype.name, 0)).any()
    else parsed_values
  )


def _is_numeric(source: np.dtype[Any], dtype: np.dtype[Any]) -> bool:
  """Whether values of the one dtype are numbers for the other; dates are none, and complex numbers
  only for complex inputs."""
  return source.kind in "biuf" or source.name == "bfloat16" or source.kind == dtype.kind == "c"


def _row(name: str, value: Any, dtype: np.dtype[Any], dims: Sequence[str]) -> np.ndarray:
  if value is None:
    raise ValueError(f"{name!r} is missing")
  if dtype.kind == "O":
    return _texts(name, value, dims)
  value = parsed(value)
  array = np.asarray(value)
  if not _is_numeric(array.dtype, dtype):
    raise ValueError(f"{name!r} is {str(value)[:60]!r}, where numbers of one shape are expected")
  if array.size == 0:
    array = array.astype(dtype)
  if array.ndim <= 1 and is_fixed(dims) and array.size == math.prod(map(int, dims)):
    array = array.reshape(tuple(map(int, dims)))
  if not _fits(array, dims):
    raise ValueError(
      f"{name!r} has the shape {list(array.shape)}, where [{','.join(dims)}] is expected"
    )
  if isinstance(value, list) and array.dtype == np.float64 and (np.abs(array) >= 2**53).any():
    # NumPy made floats of integers beside floats, and has rounded those of 2**53 or more.
    array = np.asarray(value, object).reshape(array.shape)
    values, wrong = (
      np.reshape(elements, array.shape)
      for elements in zip(*(_cast(np.asarray(x), dtype) for x in array.ravel()), strict=True)
    )
  else:
    values, wrong = _cast(array, dtype)
  if wrong.any():
    raise ValueError(_does_not_hold(name, dtype, array[wrong]))
  return values


def _fits(array: np.ndarray, dims: Sequence[str]) -> bool:
  return array.ndim == len(dims) and all(
    not dim.isdecimal() or int(dim) == size for dim, size in zip(dims, array.shape, strict=True)
  )


def _texts(name: str, value: Any, dims: Sequence[str]) -> np.ndarray:
  array = np.empty((), object) if isinstance(value, str | bytes) else np.asarray(value, object)
  if array.ndim == 0:
    array[()] = value
  if array.ndim == 1 and array.size == 1 and not dims:
    array = array.reshape(())
  if not _fits(array, dims):
    raise ValueError(
      f"{name!r} has the shape {list(array.shape)}, where [{','.join(dims)}] is expected"
    )
  if strange := [each for each in array.ravel() if not is_text(each)]:
    raise ValueError(f"{name!r} is {strange[0]!r}, where a text is expected")
  return array


def is_text(value: Any) -> bool:
  """Whether a value is bytes, or a text that UTF-8 can hold."""
  if isinstance(value, str) and not value.isascii():
    with contextlib.suppress(UnicodeEncodeError):  # JSON can hold half of a pair of surrogates
      return bool(value.encode())
    return False
  return isinstance(value, str | bytes)


def parsed(value: Any) -> Any:
  """The value of a CSV cell that holds a number, a bool or a JSON list of them; any other value
  unchanged."""
  if not isinstance(value, str | bytes):
    return value
  if value in _BOOLS:
    return _BOOLS[value]
  # int reads "+5" and "007", which are no JSON, without rounding
  for parse in (read_json, int, float):
    with contextlib.suppress(ValueError, RecursionError):
      return parse(value)
  return value


def read_json(text: str | bytes) -> Any:
  """The value of a JSON text.

  Raises:
    ValueError: it is not JSON.
    RecursionError: it is nested deeper than `DEEPEST`. Python's own limit depends on its version
      and on the calls under way.
  """
  if _nesting(text) > DEEPEST:
    raise RecursionError(f"is nested deeper than {DEEPEST} levels")
  return json.loads(text)


def _nesting(text: str | bytes) -> int:
  """The depth of lists and objects in a JSON text; an upper bound if it is small."""
  opening = ("[", "{") if isinstance(text, str) else (b"[", b"{")
  if (most := sum(map(text.count, opening))) <= DEEPEST:  # type: ignore[arg-type]
    return most
  raw = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
  brackets = _STRING.sub(b"", raw).translate(None, _NO_BRACKETS)
  steps = np.where(np.isin(np.frombuffer(brackets, np.uint8), list(b"[{")), 1, -1)
  return int(np.cumsum(steps).max(initial=0))


_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"')
_NO_BRACKETS = bytes(code for code in range(256) if code not in b"[]{}")


def _cast(array: np.ndarray, dtype: np.dtype[Any]) -> tuple[np.ndarray, np.ndarray]:
  """(the array in another dtype, a mask of the elements that this dtype does not represent). Floats
  may be rounded."""
  if array.dtype == dtype:
    return array, np.zeros(array.shape, bool)
  with np.errstate(all="ignore"):
    converted = array.astype(dtype)
    if array.dtype.kind == "b":
      return converted, np.zeros(array.shape, bool)
    if array.dtype.kind in "iu":
      return converted, (converted.astype(array.dtype) != array) | ((converted < 0) != (array < 0))
    if dtype.kind in "iub":
      # A float of 2**53 or more may be an integer that was rounded.
      return converted, (converted.astype(array.dtype) != array) | (np.abs(array) >= 2**53)
    return converted, np.isfinite(array) & ~np.isfinite(converted)


def _does_not_hold(name: str, dtype: np.dtype[Any], values: np.ndarray) -> str:
  return f"{name!r} has {np.ravel(values)[0]}, which {dtype.name} does not hold"
