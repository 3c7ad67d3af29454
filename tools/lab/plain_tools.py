"""Architectures in plain tf2onnx and TFLiteConverter, without and with our calls:
docs/reports/targets.md; needs a checkout.

Usage: python -m jax2tf.tools.lab.plain_tools [--models=regular expression]

The models run in another process, with a time limit for each. The report keeps the rows of other
models and versions of JAX, so a second run goes on where the last one stopped.
"""

from __future__ import annotations

import os
import pathlib
import re
import tempfile
import warnings
from typing import Any

import click
import jax
import tqdm

from jax2tf.tools.lab import pages, plain_runs, reports, workers
from jax2tf.tools.lab.pages.targets import REFUSED, WRONG
from tests.support import models, plain_models, runtimes

# Of tests.support.plain_models and tests.models.
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


def row(model: str) -> dict[str, Any]:
  """{"library": its library, column: [verdict, why]} of a model."""
  with tempfile.TemporaryDirectory(prefix="jax2tf-plain-") as folder, warnings.catch_warnings():
    warnings.simplefilter("ignore")
    case = plain_runs.Asked(runtimes.Case(_entry(model), pathlib.Path(folder)))
    found = {
      f"{tool}, {way}": plain_runs.verdict(case, tool, _WAYS[way])
      for tool in plain_runs.TOOLS
      for way in _WAYS
    }
    return {
      "library": case.entry.library,
      **{column: list(result) for column, result in found.items()},
    }


def _lost(error: workers.LostError, model: str) -> dict[str, Any]:
  return {"library": _entry(model).library, **{column: [REFUSED, str(error)] for column in COLUMNS}}


@click.command
@click.option("--models", default="", help="Run those whose name matches this expression again.")
def main(models: str) -> None:
  """Runs models without a row and writes the report of all. Fails if one is wrong with our call."""
  os.environ.setdefault("KERAS_BACKEND", "jax")  # for the processes of the models
  known = reports.read("plain-tools").get(jax.__version__, {})
  wanted = [name for name in MODELS if name not in known or (models and re.search(models, name))]
  found = workers.each(row, [(name,) for name in wanted], _lost, seconds=_PATIENCE)
  for name, one in tqdm.tqdm(zip(wanted, found, strict=True), total=len(wanted), unit="model"):
    reports.update("plain-tools", {name: one}, MODELS)
  pages.write("targets")
  section = reports.read("plain-tools").get(jax.__version__, {})
  if wrong := [
    name
    for name in section
    if any(section[name][c][0] == WRONG for c in COLUMNS if c.endswith("our call"))
  ]:
    raise click.ClickException(f"wrong with our call: {', '.join(wrong)}")


if __name__ == "__main__":
  main()
