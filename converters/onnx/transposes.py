"""Moves transposes out of what is between convolutions, in a finished graph of tf2onnx.

ONNX's convolutions and pools take images f32[n,c,h,w], most JAX models have f32[n,h,w,c], and
tf2onnx puts a Transpose before and behind each of them. Its own pass moves them through an
activation of one op. This one decides for all ops between them at once in which of the two orders
of dimensions each is computed, so that the least elements are transposed: that is a minimum cut of
the graph of these ops.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import sparse
from scipy.sparse import csgraph

from . import axes

_UNKNOWN = -1  # size, in tf2onnx
_CALL, _MOST = 16, 1 << 16  # the cost of a Transpose of no elements; the largest
_ENDLESS = 1 << 28  # the cost of what may not be; sums of it must fit into int32
_FIRST_ORDER, _OTHER_ORDER = 0, 1  # vertices of the cut; those of nodes follow


def reduced(graph: Any) -> bool:
  """Removes transposes from a graph and from the bodies of its loops and branches.

  Args:
    graph: a graph of tf2onnx, in which equal nodes are one.

  Returns:
    Whether another call may remove more, once the graph has been cleaned.
  """
  before = _total(graph)
  changed = [reduced(body) for body in _bodies(graph.get_nodes())]
  orders = dict.fromkeys(
    tuple(node.get_attr_value("perm"))
    for node in graph.get_nodes()
    if node.type == "Transpose" and node.get_attr("perm")
  )
  changed.append(any(_moved(graph, axes.Orders(order)) for order in orders))
  return any(changed) and _total(graph) < before


def _bodies(nodes: Iterable[Any]) -> Iterator[Any]:
  for node in nodes:
    yield from (node.get_body_graphs() or {}).values()


def _total(graph: Any) -> int:
  """The cost of all transposes that something needs."""
  nodes = graph.get_nodes()
  used = {*graph.outputs, *_captured(nodes), *(name for node in nodes for name in node.input)}
  own = [n for n in nodes if n.type == "Transpose" and n.output[0] in used]
  return sum(_cost(graph, n.output[0]) for n in own) + sum(map(_total, _bodies(nodes)))


def _moved(graph: Any, orders: axes.Orders) -> bool:
  """Computes ops behind a Transpose of this order in the order that is before it, where less is
  transposed then."""
  is_changed = _ends_moved(graph, orders)
  tensors = _tensors(graph, orders)
  if not any(t.is_transposed and t.users for t in tensors.values()):
    return is_changed
  nodes = least_transposed(list(tensors.values()))
  if nodes:
    _rewrite(graph, orders, nodes, tensors)
  return is_changed or bool(nodes)


def _ends_moved(graph: Any, orders: axes.Orders) -> bool:
  """Lets reductions that can take the operand of a Transpose take it."""
  is_changed = False
  for node in list(graph.get_nodes()):
    maker = graph.get_node_by_output(node.input[0]) if node.input else None
    if maker and _is_transpose(maker, orders) and axes.is_free_end(node, orders):
      inputs, order = [maker.input[0], *node.input[1:]], orders.of(axes.rank(node))
      axes.remake(node, order, inputs, list(node.output), node.output_shapes)
      is_changed = True
  return is_changed


@dataclass
class Tensor:
  """A tensor between ops that may be computed in two orders of dimensions.

  Attributes:
    cost: of a Transpose of it.
    maker: the node that computes it, if that may have both orders.
    is_transposed: whether it is the result of a Transpose, whose operand has the other order.
    users: the nodes that take it and may have both orders.
    is_used: whether something else takes it, or it is a result of the graph.
    is_used_transposed: whether a Transpose back takes it.
  """

  cost: int
  maker: Any = None
  is_transposed: bool = False
  users: list[Any] = field(default_factory=list)
  is_used: bool = False
  is_used_transposed: bool = False


def _tensors(graph: Any, orders: axes.Orders) -> dict[str, Tensor]:
  """{name: tensor} of all that nodes of both orders take or make."""
  nodes = graph.get_nodes()
  operands = {node.name: axes.operands(node, orders) for node in nodes}
  movable = [node for node in nodes if operands[node.name] is not None]
  tensors: dict[str, Tensor] = {}
  for node in movable:
    for name in node.output:
      tensors[name] = Tensor(_cost(graph, name), maker=node)
  for node in movable:
    for name in operands[node.name] or ():
      if axes.is_const(graph, name) or not graph.get_shape(name):
        continue
      maker = graph.get_node_by_output(name, search_in_parent_graphs=False)
      known = tensors.setdefault(name, Tensor(_cost(graph, name)))
      known.users.append(node)
      known.is_transposed = _is_transpose(maker, orders)
  for node in nodes:
    for name in set(node.input) & tensors.keys() if operands[node.name] is None else ():
      if _is_transpose(node, orders, back=True):
        tensors[name].is_used_transposed = True
      elif not axes.is_free_end(node, orders):
        tensors[name].is_used = True
  for name in {*graph.outputs, *_captured(nodes)} & tensors.keys():
    tensors[name].is_used = True
  return tensors


def _captured(nodes: Iterable[Any]) -> Iterator[str]:
  """What the bodies of loops and branches take, and their own tensors."""
  for body in _bodies(nodes):
    yield from body.outputs
    for inner in body.get_nodes():
      yield from inner.input
    yield from _captured(body.get_nodes())


def _is_transpose(node: Any, orders: axes.Orders, *, back: bool = False) -> bool:
  """Whether a node is a Transpose from the other order to the first, or `back`."""
  if node is None or node.type != "Transpose":
    return False
  perm = tuple(node.get_attr_value("perm") or ())
  if not orders.know(perm):
    return False
  order = orders.of(len(perm))
  return perm == (axes.inverse(order) if back else order)


def _cost(graph: Any, name: str) -> int:
  sizes = graph.get_shape(name) or []
  elements = math.prod(size for size in sizes if size != _UNKNOWN)
  return _CALL + min(elements // 64, _MOST)


def least_transposed(tensors: Sequence[Tensor]) -> list[Any]:
  """The nodes that have the other order where the least is transposed; none if that is no less
  than now."""
  makers_and_users = [node for t in tensors for node in (t.maker, *t.users) if node is not None]
  nodes = {node.name: node for node in makers_and_users}
  number = {name: vertex for vertex, name in enumerate(nodes, start=_OTHER_ORDER + 1)}
  cut = _Cut(len(nodes) + 2)
  now = 0
  for tensor in tensors:
    users = [number[node.name] for node in tensor.users]
    maker = number[tensor.maker.name] if tensor.maker else _FIRST_ORDER
    maker = _OTHER_ORDER if tensor.is_transposed else maker
    in_first = users + [_FIRST_ORDER] * tensor.is_used
    in_other = users + [_OTHER_ORDER] * tensor.is_used_transposed
    now += tensor.cost * (bool(in_first) if tensor.is_transposed else tensor.is_used_transposed)
    cut.add_transpose(maker, in_other, tensor.cost)
    cut.add_transpose_back(maker, in_first, tensor.cost)
  cost, others = cut.least()
  return [node for name, node in nodes.items() if number[name] in others] if cost < now else []


class _Cut:
  """Edges with costs: that of an edge counts if its begin has the first order and its end the
  other one."""

  def __init__(self, size: int):
    self._size = size
    self._edges: dict[tuple[int, int], int] = {}

  def add_transpose(self, maker: int, users: Iterable[int], cost: int) -> None:
    """A maker in the first order costs this once if any user has the other one."""
    if maker != _OTHER_ORDER and (users := list(users)):
      any_user = self._new()
      self._add(maker, any_user, cost)
      for user in users:
        self._add(any_user, user, _ENDLESS)

  def add_transpose_back(self, maker: int, users: Iterable[int], cost: int) -> None:
    """A maker in the other order costs this once if any user has the first one."""
    if maker != _FIRST_ORDER and (users := list(users)):
      any_user = self._new()
      self._add(any_user, maker, cost)
      for user in users:
        self._add(user, any_user, _ENDLESS)

  def _new(self) -> int:
    self._size += 1
    return self._size - 1

  def _add(self, begin: int, end: int, cost: int) -> None:
    known = self._edges.get((begin, end), 0)
    self._edges[begin, end] = min(known + cost, _ENDLESS)

  def least(self) -> tuple[int, set[int]]:
    """The least cost, and the fewest vertices that have the other order then."""
    begins, ends = np.array(list(self._edges), np.int32).T
    costs = np.array(list(self._edges.values()), np.int32)
    capacities = sparse.csr_array((costs, (begins, ends)), shape=(self._size, self._size))
    flow = csgraph.maximum_flow(capacities, _FIRST_ORDER, _OTHER_ORDER)
    rest = sparse.csr_array(capacities - flow.flow)
    rest.eliminate_zeros()
    reaching = csgraph.breadth_first_order(rest.T, _OTHER_ORDER, return_predecessors=False)
    return int(flow.flow_value), set(reaching.tolist())


def _rewrite(
  graph: Any, orders: axes.Orders, nodes: Sequence[Any], tensors: dict[str, Tensor]
) -> None:
  """Computes the nodes in the other order. What others take of them keeps its name."""
  names = {name: axes.free_name(graph, name) for node in nodes for name in node.output}
  # before nodes go, and with them the shapes of their results
  counts = {node.name: len(axes.operands(node, orders) or ()) for node in nodes}
  ranks = {node.name: axes.rank(node) for node in nodes}
  moved = _Operands(graph, orders, names)
  for node in nodes:
    count, rank = counts[node.name], ranks[node.name]
    inputs = [moved.of(name, rank) for name in node.input[:count]] + node.input[count:]
    shapes = [
      axes.permuted(shape, axes.inverse(orders.of(len(shape)))) for shape in node.output_shapes
    ]
    axes.remake(node, orders.of(rank), inputs, [names[name] for name in node.output], shapes)
  users: dict[str, list[Any]] = {name: [] for name in names}
  for node in graph.get_nodes():
    for name in names.keys() & set(node.input):
      users[name].append(node)
  for name, new in names.items():
    if _serve(orders, new, users[name]) or tensors[name].is_used:
      _transposed(graph, new, orders.of(len(graph.get_shape(new))), name)


def _serve(orders: axes.Orders, new: str, users: Iterable[Any]) -> bool:
  """Gives a moved tensor to the users of the old one that can take it. Whether others are left."""
  has_others = False
  for node in users:
    outputs, shapes, dtypes = list(node.output), node.output_shapes, node.output_dtypes
    graph = node.graph
    if _is_transpose(node, orders, back=True):
      graph.remove_node(node.name)
      graph.make_node(
        "Identity", [new], name=node.name, outputs=outputs, shapes=shapes, dtypes=dtypes
      )
    elif axes.is_free_end(node, orders):
      order = orders.of(len(graph.get_shape(new)))
      axes.remake(node, order, [new, *node.input[1:]], outputs, shapes)
    else:
      has_others = True
  return has_others


def _transposed(graph: Any, name: str, order: Sequence[int], result: str | None = None) -> str:
  """The name of the result of a new Transpose."""
  shape, dtype = axes.permuted(graph.get_shape(name), order), graph.get_dtype(name)
  outputs = [result] if result else None
  node = graph.make_node(
    "Transpose", [name], {"perm": list(order)}, outputs=outputs, shapes=[shape], dtypes=[dtype]
  )
  return str(node.output[0])


class _Operands:
  """The operands of moved nodes in the other order.

  Args:
    graph: a graph of tf2onnx.
    orders: the permutations from the other order to the first.
    names: {tensor of a moved node: its new name}.
  """

  def __init__(self, graph: Any, orders: axes.Orders, names: dict[str, str]):
    self._graph, self._orders, self._names = graph, orders, names
    self._made: dict[tuple[str, int], str] = {}

  def of(self, name: str, rank: int) -> str:
    """The name of an operand in the other order, for a node of operands of this rank."""
    if name in self._names:
      return self._names[name]
    if (name, rank) not in self._made:
      self._made[name, rank] = self._make(name, rank)
    return self._made[name, rank]

  def _make(self, name: str, rank: int) -> str:
    graph, back = self._graph, axes.inverse(self._orders.of(rank))
    maker = graph.get_node_by_output(name)
    if _is_transpose(maker, self._orders):
      return str(maker.input[0])
    shape = graph.get_shape(name)
    if not shape:
      return name
    wide = [1] * (rank - len(shape)) + list(shape)
    if maker is not None and maker.is_const():
      value = maker.get_tensor_value(as_list=False)
      if value.size == 1:
        return name
      const = np.ascontiguousarray(value.reshape(wide).transpose(back))
      return str(graph.make_const(axes.free_name(graph, f"{name}_t"), const).output[0])
    return _transposed(graph, self._wide(name, wide), back)

  def _wide(self, name: str, shape: Sequence[int]) -> str:
    graph = self._graph
    if not (missing := len(shape) - len(graph.get_shape(name))):
      return name
    ones = np.arange(missing, dtype=np.int64)
    where = graph.make_const(axes.free_name(graph, f"{name}_axes"), ones).output[0]
    dtype = graph.get_dtype(name)
    new = graph.make_node("Unsqueeze", [name, where], shapes=[list(shape)], dtypes=[dtype])
    return str(new.output[0])
