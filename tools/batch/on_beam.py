"""Apache Beam: `beam.ParDo(tables("build/model"))` on Arrow tables, `RunInference(handler("build/model"))` on elements.

Beam's own TensorFlow handlers (2.77) cannot load SavedModels: they import tensorflow_hub, and load with Keras 3, which refuses them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jax2tf.tools.batch.engines import Rows, engine


def tables(model: str, **options: Any) -> Any:
  """A DoFn of Arrow tables, as `beam.io.ReadFromParquetBatched` reads them, or of record batches; it yields tables with the outputs."""

  class Tables(engine("apache_beam").DoFn):  # type: ignore[misc]
    def __init__(self) -> None:
      self._rows = Rows(model, **options)

    def setup(self) -> None:
      _ = self._rows.runner

    def process(self, table: Any) -> Iterator[Any]:
      yield self._rows.arrow(table)

  return Tables()


def handler(model: str, *, min_batch: int = 32, max_batch: int = 256, **options: Any) -> Any:
  """A ModelHandler of elements {column: value}, whose inference is {output: value}."""
  base = engine("apache_beam.ml.inference.base")

  class Handler(base.ModelHandler):  # type: ignore[name-defined]
    def load_model(self) -> Rows:
      rows = Rows(model, **options)
      _ = rows.runner
      return rows

    def run_inference(self, batch: Sequence[Mapping[str, Any]], model: Rows, inference_args: Any = None) -> Iterable[Any]:
      del inference_args
      outputs = model({name: _column([element[name] for element in batch]) for name in batch[0]})
      for i, element in enumerate(batch):
        yield base.PredictionResult(element, {name: outputs[name][i] for name in model.runner.outputs})

    def batch_elements_kwargs(self) -> dict[str, int]:
      return {"min_batch_size": min_batch, "max_batch_size": max_batch}

  return Handler()


def _column(values: Sequence[Any]) -> np.ndarray:
  found = np.empty(len(values), object)
  found[:] = values
  return found
