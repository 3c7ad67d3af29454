"""Ray Data: `mapped(ray.data.read_parquet(...), "build/model", actors=2)`."""

from __future__ import annotations

from typing import Any

import numpy as np

from jax2tf.tools.batch import contract
from jax2tf.tools.batch.engines import Rows, engine

__all__ = ["Actor", "mapped"]


class Actor:
  """The callable class for `Dataset.map_batches` of Ray Data. Each actor loads the model once.

  Args:
    model, options: as for `engines.Rows`.

  Raises:
    FileNotFoundError: there is no SavedModel of jax2tf.
    ValueError: an option does not fit the model; at a call, a row is bad.
  """

  def __init__(self, model: str, **options: Any):
    self._rows = Rows(model, **options)
    _ = self._rows.runner

  def __call__(self, table: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return self._rows(table)


def mapped(dataset: Any, model: str, *, actors: int = 1, blocks: int = 0, **options: Any) -> Any:
  """Reads a dataset into Ray's object store, spreads its rows over blocks, and replaces the model's
  inputs by its outputs.

  If the store cannot hold all rows, it writes the others to disk. In that case, map blocks as Ray
  reads them: `dataset.repartition(target_num_rows_per_block=4096).map_batches(Actor, ...)`.

  Args:
    dataset: a ray.data.Dataset.
    model: a SavedModel of jax2tf, or the folder of its versions.
    actors: the number of processes that run the model.
    blocks: the number of blocks of rows; 0 for 8 per actor. Ray 2.60 reads many small files as one
      block, which only one actor would run.
    options: as for `engines.Rows`.

  Returns:
    a ray.data.Dataset; Ray runs the model when the dataset is read.

  Raises:
    ImportError: Ray Data is not installed.
    FileNotFoundError: there is no SavedModel of jax2tf.
    ValueError: an option does not fit the model.
  """
  data = engine("ray.data")
  strategy = data.ActorPoolStrategy(size=actors)
  spread = dataset.repartition(blocks or 8 * actors).materialize()
  # Ray joins blocks until they fill a batch: batches larger than a block would leave actors without
  # one.
  read_options = {name: options[name] for name in ("signature", "mask") if name in options}
  window = contract.read(model, **read_options).window(options.get("batch_size", 256))
  rows = max(1, min(window, spread.count() // spread.num_blocks()))
  return spread.map_batches(
    Actor, fn_constructor_kwargs={"model": str(model), **options}, compute=strategy, batch_size=rows
  )
