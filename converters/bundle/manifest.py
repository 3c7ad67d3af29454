"""The manifest of a SavedModel: `assets.extra/jax2tf.json`, plain JSON."""

from __future__ import annotations

import datetime
import hashlib
import importlib.metadata
import json
import platform
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from . import files, paths

_Kind = TypeVar("_Kind")

_FORMAT = 1
_PACKAGES = ("jax2tf", "jax", "jaxlib", "tensorflow", "numpy")


def _versions() -> dict[str, str]:
  versions = {"python": platform.python_version()}
  for package in _PACKAGES:
    try:
      versions[package] = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:  # run from a checkout
      versions[package] = "unknown"
  return versions


@dataclass(frozen=True)
class SignatureRecord:
  """One signature.

  Attributes:
    inputs: {name: dtype and shape in jaxpr notation}, "f32[b,784]". Inputs of TensorFlow functions
      are "string[?]".
    outputs: the same for the results.
    defaults: names of the inputs that a request may omit.
    passed_through: names of the inputs that the signature returns unchanged.
    jaxpr: SHA-256 of the text of the jaxpr, without source lines.
    preprocessed, postprocessed: whether TensorFlow functions run before and after the JAX function.
    stateful: whether a call reads and changes the state.
    resets: whether it only restores the initial state.
    declared: the inputs of `preprocess` as they were passed, with their dimension variables,
      "string[b]".
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
  declared: Mapping[str, str] = field(default_factory=dict)

  @property
  def own_inputs(self) -> list[str]:
    """Names of the inputs that the function takes, without those passed through."""
    return [name for name in self.inputs if name not in self.passed_through]


@dataclass(frozen=True)
class GenerationRecord:
  """How to generate text with the signatures of a model.

  `init` takes nothing and returns an empty cache, one output per array. `prefill` reads `tokens`,
  i32[1,s], at `positions`, i32[1,s], and `decode` reads one token, i32[1,1]. Both also take the
  cache and return the new one, whose outputs have the names of the inputs, and `logits`, f32[1,V],
  from which the token after the last one is chosen. A caller passes all arrays of the cache on as
  they are.

  Attributes:
    vocabulary: the number of tokens, V.
    context_length: the number of tokens that fit into a cache.
    cache: {name of an input and output: dtype and shape in jaxpr notation}.
    piece: the largest number of tokens for which `prefill` was compared with JAX.
    stop_tokens: tokens that end an answer.
    start_token: the token before every text; None if there is none.
    tokenizer: the file of the tokenizer below the directory; empty without one.
    chat_template: a Jinja template that turns `messages` into a prompt; empty without one.
    init, prefill, decode: names of the signatures.
  """

  vocabulary: int
  context_length: int
  cache: Mapping[str, str]
  piece: int
  stop_tokens: list[int] = field(default_factory=list)
  start_token: int | None = None
  tokenizer: str = ""
  chat_template: str = ""
  init: str = "init_cache"
  prefill: str = "prefill"
  decode: str = "decode"


@dataclass(frozen=True)
class Manifest:
  """The contents of the manifest.

  Attributes:
    signatures: {name: record}.
    constraints: conditions on the dimension variables, as passed to `convert`.
    parameters: {path: dtype and shape in jaxpr notation}.
    weights: SHA-256 of the values of the parameters, in order of their paths.
    with_gradient: whether the loaded model has derivatives.
    idioms: as for `jax2tf.convert`.
    state: {path: dtype and shape in jaxpr notation} of the state, as stored.
    state_values: SHA-256 of the values of the state; empty without one.
    generation: how to generate text; None for other models.
    created: time of creation, UTC, ISO 8601.
    versions: {package: version} of Python and of the packages that built the model.
  """

  signatures: Mapping[str, SignatureRecord]
  constraints: list[str]
  parameters: Mapping[str, str]
  weights: str
  with_gradient: bool
  idioms: str = "exact"
  state: Mapping[str, str] = field(default_factory=dict)
  state_values: str = ""
  generation: GenerationRecord | None = None
  created: str = field(
    default_factory=lambda: datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
  )
  versions: Mapping[str, str] = field(default_factory=_versions)

  def write(self, directory: Path) -> None:
    """Writes the file into a SavedModel.

    Args:
      directory: the directory of the SavedModel.

    Raises:
      OSError: the directory does not exist, or cannot be written.
    """
    file = directory / files.MANIFEST
    file.parent.mkdir(exist_ok=True)
    file.write_text(
      json.dumps({"format": _FORMAT} | asdict(self), indent=2) + "\n", encoding="utf-8"
    )


def read(directory: paths.Given) -> Manifest:
  """Reads the manifest of a SavedModel.

  Args:
    directory: the directory of one version, or its address.

  Returns:
    the manifest that `Model.save` wrote.

  Raises:
    FileNotFoundError: neither `jax2tf.converters.saved_model` nor `opened` saved this directory.
    ValueError: the manifest has a newer format, or is damaged.

  Examples:
    >>> import numpy as np
    >>> from jax2tf.converters import saved_model
    >>> from jax2tf.converters.saved_model import manifest
    >>> w = np.eye(2, dtype=np.float32)
    >>> path = saved_model.save(
    ...   lambda w, x: x @ w, w, "described", inputs={"x": "f32[b,2]"}, outputs=["y"]
    ... )
    >>> manifest.read(path).signatures["serving_default"].outputs
    {'y': 'f32[b,2]'}
  """
  path = paths.of(directory, "directory") / files.MANIFEST
  if not path.exists():
    raise FileNotFoundError(
      f"{directory} has no {files.MANIFEST}: jax2tf.converters.saved_model did not save it; for a "
      "closed model, jax2tf open writes one"
    )
  with paths.fetched(path) as file:
    text = file.read_bytes()
  try:
    content = json.loads(text)
    if content.pop("format") != _FORMAT:
      raise ValueError("of another format")
    content["signatures"] = {
      name: _of_fields(SignatureRecord, record) for name, record in content["signatures"].items()
    }
    if generation := content.get("generation"):
      content["generation"] = _of_fields(GenerationRecord, generation)
    return _of_fields(Manifest, content)
  except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
    raise ValueError(
      f"{path} cannot be read by this jax2tf ({error}); save the model again"
    ) from error


def _of_fields(kind: type[_Kind], record: Mapping[str, Any]) -> _Kind:
  """A dataclass of a record. A later jax2tf may have added fields, which nobody has to know as long
  as the format is the same."""
  known = {each.name for each in fields(kind)}  # type: ignore[arg-type]
  return kind(**{name: value for name, value in record.items() if name in known})


def hash_of_arrays(arrays: Iterable[Any]) -> str:
  """SHA-256 of the bytes of these arrays, without copies."""
  digest = hashlib.sha256()
  for array in arrays:
    digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
  return digest.hexdigest()


def hash_of_jaxpr(jaxpr: Any) -> str:
  """SHA-256 of the text of a jaxpr, without parts that change from run to run."""
  try:
    text = str(jaxpr)
  # JAX 0.12 cannot print an equation that was bound without out_dtype, for example by
  # lax.mul_p.bind(x, y)
  except KeyError:
    text = "\n".join(
      f"{eqn.primitive} {[str(v.aval) for v in (*eqn.invars, *eqn.outvars)]}" for eqn in jaxpr.eqns
    )
  return hashlib.sha256(re.sub(r" at 0x[0-9a-f]+", "", text).encode()).hexdigest()
