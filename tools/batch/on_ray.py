"""Ray Data: `mapped(ray.data.read_parquet(...), "build/model", actors=2)`."""

from __future__ import annotations

from typing import Any

import numpy as np

from jax2tf.tools.batch.engines import Rows, engine
from jax2tf.tools.batch.worker import WINDOW


class Actor:
  """The callable class of `Dataset.map_batches`; an actor loads the model once."""

  def __init__(self, model: str, **options: Any):
    self._rows = Rows(model, **options)
    _ = self._rows.runner

  def __call__(self, table: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return self._rows(table)


def mapped(dataset: Any, model: str, *, actors: int = 1, blocks: int = 0, **options: Any) -> Any:
  """The dataset with the outputs.

  Args:
    dataset: of Ray Data.
    model: the SavedModel, or the folder of its versions.
    actors: how many processes run it.
    blocks: in how many the rows are put; 8 for each actor if 0. Ray 2.60 reads many small files as one block, which one actor has then.
    options: as of `model.Runner`.
  """
  data = engine("ray.data")
  strategy = data.ActorPoolStrategy(size=actors)
  spread = dataset.repartition(blocks or 8 * actors).materialize()
  return spread.map_batches(Actor, fn_constructor_kwargs={"model": str(model), **options}, compute=strategy, batch_size=WINDOW)
