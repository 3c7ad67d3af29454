"""The graph of a SavedModel, and the values of its variables, read without loading the model."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf import message
from tensorflow.core.protobuf import saved_model_pb2, trackable_object_graph_pb2

from ..bundle.files import SAVED_MODEL

_GRAPH, _VALUE = "_CHECKPOINTABLE_OBJECT_GRAPH", "VARIABLE_VALUE"
_VARIABLES = ("VarHandleOp", "VariableV2")


def meta_graph(directory: Path) -> Any:
  """The MetaGraphDef of a SavedModel.

  Raises:
    ValueError: the file is damaged.
  """
  file = directory / SAVED_MODEL
  try:
    (graph,) = saved_model_pb2.SavedModel.FromString(file.read_bytes()).meta_graphs
  except (message.DecodeError, ValueError) as error:
    raise ValueError(f"{file} is damaged: {error}; save the model again") from error
  return graph


def readers(directory: Path, graph: Any) -> dict[str, Callable[[], np.ndarray]]:
  """{name of a variable: a function that reads its value}, of a version's directory and its
  MetaGraphDef.

  Raises:
    ValueError: the files are damaged or missing. Reading a value may raise it too.
  """
  prefix = directory / "variables" / "variables"

  def read(key: str) -> Any:
    try:
      value = tf.train.load_checkpoint(str(prefix)).get_tensor(key)
      return value if key == _GRAPH else np.asarray(value)
    except (tf.errors.OpError, RuntimeError, IndexError, ValueError) as error:
      raise _damaged(prefix.parent, str(error).splitlines()[0]) from error

  if not Path(f"{prefix}.index").exists():
    if any(node.HasField("variable") for node in graph.object_graph_def.nodes) or any(
      n.op in _VARIABLES for n in graph.graph_def.node
    ):
      raise _damaged(prefix.parent, f"there is no {prefix.name}.index")
    return {}
  try:
    keys = tf.train.load_checkpoint(str(prefix)).get_variable_to_shape_map()
  except (tf.errors.OpError, RuntimeError, ValueError) as error:
    raise _damaged(prefix.parent, str(error).splitlines()[0]) from error
  if _GRAPH not in keys:  # written by TensorFlow 1
    return {key: functools.partial(read, key) for key in sorted(keys)}
  objects = trackable_object_graph_pb2.TrackableObjectGraph.FromString(read(_GRAPH))
  names_and_keys = sorted(
    (a.full_name, a.checkpoint_key)
    for node in objects.nodes
    for a in node.attributes
    if a.name == _VALUE
  )
  names = collections.Counter(name for name, _ in names_and_keys)
  # The model chooses the names; several variables may share one.
  return {
    name if name and names[name] == 1 else f"{name} ({key})": functools.partial(read, key)
    for name, key in names_and_keys
  }


def check(directory: Path, graph: Any) -> None:
  """Raises ValueError if the value of a variable cannot be read."""
  for read in readers(directory, graph).values():
    read()


def _damaged(folder: Path, why: str) -> ValueError:
  return ValueError(f"{folder} is damaged: {why}; save the model again")
