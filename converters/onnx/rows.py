"""Rows of a table at indices some of which may be outside, in a graph of tf2onnx.

JAX fills these rows with NaN. The translation has a Where over all rows, which takes ONNX Runtime
longer than the Gather itself:

  Where(Reshape(Equal(indices, clamped)), Gather(table, clamped), nan)

A parameter gets a last row of NaN, which is what an index outside gathers. Where the table is
computed, or has other uses, the Where is in a branch that runs if an index is outside.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from .protos import BOOL, FLOAT, INT64

_FEW = 4096  # elements of which a Where is faster than a branch


@dataclass(frozen=True)
class _Rows:
  """Where(moved, Gather(table, clamped), fill).

  Attributes:
    graph: the graph with these nodes.
    select: the Where.
    gather: the Gather, which nothing else uses.
    inside: the name of bool[*batch], which `moved` reshapes: which indices are inside.
    fill: the number for those outside.
  """

  graph: Any
  select: Any
  gather: Any
  inside: str
  fill: np.ndarray

  @property
  def table(self) -> str:
    return str(self.gather.input[0])


def without_selections(graph: Any, parameters: set[str]) -> dict[str, np.ndarray]:
  """Changes a graph of tf2onnx so that no Where is over rows at indices inside.

  Args:
    graph: the graph, after the handlers.
    parameters: the inputs that stand for parameters, which the caller writes.

  Returns:
    {input: the number of which the last row consists that the caller is to append}.
  """
  by_table: dict[str, list[_Rows]] = {}
  for inner in _graphs(graph):
    for node in inner.get_nodes():
      if node.type == "Where" and (rows := _rows(inner, node)) is not None:
        by_table.setdefault(rows.table, []).append(rows)
  appended = {}
  for table, selections in by_table.items():
    node, fill = graph.get_node_by_output(table), selections[0].fill
    is_parameter = node is not None and (table in parameters or node.is_const())
    if is_parameter and _are_all_uses(graph, table, selections):
      _append_row(graph, node, fill)
      if table in parameters:
        appended[table] = fill
      for rows in selections:
        _gather_last_row(rows, graph.get_shape(table)[0] - 1)
    else:
      for rows in selections:
        _select_in_branch(rows)
  return appended


def _graphs(graph: Any) -> Iterator[Any]:
  yield graph
  for node in graph.get_nodes():
    for inner in (node.get_body_graphs() or {}).values():
      yield from _graphs(inner)


def _rows(graph: Any, select: Any) -> _Rows | None:
  moved, gather, filling = select.inputs
  fill = _constant(filling)
  if fill is None or fill.size != 1 or None in (moved, gather):
    return None
  if moved.type != "Reshape" or gather.type != "Gather" or moved.inputs[0].type != "Equal":
    return None
  is_alone = len(graph.find_output_consumers(gather.output[0])) == 1
  if not is_alone or gather.input[1] not in moved.inputs[0].input:
    return None
  shape = graph.get_shape(select.output[0]) or [-1]
  is_small = -1 not in shape and np.prod(shape) <= _FEW
  return None if is_small else _Rows(graph, select, gather, moved.input[0], fill.reshape(()))


def _constant(node: Any) -> np.ndarray | None:
  return node.get_tensor_value(as_list=False) if node is not None and node.is_const() else None


def _are_all_uses(graph: Any, table: str, selections: list[_Rows]) -> bool:
  """Whether a last row of the first number changes nothing but the rows outside."""
  first, rank = selections[0].fill, graph.get_rank(table)
  gathers = {rows.gather.name for rows in selections}
  return (
    table not in graph.outputs
    and all(node.name in gathers for node in graph.find_output_consumers(table))
    and all(
      rows.fill.tobytes() == first.tobytes()
      and rows.gather.get_attr_value("axis", 0) == 0
      and _is_not_negative(rows.gather.inputs[1])
      and _is_one_for_each_row(rows, rank)
      for rows in selections
    )
  )


def _is_not_negative(clamped: Any) -> bool:
  """Whether it is max(0, ...)."""
  bounds = [_constant(x) for x in clamped.inputs] if clamped.type == "Max" else []
  return any(bound is not None and (bound >= 0).all() for bound in bounds)


def _is_one_for_each_row(rows: _Rows, rank: int) -> bool:
  """Whether the condition bool[*batch,1,...,1] is of the rank of the rows f32[*batch,...]."""
  graph = rows.graph
  of_indices, of_result = (
    graph.get_shape(name) for name in (rows.gather.input[1], rows.select.output[0])
  )
  shape = graph.get_shape(rows.select.input[0])
  if None in (of_indices, of_result, shape):
    return False
  return shape == of_indices + [1] * (rank - 1) and len(of_result) == len(shape)


def _append_row(graph: Any, table: Any, fill: np.ndarray) -> None:
  name = table.output[0]
  n_rows, *sizes = graph.get_shape(name)
  if table.is_const():
    value = table.get_tensor_value(as_list=False)
    table.set_tensor_value(np.concatenate([value, np.full([1, *sizes], fill, value.dtype)]))
  graph.set_shape(name, [n_rows + 1, *sizes])


def _gather_last_row(rows: _Rows, last: int) -> None:
  graph, clamped = rows.graph, rows.gather.input[1]
  dtype = np.int64 if graph.get_dtype(clamped) == INT64 else np.int32
  number = graph.make_const(f"{rows.select.name}__outside", np.array(last, dtype))
  index = graph.make_node(
    "Where",
    [rows.inside, clamped, number.output[0]],
    shapes=[graph.get_shape(clamped)],
    dtypes=[graph.get_dtype(clamped)],
  )
  graph.replace_input(rows.gather, clamped, index.output[0], 1)
  graph.replace_all_inputs(rows.select.output[0], rows.gather.output[0])


def _select_in_branch(rows: _Rows) -> None:
  graph, select, gather = rows.graph, rows.select, rows.gather
  result, shape = select.output[0], graph.get_shape(select.output[0])
  dtype = graph.get_dtype(result)

  def branch(selects: bool) -> Any:
    body = graph.create_new_graph_with_same_config()
    body.parent_graph = graph
    attributes = {"axis": gather.get_attr_value("axis", 0)}
    (gathered,) = body.make_node(
      "Gather", list(gather.input), attr=attributes, shapes=[shape], dtypes=[dtype]
    ).output
    if selects:
      operands = [select.input[0], gathered, select.input[2]]
      (gathered,) = body.make_node("Where", operands, shapes=[shape], dtypes=[dtype]).output
    body.add_graph_output(gathered, dtype, shape)
    return body

  def made(kind: str, operands: list[str], dtype: int, **attributes: Any) -> str:
    return str(graph.make_node(kind, operands, attr=attributes, dtypes=[dtype]).output[0])

  zero = graph.make_const(f"{select.name}__none", np.array(0, np.float32)).output[0]
  outside = made("Cast", [made("Not", [rows.inside], BOOL)], FLOAT, to=FLOAT)
  count = made("ReduceSum", [outside], FLOAT, keepdims=0)
  some = made("Greater", [count, zero], BOOL)
  branches = {"then_branch": branch(True), "else_branch": branch(False)}
  graph.remove_node(select.name)
  graph.make_node(
    "If",
    [some],
    name=select.name,
    outputs=[result],
    shapes=[shape],
    dtypes=[dtype],
    branches=branches,
  )
