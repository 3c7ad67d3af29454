"""Architectures in plain tf2onnx and TFLiteConverter, without and with our calls.

The models run in another process, with a time limit for each.
"""

from __future__ import annotations

import os
import pathlib
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jax2tf.tools.lab import workers
from jax2tf.tools.lab.pages.targets import REFUSED, WRONG
from jax2tf.tools.lab.target_rows import plain_runs
from tests.support import models, plain_models, runtimes

# Of tests.support.plain_models and tests.support.models.
MODELS = """
  cnn transposed_unet bidirectional_lstm masked_encoder keras_cnn vae mlp autoencoder gan_generator
  mixture_of_experts bidirectional_gru wavenet unet resnet convnext vit mlp_mixer
  transformer_encoder lstm_language_model seq2seq_lstm state_space pointnet rotary_decoder mobilenet
""".split()  # noqa: SIM905
_PATIENCE = 900  # seconds for one model
_WAYS = {"plain": False, "with our call": True}
COLUMNS = [f"{tool}, {way}" for tool in plain_runs.TOOLS for way in _WAYS]


def _entry(model: str) -> Any:
  own = plain_models.ENTRIES
  return own[model] if model in own else models.load(model)


def rows() -> list[str]:
  """The models."""
  return MODELS


def measured(names: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
  """{"library": its library, column: [verdict, why]} of each model."""
  os.environ.setdefault("KERAS_BACKEND", "jax")  # for the processes of the models
  yield from workers.each(_row, [(name,) for name in names], _lost, seconds=_PATIENCE)


def faults(numbers: Mapping[str, Any]) -> list[str]:
  """The models that are wrong with our call."""
  ours = [column for column in COLUMNS if column.endswith("our call")]
  return [
    f"{name} is wrong with our call"
    for name, row in numbers.items()
    if any(row[column][0] == WRONG for column in ours)
  ]


def _row(model: str) -> tuple[str, dict[str, Any]]:
  with tempfile.TemporaryDirectory(prefix="jax2tf-plain-") as folder, warnings.catch_warnings():
    warnings.simplefilter("ignore")
    case = plain_runs.Asked(runtimes.Case(_entry(model), pathlib.Path(folder)))
    verdicts = {
      f"{tool}, {way}": list(plain_runs.verdict(case, tool, with_call))
      for tool in plain_runs.TOOLS
      for way, with_call in _WAYS.items()
    }
    return model, {"library": case.entry.library, **verdicts}


def _lost(error: workers.LostError, model: str) -> tuple[str, dict[str, Any]]:
  verdicts = {column: [REFUSED, str(error)] for column in COLUMNS}
  return model, {"library": _entry(model).library, **verdicts}
