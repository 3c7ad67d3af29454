"""The model of a batch as engines take it: columns, Arrow tables and their iterators, without an engine of our own.

`on_ray` and `on_beam` are built of it; Spark and Dask need no more (docs/batch.md). An object of `Rows` is pickled as its
arguments; each process loads a model once.
"""

from __future__ import annotations

import functools
import importlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np


def engine(name: str) -> Any:
  """A module of an engine, imported when it is used.

  Raises:
    ImportError: it is not installed; one line says how to get it.
  """
  try:
    return importlib.import_module(name)
  except ImportError as error:
    package = {"apache_beam": "apache-beam"}.get(name.partition(".")[0], name)
    raise ImportError(f"this needs {package}: pip install '{package.replace('.', '[')}{']' if '.' in package else ''}'") from error


class Rows:
  """Columns of rows -> the same with the outputs, as `jax2tf batch` gives them.

  Args:
    model: the SavedModel, or the folder of its versions.
    options: as of `model.Runner`: signature, columns, outputs, mask, batch_size.
  """

  def __init__(self, model: str, **options: Any):
    self._key = json.dumps({"model": str(model), **options}, sort_keys=True)

  @property
  def runner(self) -> Any:
    """The model, loaded at its first use in this process."""
    return _runner(self._key)

  def __call__(self, table: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Raises ValueError: a bad row; engines have their own ways for these."""
    answer = self._answer(table)
    inputs = {column for columns in self.runner.columns.values() for column in columns}
    return {name: column for name, column in table.items() if name not in inputs} | dict(answer.outputs)

  def arrow(self, table: Any) -> Any:
    """The same of a table or record batch of Arrow."""
    from jax2tf.tools.batch import arrow  # noqa: PLC0415  (pyarrow)

    columns = [column for columns in self.runner.columns.values() for column in columns]
    return arrow.table(arrow.without(table, columns), self._answer(arrow.columns(table, columns)))

  def record_batches(self, batches: Iterable[Any]) -> Iterator[Any]:
    """The same of each record batch, as `mapInArrow` of Spark calls it."""
    for batch in batches:
      yield from self.arrow(batch).to_batches()

  def _answer(self, table: Mapping[str, np.ndarray]) -> Any:
    answer = self.runner(table)
    if answer.faults:
      first = min(answer.faults)
      raise ValueError(f"row {first} of a block of {len(next(iter(table.values())))}: {answer.faults[first]}")
    return answer


@functools.cache
def _runner(key: str) -> Any:
  from jax2tf.tools.batch import model  # noqa: PLC0415  (TensorFlow)

  return model.Runner(**json.loads(key))
