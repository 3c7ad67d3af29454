"""Finds the ops of a SavedModel that reach outside of it, by reading saved_model.pb: nothing of the
model runs.

A SavedModel is a program, and loading it runs a part of it. These ops are no reason for refusal: a
table or a file that is read from an asset of the model, the nodes that save and restore its
variables, and ops whose attributes switch the effect off.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from jax2tf.converters.bundle import graphs
from jax2tf.converters.bundle.files import SAVED_MODEL
from jax2tf.tools.outside_ops import ASSET_INPUTS, OPS, RESTORER_OPS, SAVER_OPS

# Callbacks of JAX's, in the bytes of a StableHLO module.
_CALLBACK = re.compile(rb"xla_(?:ffi_)?(?:partitioned_)?python_\w*callback|tf\.host_callback")
_GRAPH = "the graph"
_INIT = "__saved_model_init_op"


@dataclass(frozen=True)
class Found:
  """An op that reaches outside.

  Attributes:
    effect: what it does, such as "writes files".
    places: the functions that hold it; "the graph" for the graph itself.
  """

  effect: str
  places: tuple[str, ...]


def check(directory: Path, allowed: Collection[str] = ()) -> list[Any]:
  """Refuses a SavedModel with ops that reach outside of it, before anything of it runs.

  Args:
    directory: the SavedModel.
    allowed: names of ops that it may have.

  Returns:
    the MetaGraphDefs that it read.

  Raises:
    ValueError: it has such an op, or the file is damaged.
  """
  graphs = _graphs(directory)
  refused = {op: each for op, each in _in_graphs(graphs).items() if op not in allowed}
  if not refused:
    return graphs
  sentence = "; ".join(
    f"{op} {each.effect} (in {each.places[0]!r})" for op, each in refused.items()
  )
  raise ValueError(
    f"{directory} reaches outside of the model: {sentence}. A SavedModel is a program, and can do "
    "this when it is loaded; "
    f"if you trust its author, give --allow-ops {','.join(refused)}"
  )


def named(names: Iterable[str]) -> list[str]:
  """The ops of "A,B" and "C". Raises ValueError for one that is not in the table."""
  op_names = [name.strip() for text in names for name in text.split(",") if name.strip()]
  if unknown := [name for name in op_names if name not in OPS]:
    raise ValueError(
      f"--allow-ops has {unknown[0]!r}, which is no op that is refused; `jax2tf inspect` lists "
      "those of a model"
    )
  return op_names


def in_directory(directory: Path) -> dict[str, Found]:
  """`in_graph` of a SavedModel. Raises ValueError if its file is damaged."""
  return _in_graphs(_graphs(directory))


def _graphs(directory: Path) -> list[Any]:
  from google.protobuf import message  # noqa: PLC0415
  from tensorflow.core.protobuf import saved_model_pb2  # noqa: PLC0415

  file = directory / SAVED_MODEL
  try:
    return list(saved_model_pb2.SavedModel.FromString(file.read_bytes()).meta_graphs)
  except message.DecodeError as error:
    raise ValueError(f"{file} is damaged, so TensorFlow cannot parse it: {error}") from error


def _in_graphs(graphs: Iterable[Any]) -> dict[str, Found]:
  ops_outside: dict[str, Found] = {}
  for graph in graphs:
    ops_outside |= in_graph(graph)
  return ops_outside


def in_graph(meta: Any) -> dict[str, Found]:
  """{op that reaches outside: where} of a MetaGraphDef, by name. All functions count, whether or
  not something calls them.

  Raises:
    ValueError: two nodes or functions have one name.
  """
  graph = _Graph(meta)
  saves, restores = graph.of_saver_only()
  scopes: dict[str, dict[str, None]] = {}
  for scope, node in graph.nodes():
    here = (True, node.name) if scope is None else (False, scope)
    ours = (here in saves and node.op in SAVER_OPS) or (
      here in restores and node.op in RESTORER_OPS
    )
    if node.op in OPS and not ours and graph.reaches_outside(scope, node):
      scopes.setdefault(node.op, {})[_GRAPH if scope is None else scope] = None
  return {op: Found(OPS[op], tuple(scopes[op])) for op in sorted(scopes)}


_Vertex = tuple[bool, str]  # (whether it is a node of the graph and no function, its name)
_Place = str | None  # a function; None for the graph, because a function may have any name


class _Graph:
  """The nodes and functions of a MetaGraphDef, and what depends on what."""

  def __init__(self, meta: Any):
    self._meta = meta
    self._nodes = _by_name((node.name, node) for node in meta.graph_def.node)
    self._functions = _by_name(
      (function.signature.name, function) for function in meta.graph_def.library.function
    )
    self._inner = {
      name: _by_name((node.name, node) for node in function.node_def)
      for name, function in self._functions.items()
    }
    self._assets = {
      asset.tensor_info.name.partition(":")[0]: asset.filename for asset in _assets(meta)
    }
    self._concrete = {
      name: list(each.bound_inputs)
      for name, each in meta.object_graph_def.concrete_functions.items()
    }
    self._calls: dict[str, list[tuple[_Place, Any]]] = {}
    for scope, node in self.nodes():
      for called in self._called(node):
        self._calls.setdefault(called, []).append((scope, node))
    self._asked = self._behind(
      _roots(signature for name, signature in meta.signature_def.items() if name != _INIT)
    )

  def nodes(self) -> Iterator[tuple[_Place, Any]]:
    """(the function or None for the graph, a node of it)."""
    for node in self._meta.graph_def.node:
      yield None, node
    for name, function in self._functions.items():
      for node in function.node_def:
        yield name, node

  def _called(self, node: Any) -> list[str]:
    named = [
      function.name
      for attr in node.attr.values()
      for function in ([attr.func] * attr.HasField("func") + [*attr.list.func])
    ]
    return [name for name in (node.op, *named) if name in self._functions]

  def of_saver_only(self) -> tuple[set[_Vertex], set[_Vertex]]:
    """(what only saving a checkpoint runs, what only restoring it runs)."""
    saver = self._meta.saver_def
    roots = _roots(self._meta.signature_def.values())
    roots += [
      (True, _node(name))
      for collection in self._meta.collection_def.values()
      for name in collection.node_list.value
    ]
    others = self._behind(roots + [(False, name) for name in self._concrete])
    save, restore = (
      self._behind([(True, _node(name))])
      for name in (saver.save_tensor_name, saver.restore_op_name)
    )
    return save - others - restore, restore - others - save

  def _behind(self, vertices: list[_Vertex]) -> set[_Vertex]:
    """All that runs for these vertices."""
    reached: set[_Vertex] = set()
    while vertices:
      in_graph, name = vertex = vertices.pop()
      if vertex in reached or name not in (self._nodes if in_graph else self._functions):
        continue
      reached.add(vertex)
      nodes = [self._nodes[name]] if in_graph else self._functions[name].node_def
      vertices += [(False, called) for node in nodes for called in self._called(node)]
      if in_graph:
        vertices += [(True, _node(reference)) for reference in self._nodes[name].input]
    return reached

  def reaches_outside(self, scope: _Place, node: Any) -> bool:
    """Whether this node of the table has the effect: not if it reads an asset, or if its operands
    switch the effect off."""
    if node.op in ASSET_INPUTS:
      return not self._is_asset(scope, _data(node)[ASSET_INPUTS[node.op]])
    if node.op in ("CacheDataset", "CacheDatasetV2"):  # without a file name it caches in memory
      name = self._in(scope).get(_node(_data(node)[1]))
      return (
        name is None or name.op != "Const" or list(name.attr["value"].tensor.string_val) != [b""]
      )
    return _IF.get(node.op, lambda _: True)(node)

  def _in(self, scope: _Place) -> Mapping[str, Any]:
    return self._nodes if scope is None else self._inner[scope]

  def _is_asset(self, scope: _Place, reference: str) -> bool:
    """Whether a value can only be the path of an asset."""
    pending, seen = [(scope, reference)], set[tuple[_Place, str]]()
    while pending:
      if (value := pending.pop()) in seen:
        continue
      seen.add(value)
      if (sources := self._sources(*value)) is None:
        return False
      pending += sources
    return True

  def _sources(self, scope: _Place, reference: str) -> list[tuple[_Place, str]] | None:
    """The values that a value may be equal to: none for an asset. None if it may be anything."""
    nodes, name = self._in(scope), _node(reference)
    node = nodes.get(name)
    if node is None:
      return None if scope is None else self._of_argument(scope, name)
    if node.op in ("Identity", "PlaceholderWithDefault"):
      return [(scope, node.input[0])]
    # the graph assigns the paths of its assets to variables
    if node.op == "ReadVariableOp" and scope is None:
      assigned = [
        n.input[1]
        for n in nodes.values()
        if n.op == "AssignVariableOp" and _node(n.input[0]) == _node(node.input[0])
      ]
      return [(None, value) for value in assigned] or None
    # The loader feeds the path. A signature is run without that feed, so a constant then has its
    # own value.
    fed = node.op == "Placeholder" or (node.op == "Const" and (True, name) not in self._asked)
    return [] if scope is None and fed and _is_inside(self._assets.get(name, "")) else None

  def _of_argument(self, function: str, name: str) -> list[tuple[_Place, str]] | None:
    """The same of an argument of a function: from its calls, and from what a loaded model binds to
    it."""
    arguments = [argument.name for argument in self._functions[function].signature.input_arg]
    if name not in arguments or function not in {*self._calls, *self._concrete}:
      return None
    i, sources = arguments.index(name), []
    for scope, node in self._calls.get(function, ()):
      if node.op not in (*_CALLS, function) or i >= len(_data(node)):
        return None
      sources.append((scope, _data(node)[i]))
    if function in self._concrete and not self._binds_asset(
      self._concrete[function], i - len(arguments)
    ):
      return None
    return sources

  def _binds_asset(self, bound: list[int], i: int) -> bool:
    """`i` counts from the end, where the bound inputs are; the ones before come from the caller of
    the loaded model."""
    captured = self._meta.object_graph_def.nodes[bound[i]] if -i <= len(bound) else None
    if captured is None or not captured.HasField("asset"):
      return False
    return _is_inside(self._meta.asset_file_def[captured.asset.asset_file_def_index].filename)


_CALLS = ("PartitionedCall", "StatefulPartitionedCall")


def _assets(meta: Any) -> list[Any]:
  """Graphs of TensorFlow 1 have them in a collection."""
  from tensorflow.core.protobuf import meta_graph_pb2  # noqa: PLC0415

  assets = list(meta.asset_file_def)
  for packed in () if assets else meta.collection_def["saved_model_assets"].any_list.value:
    asset = meta_graph_pb2.AssetFileDef()
    assets += [asset] * packed.Unpack(asset)
  return assets


def _is_inside(filename: str) -> bool:
  """Whether an asset is in the folder of assets."""
  path = PurePosixPath(filename)
  return bool(filename) and not path.is_absolute() and ".." not in path.parts


# Whether an attribute of the op lets it reach outside; other ops of the table always do.
_IF: dict[str, Callable[[Any], bool]] = {
  "PrintV2": lambda node: node.attr["output_stream"].s.startswith(b"file:"),
  "FixedUnigramCandidateSampler": lambda node: bool(node.attr["vocab_file"].s),
  graphs.MODULE: lambda node: bool(_CALLBACK.search(node.attr["module"].s)),
  **dict.fromkeys(
    ("DebugIdentity", "DebugIdentityV2", "DebugIdentityV3", "DebugNanCount", "DebugNumericSummary"),
    lambda node: bool(node.attr["debug_urls"].list.s),
  ),
}


def _by_name(named: Iterable[tuple[str, Any]]) -> dict[str, Any]:
  """Raises ValueError for a name that occurs twice, because TensorFlow could take the other one."""
  functions: dict[str, Any] = {}
  for name, each in named:
    if functions.setdefault(name, each) is not each:
      raise ValueError(
        f"the graph has two nodes or functions named {name!r}, so it is damaged; save the model "
        "again"
      )
  return functions


def _roots(signatures: Iterable[Any]) -> list[_Vertex]:
  return [
    (True, _node(info.name))
    for signature in signatures
    for info in (*signature.inputs.values(), *signature.outputs.values())
  ]


def _node(reference: str) -> str:
  return reference.removeprefix("^").partition(":")[0]


def _data(node: Any) -> list[str]:
  return [reference for reference in node.input if not reference.startswith("^")]
