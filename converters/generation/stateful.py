"""Makes OpenVINO's model of a step one that keeps the cache as its state, with the inputs that
OpenVINO GenAI gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

IDS, POSITIONS, MASK, BEAMS = "input_ids", "position_ids", "attention_mask", "beam_idx"


def with_state(ov: Any, model: Any, cache: Mapping[str, str]) -> None:
  """Changes the model in place.

  Its token inputs become int64, as the engine gives them. Each array of the cache becomes a
  variable: empty at first, reordered by `beam_idx` i32[b], and set to the output at the end of a
  call.

  Args:
    ov: the package.
    model: with inputs input_ids i32[b,s], position_ids i32[b,s], perhaps attention_mask i32[b,p+s],
      and those of the cache.
    cache: {input: output}.
  """
  from openvino._offline_transformations import apply_make_stateful_transformation  # noqa: PLC0415  (an extra)

  op, int64 = ov.opset13, ov.Type.i64
  inputs = {name: parameter.get_node() for parameter in model.inputs for name in parameter.names}
  for name in (IDS, POSITIONS, MASK):
    if name in inputs:
      _widen(ov, inputs[name])
    else:
      _add_input(model, op.parameter([-1, -1], dtype=int64, name=name), name)
  beams = op.parameter([-1], dtype=ov.Type.i32, name=BEAMS)
  _add_input(model, beams, BEAMS)
  for name in cache:
    users = list(inputs[name].output(0).get_target_inputs())
    reordered = op.gather(inputs[name], beams, op.constant(0, int64))
    for user in users:
      user.replace_source_output(reordered.output(0))
  model.validate_nodes_and_infer_types()
  apply_make_stateful_transformation(model, dict(cache))
  batch = op.gather(op.shape_of(inputs[IDS]), op.constant([0], int64), op.constant(0, int64))
  for node in model.get_ops():
    if node.get_type_name() == "ReadValue":
      _, heads, _, size = node.get_attributes()["variable_shape"]
      shape = op.concat([batch, op.constant([heads, 0, size], int64)], 0)
      zero = op.constant(0, node.get_output_element_type(0))
      node.set_arguments([op.broadcast(zero, shape).output(0)])
  model.validate_nodes_and_infer_types()


def with_attention(ov: Any, model: Any) -> int:
  """Replaces each attention, as `attention.rewritten` spells it, by ScaledDotProductAttention.

  OpenVINO 2026.4: the transformation to paged attention knows keys and values only as they are
  here: the concatenation of past and new rows, and for heads in groups [Unsqueeze, Broadcast,
  Reshape] behind it.

  Returns:
    how many were replaced.
  """
  op = ov.opset13
  number = 0
  for softmax in [node for node in model.get_ops() if node.get_type_name() == "Softmax"]:
    scores, mask = _scores_and_mask(softmax.input_value(0))
    mixed, is_transposed = _product_with_values(softmax)
    if scores is None or mixed is None:
      continue
    query = scores.input_value(0)
    arrays = [_rows(scores.input_value(1)), _rows(mixed.input_value(0 if is_transposed else 1))]
    shape = query.get_partial_shape()
    if None in arrays or len(shape) != 4 or not (shape[1].is_static and shape[3].is_static):
      continue
    heads, size = shape[1].get_length(), shape[3].get_length()
    if arrays[0].get_partial_shape()[3] != size or heads % _heads(arrays[0]):
      continue
    key, value = (_for_heads(ov, array, heads) for array in arrays)
    one = op.constant(1.0, query.get_element_type())
    operands = [query, key, value, *([] if mask is None else [mask, one])]
    attention = op.scaled_dot_product_attention(*operands)
    if is_transposed:
      attention = op.transpose(attention, op.constant(_TRANSPOSED, ov.Type.i64))
    for user in mixed.output(0).get_target_inputs():
      user.replace_source_output(attention.output(0))
    number += 1
  model.validate_nodes_and_infer_types()
  return number


def _scores_and_mask(value: Any) -> tuple[Any, Any]:
  """(the product of queries and keys, the mask if there is one) of what a softmax takes."""
  node = value.get_node()
  if node.get_type_name() == "Select":
    mask, value = node.input_value(0), node.input_value(1)
  elif node.get_type_name() == "Add":
    products = [i for i in (0, 1) if node.input_value(i).get_node().get_type_name() == "MatMul"]
    if len(products) != 1:
      return None, None
    mask, value = node.input_value(1 - products[0]), node.input_value(products[0])
  else:
    mask = None
  product = value.get_node()
  return (product if product.get_type_name() == "MatMul" else None), mask


_TRANSPOSED = [0, 1, 3, 2]


def _product_with_values(softmax: Any) -> tuple[Any, bool]:
  """(shares @ values, False), or (values^T @ shares^T, True), whichever reads the softmax; None if
  anything else does."""
  users = list(softmax.output(0).get_target_inputs())
  if len(users) != 1:
    return None, False
  node = users[0].get_node()
  if node.get_type_name() == "MatMul":
    return (node, False) if users[0].get_index() == 0 else (None, False)
  if node.get_type_name() != "Transpose" or [*node.input_value(1).get_node().get_data()] != (
    _TRANSPOSED
  ):
    return None, False
  readers = list(node.output(0).get_target_inputs())
  is_product = len(readers) == 1 and readers[0].get_node().get_type_name() == "MatMul"
  return (
    (readers[0].get_node(), True) if is_product and readers[0].get_index() == 1 else (None, False)
  )


_MOVES = ("Transpose", "Reshape", "Broadcast", "Unsqueeze")


def _rows(value: Any) -> Any:
  """The concatenation f32[b,heads,t,size] that keys or values are made of; else None."""
  while value.get_node().get_type_name() in _MOVES:
    value = value.get_node().input_value(0)
  return value if value.get_node().get_type_name() == "Concat" else None


def _heads(rows: Any) -> int:
  return int(rows.get_partial_shape()[1].get_length())


def _for_heads(ov: Any, rows: Any, heads: int) -> Any:
  """The rows with each head repeated, for queries of `heads` heads."""
  if heads == _heads(rows):
    return rows
  op, int64 = ov.opset13, ov.Type.i64
  size = rows.get_partial_shape()[3].get_length()
  apart = op.unsqueeze(rows, op.constant([2], int64))
  times = op.constant([1, 1, heads // _heads(rows), 1, 1], int64)
  wide = op.broadcast(apart, times, broadcast_spec="BIDIRECTIONAL")
  return op.reshape(wide, op.constant([0, heads, -1, size], int64), True).output(0)


def _widen(ov: Any, parameter: Any) -> None:
  """The input of int64, converted to its own dtype."""
  narrow = parameter.get_element_type()
  users = list(parameter.output(0).get_target_inputs())
  parameter.set_element_type(ov.Type.i64)
  parameter.validate_and_infer_types()
  converted = ov.opset13.convert(parameter, narrow)
  for user in users:
    user.replace_source_output(converted.output(0))


def _add_input(model: Any, parameter: Any, name: str) -> None:
  parameter.output(0).get_tensor().add_names({name})
  model.add_parameters([parameter])
