"""Hashes of the graphs of a SavedModel. Equal functions have equal hashes, whatever their nodes are
called."""

from __future__ import annotations

import collections
import graphlib
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

# Without effect on values, or different in each save.
_IGNORED = ("debug_name", "shared_name", "container")
# Told apart by their names alone.
_NAMED = ("VarHandleOp", "VariableV2", "Placeholder")
_PASSES = 4


def of_functions(meta: Any) -> dict[str, str]:
  """{function: hash} of a MetaGraphDef: its signatures, and the functions that a loaded model has,
  with the variables that they use."""
  functions = _Functions(meta.graph_def.library)
  nodes = functions.of_nodes(meta.graph_def.node, _of_graph)
  by_function: dict[str, list[str]] = collections.defaultdict(list)
  for name, signature in meta.signature_def.items():
    results = [
      f"{key}={_of_graph(info.name, nodes)}" for key, info in sorted(signature.outputs.items())
    ]
    by_function[f"signature {name}"].append(_digest(*sorted(signature.inputs), *results))
  captures = _captures(meta, lambda name: nodes.get(name, ""))
  for name, function in meta.object_graph_def.concrete_functions.items():
    what = re.sub(r"^__inference_|_\d+$", "", name)
    if not what.startswith("signature_wrapper_"):
      by_function[what].append(
        _digest(functions.of(name), *(captures[i] for i in function.bound_inputs))
      )
  return {
    name: " ".join(sorted(digest[:12] for digest in digests))
    for name, digests in sorted(by_function.items())
  }


def of_assets(directory: Path) -> dict[str, str]:
  """{file: hash} of the assets of a version's directory."""
  files = sorted(file for file in (directory / "assets").rglob("*") if file.is_file())
  return {
    str(file.relative_to(directory / "assets")): hashlib.sha256(file.read_bytes()).hexdigest()[:12]
    for file in files
  }


def _captures(meta: Any, node: Callable[[str], str]) -> list[str]:
  """What each object of the model is as a capture. Variables are told apart by their names, and by
  their order if several share one."""
  seen: collections.Counter[str] = collections.Counter()
  captured = []
  for saved in meta.object_graph_def.nodes:
    kind = saved.WhichOneof("kind") or ""
    text = {"variable": saved.variable.name, "constant": node(saved.constant.operation)}.get(
      kind, ""
    )
    seen[text] += kind == "variable"
    captured.append(f"{kind} {text} {seen[text]}")
  return captured


def _of_graph(text: str, nodes: Mapping[str, str]) -> str:
  """The hash behind a reference between the nodes of a graph, "x" or "x:1"."""
  name, _, output = text.partition(":")
  return f"{nodes[name]}:{output or 0}"


class _Functions:
  """Hashes of the functions of a library, by their contents."""

  def __init__(self, library: Any):
    self._library = {function.signature.name: function for function in library.function}
    self._known: dict[str, str] = {}

  def of(self, name: str) -> str:
    """The hash of a function."""
    if name not in self._known:
      self._known[name] = "itself"  # in a recursive function
      self._known[name] = self._of(self._library[name])
    return self._known[name]

  def _of(self, function: Any) -> str:
    arguments = {arg.name: f"argument {i}" for i, arg in enumerate(function.signature.input_arg)}

    def reference(text: str, nodes: Mapping[str, str]) -> str:
      name, _, output = text.partition(":")
      return arguments.get(name) or f"{nodes[name]}:{output}"

    nodes = self.of_nodes(function.node_def, reference)
    results = [reference(function.ret[arg.name], nodes) for arg in function.signature.output_arg]
    return _digest(
      *results,
      "effects",
      *sorted(nodes[name] for name in function.control_ret.values()),
      "nodes",
      *sorted(nodes.values()),
    )

  def of_nodes(
    self, nodes: Iterable[Any], reference: Callable[[str, Mapping[str, str]], str]
  ) -> dict[str, str]:
    """{node: hash of its op, its attributes, and all that it depends on}."""
    by_name = {node.name: node for node in nodes}
    ops = {name: self._op(node) for name, node in by_name.items()}
    # TensorFlow 1 has loops in the graph itself. Each pass takes what closes them from the one
    # before, so it sees one more nested loop.
    closing = {name for name, node in by_name.items() if node.op.endswith("NextIteration")}
    order = [
      *graphlib.TopologicalSorter(
        {n: {*map(_node, node.input)} & by_name.keys() - closing for n, node in by_name.items()}
      ).static_order()
    ]
    hashes = dict.fromkeys(closing, "")
    for _ in range(_PASSES if closing else 1):
      for name in order:
        data = [reference(x, hashes) for x in by_name[name].input if not x.startswith("^")]
        control = sorted(hashes[x[1:]] for x in by_name[name].input if x.startswith("^"))
        hashes[name] = _digest(ops[name], *data, "after", *control)
    return hashes

  def _op(self, node: Any) -> str:
    op = self.of(node.op) if node.op in self._library else node.op
    attributes = sorted(key for key in node.attr if not key.startswith("_") and key not in _IGNORED)
    return _digest(
      op,
      node.device,
      node.name if node.op in _NAMED else "",
      *(f"{key}={self._attribute(node.attr[key])}" for key in attributes),
    )

  def _attribute(self, attribute: Any) -> str:
    if attribute.HasField("tensor"):
      value = tf.make_ndarray(attribute.tensor)
      return (
        f"{value.dtype} {value.shape} "
        f"{_digest(repr(value.tolist()) if value.dtype == object else value.tobytes().hex())}"
      )
    copy = type(attribute)()
    copy.CopyFrom(attribute)
    for called in [copy.func] * copy.HasField("func") + [*copy.list.func]:
      called.name = self.of(called.name) if called.name in self._library else called.name
    return copy.SerializeToString(deterministic=True).hex()


def _node(reference: str) -> str:
  return reference.removeprefix("^").partition(":")[0]


def _digest(*parts: str) -> str:
  return hashlib.sha256("\0".join(parts).encode()).hexdigest()
