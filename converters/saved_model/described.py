"""The signatures of a SavedModel that has no manifest, because somebody else saved it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from jax2tf.messages import Argument, ArgumentError

from ..bundle import manifest
from ..bundle.notation import Spec
from . import kinds

# The sizes of the first, the second ... dimension variable while names are tried, and what all of
# them are multiplied by, for models that take multiples alone.
_PRIMES = (3, 5, 7, 11, 13, 17, 19, 23)
_FACTORS = (1, 2, 4, 8)
_Place = tuple[str, int]  # an input, and an axis of it


def records(loaded: Any, names: Sequence[str] | None = None) -> dict[str, manifest.SignatureRecord]:
  """{signature: its record} of a loaded SavedModel.

  A signature says which sizes are unknown, and not which of them are equal. So the first of these
  is taken with which it runs: all differ; the first axes are the same; axes of one number are; all
  are. Each is tried with odd sizes, and then with multiples of 2, 4 and 8.

  Args:
    loaded: by `tf.saved_model.load`.
    names: of the signatures; by default all.

  Raises:
    ArgumentError: a signature runs with none of them, or has an input of unknown rank.
  """
  kinds.check_names("signatures", names)
  chosen = list(loaded.signatures) if names is None else list(names)
  kinds.check_known("signatures", chosen, loaded.signatures)
  return {name: _record(name, loaded.signatures[name]) for name in chosen}


def _record(name: str, signature: Any) -> manifest.SignatureRecord:
  specs = signature.structured_input_signature[1]
  for each, spec in specs.items():
    if spec.shape.rank is None:
      raise ArgumentError(
        Argument("signatures", name),
        problem=f"its input {each!r} has an unknown rank",
        advice="save the model with an input of known rank",
      )
  dims = _dims(name, signature, specs)
  inputs = {each: _text(spec, each, dims) for each, spec in specs.items()}
  outputs = {each: str(Spec.of(y)) for each, y in signature.structured_outputs.items()}
  strings = [each for each, spec in specs.items() if spec.dtype == tf.string]
  return manifest.SignatureRecord(
    inputs, outputs, preprocessed=bool(strings), declared=inputs if strings else {}
  )


def _text(spec: Any, name: str, dims: Mapping[_Place, str]) -> str:
  sizes = [dims.get((name, axis), size) for axis, size in enumerate(spec.shape)]
  return str(Spec(Spec.of(spec).dtype, tuple(sizes)))


def _dims(name: str, signature: Any, specs: Mapping[str, Any]) -> dict[_Place, str]:
  """The dimension variable, or its multiple, of each unknown size."""
  places = [
    (each, axis)
    for each, spec in specs.items()
    for axis, size in enumerate(spec.shape)
    if size is None
  ]
  if not places:
    return {}
  reason = ""
  for factor, naming in itertools.product(_FACTORS, _namings(places)):
    variables = list(dict.fromkeys(naming.values()))
    sizes = {v: factor * _PRIMES[i % len(_PRIMES)] for i, v in enumerate(variables)}
    reason = _failure(signature, specs, lambda at: sizes[naming[at]]) or ""  # noqa: B023
    if not reason:
      return {place: f"{factor}*{v}" if factor > 1 else v for place, v in naming.items()}
  raise ArgumentError(
    Argument("signatures", name),
    problem=f"it fails in TensorFlow for all sizes that were tried: {reason}",
    advice="save the model with fixed sizes",
  )


def _namings(places: Sequence[_Place]) -> Iterator[dict[_Place, str]]:
  """Names of variables for the unknown sizes; the first axes have a b in any."""
  firsts = [place for place in places if place[1] == 0]
  alone = len(firsts) == 1
  yield {
    place: "b" if alone and place in firsts else f"size{number}"
    for number, place in enumerate(places)
  }
  yield {place: "b" if place in firsts else f"size{number}" for number, place in enumerate(places)}
  yield {(name, axis): f"size{axis}" if axis else "b" for name, axis in places}
  yield dict.fromkeys(places, "b")


def _failure(signature: Any, specs: Mapping[str, Any], size: Callable[[_Place], int]) -> str:
  """Why the signature does not run at these sizes; empty if it does."""
  inputs = {}
  for name, spec in specs.items():
    shape = [size((name, axis)) if n is None else n for axis, n in enumerate(spec.shape)]
    inputs[name] = tf.zeros(shape, spec.dtype) if spec.dtype != tf.string else tf.fill(shape, "")
  try:
    signature(**inputs)
  except (tf.errors.OpError, ValueError) as error:
    return " ".join(str(error).split())[:200]
  return ""


def loaded(directory: Path, names: Sequence[str] | None = None) -> tuple[Any, manifest.Manifest]:
  """A SavedModel and its manifest, or what one would say of it.

  Args:
    directory: of the SavedModel.
    names: of the signatures that are needed; by default all.

  Raises:
    ArgumentError: as `records`.
    ValueError: the manifest is damaged.
  """
  try:
    record = manifest.read(directory)
    return tf.saved_model.load(str(directory)), record
  except FileNotFoundError:
    model = tf.saved_model.load(str(directory))
    return model, manifest_of(model, names)


def manifest_of(loaded: Any, names: Sequence[str] | None = None) -> manifest.Manifest:
  """What a manifest would say of a loaded SavedModel.

  Args:
    loaded, names: as for `records`.

  Raises:
    ArgumentError: as `records`.
  """
  return manifest.Manifest(
    signatures=records(loaded, names),
    constraints=[],
    parameters={},
    weights="",
    with_gradient=False,
  )
