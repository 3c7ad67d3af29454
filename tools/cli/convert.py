"""`jax2tf convert`: a function becomes a SavedModel, or the file of another runtime."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from jax2tf.tools.cli._verb import Answer, takes_function, takes_inputs, verb

_OPTIONS_OF = {
  "saved_model": ("version", "warmup", "with_gradient"),
  "tflite": ("quantization",),
  "tfjs": ("quantization", "page"),
  "onnx": ("opset",),
}


@verb
@takes_function
@takes_inputs
@click.option(
  "--to", type=click.Choice(["saved_model", "onnx", "tflite", "tfjs"]), default="saved_model", show_default=True, help="The format."
)
@click.option("--out", required=True, metavar="PATH", help="The folder of the model's versions; the .onnx or .tflite file; TF.js' folder.")
@click.option("--output", "outputs", multiple=True, help="Name of a result; may be repeated.")
@click.option("--signature", default="serving_default", show_default=True, help="Name of the signature.")
@click.option("--version", type=click.IntRange(0), help="By default the next free one.")
@click.option("--overwrite", is_flag=True, help="Replace the version, or the file.")
@click.option("--quantization", help="tflite: float16, dynamic_int8, int4; tfjs: float16, uint8, uint16.")
@click.option("--opset", type=click.IntRange(1), help="onnx: the version of its operators, 18 by default.")
@click.option("--page", is_flag=True, help="tfjs: a web page beside the model, which runs it.")
@click.option("--with_gradient", is_flag=True, help="Keep derivatives of first and second order.")
@click.option("--warmup", type=click.IntRange(0, 1000), default=0, metavar="N", help="Write N warm-up requests for TF Serving.")
def convert(
  function: str,
  library: str | None,
  params: str | None,
  state: str | None,
  constraints: Sequence[str],
  inputs: Sequence[str],
  to: str,
  out: str,
  outputs: Sequence[str],
  signature: str,
  overwrite: bool,
  **others: Any,
) -> Answer:
  """Saves a function as PATH/<version>/, a SavedModel, or as the file of another runtime."""
  from jax2tf.converters import saved_model, stages  # noqa: PLC0415
  from jax2tf.converters.saved_model import publish, warmup  # noqa: PLC0415
  from jax2tf.tools.cli import _loading  # noqa: PLC0415

  given = {name: value for name, value in others.items() if value}
  for name in given.keys() - _OPTIONS_OF[to]:
    if name in _OPTIONS_OF["saved_model"]:
      raise _loading.UsageError(f"--{name} is for a SavedModel, and --to={to} makes none; leave it out")
    raise _loading.UsageError(f"--{name} is not for --to={to}; it is for {', '.join(t for t in _OPTIONS_OF if name in _OPTIONS_OF[t])}")
  publish.check_writable(Path(out) if to == "saved_model" else Path(out).parent)
  specs = _loading.inputs(inputs, constraints)
  found = _loading.model(function, library, params, state, lambda: specs, constraints)
  model = saved_model.Model(
    found.params, state=found.state, trainable=found.trainable, polymorphic_constraints=constraints, with_gradient="with_gradient" in given
  )
  model.add(found.fun, inputs=specs, outputs=outputs or None, signatures=signature, stateful=found.state is not None)
  if to == "saved_model":
    requests = warmup.from_specs(model, given["warmup"]) if "warmup" in given else ()
    path = model.save(out, version=given.get("version"), overwrite=overwrite, warmup_requests=requests)
    return {"verdict": "saved", "path": str(path)}, f"saved {path}", 0
  with stages.stage(f"convert to {to}"):
    made = importlib.import_module(f"jax2tf.converters.{to}").save_model(model, out, overwrite=overwrite, **given)
  value = {"verdict": made.report.verdict, "path": str(made.path), "bytes": made.size}
  return value, f"saved {made.path} ({made.size:,} bytes); {made.report.verdict}", 0
