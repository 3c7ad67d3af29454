"""Exact and fused idioms in LiteRT, ONNX Runtime and TF.js: ops, bytes and milliseconds of a call.

The files of a row run by turns, with one thread.
"""

from __future__ import annotations

import collections
import functools
import importlib
import json
import pathlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from jax2tf.converters.bundle import manifest
from jax2tf.converters.bundle.notation import Spec
from jax2tf.converters.tfjs import runtime
from jax2tf.converters.verify import plan
from jax2tf.tools.lab import measure
from jax2tf.tools.lab.speed_rows.idiom_models import MODELS

_SECONDS = 6.0  # of measurement for each row
_ROUNDS = 5  # of processes of Node.js
# Neither constants nor names.
_NO_OPS = ("Const", "Constant", "Placeholder", "Identity", "DELEGATE")

Files = Mapping[str, pathlib.Path]
Inputs = Mapping[str, np.ndarray]
# ({file: op types}, {file: milliseconds})
Found = tuple[dict[str, list[str]], dict[str, float]]


# {"exact" | "fused": {"ops", "ms", "bytes"}}
Numbers = dict[str, dict[str, float]]


def rows() -> list[str]:
  """Each model in each runtime."""
  return [f"{name}/{target}" for name in MODELS for target in _RUN]


def measured(names: Sequence[str]) -> Iterator[tuple[str, Numbers]]:
  """Exports each row twice, and runs the files."""
  for name in names:
    yield name, _row(*name.split("/"))


def _row(name: str, target: str) -> Numbers:
  fun, params, inputs = MODELS[name](np.random.default_rng(0))
  exporter = importlib.import_module(f"jax2tf.converters.{target}")
  specs = {key: str(Spec.of(x)) for key, x in inputs.items()}
  more = {"backends": ["wasm"]} if target == "tfjs" else {}
  files, sizes = {}, {}
  with tempfile.TemporaryDirectory() as folder:
    for idioms in ("exact", "fused"):
      files[idioms] = pathlib.Path(folder, f"{idioms}.{target}")
      options = {"idioms": idioms, "samples": 1, "examples": inputs, **more}
      made = exporter.save(fun, params, files[idioms], inputs=specs, outputs=["y"], **options)
      sizes[idioms] = made.size
    ops, milliseconds = _RUN[target](files, inputs)
  return {
    idioms: {
      "ops": sum(op not in _NO_OPS for op in ops[idioms]),
      "ms": milliseconds[idioms],
      "bytes": sizes[idioms],
    }
    for idioms in files
  }


def _tflite(files: Files, inputs: Inputs) -> Found:
  from ai_edge_litert.interpreter import Interpreter  # noqa: PLC0415  (an extra)

  calls, ops = {}, {}
  for name, file in files.items():
    runner = Interpreter(str(file), num_threads=1).get_signature_runner()
    calls[name] = functools.partial(runner, **inputs)
    ops[name] = [op["op_name"] for op in Interpreter(str(file))._get_ops_details()]
  return ops, measure.milliseconds(calls, _SECONDS, of=min)


def _onnx(files: Files, inputs: Inputs) -> Found:
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
    nodes = [*model.graph.node, *(node for f in model.functions for node in f.node)]
    ops[name] = [node.op_type for node in nodes]
  return ops, measure.milliseconds(calls, _SECONDS, of=min)


def _tfjs(files: Files, inputs: Inputs) -> Found:
  """The least of the medians of several processes."""
  subject = plan.Subject("serving_default", manifest.SignatureRecord({}, {}), lambda: None, [])
  run = plan.Run(subject, {}, "given", dict(inputs), timed=True)
  times = collections.defaultdict(list)
  for _ in range(_ROUNDS):
    for name, file in files.items():
      (answer,) = runtime.answers(runtime.packages(), file, "wasm", {"y": "f32[?]"}, [run])
      times[name].append(1e3 * (answer["seconds"] or 0.0))
  ops = {}
  for name, file in files.items():
    graph = json.loads((file / "model.json").read_text(encoding="utf-8"))["modelTopology"]
    ops[name] = [node["op"] for node in graph["node"]]
  return ops, {name: min(found) for name, found in times.items()}


_RUN: Mapping[str, Callable[[Files, Inputs], Found]] = {
  "tflite": _tflite,
  "onnx": _onnx,
  "tfjs": _tfjs,
}
