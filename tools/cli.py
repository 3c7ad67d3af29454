"""The `jax2tf` command: convert, inspect, check, verify, serve and diff, each also with --json.

Exit codes: 0 all is well; 1 the answer is no (a gap, a mismatch, a difference); 2 the command cannot be carried out as given.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import logging
import sys
from collections.abc import Callable, Sequence
from typing import Any

from absl import app
from absl import logging as absl_logging
from absl.flags import argparse_flags

# value for machines, text for people, exit code
Answer = tuple[Any, str, int]


def _parser() -> argparse_flags.ArgumentParser:
  # absl flags that an imported module defines, the user's too, stay usable; one of the same name gives way to the command's.
  parser = argparse_flags.ArgumentParser(prog="jax2tf", conflict_handler="resolve", description="JAX functions for TensorFlow.")
  commands = parser.add_subparsers(dest="command", required=True, metavar="command")

  def add(name: str, run: Callable[[argparse.Namespace], Answer], text: str) -> argparse.ArgumentParser:
    command = commands.add_parser(name, help=text, description=text, conflict_handler="resolve")
    command.set_defaults(run=run)
    command.add_argument("--json", action="store_true", help="print JSON")
    return command

  def function(command: argparse.ArgumentParser) -> None:
    command.add_argument("function", metavar="module:function", help="a JAX function of the parameters and the inputs")
    command.add_argument("--params", help=".npz, .safetensors, an Orbax checkpoint, or module:factory; none: an empty tree")
    command.add_argument("--constraint", action="append", default=[], help='on dimension variables, "b<=512"; may be repeated')

  def inputs(command: argparse.ArgumentParser) -> None:
    command.add_argument("--input", action="append", default=[], required=True, help='"x=f32[b,784]"; may be repeated')

  convert = add("convert", _convert, "Saves a function as DIR/<version>/, a SavedModel, or as the file of another runtime.")
  function(convert)
  inputs(convert)
  convert.add_argument("--to", choices=["saved_model", "onnx", "tflite", "tfjs"], default="saved_model", help="the format")
  convert.add_argument(
    "--out", required=True, metavar="PATH", help="the folder of the model's versions; the .onnx or .tflite file; TF.js' folder"
  )
  convert.add_argument("--output", action="append", default=[], help="name of a result; may be repeated")
  convert.add_argument("--signature", default="serving_default", help="name of the signature")
  convert.add_argument("--version", type=int, help="by default the next free one")
  convert.add_argument("--overwrite", action="store_true", help="replace the version, or the file")
  convert.add_argument("--quantization", help="tflite: float16, dynamic_int8, int4; tfjs: float16, uint8, uint16")
  convert.add_argument("--opset", type=int, help="onnx: the version of its operators, 18 by default")
  convert.add_argument("--page", action="store_true", help="tfjs: a web page beside the model, which runs it")
  convert.add_argument("--with_gradient", action="store_true", help="keep derivatives of first and second order")
  convert.add_argument("--warmup", type=int, default=0, metavar="N", help="write N warm-up requests for TF Serving")

  inspect = add("inspect", _inspect, "Says what is in a SavedModel.")
  inspect.add_argument("directory", metavar="DIR")

  check = add("check", _check, "Says what of a function a target lacks, with your lines; writes nothing.")
  function(check)
  inputs(check)
  check.add_argument("--for", dest="targets", default="serving", help="of serving, tflite, onnx, tfjs; with commas between")

  verify = add("verify", _verify, "Compares a SavedModel with the JAX function, in a process without JAX.")
  verify.add_argument("directory", metavar="DIR")
  function(verify)
  verify.add_argument("--report", metavar="FOLDER", help="write the report there: text, JSON and HTML")
  verify.add_argument("--samples", type=int, default=3, help="draws for each size")

  serve = add("serve", _serve, "Serves a model's folder by gRPC and REST with Ray Serve, on this machine.")
  serve.add_argument("directory", metavar="DIR", help="the folder of the model's versions")
  serve.add_argument("--replicas", type=int, default=1)
  serve.add_argument("--grpc_port", type=int, default=8500)
  serve.add_argument("--http_port", type=int, default=8501)

  diff = add("diff", _diff, "Says how two SavedModels differ.")
  diff.add_argument("before", metavar="DIR")
  diff.add_argument("after", metavar="DIR")
  return parser


_OPTIONS_OF = {"tflite": ("quantization",), "tfjs": ("quantization", "page"), "onnx": ("opset",)}

# The commands import what they need, and no command the extras of another.


def _convert(args: argparse.Namespace) -> Answer:
  from jax2tf.converters import saved_model  # noqa: PLC0415
  from jax2tf.converters.export.source import ExportError  # noqa: PLC0415
  from jax2tf.converters.saved_model import warmup  # noqa: PLC0415
  from jax2tf.tools import _loading  # noqa: PLC0415

  options = {name: value for name in ("quantization", "opset", "page") if (value := getattr(args, name))}
  if wrong := [name for name in options if name not in _OPTIONS_OF.get(args.to, ())]:
    raise _loading.UsageError(
      f"--{wrong[0]} is not for --to={args.to}; it is for {', '.join(t for t in _OPTIONS_OF if wrong[0] in _OPTIONS_OF[t])}"
    )
  if args.to != "saved_model" and (wrong := [name for name in ("version", "warmup", "with_gradient") if getattr(args, name)]):
    raise _loading.UsageError(f"--{wrong[0]} is for a SavedModel, and --to={args.to} makes none; leave it out")
  fun, inputs = _loading.function(args.function), _loading.inputs(args.input)
  model = saved_model.Model(_loading.parameters(args.params), polymorphic_constraints=args.constraint, with_gradient=args.with_gradient)
  model.add(fun, inputs=inputs, outputs=args.output or None, signatures=args.signature)
  if args.to != "saved_model":
    try:
      made = importlib.import_module(f"jax2tf.converters.{args.to}").save_model(model, args.out, overwrite=args.overwrite, **options)
    except ExportError as error:
      return {"error": str(error), "gaps": [dataclasses.asdict(use) for use in error.uses]}, f"jax2tf convert: {error}", 1
    return {"path": str(made.path), "bytes": made.size}, f"saved {made.path} ({made.size:,} bytes); {made.report.verdict}", 0
  requests = warmup.from_specs(model, args.warmup) if args.warmup else ()
  path = model.save(args.out, version=args.version, overwrite=args.overwrite, warmup_requests=requests)
  return {"path": str(path)}, f"saved {path}", 0


def _inspect(args: argparse.Namespace) -> Answer:
  from jax2tf.tools import inspection  # noqa: PLC0415

  found = inspection.inspect(args.directory)
  return found, inspection.text(found), 0


def _check(args: argparse.Namespace) -> Answer:
  from jax2tf.tools import _loading, targets  # noqa: PLC0415

  fun, params = _loading.function(args.function), _loading.parameters(args.params)
  gaps = targets.gaps(fun, params, _loading.inputs(args.input), args.constraint, args.targets.split(","))
  return gaps, targets.text(gaps), int(any(gaps.values()))


def _verify(args: argparse.Namespace) -> Answer:
  from jax2tf.converters import verify  # noqa: PLC0415
  from jax2tf.tools import _loading  # noqa: PLC0415

  report = verify.verify(args.directory, _loading.function(args.function), params=_loading.parameters(args.params), samples=args.samples)
  if args.report:
    report.write(args.report)
  return json.loads(report.json()), report.text(), int(not report.ok)


def _serve(args: argparse.Namespace) -> Answer:
  from jax2tf.tools import serving  # noqa: PLC0415

  return {}, "", serving.run(args.directory, replicas=args.replicas, grpc_port=args.grpc_port, http_port=args.http_port)


def _diff(args: argparse.Namespace) -> Answer:
  from jax2tf.tools import inspection  # noqa: PLC0415

  found = inspection.diff(args.before, args.after)
  return found, inspection.diff_text(found), int(bool(found))


def _main(args: argparse.Namespace) -> int:
  from jax2tf.tools import _loading  # noqa: PLC0415

  absl_logging.set_verbosity(absl_logging.ERROR)
  logging.getLogger().setLevel(logging.ERROR)
  try:
    value, text, code = args.run(args)
  except (_loading.UsageError, FileNotFoundError, FileExistsError, NotADirectoryError, ModuleNotFoundError, ValueError) as error:
    print(f"jax2tf {args.command}: {error}", file=sys.stderr)
    return 2
  except NotImplementedError as error:
    print(f"jax2tf {args.command}: {error}", file=sys.stderr)
    return 1
  if args.json:
    print(json.dumps(value, indent=2))
  elif text:
    print(text)
  return code


def main(argv: Sequence[str] | None = None) -> None:
  """The entry point of the `jax2tf` command."""
  app.run(_main, argv=["jax2tf", *argv] if argv is not None else None, flags_parser=lambda argv: _parser().parse_args(argv[1:]))
