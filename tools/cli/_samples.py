"""Typical inputs of a model, `--representative_dataset`: an .npz file, or `module:function`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jax2tf.converters.bundle.notation import Spec
from jax2tf.tools.cli import _loading


def samples(source: str, inputs: Mapping[str, str]) -> Any:
  """The samples that `source` names.

  Args:
    source: an .npz file with an array for each input, whose first axis counts the samples; or the
      function `module:function`, which takes no arguments and returns an iterable of {input:
      array}.
    inputs: {input: its spec}.

  Returns:
    an iterable of {input: array}.

  Raises:
    UsageError: there is no such file or function, or the arrays do not fit the inputs.
  """
  if ":" in source and not Path(source).exists():
    return _loading.function(source)
  path = Path(source)
  if path.suffix != ".npz" or not path.is_file():
    raise _loading.UsageError(
      f"--representative_dataset={source}: there is no such .npz file; name an .npz file, or "
      "module:function"
    )
  try:
    with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
      arrays = dict(archive)
  except Exception as error:  # each fault of a file has its own error
    raise _loading.UsageError(
      f"--representative_dataset={source} cannot be read: {error}"
    ) from error
  if arrays.keys() != inputs.keys():
    raise _loading.UsageError(
      f"--representative_dataset={source} has the arrays {', '.join(arrays) or 'none'}, and the "
      f"inputs are {', '.join(inputs)}"
    )
  if len(counts := {array.shape[:1] for array in arrays.values()}) != 1 or () in counts:
    shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in arrays.items())
    raise _loading.UsageError(
      f"--representative_dataset={source} has {shapes}; the first axis of each array counts the "
      "samples"
    )
  return [*_rows(arrays, {name: Spec.parse(text) for name, text in inputs.items()})]


def _rows(
  arrays: Mapping[str, np.ndarray], specs: Mapping[str, Spec]
) -> Iterator[dict[str, np.ndarray]]:
  """The samples. A row without the axis of the batch becomes a batch of one."""
  for i in range(len(next(iter(arrays.values())))):
    yield {
      name: array[i : i + 1] if array.ndim == len(specs[name].dims or ()) else array[i]
      for name, array in arrays.items()
    }
