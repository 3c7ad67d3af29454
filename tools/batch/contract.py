"""The requirements of a signature on rows, read from its manifest alone, without TensorFlow and
JAX."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jax2tf.converters.bundle import manifest, paths, publish, rows
from jax2tf.converters.bundle.notation import Spec
from jax2tf.messages import Argument, ArgumentError

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
  inputs: Mapping[str, rows.Dimensions]
  outputs: Mapping[str, rows.Dimensions]
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
  directory = publish.saved_model_in(paths.local(model, "model"))
  recorded = manifest.read(directory)
  if signature not in recorded.signatures:
    raise ArgumentError(
      "signature",
      signature,
      problem=f"{directory} has no such signature",
      advice=f"choose from {', '.join(sorted(recorded.signatures))}",
    )
  record = recorded.signatures[signature]
  return _contract(directory, signature, record, recorded.constraints, mask)


def columns(
  contract: Contract, by_input: Mapping[str, Sequence[str]]
) -> dict[str, tuple[str, ...]]:
  """{input: its columns}. An input that `by_input` does not name has a column of its own name.

  Raises:
    ValueError: there is no such input.
  """
  if unknown := by_input.keys() - contract.inputs.keys():
    name = min(unknown)
    raise ArgumentError(
      Argument("columns", list(by_input[name]), key=name),
      problem="there is no such input",
      advice=f"choose from {', '.join(contract.inputs)}",
    )
  if fixed := by_input.keys() & contract.defaults:
    name = min(fixed)
    raise ArgumentError(
      Argument("columns", list(by_input[name]), key=name),
      problem="the input has no batch dimension and keeps its default",
      advice="leave it out",
    )
  return {
    name: tuple(by_input.get(name, (name,)))
    for name in contract.inputs
    if name not in contract.defaults
  }


def wanted(contract: Contract, outputs: Sequence[str]) -> list[str]:
  """The requested outputs, or all.

  Raises:
    ValueError: there is no such output.
  """
  if unknown := [name for name in outputs if name not in contract.outputs]:
    raise ArgumentError(
      "outputs",
      list(outputs),
      problem=f"there is no output {unknown[0]!r}",
      advice=f"choose from {', '.join(contract.outputs)}",
    )
  return list(outputs or contract.outputs)


def _contract(
  directory: Path,
  signature: str,
  record: manifest.SignatureRecord,
  constraints: Sequence[str],
  mask: str,
) -> Contract:
  if record.stateful or record.resets:
    raise ArgumentError(
      "signature",
      signature,
      problem="it keeps a state between calls, so its rows are not independent",
      advice="name another one",
    )
  specs_in = {name: Spec.parse(text) for name, text in record.inputs.items()}
  specs_out = {name: Spec.parse(text) for name, text in record.outputs.items()}
  inputs = {name: spec.texts for name, spec in specs_in.items()}
  outputs = {name: spec.texts for name, spec in specs_out.items()}
  defaults = frozenset(
    name
    for name in record.defaults
    if inputs[name][:1] != ("?",) and not _is_symbol(inputs[name][:1])
  )
  # Inputs and outputs that only TensorFlow code handles have unknown sizes in the manifest:
  # "string[?]".
  known = {
    name: dims for name, dims in inputs.items() if dims[:1] != ("?",) and name not in defaults
  }
  known_outputs = {name: dims for name, dims in outputs.items() if dims[:1] != ("?",)}
  if fault := rows.fault(known, known_outputs, constraints):
    raise ArgumentError(
      "signature",
      signature,
      problem=f"it takes no rows: {fault}",
      advice='save it with inputs such as "f32[b,784]"',
    )
  mask_option = mask if mask != NO_MASK else ""
  if mask_option and mask_option not in inputs:
    raise ArgumentError(
      "mask", mask, problem="there is no such input", advice=f"choose from {', '.join(inputs)}"
    )
  symbol = next((dims[0] for dims in (*known.values(), *known_outputs.values())), "")
  inner = {name: dims if name in defaults else dims[1:] for name, dims in inputs.items()}
  rest = {name: dims[1:] for name, dims in outputs.items()}
  chosen = mask_option or next((name for name in _MASKS if name in inner and mask != NO_MASK), "")
  padded = _padded(inner, rest, chosen, constraints)
  if mask_option and not padded:
    raise ArgumentError(
      "mask",
      mask,
      problem="its rows must have one dimension, shared with another input, to which every output "
      "can be trimmed, and no constraint but an upper bound",
    )
  bound = rows.bound(symbol, constraints) if symbol else None
  row_bytes = sum(map(_bytes, (*specs_in.values(), *specs_out.values())))
  return Contract(
    directory, signature, inner, rest, defaults, chosen if padded else "", padded, bound, row_bytes
  )


def _is_symbol(first: Sequence[str]) -> bool:
  return bool(first) and first[0].isidentifier()


def _bytes(spec: Spec) -> int:
  """The bytes of a row of f32[b,784]."""
  sizes = [dim if isinstance(dim, int) else _TYPICAL for dim in (spec.dims or ())[1:]]
  return math.prod(sizes) * (_TYPICAL if spec.is_string else spec.dtype.itemsize)


def _padded(
  inputs: Mapping[str, rows.Dimensions],
  outputs: Mapping[str, rows.Dimensions],
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
    re.search(rf"\b{symbol}\b", text) and rows.bound(symbol, [text]) is None for text in constraints
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
