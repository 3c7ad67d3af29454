"""What a SavedModel of ours says of itself: `assets.extra/jax2tf.json`.

TensorFlow keeps `assets.extra/` as it is and never reads it; the file is plain JSON.
"""

from __future__ import annotations

import datetime
import hashlib
import importlib.metadata
import json
import platform
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

FILE = Path("assets.extra", "jax2tf.json")
_FORMAT = 1
_PACKAGES = ("jax2tf", "jax", "jaxlib", "tensorflow", "numpy")


def _versions() -> dict[str, str]:
  found = {"python": platform.python_version()}
  for package in _PACKAGES:
    try:
      found[package] = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:  # run from a checkout
      found[package] = "unknown"
  return found


@dataclass(frozen=True)
class SignatureRecord:
  """One signature.

  Attributes:
    inputs: name -> dtype and shape in jaxpr notation, "f32[b,784]"; tensors that only TensorFlow sees as "string[?]".
    outputs: the same for the results.
    defaults: names of the inputs that may be left out.
    passed_through: names of the inputs that are returned as they are.
    jaxpr: SHA-256 of the text of the jaxpr, without the user's lines.
    preprocessed, postprocessed: whether TensorFlow functions stand before and after the JAX function.
    stateful: whether a call reads and changes the state.
    resets: whether all it does is to give the state back its first values.
  """

  inputs: Mapping[str, str]
  outputs: Mapping[str, str]
  defaults: list[str] = field(default_factory=list)
  passed_through: list[str] = field(default_factory=list)
  jaxpr: str = ""
  preprocessed: bool = False
  postprocessed: bool = False
  stateful: bool = False
  resets: bool = False

  @property
  def own_inputs(self) -> list[str]:
    """Names of the inputs that the function takes: those that are not passed through."""
    return [name for name in self.inputs if name not in self.passed_through]


@dataclass(frozen=True)
class Manifest:
  """All that is recorded.

  Attributes:
    signatures: by name.
    constraints: on the dimension variables, as given to `convert`.
    parameters: path -> dtype and shape in jaxpr notation.
    weights: SHA-256 of the values of the parameters, in the order of their paths.
    with_gradient: whether the loaded model has derivatives.
    state: path -> dtype and shape of the arrays that the model remembers, as they are stored.
    state_values: SHA-256 of their values; empty without a state.
    created: UTC, ISO 8601.
    versions: of Python and of the packages that made the model.
  """

  signatures: Mapping[str, SignatureRecord]
  constraints: list[str]
  parameters: Mapping[str, str]
  weights: str
  with_gradient: bool
  state: Mapping[str, str] = field(default_factory=dict)
  state_values: str = ""
  created: str = field(default_factory=lambda: datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"))
  versions: Mapping[str, str] = field(default_factory=_versions)

  def write(self, directory: Path) -> None:
    """Writes the file into a SavedModel."""
    file = directory / FILE
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps({"format": _FORMAT} | asdict(self), indent=2) + "\n", encoding="utf-8")


def read(directory: Path) -> Manifest:
  """The manifest of a SavedModel.

  Raises:
    FileNotFoundError: the directory is no SavedModel of ours.
    ValueError: the manifest is of a newer format, or damaged.
  """
  file = directory / FILE
  if not file.exists():
    raise FileNotFoundError(f"{directory} has no {FILE}: it was not saved by jax2tf.converters.saved_model")
  try:
    found = json.loads(file.read_text(encoding="utf-8"))
    if found.pop("format") != _FORMAT:
      raise ValueError("of another format")
    found["signatures"] = {name: SignatureRecord(**record) for name, record in found["signatures"].items()}
    return Manifest(**found)
  except (ValueError, TypeError, KeyError, AttributeError) as error:
    raise ValueError(f"{file} cannot be read by this jax2tf ({error}); save the model again") from error


def hash_of_arrays(arrays: Iterable[Any]) -> str:
  """SHA-256 of the bytes of these arrays, without a copy of any."""
  digest = hashlib.sha256()
  for array in arrays:
    digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
  return digest.hexdigest()


def hash_of_jaxpr(jaxpr: Any) -> str:
  """SHA-256 of the text of a jaxpr, without what changes from run to run."""
  try:
    text = str(jaxpr)
  except KeyError:  # JAX 0.12 cannot print an equation that was bound without out_dtype, as by lax.mul_p.bind(x, y)
    text = "\n".join(f"{eqn.primitive} {[str(v.aval) for v in (*eqn.invars, *eqn.outvars)]}" for eqn in jaxpr.eqns)
  return hashlib.sha256(re.sub(r" at 0x[0-9a-f]+", "", text).encode()).hexdigest()
