"""Writes a frozen graph in TF.js' format: model.json holds the graph, and files of 4 MB hold the
weights.

The format is that of `tf.loadGraphModel`
(https://github.com/tensorflow/tfjs/tree/master/tfjs-converter).
"""

from __future__ import annotations

import collections
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf import json_format

from jax2tf import _tf_compat

from ..bundle import graphs
from ..export.freezing import FrozenGraph
from ..export.pair import REAL
from . import rule
from .names import CONTROL, SUPPORTED

SHARD = 4 << 20  # bytes: a size that browsers cache
# elements; smaller weights save little, and rounded scales, biases and tables cost most accuracy
_QUANTIZED_FROM = 1024
QUANTIZED = ("uint8", "uint16", "float16")
_WITH_TWO_RESULTS = "TopKV2"  # the only op of SUPPORTED with named results
# webgl holds int32 in float32; graphs that work on bits contain this constant
_LARGEST_INT_OF_WEBGL = 2**16


def definition(frozen: FrozenGraph) -> tuple[Any, dict[str, Any]]:
  """(GraphDef with folded constants, {"inputs"|"outputs": {name: {"name", "dtype",
  "tensorShape"}}})."""
  inputs, outputs = frozen.inputs, frozen.outputs
  signature = {
    kind: {name: _described(tensor) for name, tensor in tensors.items()}
    for kind, tensors in (("inputs", inputs), ("outputs", outputs))
  }
  graph = frozen.graph.as_graph_def()
  graphs.number_functions(graph)
  # Not "arithmetic": it makes Log1p of log(1 + x) again. Not "remap": the wasm backend's fused
  # activations lose NaN.
  names = [tensor.op.name for tensor in (*inputs.values(), *outputs.values())]
  return _tf_compat.optimized(graph, names, ["constfold", "dependency"]), signature


def _described(tensor: tf.Tensor) -> dict[str, Any]:
  sizes = (
    {"unknownRank": True}
    if tensor.shape.rank is None
    else {"dim": [{"size": str(-1 if d is None else d)} for d in tensor.shape]}
  )
  return {"name": tensor.name, "dtype": f"DT_{_NAMES[tensor.dtype]}", "tensorShape": sizes}


_NAMES = {tf.float32: "FLOAT", tf.int32: "INT32", tf.bool: "BOOL"}


def nodes(graph: Any) -> Iterator[Any]:
  """All nodes, including those of loops and branches."""
  yield from graph.node
  for function in graph.library.function:
    yield from function.node_def


def missing(graph: Any) -> dict[str, str]:
  """{type of op: why} for ops that TF.js cannot run."""
  reasons: dict[str, str] = {}
  for node in nodes(graph):
    if rule.REFUSED in node.attr:
      op, _, why = node.attr[rule.REFUSED].s.decode().partition(":")
      reasons[op] = reasons.get(op) or why
    elif node.op not in SUPPORTED:
      reasons.setdefault(node.op, "")
  return reasons


def is_asynchronous(graph: Any) -> bool:
  """Whether it has loops or branches, which TF.js runs only by `executeAsync`."""
  return any(node.op in CONTROL for node in nodes(graph))


def needs_whole_int32(graph: Any) -> bool:
  """Whether it works on bits, or has integers that webgl cannot hold."""
  return any(node.op == "Const" and _is_large(node) for node in nodes(graph))


def _is_large(node: Any) -> bool:
  value = tf.make_ndarray(node.attr["value"].tensor)
  return (
    value.dtype == np.int32
    and bool(value.size)
    and int(np.abs(value.astype(np.int64)).max()) >= _LARGEST_INT_OF_WEBGL
  )


def write(
  graph: Any,
  signature: Mapping[str, Any],
  folder: Path,
  *,
  quantization: str | None,
  metadata: Mapping[str, Any],
) -> None:
  """Writes model.json and group1-shard1of1.bin ..."""
  graph = _own_names(graph)
  specs, blobs = [], []
  for node in nodes(graph):
    if node.op == "Const":
      spec, blob = _weight(node.name, tf.make_ndarray(node.attr["value"].tensor), quantization)
      specs.append(spec)
      blobs.append(blob)
      del node.attr["value"]
    for internal in [name for name in node.attr if name.startswith("_")]:
      del node.attr[internal]
    node.ClearField("experimental_debug_info")
    node.device = ""
  data = b"".join(blobs)
  shards = [data[i : i + SHARD] for i in range(0, len(data), SHARD)] or [b""]
  paths = [f"group1-shard{i + 1}of{len(shards)}.bin" for i in range(len(shards))]
  folder.mkdir(parents=True)
  for path, shard in zip(paths, shards, strict=True):
    (folder / path).write_bytes(shard)
  model = {
    "format": "graph-model",
    "generatedBy": f"TensorFlow {tf.__version__}",
    "convertedBy": "jax2tf",
    "signature": signature,
    "userDefinedMetadata": dict(metadata),
    "modelTopology": _as_json(graph),
    "weightsManifest": [{"paths": paths, "weights": specs}],
  }
  (folder / "model.json").write_text(json.dumps(model, separators=(",", ":")), encoding="utf-8")


