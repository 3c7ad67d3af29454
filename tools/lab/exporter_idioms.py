"""Exact and fused idioms in LiteRT, ONNX Runtime and TF.js: ops, bytes and latency;
docs/reports/fused.md. Run from a checkout.

Usage: python -m jax2tf.tools.lab.exporter_idioms. With --jax2onnx, the ONNX files that jax2onnx
makes are measured beside ours.
"""

from __future__ import annotations

import collections
import functools
import importlib
import json
import pathlib
import subprocess
import tempfile
import warnings
from collections.abc import Mapping
from typing import Any

import click
import numpy as np

from jax2tf.converters.verify.report import machine
from jax2tf.tools.lab import measure, reports
from jax2tf.tools.lab.idiom_models import MODELS
from jax2tf.tools.lab.options import commas

_IDIOMS = ("exact", "fused")
_TITLES = {"tflite": "LiteRT", "onnx": "ONNX Runtime", "tfjs": "TF.js, wasm in Node.js"}
_ROUNDS = 5  # of processes of Node.js, by turns
# What counts: neither constants nor names.
_NO_OPS = ("Const", "Constant", "Placeholder", "Identity", "DELEGATE")

# With parameters inside, as ours have them.
_JAX2ONNX = """
import sys, numpy, jax, jax2onnx
from tools.lab.idiom_models import MODELS
fun, params, inputs = MODELS[sys.argv[1]](numpy.random.default_rng(0))
specs = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in inputs.values()]
model = lambda *args: fun(params, *args)
jax2onnx.to_onnx(model, specs, return_mode="file", output_path=sys.argv[2])
"""


def _tflite(files: Mapping[str, pathlib.Path], inputs: Mapping[str, np.ndarray]) -> dict[str, Any]:
  from ai_edge_litert.interpreter import Interpreter  # noqa: PLC0415  (an extra)

  calls, ops = {}, {}
  for name, file in files.items():
    runner = Interpreter(str(file), num_threads=1).get_signature_runner()
    calls[name] = functools.partial(runner, **inputs)
    ops[name] = [op["op_name"] for op in Interpreter(str(file))._get_ops_details()]
  return _figures(ops, measure.milliseconds(calls, 6, of=min))


def _onnx(files: Mapping[str, pathlib.Path], inputs: Mapping[str, np.ndarray]) -> dict[str, Any]:
  import onnx  # noqa: PLC0415  (an extra)
  import onnxruntime  # noqa: PLC0415  (an extra)

  options = onnxruntime.SessionOptions()
  options.intra_op_num_threads, options.log_severity_level = 1, 4
  calls, ops = {}, {}
  for name, file in files.items():
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    given = dict(zip([value.name for value in session.get_inputs()], inputs.values(), strict=True))
    calls[name] = functools.partial(session.run, None, given)
    model = onnx.load(str(file))
    ops[name] = [
      node.op_type for node in (*model.graph.node, *(n for f in model.functions for n in f.node))
    ]
  return _figures(ops, measure.milliseconds(calls, 6, of=min))


def _tfjs(files: Mapping[str, pathlib.Path], inputs: Mapping[str, np.ndarray]) -> dict[str, Any]:
  from jax2tf.converters.bundle import manifest  # noqa: PLC0415
  from jax2tf.converters.tfjs import runtime  # noqa: PLC0415
  from jax2tf.converters.verify import plan  # noqa: PLC0415  (which imports TensorFlow)

  run = plan.Run(
    plan.Subject("serving_default", manifest.SignatureRecord({}, {}), lambda: None, []),
    {},
    "given",
    dict(inputs),
    timed=True,
  )
  times = collections.defaultdict(list)
  for _ in range(_ROUNDS):
    for name, file in files.items():
      (answer,) = runtime.answers(runtime.packages(), file, "wasm", {"y": "f32[?]"}, [run])
      times[name].append(1e3 * (answer["seconds"] or 0.0))
  nodes = {
    name: json.loads((file / "model.json").read_text(encoding="utf-8"))["modelTopology"]["node"]
    for name, file in files.items()
  }
  return _figures(
    {name: [node["op"] for node in found] for name, found in nodes.items()},
    {name: min(t) for name, t in times.items()},
  )


def _figures(ops: Mapping[str, list[str]], milliseconds: Mapping[str, float]) -> dict[str, Any]:
  return {
    name: {"ops": sum(op not in _NO_OPS for op in found), "ms": milliseconds[name]}
    for name, found in ops.items()
  }


