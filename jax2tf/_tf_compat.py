"""Every touch of `tensorflow.python` and `tensorflow.compiler`; nothing else may have one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import tensorflow as tf
from tensorflow.python.eager import record as _record
from tensorflow.python.saved_model import save_context as _save_context
from tensorflow.python.trackable import data_structures as _data_structures

# tf.Module wraps the containers that it holds; to JAX they are the dict, list or tuple inside.
ListWrapper = _data_structures.ListWrapper
DictWrapper = _data_structures._DictWrapper
TupleWrapper = _data_structures._TupleWrapper

stop_recording = _record.stop_recording
is_saving = _save_context.in_save_context


def is_watched(tensor: tf.Tensor) -> bool:
  """True where an active GradientTape watches this eager tensor, or what it was computed from."""
  return _record.should_record_backprop([tensor])


def current_graph() -> tf.Graph | None:
  """The graph under construction, or None when ops run eagerly."""
  return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


@contextlib.contextmanager
def errors_as_raised() -> Iterator[None]:
  """Keeps AutoGraph from turning an exception into one of its own, which loses its type and its words."""
  try:
    yield
  except Exception as error:
    error.ag_pass_through = True  # type: ignore[attr-defined]
    raise
