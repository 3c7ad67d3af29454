"""A SavedModel as a function of columns, of Arrow tables and of iterators of them, for the engines
of batch inference.

`on_ray` and `on_beam` build on it; Spark and Dask use it directly (docs/guide/batch.md). A `Rows`
object is pickled as its arguments; each process loads a model once.
"""

from __future__ import annotations

import functools
import importlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from jax2tf.tools.batch.cells import check_names

__all__ = ["Rows"]


def engine(name: str) -> Any:
  """Imports a module of an engine.

  Raises:
    ImportError: the engine is not installed; the message says how to install it.
  """
  try:
    return importlib.import_module(name)
  except ImportError as error:
    extra = name.partition(".")[0].removeprefix("apache_")
    raise ImportError(f"this needs {name}: pip install 'jax2tf[{extra}]'") from error


class Rows:
  """Maps a dict of columns to the same dict with the model's outputs in place of its inputs, as
  `jax2tf batch` does.

  A call raises ValueError for a bad row. The model is loaded at the first call in a process.

  Args:
    model: a SavedModel of jax2tf, or the folder of its versions.
    options: signature, columns, outputs, mask, batch_size and allow_ops, as for `jax2tf batch`
      (docs/guide/batch.md).

  Examples:
    >>> import numpy as np
    >>> from jax2tf.converters import saved_model
    >>> from jax2tf.tools.batch import engines
    >>> path = saved_model.save(
    ...   lambda w, x: x @ w,
    ...   np.ones(2, np.float32),
    ...   "model",
    ...   inputs={"x": "f32[b,2]"},
    ...   outputs=["y"],
    ... )
    >>> rows = engines.Rows(str(path))
    >>> rows({"id": np.arange(2), "x": np.ones((2, 2), np.float32)})
    {'id': array([0, 1]), 'y': array([2., 2.], dtype=float32)}
  """

  def __init__(self, model: str, **options: Any):
    self._key = json.dumps({"model": str(model), **options}, sort_keys=True)

  @property
  def runner(self) -> Any:
    """The model; its first use in a process loads it.

    Raises:
      FileNotFoundError: there is no SavedModel of jax2tf.
      ValueError: an option does not fit the model.
    """
    return _runner(self._key)

  def __call__(self, table: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Raises ValueError for a bad row, which the engine then handles in its own way."""
    answer = self._answer(table)
    inputs = {column for columns in self.runner.columns.values() for column in columns}
    carried = {name: column for name, column in table.items() if name not in inputs}
    check_names(carried, answer.outputs)
    return carried | dict(answer.outputs)

  def arrow(self, table: Any) -> Any:
    """Maps an Arrow table as a call maps a dict of columns.

    Args:
      table: a pyarrow.Table or pyarrow.RecordBatch.

    Returns:
      a pyarrow.Table.

    Raises:
      FileNotFoundError: there is no SavedModel of jax2tf.
      ValueError: a row is bad, or an option does not fit the model.
    """
    from jax2tf.tools.batch import arrow  # noqa: PLC0415  (pyarrow)

    columns = [column for columns in self.runner.columns.values() for column in columns]
    return arrow.table(arrow.without(table, columns), self._answer(arrow.columns(table, columns)))

  def record_batches(self, batches: Iterable[Any]) -> Iterator[Any]:
    """Maps record batches one by one; Spark's `mapInArrow` takes this function.

    Args:
      batches: an iterable of pyarrow.RecordBatch.

    Returns:
      an iterator over pyarrow.RecordBatch.

    Raises:
      FileNotFoundError, ValueError: as for `arrow`.
    """
    for batch in batches:
      yield from self.arrow(batch).to_batches()

  def _answer(self, table: Mapping[str, np.ndarray]) -> Any:
    answer = self.runner(table)
    if answer.faults:
      first = min(answer.faults)
      raise ValueError(
        f"row {first} of a block of {len(next(iter(table.values())))}: {answer.faults[first]}"
      )
    return answer


@functools.cache
def _runner(key: str) -> Any:
  from jax2tf.tools.batch import model  # noqa: PLC0415  (TensorFlow)

  return model.Runner(**json.loads(key))
