"""Converts between Arrow tables and NumPy columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from jax2tf.tools.batch.cells import Answer, check_names, objects, plain


def columns(table: Any, names: Sequence[str]) -> dict[str, np.ndarray]:
  """The named columns that a table or a record batch has."""
  return {name: _numpy(table.column(name)) for name in names if name in table.schema.names}


def without(table: Any, names: Sequence[str]) -> Any:
  """The other columns, as a table."""
  table = table if isinstance(table, pa.Table) else pa.Table.from_batches([table])
  return table.drop_columns([name for name in dict.fromkeys(names) if name in table.schema.names])


def table(carried: Any, answer: Answer) -> Any:
  """The rows that the model ran, with the carried columns and the outputs.

  Raises:
    ValueError: a carried column has the name of an output.
  """
  check_names(carried.schema.names, answer.outputs)
  joined = (
    carried.take(pa.array(answer.rows))
    if carried.num_columns and len(answer.rows) < carried.num_rows
    else carried
  )
  for name, array in answer.outputs.items():
    column = _arrow(array, *answer.types[name])
    joined = joined.append_column(name, column) if joined.num_columns else pa.table({name: column})
  return joined


def _numpy(column: Any) -> np.ndarray:
  """An array with dimension 0 for the rows; an object array if there are nulls, strings or rows of
  several lengths."""
  array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
  if isinstance(array, pa.ChunkedArray):  # without chunks
    array = pa.array([], array.type)
  if pa.types.is_decimal(array.type):
    array = array.cast(
      pa.int64() if array.type.scale == 0 and array.type.precision <= 18 else pa.float64()
    )
  kind = array.type
  if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
    return _lists(array)
  if array.null_count or not (
    pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
  ):
    return objects(array.to_pylist())
  return array.to_numpy(zero_copy_only=False)


def _lists(array: Any) -> np.ndarray:
  if array.null_count or not len(array):
    return objects(array.to_pylist())
  lengths = (
    np.asarray(array.value_lengths())
    if not pa.types.is_fixed_size_list(array.type)
    else np.full(len(array), array.type.list_size)
  )
  values = _numpy(array.flatten())
  if values.dtype.kind == "O":
    return objects(array.to_pylist())
  if (lengths == lengths[0]).all():
    return values.reshape(len(array), lengths[0], *values.shape[1:])
  return objects(np.split(values, np.cumsum(lengths)[:-1]))


def _arrow(array: np.ndarray, dtype: np.dtype[Any], dims: Sequence[str]) -> Any:
  if dtype.name == "bfloat16":
    dtype = np.dtype(np.float32)  # Arrow has no bfloat16; float32 holds its values exactly
  kind = pa.string() if dtype.kind == "O" else pa.from_numpy_dtype(dtype)
  if dtype.kind != "O" and array.dtype.kind != "O":
    flat = pa.array(array.astype(dtype, copy=False).ravel())
    for axis in reversed(range(1, array.ndim)):  # Spark 4.3 cannot read FixedSizeList
      rows = int(np.prod(array.shape[:axis], dtype=np.int64))
      flat = pa.ListArray.from_arrays(
        pa.array(np.arange(rows + 1) * array.shape[axis], pa.int32()), flat
      )
    return flat
  for _ in dims:
    kind = pa.list_(kind)
  return pa.array([plain(row) for row in array], kind)
