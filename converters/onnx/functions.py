"""ONNX functions: a node for each call of a module of the user's model, such as Flax's.

The name of a node begins with the name scopes of the module that made it. The nodes of one call
become one node, whose function has them. A function takes the parameters of its module as inputs:
ONNX's functions hold no tensors but small constants, so the weights stay initializers of the graph,
and calls with equal bodies share one function. ONNX Runtime inlines functions when it opens a file.
"""

from __future__ import annotations

import collections
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import protos
from .runtime import extra

DOMAIN = "modules"
_SMALL = 64  # elements of an integer constant, such as a shape, that a function has inside
# of a node that tf2onnx added, and of a node in a loop or branch
_NUMBER = re.compile(r"__(in)?\d+")


@dataclass(frozen=True)
class _Step:
  """A node of the graph.

  Attributes:
    modules: the paths of the modules around it, from the outermost.
    reads: the values that it reads, also in loops and branches.
  """

  node: Any
  modules: tuple[str, ...]
  reads: tuple[str, ...]


def with_functions(model: Any, modules: Collection[str]) -> Any:
  """A copy of an onnx.ModelProto with a function for each module of several nodes, also in loops
  and branches.

  Args:
    model: its nodes are in topological order.
    modules: the paths of the modules, such as "encoder/attention", as the names of nodes have them.
      Those in a loop or a branch are without the scopes around it, "*/attention".
  """
  folded = type(model)()
  folded.CopyFrom(model)
  graph = folded.graph
  functions = _Functions(model.opset_import)
  functions.fold(graph, modules, {}, None)
  del graph.value_info[:]
  if functions.protos:
    folded.functions.extend(functions.protos)
    folded.opset_import.add(domain=DOMAIN, version=1)
  return folded


def inlined(model: Any) -> Any:
  """The onnx.ModelProto without functions."""
  return extra("onnx.inliner").inline_local_functions(model) if model.functions else model


def _steps(graph: Any, modules: Collection[str], loop: Any) -> list[_Step]:
  """The steps of a graph; see `_Functions.fold`."""
  nodes = list(graph.node)
  reads = [tuple(protos.reads(node)) for node in nodes]
  readers: dict[str, list[int]] = collections.defaultdict(list)
  for i, names in enumerate(reads):
    for name in names:
      readers[name].append(i)
  outputs = {value.name for value in graph.output}
  paths: list[tuple[str, ...]] = [()] * len(nodes)
  for i in reversed(range(len(nodes))):
    path = _modules(nodes[i].name, modules, loop)
    if path is None:  # a node of no user's line, such as a Cast: it belongs to what reads it
      around = [paths[j] for name in nodes[i].output for j in readers[name]]
      is_output = any(name in outputs for name in nodes[i].output)
      path = () if is_output or not around else _common(around)
    paths[i] = path
  return [_Step(*each) for each in zip(nodes, paths, reads, strict=True)]


def _modules(name: str, modules: Collection[str], loop: Any) -> tuple[str, ...] | None:
  """The modules around a node, in the loop or branch; None if its name has no scope of a converted
  function."""
  if (parts := _parts_of(name)) is None:
    return None
  outside = 0 if loop is None else len(_parts_of(loop.name) or parts)
  paths = {n: "/".join(parts[:n]) for n in range(outside + 1, len(parts))}
  if loop is None:
    return tuple(path for path in paths.values() if path in modules)
  return tuple(path for n, path in paths.items() if "/".join(["*", *parts[outside:n]]) in modules)


def _parts_of(name: str) -> list[str] | None:
  """The name scopes of a node and its own name. In a loop or a branch tf2onnx writes the scopes of
  the loop before them, once for each loop around."""
  parts = name.split("/")
  starts = [i for i, part in enumerate(parts) if part.startswith("jax2tf_")]
  return parts[starts[-1] + 1 :] if starts else None


