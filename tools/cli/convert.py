"""`jax2tf convert`: writes a function as a SavedModel, or as a file for another runtime."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from jax2tf.converters.bundle import paths
from jax2tf.tools.cli._verb import (
  Answer,
  Named,
  takes_function,
  takes_inputs_of_function,
  takes_sizes,
  verb,
)

if TYPE_CHECKING:
  from jax2tf.converters.saved_model.adapted import Adapted

_FILE = click.Path(exists=True, dir_okay=False)
_INTEGERS = click.Choice(["int8", "uint8"])
_SCHEMES = {
  "onnx": ("dynamic_int8", "int8"),
  "tflite": ("float16", "dynamic_int8", "int8", "int4"),
  "tfjs": ("float16", "uint8", "uint16"),
}
_OPTIONS_OF = {
  "saved_model": ("version", "warmup", "with_gradient", "gradient_orders"),
  "tflite": (
    "size",
    "quantization",
    "representative_dataset",
    "inference_input_type",
    "inference_output_type",
  ),
  "tfjs": ("size", "quantization"),
  "onnx": (
    "size",
    "opset",
    "precision",
    "quantization",
    "representative_dataset",
    "functions",
    "inputs_as_nchw",
    "outputs_as_nchw",
    "keep_io_types",
    "attention_nodes",
  ),
}


@verb
@takes_function
@takes_inputs_of_function
@click.option(
  "--to",
  type=click.Choice(["saved_model", "onnx", "tflite", "tfjs"]),
  default="saved_model",
  show_default=True,
  help="The format.",
)
@click.option(
  "--out",
  "path",
  required=True,
  metavar="PATH",
  help="The folder of the model's versions; the .onnx or .tflite file; TF.js' folder.",
)
@click.option("--output", "outputs", multiple=True, help="Name of a result; may be repeated.")
@click.option(
  "--signature",
  "signatures",
  default="serving_default",
  show_default=True,
  help="Name of the signature.",
)
@click.option(
  "--version", type=click.IntRange(0), help="The version to write; by default the next free one."
)
@click.option("--overwrite", is_flag=True, help="Replace the file, or the SavedModel's --version.")
@takes_sizes
@click.option(
  "--quantization",
  help="For onnx dynamic_int8 or int8; for tflite float16, dynamic_int8, int8 or int4; for tfjs "
  "float16, uint8 or uint16.",
)
@click.option(
  "--representative_dataset",
  metavar="SOURCE",
  help="Typical inputs, for --quantization=int8: an .npz file with an array for each input, whose "
  "first axis counts the samples; or "
  "module:function, which returns an iterable of {input: array}.",
)
@click.option(
  "--inference_input_type",
  type=_INTEGERS,
  help="For int8: the dtype of the file's floating point inputs.",
)
@click.option(
  "--inference_output_type",
  type=_INTEGERS,
  help="For int8: the dtype of the file's floating point outputs.",
)
@click.option(
  "--idioms",
  metavar="NAMES",
  help="exact keeps JAX's values; fused also uses composite ops; names, such as softmax,gelu, "
  "enable only these. By default exact for a SavedModel; for other formats, the fused idioms for "
  "which the runtime has JAX's values.",
)
@click.option("--opset", type=click.IntRange(1), help="For onnx: the opset version.")
@click.option(
  "--precision",
  type=click.Choice(["float32", "float16"]),
  help="For onnx: float16 for products, and ops that follow them, in float16.",
)
@click.option(
  "--functions",
  type=click.Choice(["modules"]),
  help="For onnx: modules writes an ONNX function for each module of the model.",
)
@click.option(
  "--inputs_as_nchw",
  multiple=True,
  metavar="NAME",
  help="For onnx: an input f32[b,height,width,channels] that is f32[b,channels,height,width] in "
  "the file; may be repeated.",
)
@click.option(
  "--outputs_as_nchw", multiple=True, metavar="NAME", help="For onnx: the same for an output."
)
@click.option(
  "--keep_io_types/--no_keep_io_types",
  default=None,
  help="For onnx: with --precision float16, inputs and outputs stay float32 (the default), or "
  "become float16.",
)
@click.option(
  "--attention_nodes",
  is_flag=True,
  default=None,
  help="For onnx: write an Attention node for each attention, from opset 23 on.",
)
@click.option("--with_gradient", is_flag=True, default=None, help="Store first derivatives.")
@click.option(
  "--gradient_orders",
  type=click.IntRange(1),
  metavar="N",
  help="With --with_gradient: store derivatives up to this order.",
)
@click.option(
  "--warmup",
  type=click.IntRange(0, 1000),
  metavar="N",
  help="Store N warm-up requests for TF Serving.",
)
def convert(
  named: Named,
  inputs: Sequence[str],
  to: str,
  path: str,
  outputs: Sequence[str],
  signatures: str,
  overwrite: bool,
  idioms: str | None,
  sizes: Sequence[str],
  **others: Any,
) -> Answer:
  """Saves a function as a SavedModel, PATH/<version>/, or as a file for another runtime.

  MODULE:FUNCTION may be a file of jax.export or of StableHLO instead.

  \b
  Example:
    jax2tf convert model:predict --params weights.npz --input "x=f32[b,784]" --out build/model
    jax2tf convert exported.bin --to onnx --out model.onnx
  """
  _check_quantization(to, others)
  from jax2tf.converters import saved_model, stages  # noqa: PLC0415
  from jax2tf.converters.bundle import publish  # noqa: PLC0415
  from jax2tf.converters.saved_model import warmup  # noqa: PLC0415
  from jax2tf.tools.cli import _loading, _samples  # noqa: PLC0415

  # 0 is a version, and False what --no_keep_io_types says
  settings = {name: value for name, value in others.items() if value is not None and value != ()}
  if sizes:
    settings["size"] = _loading.sizes(sizes)
  for name in settings.keys() - _OPTIONS_OF[to]:
    if name in _OPTIONS_OF["saved_model"]:
      raise _loading.UsageError(
        f"--{name} is for a SavedModel, and --to={to} makes none; leave it out"
      )
    raise _loading.UsageError(
      f"--{name} is not for --to={to}; it is for "
      f"{', '.join(t for t in _OPTIONS_OF if name in _OPTIONS_OF[t])}"
    )
  if overwrite and to == "saved_model" and "version" not in settings:
    raise _loading.UsageError(
      "--overwrite replaces a version of a SavedModel; name it as --version, or leave out "
      "--overwrite to add one"
    )
  target = paths.of(path)
  if to in ("onnx", "tflite"):
    publish.check_file(target, overwrite, f"model.{to}")
  elif to == "saved_model":
    publish.check_version(target, settings.get("version"), overwrite)
  else:
    publish.check_writable(target.parent)
  specs, constraints, load = _function(named, inputs)
  data = (
    _samples.samples(settings["representative_dataset"], specs)
    if "representative_dataset" in settings
    else None
  )
  loaded = load()
  with stages.stage(f"import what --to={to} needs"):
    exporter: Any = importlib.import_module(f"jax2tf.converters.{to}")
  gradient = {
    "with_gradient": "with_gradient" in settings,
    "gradient_orders": settings.get("gradient_orders", 1),
  }
  options: dict[str, Any] = {
    "polymorphic_constraints": constraints,
    "idioms": idioms or getattr(exporter, "IDIOMS", "exact"),  # a SavedModel's are exact
    **gradient,
  }
  model = saved_model.Model(
    loaded.params, state=loaded.state, trainable=loaded.trainable, **options
  )
  model.add(
    loaded.fun,
    inputs=specs,
    outputs=outputs or None,
    signatures=signatures,
    stateful=loaded.state is not None,
  )
  if to == "saved_model":
    requests = warmup.from_specs(model, settings["warmup"]) if "warmup" in settings else ()
    saved = model.save(
      path, version=settings.get("version"), overwrite=overwrite, warmup_requests=requests
    )
    return {"verdict": "saved", "path": str(saved)}, f"saved {saved}", 0
  with stages.stage(f"convert to {to}"):
    if "representative_dataset" in settings:
      settings["representative_dataset"] = data
    exported = exporter.save_model(
      model, path, overwrite=overwrite, sizes=settings.pop("size", None), **settings
    )
  value = {"verdict": exported.report.verdict, "path": str(exported.path), "bytes": exported.size}
  sentence = f"saved {exported.path} ({exported.size:,} bytes); {exported.report.verdict}"
  if to == "onnx":
    oldest, for_nan = exported.oldest_runtime, exported.oldest_runtime_for_nan
    value |= {"oldest_runtime": oldest, "oldest_runtime_for_nan": for_nan}
    sentence += f"; for ONNX Runtime {oldest} or newer"
    if for_nan != oldest:
      sentence += f", {for_nan} or newer if inputs contain NaN or infinities"
  return value, sentence, 0


def _function(
  named: Named, inputs: Sequence[str]
) -> tuple[Mapping[str, str], Sequence[str], Callable[[], Adapted]]:
  """(inputs in jaxpr notation, conditions on their sizes, what loads the function), of a name or of
  a file, which has conditions of its own."""
  from jax2tf.tools.cli import _artifacts, _loading  # noqa: PLC0415

  if _artifacts.is_named(named.function):
    _artifacts.check_alone(named, inputs)
    artifact = _artifacts.load(named.function)
    # While it is converted and compared, JAX keeps its dtypes.
    click.get_current_context().with_resource(artifact.function.precision())
    constraints = dict.fromkeys([*artifact.function.constraints, *named.polymorphic_constraints])
    return artifact.inputs, list(constraints), lambda: artifact.adapted
  if not inputs:
    raise click.UsageError("Missing option '--input'.")
  specs = _loading.inputs(inputs, named.polymorphic_constraints)
  return specs, named.polymorphic_constraints, lambda: _loading.model(named, lambda: specs)


def _check_quantization(to: str, options: Mapping[str, Any]) -> None:
  """Refuses at once what the exporter would refuse after the model is loaded."""
  scheme, data = options["quantization"], options["representative_dataset"]
  if to not in _SCHEMES:
    return
  if scheme is None and data is not None:
    raise click.UsageError(
      "--representative_dataset is for a quantised model; name a scheme as --quantization"
    )
  if scheme != "int8" and (
    named := [name for name in ("inference_input_type", "inference_output_type") if options[name]]
  ):
    raise click.UsageError(f"--{named[0]} is for --quantization=int8; leave it out")
  if scheme is not None and scheme not in _SCHEMES[to]:
    raise click.UsageError(f"--quantization={scheme}; give one of: {', '.join(_SCHEMES[to])}")
  if scheme == "int8" and data is None:
    raise click.UsageError(
      "--quantization=int8 needs typical inputs of the model; give --representative_dataset, an "
      ".npz file or module:function"
    )