def _as_json(graph: Any) -> dict[str, Any]:
  graph_json: dict[str, Any] = json_format.MessageToDict(graph)
  for node in graph_json["node"]:
    for dim in node.get("attr", {}).get("shape", {}).get("shape", {}).get("dim", []):
      dim.setdefault("size", "0")  # protocol buffers omit zeros, which TF.js then reads as NaN
  # a map of a protocol buffer has the order of its hashes, which each process seeds
  in_order: dict[str, Any] = json.loads(json.dumps(graph_json, sort_keys=True))
  return in_order


def _own_names(graph: Any) -> Any:
  """A copy in which names of constants are unique across functions, because TF.js finds weights by
  name alone. Second results are numbered: TF.js 4.22 reads `top:indices:0` as the first result. Of
  an op, a function returns one result: TF.js 4.22 returns the last one in place of each."""
  copy = type(graph)()
  copy.CopyFrom(graph)
  for function in copy.library.function:
    names = {
      node.name: f"{function.signature.name}/{node.name}"
      for node in function.node_def
      if node.op == "Const"
    }
    names |= {
      f"{node.name}:indices:0": f"{node.name}:1"
      for node in function.node_def
      if node.op == _WITH_TWO_RESULTS
    }
    for node in function.node_def:
      node.name = names.get(node.name, node.name)
      for i, operand in enumerate(node.input):
        node.input[i] = _renamed(operand, names)
    for output, tensor in function.ret.items():
      function.ret[output] = _renamed(tensor, names)
    _separate_results(function)
  return copy


def _separate_results(function: Any) -> None:
  """Gives each of several results of one op an Identity."""
  ops = collections.Counter(tensor.partition(":")[0] for tensor in function.ret.values())
  for argument in function.signature.output_arg:
    tensor = function.ret[argument.name]
    if ops[tensor.partition(":")[0]] > 1:
      name = f"{function.signature.name}/{argument.name}"
      node = function.node_def.add(name=name, op="Identity", input=[tensor])
      node.attr["T"].type = argument.type
      function.ret[argument.name] = f"{name}:output:0"


def _renamed(operand: str, names: Mapping[str, str]) -> str:
  control, name = operand[: operand.startswith("^")], operand.removeprefix("^")
  if name in names:
    return f"{control}{names[name]}"
  head, colon, rest = name.partition(":")
  return f"{control}{names.get(head, head)}{colon}{rest}"


def _weight(name: str, value: np.ndarray, quantization: str | None) -> tuple[dict[str, Any], bytes]:
  """(entry in the weights manifest, bytes)."""
  spec: dict[str, Any] = {
    "name": name,
    "shape": list(value.shape),
    "dtype": "bool" if value.dtype == bool else value.dtype.name,
  }
  if (
    quantization is None
    or value.dtype != np.float32
    or value.size < _QUANTIZED_FROM
    or not np.isfinite(value).all()
  ):
    return spec, value.tobytes()
  if quantization == "float16":
    with np.errstate(over="ignore"):
      half = value.astype(np.float16)
    if np.isinf(half).any():
      return spec, value.tobytes()
    return spec | {
      "quantization": {"dtype": "float16", "original_dtype": "float32"}
    }, half.tobytes()
  least, most, steps = float(value.min()), float(value.max()), np.iinfo(quantization).max
  scale = (most - least) / steps or 1.0
  if least < 0 < most:  # zero stays exact, as padding needs
    least = -round(-least / scale) * scale
  levels = np.clip(np.round((value.astype(np.float64) - least) / scale), 0, steps).astype(
    quantization
  )
  return spec | {
    "quantization": {
      "dtype": quantization,
      "scale": scale,
      "min": least,
      "original_dtype": "float32",
    }
  }, levels.tobytes()


def is_held(dtype: tf.DType) -> bool:
  """Whether TF.js can hold all values of a dtype, or of the parts of a complex one."""
  dtype = REAL.get(dtype, dtype)
  return dtype.size <= 4 and rule.held(dtype) in _NAMES