def _common(paths: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
  first, *others = paths
  n = 0
  while n < len(first) and all(path[n : n + 1] == first[n : n + 1] for path in others):
    n += 1
  return first[:n]


class _Functions:
  """Makes the functions of a model.

  Attributes:
    protos: the onnx.FunctionProtos, those that others call first.
  """

  def __init__(self, opset_import: Any):
    self.protos: list[Any] = []
    modules = extra("onnx.helper").make_opsetid(DOMAIN, 1)
    self._opset_import = [*opset_import, modules]
    self._by_body: dict[bytes, Any] = {}
    self._names, self._names_of_calls = _Names(), _Names()

  def fold(
    self, graph: Any, modules: Collection[str], constants: Mapping[str, Any], loop: Any
  ) -> None:
    """Puts calls of functions into a graph, and into the loops and branches inside.

    Args:
      graph: the onnx.GraphProto.
      modules: see `with_functions`.
      constants: {name: onnx.TensorProto} around the graph.
      loop: the node whose body it is; None for the graph of the model.
    """
    known = {**constants, **{tensor.name: tensor for tensor in graph.initializer}}
    for node in graph.node:
      for body in protos.bodies(node):
        self.fold(body, modules, known, node)
    steps = _steps(graph, modules, loop)
    calls = _Calls(self, graph, steps, known, is_model=loop is None)
    nodes = calls.folded(steps, 0)
    del graph.node[:]
    graph.node.extend(nodes)
    used = {name for node in nodes for name in protos.reads(node)}
    used |= {value.name for value in graph.output}
    kept = [tensor for tensor in graph.initializer if tensor.name in used]
    del graph.initializer[:]
    graph.initializer.extend(kept)

  def call(self, path: str, body: _Body, outputs: Sequence[str]) -> Any:
    """A node that calls the function with this body."""
    key = body.proto.SerializeToString(deterministic=True)
    if key not in self._by_body:
      body.proto.name = self._names.unique(re.sub(r"_\d+$", "", path.rpartition("/")[2]))
      body.proto.opset_import.extend(self._opset_import)
      self._by_body[key] = body.proto
      self.protos.append(body.proto)
    function, name = self._by_body[key].name, self._names_of_calls.unique(path)
    return extra("onnx.helper").make_node(function, body.inputs, outputs, name=name, domain=DOMAIN)


class _Calls:
  """Puts calls in place of the nodes of a graph, or of the body of a loop or branch."""

  def __init__(
    self,
    functions: _Functions,
    graph: Any,
    steps: Sequence[_Step],
    constants: Mapping[str, Any],
    *,
    is_model: bool,
  ):
    self._functions, self._constants, self._is_model = functions, constants, is_model
    self._outputs = {value.name for value in graph.output}
    self._readers: dict[str, set[int]] = collections.defaultdict(set)
    for step in steps:
      for name in step.reads:
        self._readers[name].add(id(step))

  def folded(self, steps: Sequence[_Step], depth: int) -> list[Any]:
    """The nodes, those of each module at this depth as one."""
    groups = _groups(steps, lambda step: step.modules[depth] if len(step.modules) > depth else None)
    parts = [part for key, group in groups for part in self._parts(key, group)]
    if len(parts) == 1 and parts[0][0] is not None:  # all there is
      is_in_one = len(_common([step.modules for step in steps])) > depth + 1
      if self._is_model or is_in_one:  # its modules say more
        return self.folded(steps, depth + 1)
    nodes = []
    for key, part in parts:
      if key is None or len(part) == 1:
        nodes += [step.node for step in part]
      else:
        nodes.append(self._call(key, part, self.folded(part, depth + 1)))
    return nodes

  def _parts(
    self, key: str | None, steps: Sequence[_Step]
  ) -> list[tuple[str | None, Sequence[_Step]]]:
    """The calls of a module: those without a value in common. Parameters do not count."""
    if key is None:
      return [(key, steps)]
    first: dict[str, int] = {}  # the step that has a value first
    earlier = list(range(len(steps)))  # a step of the same call

    def earliest(i: int) -> int:
      while earlier[i] != i:
        earlier[i] = earlier[earlier[i]]
        i = earlier[i]
      return i

    for i, step in enumerate(steps):
      for name in (*step.node.output, *step.reads):
        if name and name not in self._constants:
          ends = earliest(i), earliest(first.setdefault(name, i))
          earlier[max(ends)] = min(ends)
    parts: dict[int, list[_Step]] = {}
    for i, step in enumerate(steps):
      parts.setdefault(earliest(i), []).append(step)
    return [(key, part) for part in parts.values()]

  def _call(self, path: str, steps: Sequence[_Step], nodes: Sequence[Any]) -> Any:
    """The node in place of the steps of a module, which are these nodes by now."""
    own = {id(step) for step in steps}
    made = [name for step in steps for name in step.node.output if name]
    outputs = [name for name in made if name in self._outputs or not self._readers[name] <= own]
    body = _Body(path, _ordered(nodes, outputs), outputs, self._constants)
    return self._functions.call(path, body, outputs)


def _groups(
  steps: Sequence[_Step], key_of: Callable[[_Step], str | None]
) -> list[tuple[str | None, list[_Step]]]:
  """The steps by key, in topological order. A key has a second group if the first one would need
  its own results, as when a module is called twice."""
  keys: list[str | None] = []
  groups: list[list[_Step]] = []
  before: list[int] = []  # the groups that a group needs, as bits
  latest: dict[str, int] = {}
  group_of: dict[str, int] = {}
  needed = 0
  for step in steps:
    key = key_of(step)
    producers = {group_of[name] for name in step.reads if name in group_of}
    i = None if key is None else latest.get(key)
    if i is not None and any(before[p] >> i & 1 for p in producers - {i}):
      i = None
    if i is None:
      i = len(groups)
      keys.append(key)
      groups.append([])
      before.append(0)
      if key is not None:
        latest[key] = i
    groups[i].append(step)
    for p in producers - {i}:
      needed |= 1 << p
      before[i] |= before[p] | 1 << p
    if needed >> i & 1:
      before = [bits | before[i] if bits >> i & 1 else bits for bits in before]
    group_of |= dict.fromkeys(step.node.output, i)
  # A group needs all that those need that it needs, so this is a topological order.
  order = sorted(range(len(groups)), key=lambda i: (before[i].bit_count(), i))
  return [(keys[i], groups[i]) for i in order]


def _ordered(nodes: Sequence[Any], outputs: Sequence[str]) -> list[Any]:
  """The nodes in an order that depends on nothing but the outputs, so that equal bodies are found
  equal."""
  producer = {name: i for i, node in enumerate(nodes) for name in node.output if name}
  ordered: dict[int, Any] = {}
  started: set[int] = set()
  waiting = [producer[name] for name in reversed(outputs)]
  while waiting:
    i = waiting[-1]
    if i not in started:
      started.add(i)
      needs = [producer[name] for name in protos.reads(nodes[i]) if name in producer]
      waiting += [j for j in reversed(needs) if j not in started]
    else:
      ordered.setdefault(waiting.pop(), nodes[i])
  return list(ordered.values())


class _Body:
  """The function of a call.

  Attributes:
    inputs: the values for its inputs.
    proto: the onnx.FunctionProto, without a name and opsets.
  """

  def __init__(
    self, path: str, nodes: Sequence[Any], outputs: Sequence[str], constants: Mapping[str, Any]
  ):
    self._path, self._constants = path, constants
    made = {name for node in nodes for name in node.output}
    reads = dict.fromkeys(name for node in nodes for name in protos.reads(node))
    taken = [name for name in reads if name not in made]
    inside = [name for name in taken if name in constants and _is_inside(constants[name])]
    parameters = [name for name in taken if name in constants and name not in inside]
    self.inputs = [name for name in taken if name not in constants] + parameters
    stems = {name: self._of_parameter(name) if name in parameters else "x" for name in self.inputs}
    stems |= dict.fromkeys(inside, "constant")
    stems |= {name: stem for node in nodes for name, stem in self._of_results(node)}
    values, self._names_of_nodes = _Names(), _Names()
    # of values in the graph -> in the function
    self._names = {name: values.unique(stem) for name, stem in stems.items()}
    onnx = extra("onnx")
    self.proto = onnx.FunctionProto(domain=DOMAIN)
    self.proto.input.extend(self._names[name] for name in self.inputs)
    self.proto.output.extend(self._names[name] for name in outputs)
    self.proto.node.extend([*map(self._constant, inside), *map(self._node, nodes)])

  def _relative(self, name: str) -> str:
    """The name of a value or node without the module, and without numbers that depend on the rest
    of the graph."""
    _, module, rest = f"/{name}".partition(f"/{self._path}/")
    return _NUMBER.sub("", (rest if module else name).removesuffix(":0").replace(":", "_"))

  def _of_results(self, node: Any) -> Iterator[tuple[str, str]]:
    """(result, its name in the function). It is the name of the node: a result of the graph, or of
    a branch, has a name that says nothing about the module."""
    stem = self._relative(node.name)
    for i, name in enumerate(node.output):
      if name:
        yield name, f"{stem}_{i}" if i else stem

  def _of_parameter(self, name: str) -> str:
    """Such as "attention.query.kernel". The path of a parameter need not begin as that of its
    module does: in Flax it is without the model's own name."""
    parts = self._path.split("/")
    modules = ["/".join(parts[n:]) for n in range(len(parts))]
    within = [f"/{name}".partition(f"/{module}/")[2] for module in modules]
    rest = next(filter(None, within), name.rpartition("/")[2])
    return _NUMBER.sub("", rest.removesuffix(":0")).replace("/", ".")

  def _constant(self, name: str) -> Any:
    tensor = type(self._constants[name])()
    tensor.CopyFrom(self._constants[name])
    tensor.name = ""
    helper = extra("onnx.helper")
    return helper.make_node("Constant", [], [self._names[name]], value=tensor)

  def _node(self, node: Any) -> Any:
    copy = type(node)()
    copy.CopyFrom(node)
    copy.name = self._names_of_nodes.unique(self._relative(node.name))
    protos.rename_values(copy, self._names)
    return copy


def _is_inside(tensor: Any) -> bool:
  """Whether a function has the constant inside, because it says what the nodes do: a shape, axes,
  or one number."""
  size = math.prod(tensor.dims)
  is_float = tensor.data_type in (protos.FLOAT, protos.FLOAT16, protos.DOUBLE)
  is_local = tensor.data_location != tensor.EXTERNAL
  return is_local and size <= (1 if is_float else _SMALL)


class _Names:
  """Names that differ."""

  def __init__(self) -> None:
    self._taken: set[str] = set()
    self._numbers: collections.Counter[str] = collections.Counter()

  def unique(self, stem: str) -> str:
    """The stem, with a number if it is taken."""
    name = stem
    while name in self._taken:
      self._numbers[stem] += 1
      name = f"{stem}_{self._numbers[stem]}"
    self._taken.add(name)
    return name
