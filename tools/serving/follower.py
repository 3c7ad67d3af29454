"""Follows the models on disk for the replicas. In a thread, because a file system that does not
answer must not hold up the server."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

from jax2tf.converters.bundle import versions
from jax2tf.tools.serving import config
from jax2tf.tools.serving.child import Options
from jax2tf.tools.serving.config import Source
from jax2tf.tools.serving.signals import say

_POLL_SECONDS = 1.0


class Follower:
  """Writes the current models of a server for its replicas, and says what is wrong with them,
  once."""

  def __init__(self, options: Options):
    self._options = options
    self._fault = ""
    self._ignored: set[Path] = set()
    self._ended = threading.Event()
    self._thread = threading.Thread(target=self._follow, name="models", daemon=True)

  def start(self) -> None:
    self._thread.start()

  def end(self) -> None:
    """Ends the thread, unless a file system holds it up."""
    self._ended.set()
    if self._thread.is_alive():
      self._thread.join(_POLL_SECONDS)

  def _follow(self) -> None:
    while not self._ended.wait(_POLL_SECONDS):
      self.look()

  def look(self) -> None:
    """Writes the models if they changed. An error leaves those of before."""
    fault = ""
    try:
      configured, run = config.sources(self._options), Path(self._options.run)
      if configured != config.read(run):
        config.write(run, configured)
      self._say_what_is_ignored(configured)
    except (ValueError, OSError) as error:
      fault = str(error)
    if fault and fault != self._fault:
      say(f"still serving the earlier models: {fault}")
    self._fault = fault

  def _say_what_is_ignored(self, models: Mapping[str, Source]) -> None:
    ignored = {
      folder: reason
      for source in models.values()
      for folder, reason in versions.ignored(source.folder).items()
    }
    for folder, reason in ignored.items():
      if folder not in self._ignored:
        say(f"not served: {folder}: {reason}")
    self._ignored = set(ignored)
