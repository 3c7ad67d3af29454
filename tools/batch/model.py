"""A SavedModel as a function of columns, for the workers and the engines. Imports TensorFlow, and
never JAX."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jax2tf.tools import outside, quiet
from jax2tf.tools.batch import THREADS, cells, contract

# Other workers use the other cores.
for variable in THREADS:
  os.environ.setdefault(variable, "1")

with quiet.startup(lean=True):
  import tensorflow as tf

# The longest row of a padded batch is at most _STRETCH times as long as the shortest, except in
# batches of at most _FEW rows.
_STRETCH, _FEW = 1.25, 32


class Runner:
  """Loads one signature of a SavedModel.

  Args:
    model: the SavedModel, or the folder of its versions.
    signature: its name.
    columns: input -> the names of its columns, if they differ from its own; several columns are
      stacked.
    outputs: the names of the requested outputs; all if empty.
    mask: the input that marks the valid elements of a padded row by 1; "mask" or "attention_mask"
      if empty, and "none" for no padding.
    batch_size: the largest number of rows in a call.
    allow_ops: ops that the model may have although they reach outside of it.

  Raises:
    ValueError: as for `contract.read` and `outside.check`; there is no such output or input, or an
      output is complex.
    FileNotFoundError: as for `contract.read`.
  """

  def __init__(
    self,
    model: str,
    signature: str = "serving_default",
    columns: Mapping[str, Sequence[str]] | None = None,
    outputs: Sequence[str] = (),
    mask: str = "",
    batch_size: int = 256,
    allow_ops: Sequence[str] = (),
  ):
    self.contract = contract.read(model, signature, mask)
    self.columns = contract.columns(self.contract, columns or {})
    self.outputs = contract.wanted(self.contract, outputs)
    self.batch_size = min(batch_size, self.contract.max_rows or batch_size)
    directory = self.contract.directory
    [graph] = outside.check(directory, allow_ops)
    # kept alive, because its functions do not keep its variables alive
    self._loaded = tf.saved_model.load(str(directory))
    self._function = self._loaded.signatures[signature]
    stored = graph.signature_def[signature]
    self._defaults = {name: tf.make_ndarray(value) for name, value in stored.defaults.items()}
    self._dtypes = {
      name: np.dtype(tf.as_dtype(info.dtype).as_numpy_dtype) for name, info in stored.inputs.items()
    }
    dtypes = {
      name: np.dtype(tf.as_dtype(stored.outputs[name].dtype).as_numpy_dtype)
      for name in self.outputs
    }
    if strange := [name for name, dtype in dtypes.items() if dtype.kind == "c"]:
      raise ValueError(
        f"output {strange[0]!r} is {dtypes[strange[0]].name}, which no file format can hold; "
        "return its parts"
      )
    self._types = {name: (dtype, self.contract.outputs[name]) for name, dtype in dtypes.items()}

  def __call__(
    self,
    table: Mapping[str, np.ndarray],
    faults: cells.Faults | None = None,
    ran: Callable[[int], None] = lambda rows: None,
  ) -> cells.Answer:
    """Runs rows, in batches of equal or similar lengths.

    Args:
      table: column -> its rows; an object array if rows have several shapes, are strings or are
        missing.
      faults: row -> fault, of rows that are already known to be bad.
      ran: called after each call of the model, with the number of rows that it ran.
    """
    faults = dict(faults or {})
    values: dict[str, np.ndarray] = {}
    for name, sources in self.columns.items():
      if missing := [source for source in sources if source not in table]:
        if name in self.contract.needed:
          raise ValueError(
            f"there is no column {missing[0]!r} for input {name!r}; name another one by --column "
            f"{name}=COLUMN"
          )
        continue  # the mask
      numeric = self._dtypes[name].kind != "O"
      column = (
        table[sources[0]]
        if len(sources) == 1
        else _side_by_side([table[source] for source in sources], numeric)
      )
      if (
        name == self.contract.mask
        and column.dtype.kind == "O"
        and not any(value is not None for value in column)
      ):
        continue  # no row has a mask, so it is computed
      values[name], faults_found = cells.convert(
        name, column, self._dtypes[name], self.contract.inputs[name]
      )
      faults = faults_found | faults
    total = len(next(iter(table.values()))) if table else 0
    sizes = self._sizes(values, total, faults)
    good = np.array([i for i in range(total) if i not in faults], int)
    parts = []
    for rows in self._batches(sizes, good):
      parts += self._run(values, sizes, rows, faults, ran)
    done = np.array([i for i in good if i not in faults], int)
    outputs = {name: self._joined(name, parts, done, total) for name in self.outputs}
    return cells.Answer(done, outputs, self._types, faults)

  def _sizes(
    self, values: Mapping[str, np.ndarray], total: int, faults: cells.Faults
  ) -> dict[str, np.ndarray]:
    """{dimension: its size in each row}. Rows in which two inputs disagree become faults."""
    sizes: dict[str, np.ndarray] = {}
    for name, array in values.items():
      for axis, dim in enumerate(self.contract.inputs[name]):
        if cells.is_fixed(self.contract.inputs[name]):
          continue
        lengths = np.array([0 if row is None else row.shape[axis] for row in array], int)
        first = sizes.setdefault(f"{name}.{axis}" if dim == "?" else dim, lengths)
        for i in np.flatnonzero(lengths != first):
          faults.setdefault(
            int(i), f"dimension {dim} is {first[i]} in one input and {lengths[i]} in {name!r}"
          )
    # JAX needs sizes of 1 or more. Padded beside a longer row, an empty one would run.
    for i in np.flatnonzero(sizes.get(self.contract.padded, np.ones(0)) == 0):
      faults.setdefault(int(i), f"dimension {self.contract.padded} is 0, and has to be 1 or more")
    return sizes

  def _batches(self, sizes: Mapping[str, np.ndarray], rows: np.ndarray) -> Iterator[np.ndarray]:
    """Batches of rows of equal length, or with a mask of similar lengths. Sorting by length keeps
    the padding small."""
    exact = [size for dim, size in sizes.items() if dim != self.contract.padded]
    keys = [size for dim, size in sizes.items() if dim == self.contract.padded] + exact
    order = rows[np.lexsort([key[rows] for key in keys])] if keys else rows
    ends: Any = (
      np.flatnonzero(np.any([np.diff(size[order]) != 0 for size in exact], axis=0)) + 1
      if exact and len(order)
      else []
    )
    for group in np.split(order, ends):
      lengths = (
        sizes[self.contract.padded][group]
        if self.contract.padded in sizes
        else np.zeros(len(group), int)
      )
      i = 0
      while i < len(group):
        # longer rows would pad the others too much
        alike = int(np.searchsorted(lengths, _STRETCH * lengths[i], "right"))
        end = min(max(alike, i + _FEW), i + self.batch_size)
        yield group[i:end]
        i = end

  def _run(
    self,
    values: Mapping[str, np.ndarray],
    sizes: Mapping[str, np.ndarray],
    rows: np.ndarray,
    faults: cells.Faults,
    ran: Callable[[int], None],
  ) -> list[tuple[np.ndarray, dict[str, Any]]]:
    """[(rows, their outputs)]. If the model rejects a batch, each half runs by itself, until the
    bad rows are found."""
    feeds = {name: self._gathered(name, array, rows) for name, array in values.items()}
    feeds |= {name: array for name, array in self._defaults.items() if name not in feeds}
    if (mask := self.contract.mask) and mask not in feeds:
      lengths = sizes[self.contract.padded][rows]
      feeds[mask] = (np.arange(lengths.max()) < lengths[:, None]).astype(self._dtypes[mask])
    try:
      answer = self._function(
        **{name: tf.constant(x, tf.as_dtype(self._dtypes[name])) for name, x in feeds.items()}
      )
    except tf.errors.InvalidArgumentError as error:
      ran(0)
      if len(rows) > 1:
        return [
          part
          for half in np.array_split(rows, 2)
          for part in self._run(values, sizes, half, faults, ran)
        ]
      faults[int(rows[0])] = f"the model refuses it: {quiet.sentence(error.message)}"
      return []
    outputs = {name: answer[name].numpy() for name in self.outputs}
    ran(len(rows))
    for name, array in outputs.items():
      if array.shape[:1] != rows.shape:
        raise ValueError(
          f"output {name!r} has the shape {list(array.shape)} for {len(rows)} rows, so it has no "
          "batch dimension"
        )
    return [(rows, {name: self._cut(name, array, sizes, rows) for name, array in outputs.items()})]

  def _gathered(self, name: str, array: np.ndarray, rows: np.ndarray) -> np.ndarray:
    if cells.is_fixed(self.contract.inputs[name]):
      return array[rows]
    shape = np.max([array[i].shape for i in rows], axis=0)
    padded = np.full(
      (len(rows), *shape), b"" if self._dtypes[name].kind == "O" else 0, self._dtypes[name]
    )
    for target, i in zip(padded, rows, strict=True):
      target[tuple(map(slice, array[i].shape))] = array[i]
    return padded

  def _cut(
    self, name: str, array: np.ndarray, sizes: Mapping[str, np.ndarray], rows: np.ndarray
  ) -> Any:
    """The rows without padding; one array if all rows have the same size."""
    dims = self.contract.outputs[name]
    if cells.is_fixed(dims):
      return array
    lengths = [sizes[dim][rows] if dim in sizes else None for dim in dims]
    return [
      row[tuple(slice(None if size is None else size[i]) for size in lengths)]
      for i, row in enumerate(array)
    ]

  def _joined(
    self,
    name: str,
    parts: Sequence[tuple[np.ndarray, dict[str, Any]]],
    rows: np.ndarray,
    total: int,
  ) -> np.ndarray:
    dtype, dims = self._types[name]
    fixed = cells.is_fixed(dims)
    joined = np.empty((total, *map(int, dims)), dtype) if fixed else np.empty(total, object)
    for indices, outputs in parts:
      if fixed:
        joined[indices] = outputs[name]
      else:
        for i, value in zip(indices, outputs[name], strict=True):
          joined[i] = value
    return joined[rows]


def _side_by_side(columns: Sequence[np.ndarray], numeric: bool) -> np.ndarray:
  if all(column.dtype.kind != "O" for column in columns):
    return np.stack(columns, axis=1)
  read = cells.parsed if numeric else lambda value: value
  return cells.objects(
    [
      None if any(v is None for v in row) else [read(v) for v in row]
      for row in zip(*columns, strict=True)
    ]
  )
