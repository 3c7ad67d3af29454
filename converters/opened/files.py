"""The files of an opened SavedModel: those of the closed one, with another graph."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from google.protobuf import message
from tensorflow.core.protobuf import saved_model_pb2

from jax2tf.messages import Message

from ..bundle.files import SAVED_MODEL

# A hash of the graph, which TensorFlow writes with it and does not need.
_FINGERPRINT = "fingerprint.pb"
_T = TypeVar("_T")


def read(directory: Path) -> Any:
  """The SavedModel proto.

  Raises:
    ValueError: the file is damaged, or has several graphs.
  """
  file = directory / SAVED_MODEL
  try:
    saved = saved_model_pb2.SavedModel.FromString(file.read_bytes())
  except message.DecodeError as error:
    raise ValueError(f"{file} is damaged: {error}; save the model again") from error
  if len(saved.meta_graphs) != 1:
    raise ValueError(
      Message(
        problem=f"{file} has {len(saved.meta_graphs)} graphs, as TensorFlow 1 writes them",
        advice="save the one to open with TensorFlow 2",
      )
    )
  return saved


def copied(source: Path, target: Path, change: Callable[[Any], _T]) -> _T:
  """Copies a SavedModel whose GraphDef `change` changes in place; returns its result. Variables and
  assets are copied as files.

  Args:
    source: the directory.
    target: a directory, which does not exist.
    change: takes the GraphDef.

  Raises:
    ValueError: the graph has more than 2 GB.
  """
  saved = read(source)
  result = change(saved.meta_graphs[0].graph_def)
  shutil.copytree(source, target, ignore=shutil.ignore_patterns(SAVED_MODEL, _FINGERPRINT))
  try:
    (target / SAVED_MODEL).write_bytes(saved.SerializeToString())
  except (message.EncodeError, ValueError) as error:
    raise ValueError(
      Message(
        problem=f"the opened graph has more than 2 GB, which a SavedModel cannot hold ({error})",
        advice="export the function with its weights as arguments, and not as constants",
      )
    ) from error
  return result