_MEASURED = {"tflite": _tflite, "onnx": _onnx, "tfjs": _tfjs}


def measured(name: str, target: str, jax2onnx: str) -> dict[str, Any]:
  """{"exact" | "fused" | "jax2onnx": {"ops", "ms", "bytes"}, "hostile": the fused file's
  differences for NaN and infinity}."""
  fun, params, inputs = MODELS[name](np.random.default_rng(0))
  exporter = importlib.import_module(f"jax2tf.converters.{target}")
  specs = {
    key: f"{'i32' if x.dtype == np.int32 else 'f32'}[{','.join(map(str, x.shape))}]"
    for key, x in inputs.items()
  }
  more = {"backends": ["wasm"]} if target == "tfjs" else {}
  with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    files, sizes, hostile = {}, {}, {}
    for idioms in _IDIOMS:
      said.clear()
      path = pathlib.Path(folder, f"{idioms}.{target}")
      made = exporter.save(
        fun,
        params,
        path,
        inputs=specs,
        outputs=["y"],
        idioms=idioms,
        samples=1,
        examples=inputs,
        **more,
      )
      files[idioms], sizes[idioms] = path, made.size
      hostile[idioms] = sum("computes different" in str(warning.message) for warning in said)
    if target == "onnx" and jax2onnx:
      path = pathlib.Path(folder, "jax2onnx.onnx")
      done = subprocess.run(
        [jax2onnx, "-c", _JAX2ONNX, name, str(path)], check=False, capture_output=True, text=True
      )
      if done.returncode:
        print(f"jax2onnx fails for {name}: {done.stderr.splitlines()[-1]}")
      else:
        files["jax2onnx"], sizes["jax2onnx"] = (
          path,
          sum(file.stat().st_size for file in path.parent.glob(f"{path.name}*")),
        )
    found = _MEASURED[target](files, inputs)
  return {
    kind: row
    | {"bytes": sizes[kind]}
    | ({"hostile": bool(hostile[kind])} if kind in hostile else {})
    for kind, row in found.items()
  }


def markdown(report: Mapping[str, Mapping[str, Any]]) -> str:
  """The document."""
  lines = [
    "# Exact and fused idioms at the runtimes",
    "",
    "Generated by `make fused`; do not edit. Each model is exported twice and measured by turns "
    "in one process, with one thread; the",
    f"latency is the least of six seconds (TF.js: of {_ROUNDS} processes' medians). Ops are those "
    "of the file, without constants;",
    "the runtimes fuse more when they open it. *NaN* says whether the answers to NaN, infinities "
    "and extreme numbers are JAX's.",
    "[The guide](../guide/fused.md) says what the idioms are. jax2onnx 0.17.1 exports the same "
    "function, at opset 23;",
    "it fails for MiniLM, and with JAX 0.12 for every model.",
    "",
    "litert-torch and the exporter of torch are not here: they take models of torch, whose wheel "
    "has 540 MB.",
  ]
  for version, section in sorted(report.items()):
    lines += ["", f"## JAX {version}", "", section["machine"], ""]
    lines += [
      "| model | runtime | file | ops | bytes | ms | NaN |",
      "|---|---|---|---:|---:|---:|---|",
    ]
    for name, row in section.items():
      if name != "machine":
        model, target, kind = name.split("/")
        nan = {False: "as JAX", True: "otherwise"}.get(row.get("hostile"), "")
        lines.append(
          f"| {model} | {_TITLES[target]} | {kind} | {row['ops']} | {row['bytes']:,} | "
          f"{row['ms']:.3g} | {nan} |"
        )
  return "\n".join([*lines, ""])


@click.command
@click.option(
  "--jax2onnx", default="", metavar="PYTHON", help="Of an environment that has jax2onnx."
)
@click.option(
  "--only", default="", callback=commas, help="Of the rows, such as MLP/onnx; all by default."
)
def main(jax2onnx: str, only: list[str]) -> None:
  """Exports, measures, and writes the document."""
  for name in MODELS:
    for target in _MEASURED:
      if only and f"{name}/{target}" not in only:
        continue
      rows = {
        f"{name}/{target}/{kind}": row for kind, row in measured(name, target, jax2onnx).items()
      }
      order = [
        "machine",
        *(f"{m}/{t}/{kind}" for m in MODELS for t in _MEASURED for kind in (*_IDIOMS, "jax2onnx")),
      ]
      reports.update("fused", {"machine": machine(), **rows}, order, markdown, lambda report: None)


if __name__ == "__main__":
  main()
