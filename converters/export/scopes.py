"""Name scopes of the replayed graph: those of the ops that it copies."""

from __future__ import annotations

import contextlib

import tensorflow as tf


class Scopes(contextlib.ExitStack):
  """The scopes of ops of another graph, inside the one that is current now."""

  def __init__(self) -> None:
    super().__init__()
    self._outer = tf.get_current_name_scope()
    self._path = ""

  def enter(self, op: tf.Operation) -> None:
    """Makes ops in the scope of `op` from now on."""
    path = op.name.rpartition("/")[0]
    if path == self._path:
      return
    self.close()
    self._path = path
    if path:
      scope = "/".join(filter(None, [self._outer, path]))
      self.enter_context(tf.name_scope(f"{scope}/"))  # the slash re-enters a scope


def own_name(op: tf.Operation) -> str:
  """The name of an op in its scope."""
  return op.name.rpartition("/")[2]
