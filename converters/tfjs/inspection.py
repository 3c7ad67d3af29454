"""The contents of a folder of TF.js, and the values of its nodes."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from ..bundle import paths
from ..export import pipeline
from ..export.contents import Contents, Node, spec
from ..export.verified import verified
from ..verify.plan import Comparison
from ..verify.report import Report
from . import runtime

MODEL = "model.json"
_NOT_COMPUTED = ("Placeholder", "Const", "NoOp")
_DTYPE = ("dtype", "T", "DstT", "output_type", "Tparams", "out_type")


def inspect(path: str | os.PathLike[str]) -> Contents:
  """Reads the contents of a TF.js graph model from any exporter.

  Args:
    path: the folder with model.json.

  Returns:
    its ops, their dtypes and weights, its inputs and outputs.

  Raises:
    FileNotFoundError: there is no model.json.
    ValueError: it is not a graph model.

  Examples:
    >>> from jax2tf.converters import tfjs
    >>> options = {"inputs": {"x": "f32[b]"}, "outputs": ["y"], "backends": ["wasm"], "samples": 1}
    >>> made = tfjs.save(lambda params, x: 2 * x, None, "inspected", **options)
    >>> tfjs.inspect("inspected").as_json()["signatures"]
    {'model': {'inputs': {'x': 'f32[b]'}, 'outputs': {'y': 'f32[b]'}}}
  """
  folder = Path(os.fspath(paths.of(path)))
  model = json.loads((folder / MODEL).read_text())
  if model.get("format") != "graph-model" or "modelTopology" not in model:
    raise ValueError(f"{folder / MODEL} is no graph model of TF.js")
  nodes = model["modelTopology"]["node"]
  weights = dict(_weights(folder, model))
  return Contents(
    str(folder),
    "TF.js graph model",
    sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()),
    {"model": {end: _ends(model, end) for end in ("inputs", "outputs")}},
    list(_nodes([*nodes, *_inner(model)], weights)),
    weights,
    notes={"written by": str(model.get("convertedBy") or model.get("generatedBy", ""))},
  )


def _inner(model: Any) -> Iterator[Any]:
  """The nodes of functions, which loops and branches call."""
  for function in model["modelTopology"].get("library", {}).get("function", ()):
    yield from function.get("nodeDef", ())


def _weights(folder: Path, model: Any) -> Iterator[tuple[str, np.ndarray]]:
  for group in model["weightsManifest"]:
    data = b"".join((folder / name).read_bytes() for name in group["paths"])
    at = 0
    for weight in group["weights"]:
      stored = np.dtype(weight.get("quantization", weight)["dtype"])
      count = int(np.prod(weight["shape"], dtype=np.int64))
      value = np.frombuffer(data, stored, count, at).reshape(weight["shape"])
      at += count * stored.itemsize
      yield weight["name"], value


def _ends(model: Any, end: str) -> dict[str, str]:
  """In the words of jax2tf, if it wrote them, which has names for unknown sizes."""
  known = (model.get("userDefinedMetadata") or {}).get(end)
  if isinstance(known, dict):
    return known
  ends = model.get("signature", {}).get(end, {})
  return {name: _spec(each) for name, each in sorted(ends.items())}


def _spec(end: Any) -> str:
  sizes = [int(each["size"]) for each in end.get("tensorShape", {}).get("dim", ())]
  return spec(_of_enum(end["dtype"]), [None if n < 0 else n for n in sizes])


def _of_enum(name: str) -> np.dtype[Any]:
  return np.dtype(tf.as_dtype(name.removeprefix("DT_").lower()).as_numpy_dtype)


def _nodes(nodes: Any, weights: Mapping[str, np.ndarray]) -> Iterator[Node]:
  for node in nodes:
    if node["op"] not in _NOT_COMPUTED:
      operands = [name.lstrip("^").partition(":")[0] for name in node.get("input", ())]
      constants = tuple(name for name in operands if name in weights)
      yield Node(node["name"], node["op"], _dtype(node), constants)


def _dtype(node: Any) -> str:
  attributes = node.get("attr", {})
  found = next((attributes[key] for key in _DTYPE if "type" in attributes.get(key, {})), None)
  return _of_enum(found["type"]).name if found else ""


def values_inside(
  path: str | os.PathLike[str], inputs: Mapping[str, np.ndarray], *, backend: str = "wasm"
) -> dict[str, np.ndarray]:
  """{name of a node: its first result} of one call in Node.js, in order of execution, and the
  outputs under their names; without what loops and branches compute inside.

  Args:
    path: the folder with model.json.
    inputs: {input: array}.
    backend: "wasm" or "cpu".

  Raises:
    ImportError: Node.js or npm is missing, or npm cannot install TF.js.
    RuntimeError: TF.js fails. The message quotes it.
  """
  folder = Path(os.fspath(path))
  model = json.loads((folder / MODEL).read_text())
  nodes = model["modelTopology"]["node"]
  # of unknown sizes, since they are read only as the dtypes of what TF.js gives
  dtypes = {node["name"]: _dtype(node) for node in nodes if node["op"] not in _NOT_COMPUTED}
  answer = functools.partial(
    runtime.answers, runtime.packages(), folder, backend, dict.fromkeys(dtypes, "f32[]")
  )
  found = pipeline.single(answer, inputs)
  ends = model.get("signature", {}).get("outputs", {})
  tensors = {name: each["name"].partition(":")[0] for name, each in ends.items()}
  return found | {name: found[tensor] for name, tensor in tensors.items() if tensor in found}


def verify(
  path: str | os.PathLike[str],
  reference: Any,
  *,
  params: Any = None,
  sizes: Mapping[str, int | Sequence[int]] | None = None,
  samples: int = 3,
  rtol: float | None = None,
  atol: float | None = None,
  inputs: Mapping[str, Any] | None = None,
  constraints: Sequence[str] = (),
  hostile: bool = False,
  backend: str = "wasm",
) -> Report:
  """Compares a TF.js graph model with a JAX function, in Node.js.

  Args:
    path: the folder with model.json.
    reference: the JAX function `fun(params, *inputs)`, of the inputs of the model in its order.
    params: the parameters. Without them the reference is `fun(*inputs)`.
    constraints: conditions on the sizes.
    backend: "wasm" or "cpu".
    sizes, samples, rtol, atol, inputs, hostile: as in `jax2tf.converters.verify.verify`.

  Returns:
    the report, even if outputs differ.

  Raises:
    FileNotFoundError, ValueError: as `inspect`.
    ImportError, RuntimeError: as `run`.
    ValueError: the function does not take these inputs, or has other results; sizes break a
      constraint.

  Examples:
    >>> from jax2tf.converters import tfjs
    >>> options = {"inputs": {"x": "f32[b]"}, "outputs": ["y"], "backends": ["wasm"], "samples": 1}
    >>> made = tfjs.save(lambda params, x: 2 * x, None, "verified", **options)
    >>> tfjs.verify("verified", lambda x: x + x, samples=1).ok
    True
  """
  contents = inspect(path)
  outputs = contents.signatures["model"]["outputs"]
  folder = Path(contents.path)
  return verified(
    contents,
    functools.partial(runtime.answers, runtime.packages(), folder, backend, outputs),
    reference,
    params,
    Comparison(sizes, samples, inputs, rtol, atol),
    runtime=f"TF.js {runtime.VERSION} ({backend})",
    versions={"tfjs": runtime.VERSION},
    constraints=constraints,
    hostile=hostile,
  )
