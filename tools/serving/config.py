"""Finds the models to serve: one folder of versions, a folder of such folders, or a config file of
TF Serving.

The file is a text proto of `tensorflow.serving.ModelServerConfig`. Unsupported settings are errors,
not ignored. Only the server reads it; replicas read a copy of the last valid state, so a
temporarily invalid file does not prevent a replica from starting.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from google.protobuf import text_format

from jax2tf.tools.serving.child import Options


@dataclass(frozen=True)
class Source:
  """The served versions of one model.

  Attributes:
    folder: holds the versions.
    latest: the number of newest versions to serve, besides those with a label.
    only: the versions that may be served; None for any.
    labels: label -> version, for clients. A label that moves answers with its old version until the
      new one is loaded.
    allow_ops: ops that a version may have although they reach outside of the model
      (`tools.outside`).
  """

  folder: Path
  latest: float = 1
  only: frozenset[int] | None = None
  labels: Mapping[str, int] = field(default_factory=dict)
  allow_ops: frozenset[str] = frozenset()


def write(run: Path, sources_of_models: Mapping[str, Source]) -> None:
  """Writes the models for the replicas, which `read` them."""
  values = {
    name: [
      str(source.folder),
      source.latest,
      None if source.only is None else sorted(source.only),
      dict(source.labels),
      sorted(source.allow_ops),
    ]
    for name, source in sources_of_models.items()
  }
  (run / "models.writing").write_text(json.dumps(values), encoding="utf-8")
  (run / "models.writing").rename(run / "models.json")


def read(run: Path) -> dict[str, Source]:
  """The models that `write` wrote last."""
  values = json.loads((run / "models.json").read_text(encoding="utf-8"))
  return {
    name: Source(
      Path(folder), latest, None if only is None else frozenset(only), labels, frozenset(allow_ops)
    )
    for name, (folder, latest, only, labels, allow_ops) in values.items()
  }


def sources(options: Options) -> dict[str, Source]:
  """The models by name, as they are on disk now.

  Raises:
    ValueError: the config file is not valid, or has an unsupported setting.
    OSError: the folder or the file cannot be read.
  """
  allowed = frozenset(options.allow_ops)
  return {name: replace(source, allow_ops=allowed) for name, source in _sources(options).items()}


def _sources(options: Options) -> dict[str, Source]:
  if options.model_config_file:
    return _from_file(Path(options.model_config_file))
  folder = Path(options.folder)
  if options.name:
    return {options.name: Source(folder)}
  return {
    each.name: Source(each)
    for each in sorted(folder.iterdir())
    if each.is_dir() and each.name[0] != "."
  }


def _from_file(file: Path) -> dict[str, Source]:
  from tensorflow_serving.config import model_server_config_pb2  # noqa: PLC0415  (an extra)

  try:
    config = text_format.Parse(
      file.read_text(encoding="utf-8"), model_server_config_pb2.ModelServerConfig()
    )
  except (text_format.ParseError, UnicodeDecodeError) as error:
    raise ValueError(
      f"{file} is not a text proto of tensorflow.serving.ModelServerConfig: {error}"
    ) from error
  models = config.model_config_list.config
  if not models:
    raise ValueError(
      f"{file} names no model; write model_config_list {{ config {{ name: ... base_path: ... }} }}"
    )
  sources_of_models: dict[str, Source] = {}
  for model in models:
    if model.name in sources_of_models:
      raise ValueError(f"{file} has model {model.name!r} twice; give each its own name")
    try:
      sources_of_models[model.name] = _source(model, file.parent)
    except ValueError as error:
      raise ValueError(f"model {model.name!r} in {file}: {error}") from error
  return sources_of_models


def _source(model: Any, folder: Path) -> Source:
  """Converts a ModelConfig to a Source."""
  if not model.name or not model.base_path:
    raise ValueError("it needs a name and a base_path")
  if "://" in model.base_path:
    raise ValueError(f"base_path is {model.base_path!r}; only folders of this machine are served")
  if model.model_platform not in ("", "tensorflow"):
    raise ValueError(f"model_platform is {model.model_platform!r}; only 'tensorflow' is served")
  if model.HasField("logging_config"):
    raise ValueError("logging_config is not kept: no requests are logged; remove it")
  policy = model.model_version_policy
  chosen = policy.WhichOneof("policy_choice")
  only = frozenset(policy.specific.versions) if chosen == "specific" else None
  if only is not None and not only:
    raise ValueError("model_version_policy is specific and names no version")
  latest = policy.latest.num_versions or 1 if chosen in (None, "latest") else math.inf
  return Source(folder / model.base_path, latest, only, dict(model.version_labels))
