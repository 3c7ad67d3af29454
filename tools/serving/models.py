"""The models of a replica, each with its versions. A thread follows changes on disk."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import grpc

from jax2tf.tools.serving.config import Source
from jax2tf.tools.serving.model import Model, RefusedError
from jax2tf.tools.serving.versions import Versions

POLL_SECONDS = 1.0
# How long a check of one model holds up those of the others: in a running replica, and at its
# start, where large models load.
_PATIENCE_SECONDS, _START_PATIENCE_SECONDS = 10.0, 300.0
_LOG = logging.getLogger("ray.serve")


class Models:
  """Serves the models that `find` returns, and calls it again every `POLL_SECONDS`."""

  _models: Mapping[str, Versions]

  def __init__(self, find: Callable[[], Mapping[str, Source]], replicas: int = 1):
    """Loads the newest versions that load. `replicas` is the number of replicas that serve them.

    Raises:
      RuntimeError: no version of any model loads.
      ValueError, OSError: the errors of `find`.
    """
    self._find, self._replicas = find, replicas
    self._models = {}
    self._known: Mapping[tuple[str, Path], Versions] = {}
    self._refresh(_START_PATIENCE_SECONDS, complete=True)
    if not any(versions.served for versions in self._models.values()):
      raise RuntimeError(
        "; ".join(f"{name!r}: {fault}" for name, fault in self.faults.items())
        or "there is no model to serve"
      )
    self._watcher = threading.Thread(target=self._watch, name="models", daemon=True)
    self._watcher.start()

  @property
  def healthy(self) -> bool:
    return self._watcher.is_alive()

  @property
  def names(self) -> list[str]:
    """Those of the models that are served."""
    return sorted(name for name, versions in self._models.items() if versions.served)

  @property
  def faults(self) -> dict[str, str]:
    """{model that is not served: reason}."""
    return {name: versions.fault for name, versions in self._models.items() if not versions.served}

  def get(self, name: str, version: int | None, label: str = "") -> Model:
    """The loaded model for a name and a version or label.

    Raises:
      RefusedError: the name, version or label is not served.
    """
    return self._versions(name).get(version, label)

  def status(self, name: str, version: int | None, label: str = "") -> list[dict[str, object]]:
    """The states of the versions, newest first, as in TF Serving's REST API. Raises the errors of
    `get`."""
    return self._versions(name).status(version, label)

  def _versions(self, name: str) -> Versions:
    models = self._models
    if name not in models:
      raise RefusedError(
        grpc.StatusCode.NOT_FOUND,
        f"no model {name!r} here; this server has {', '.join(map(repr, sorted(models)))}",
      )
    return models[name]

  def _watch(self) -> None:
    polls = threading.Event()
    while not polls.wait(POLL_SECONDS):
      try:
        self.refresh()
      except Exception:  # an error now may be gone in a second
        _LOG.exception("cannot look for models")

  def refresh(self) -> None:
    """Applies additions, changes and removals since the last call. Raises the errors of `find`."""
    self._refresh(_PATIENCE_SECONDS, complete=False)

  def _refresh(self, seconds: float, complete: bool) -> None:
    versions_of: dict[str, Versions] = {}
    known: dict[tuple[str, Path], Versions] = {}
    for name, source in self._find().items():
      key = name, source.folder
      versions = self._known.get(key) or Versions(name, source, self._replicas, complete)
      versions.source = source
      versions.refresh(seconds)
      known[key] = versions
      before = self._models.get(name)
      # a new folder, and no version of it is loaded yet
      versions_of[name] = before if before and before.served and not versions.served else versions
    self._models, self._known = versions_of, known
