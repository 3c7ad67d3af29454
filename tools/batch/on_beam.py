"""Apache Beam: `beam.ParDo(tables("build/model"))` on Arrow tables,
`RunInference(handler("build/model"))` on elements.

The TensorFlow handlers of Beam 2.77 cannot load SavedModels: they import tensorflow_hub, and load
with Keras 3, which rejects them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from jax2tf.tools.batch.cells import objects
from jax2tf.tools.batch.engines import Rows, engine

__all__ = ["handler", "tables"]


def tables(model: str, **options: Any) -> Any:
  """Creates a DoFn that maps Arrow tables or record batches, such as
  `beam.io.ReadFromParquetBatched` reads, to tables with the outputs.

  Args:
    model: a SavedModel of jax2tf, or the folder of its versions.
    options: as for `engines.Rows`.

  Returns:
    a beam.DoFn, which loads the model in its setup.

  Raises:
    ImportError: Beam is not installed.
  """

  class Tables(engine("apache_beam").DoFn):  # type: ignore[misc]
    def __init__(self) -> None:
      self._rows = Rows(model, **options)

    def setup(self) -> None:
      _ = self._rows.runner

    def process(self, table: Any) -> Iterator[Any]:
      yield self._rows.arrow(table)

  return Tables()


def handler(model: str, *, min_batch: int = 32, max_batch: int = 256, **options: Any) -> Any:
  """Creates a ModelHandler for elements {column: value}, whose inferences are {output: value}.

  Args:
    model: a SavedModel of jax2tf, or the folder of its versions.
    min_batch, max_batch: the smallest and the largest number of elements in a batch of Beam.
    options: as for `engines.Rows`.

  Returns:
    a ModelHandler for `RunInference`.

  Raises:
    ImportError: Beam is not installed.
  """
  base = engine("apache_beam.ml.inference.base")

  class Handler(base.ModelHandler):  # type: ignore[misc, name-defined]
    def load_model(self) -> Rows:
      rows = Rows(model, **options)
      _ = rows.runner
      return rows

    def run_inference(
      self, batch: Sequence[Mapping[str, Any]], model: Rows, inference_args: Any = None
    ) -> Iterable[Any]:
      del inference_args
      names = [column for columns in model.runner.columns.values() for column in columns]
      outputs = model({name: objects([element.get(name) for element in batch]) for name in names})
      for i, element in enumerate(batch):
        yield base.PredictionResult(
          element, {name: outputs[name][i] for name in model.runner.outputs}
        )

    def batch_elements_kwargs(self) -> dict[str, int]:
      return {"min_batch_size": min_batch, "max_batch_size": max_batch}

  return Handler()
