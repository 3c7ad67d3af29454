"""The requirements of a signature on rows, read from its manifest alone, without TensorFlow and
JAX."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jax2tf import paths
from jax2tf.tools import dimensions
from jax2tf.tools.serving import config

_MANIFEST = Path("assets.extra", "jax2tf.json")
# Inputs that mark valid elements by 1. Others, such as `key_padding_mask`, may mean the opposite.
_MASKS = ("mask", "attention_mask")
NO_MASK = "none"
# The largest number of rows that are read, sorted by length and written together, and of their
# bytes.
_ROWS, _BYTES = 8192, 64 * 2**20
_TYPICAL = 64  # what a symbolic dimension or a string counts for in a row's bytes


@dataclass(frozen=True)
class Contract:
  """A signature whose rows are independent of each other.

  Attributes:
    directory: the SavedModel.
    signature: its name.
    inputs, outputs: name -> the dimensions after the batch dimension, ("s", "3").
    defaults: names of the optional inputs.
    mask: the input that marks the valid elements of a padded row; empty if there is none.
    padded: the dimension along which rows are padded; empty without a mask.
    max_rows: the largest number of rows in a call.
    row_bytes: the bytes of the inputs and outputs of a row; a symbolic dimension counts as 64.
  """

  directory: Path
  signature: str
  inputs: Mapping[str, dimensions.Dimensions]
  outputs: Mapping[str, dimensions.Dimensions]
  defaults: frozenset[str]
  mask: str
  padded: str
  max_rows: int | None
  row_bytes: int

  @property
  def needed(self) -> list[str]:
    """Names of the required inputs."""
    return [name for name in self.inputs if name not in self.defaults and name != self.mask]

  def window(self, batch_size: int) -> int:
    """The number of rows to read at a time: as many as fit into 64 MB, at most 8,192 and at least a
    batch."""
    return max(batch_size, min(_ROWS, _BYTES // self.row_bytes))


def read(model: str | Path, signature: str = "serving_default", mask: str = "") -> Contract:
  """Reads the contract of a signature of a SavedModel, or of the newest version in a folder.

  Raises:
    FileNotFoundError: there is no SavedModel, or it has no manifest.
    ValueError: there is no such signature, or its rows are not independent.
  """
  directory = _newest(paths.local(model, "model"))
  if not (directory / _MANIFEST).exists():
    raise FileNotFoundError(
      f"{directory} has no {_MANIFEST}: jax2tf.converters.saved_model did not save it"
    )
  try:
    manifest = json.loads((directory / _MANIFEST).read_text(encoding="utf-8"))
    signatures, constraints = manifest["signatures"], manifest["constraints"]
  except (ValueError, KeyError, RecursionError) as error:
    raise ValueError(
      f"{directory / _MANIFEST} cannot be read by this jax2tf ({error}); save the model again"
    ) from error
  if signature not in signatures:
    raise ValueError(
      f"{directory} has no signature {signature!r}; it has "
      f"{', '.join(map(repr, sorted(signatures)))}"
    )
  return _contract(directory, signature, signatures[signature], constraints, mask)


def columns(contract: Contract, given: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
  """{input: its columns}. An input that `given` does not name has a column of its own name.

  Raises:
    ValueError: there is no such input.
  """
  if unknown := given.keys() - contract.inputs.keys():
    raise ValueError(
      f"--column names {min(unknown)!r}, and the inputs are {', '.join(map(repr, contract.inputs))}"
    )
  if fixed := given.keys() & contract.defaults:
    raise ValueError(
      f"--column names {min(fixed)!r}, which has no batch dimension and keeps its default"
    )
  return {
    name: tuple(given.get(name, (name,)))
    for name in contract.inputs
    if name not in contract.defaults
  }


def wanted(contract: Contract, outputs: Sequence[str]) -> list[str]:
  """The requested outputs, or all.

  Raises:
    ValueError: there is no such output.
  """
  if unknown := [name for name in outputs if name not in contract.outputs]:
    raise ValueError(
      f"--output names {unknown[0]!r}, and the outputs are {', '.join(map(repr, contract.outputs))}"
    )
  return list(outputs or contract.outputs)


def _newest(path: Path) -> Path:
  if (path / "saved_model.pb").exists():
    return path
  if not (found := config.versions_in(path)):
    raise FileNotFoundError(
      f"{path} is neither a SavedModel nor a directory of versions: there is no saved_model.pb"
    )
  return max(found, key=lambda version: int(version.name))


def _contract(
  directory: Path, signature: str, record: Mapping[str, Any], constraints: Sequence[str], mask: str
) -> Contract:
  if record.get("stateful") or record.get("resets"):
    raise ValueError(
      f"signature {signature!r} keeps a state between calls, so its rows are not independent; "
      "name another one"
    )
  inputs, outputs = (
    {name: dimensions.of(text) for name, text in record[kind].items()}
    for kind in ("inputs", "outputs")
  )
  defaults = frozenset(
    name
    for name in record.get("defaults", ())
    if inputs[name][:1] != ("?",) and not _is_symbol(inputs[name][:1])
  )
  # Inputs and outputs that only TensorFlow code handles have unknown sizes in the manifest:
  # "string[?]".
  known = {
    name: dims for name, dims in inputs.items() if dims[:1] != ("?",) and name not in defaults
  }
  known_outputs = {name: dims for name, dims in outputs.items() if dims[:1] != ("?",)}
  if fault := dimensions.fault(known, known_outputs, constraints):
    raise ValueError(
      f'signature {signature!r} takes no rows: {fault}; save it with inputs such as "f32[b,784]"'
    )
  asked = mask if mask != NO_MASK else ""
  if asked and asked not in inputs:
    raise ValueError(f"--mask names {asked!r}, and the inputs are {', '.join(map(repr, inputs))}")
  symbol = next((dims[0] for dims in (*known.values(), *known_outputs.values())), "")
  inner = {name: dims if name in defaults else dims[1:] for name, dims in inputs.items()}
  rest = {name: dims[1:] for name, dims in outputs.items()}
  chosen = asked or next((name for name in _MASKS if name in inner and mask != NO_MASK), "")
  padded = _padded(inner, rest, chosen, constraints)
  if asked and not padded:
    raise ValueError(
      f"--mask={asked}: its rows must have one dimension, shared with another input, to which "
      "every output can be trimmed, "
      "and no constraint but an upper bound"
    )
  bound = dimensions.bound(symbol, constraints) if symbol else None
  row = sum(_bytes(text) for kind in ("inputs", "outputs") for text in record[kind].values())
  return Contract(
    directory, signature, inner, rest, defaults, chosen if padded else "", padded, bound, row
  )


def _is_symbol(first: Sequence[str]) -> bool:
  return bool(first) and first[0].isidentifier()


def _bytes(text: str) -> int:
  """The bytes of a row of "f32[b,784]"."""
  kind = text.partition("[")[0]
  bits = re.search(r"\d+$", kind)
  width = max(1, int(bits[0]) // 8) if bits else {"bool": 1}.get(kind, _TYPICAL)
  return (
    math.prod(int(dim) if dim.isdecimal() else _TYPICAL for dim in dimensions.of(text)[1:]) * width
  )


def _padded(
  inputs: Mapping[str, dimensions.Dimensions],
  outputs: Mapping[str, dimensions.Dimensions],
  mask: str,
  constraints: Sequence[str],
) -> str:
  """The dimension of the mask, if padding it can be undone: no other dimension depends on it, and
  no constraint but an upper bound."""
  symbol = inputs[mask][0] if mask and len(inputs[mask]) == 1 else ""
  if not symbol.isidentifier() or all(
    symbol not in dims for name, dims in inputs.items() if name != mask
  ):
    return ""
  if any(
    re.search(rf"\b{symbol}\b", text) and dimensions.bound(symbol, [text]) is None
    for text in constraints
  ):
    return ""  # a row that is too short alone would be long enough beside a longer one
  others = [
    dim
    for dims in (*inputs.values(), *outputs.values())
    for dim in dims
    if not (dim.isidentifier() or dim.isdecimal())
  ]
  return (
    ""
    if any(symbol in dim for dim in others) or any("?" in dims for dims in outputs.values())
    else symbol
  )


def fingerprint(directory: Path) -> str:
  """SHA-256 of the graph, of the checksums of the variables (from the index file) and of the other
  files."""
  digest = hashlib.sha256()
  for file in sorted(
    path for path in directory.rglob("*") if path.is_file() and ".data-" not in path.name
  ):
    digest.update(f"{file.relative_to(directory)}\0{file.stat().st_size}\0".encode())
    digest.update(file.read_bytes())
  return digest.hexdigest()
