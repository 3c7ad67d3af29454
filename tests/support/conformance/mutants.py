"""Artifacts that were changed at random, from a seed: what a damaged disk, a cut download, an
editor or an attacker makes of the stored ones."""

from __future__ import annotations

import functools
import io
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from jax.extend.mlir import ir

from jax2tf._jax_compat import exports
from jax2tf.stablehlo import export_files, parsing
from tests.support import stored_artifacts as stored

_NUMBERS = (-1, 0, 1, 2, 3, 7, 127, 128, 255, 256, 2**31 - 1, 2**31, 2**32 - 1)
_FAMILIES: Sequence[Sequence[str]] = (
  (
    "add", "subtract", "multiply", "divide", "maximum", "minimum", "power", "atan2", "remainder",
    "and", "or", "xor",
  ),
  (
    "sine", "cosine", "tanh", "exponential", "exponential_minus_one", "log", "log_plus_one",
    "negate", "abs", "floor", "ceil", "sqrt", "rsqrt", "sign", "logistic", "cbrt",
    "round_nearest_even", "tan",
  ),
  ("EQ", "NE", "LT", "LE", "GT", "GE"),
  ("FLOAT", "TOTALORDER", "SIGNED", "UNSIGNED"),
  ("shift_left", "shift_right_logical", "shift_right_arithmetic"),
  ("FFT", "IFFT", "RFFT", "IRFFT"),
  ("LOWER", "UPPER"),
  ("true", "false"),
)  # fmt: skip
_DTYPES = (
  "i1", "i8", "i16", "i32", "i64", "ui8", "ui16", "ui32", "ui64", "f16", "bf16", "f32", "f64",
  "complex<f32>", "i4",
)  # fmt: skip
_Text: TypeAlias = Callable[[random.Random, str], str]


@dataclass(frozen=True)
class Mutant:
  """A changed artifact.

  Attributes:
    way: how it was changed.
    base: the release and the name of the stored artifact.
    contents: of a file of `jax.export`, of a module, or MLIR text.
    arguments: those of the stored artifact.
  """

  way: str
  base: str
  contents: bytes | str
  arguments: Sequence[Any]


def mutant(seed: int) -> Mutant:
  """The mutant of a seed. Two of five are changed as text, which MLIR can read more often.

  An artifact that the installed jaxlib cannot read has no text: another one stands for it.
  """
  draw = random.Random(seed)
  base = draw.choice(sorted(_bases()))
  if draw.random() < 0.4:
    while not stored.is_readable(base.split()[0]):
      base = draw.choice(sorted(_bases()))
    name, change = draw.choice(sorted(_TEXTS.items()))
    text = _text(base)
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
      text = change(draw, text)
    return Mutant(f"text: {name}", base, text, _kept(*_bases()[base]))
  blob, arguments = _bases()[base]
  name, change_bytes = draw.choice(sorted(_BYTES.items()))
  return Mutant(f"bytes: {name}", base, change_bytes(draw, blob), arguments)


@functools.cache
def _bases() -> Mapping[str, tuple[bytes, Sequence[Any]]]:
  """{release and name: (file, arguments)}."""
  found: dict[str, tuple[bytes, Sequence[Any]]] = {}
  for version in stored.VERSIONS:
    for case in stored.cases(version):
      artifact = stored.artifact(version, case)
      found[f"{version} {case}"] = artifact.blob, artifact.arguments
  for name, (module, arrays) in stored.torch_modules().items():
    weights = [arrays[f"w{i}"] for i in range(sum(key[0] == "w" for key in arrays))]
    operands = [*weights, arrays["x"]]
    found[f"torch {name}"] = module, [operands[i] for i in arrays["kept"]]
  return found


def _module(blob: bytes) -> bytes | str:
  return blob if blob.startswith(parsing.BYTECODE) else export_files.read(blob).module.take()


def _kept(blob: bytes, arguments: Sequence[Any]) -> Sequence[Any]:
  """The arguments that the module of a file takes."""
  if blob.startswith(parsing.BYTECODE):
    return arguments
  convention = export_files.read(blob).convention
  return [arguments[i] for i in convention.kept]


@functools.cache
def _text(base: str) -> str:
  """The module of a stored artifact as MLIR text."""
  canonical = io.BytesIO()
  parsing.canonical(_module(_bases()[base][0]), canonical)
  with exports.own_ir_context() as context:
    return str(ir.Module.parse(canonical.getvalue(), context))


def changes_a_sort(mutant: Mutant) -> bool:
  """Whether the text of a comparator is another one, which may be no order."""
  if not isinstance(mutant.contents, str):
    return False
  before, after = (
    re.findall(r'"stablehlo\.sort".*?\n *\}\)', text, re.DOTALL)
    for text in (_text(mutant.base), mutant.contents)
  )
  return before != after


def _flipped(draw: random.Random, blob: bytes) -> bytes:
  data = bytearray(blob)
  for _ in range(draw.choice((1, 1, 2, 8))):
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
  return bytes(data)


def _cut(draw: random.Random, blob: bytes) -> bytes:
  start, end = sorted(draw.sample(range(len(blob)), 2))
  return blob[:start] if draw.random() < 0.5 else blob[:start] + blob[end:]


def _spliced(draw: random.Random, blob: bytes) -> bytes:
  """With a piece of another artifact, at the same place or at any."""
  other = _bases()[draw.choice(sorted(_bases()))][0]
  length = draw.choice((8, 64, 512))
  start = draw.randrange(len(blob))
  taken = start if draw.random() < 0.5 else draw.randrange(len(other))
  return blob[:start] + other[taken : taken + length] + blob[start + length :]


def _renumbered(draw: random.Random, blob: bytes) -> bytes:
  """With another integer of 1, 4 or 8 bytes, or with two that have changed places."""
  data, size = bytearray(blob), draw.choice((1, 4, 8))
  places = [draw.randrange(len(blob) // size) * size for _ in range(2)]
  first, second = (bytes(data[place : place + size]) for place in places)
  if draw.random() < 0.5:
    data[places[0] : places[0] + size], data[places[1] : places[1] + size] = second, first
  else:
    number = draw.choice(_NUMBERS) & (256**size - 1)
    data[places[0] : places[0] + size] = number.to_bytes(size, "little")
  return bytes(data)


def _in_module(change: Callable[[random.Random, bytes], bytes]) -> Any:
  """A change of the module alone."""

  def changed(draw: random.Random, blob: bytes) -> bytes:
    module = _module(blob)
    assert isinstance(module, bytes)
    new = change(draw, module)
    # A flatbuffer has the length before the contents, and other tables behind them.
    return blob.replace(module, (new + bytes(len(module)))[: len(module)], 1)

  return changed


_BYTES: Mapping[str, Callable[[random.Random, bytes], bytes]] = {
  "flipped": _flipped,
  "cut": _cut,
  "spliced": _spliced,
  "renumbered": _renumbered,
  "flipped in the module": _in_module(_flipped),
  "renumbered in the module": _in_module(_renumbered),
  "spliced in the module": _in_module(_spliced),
}


def _replaced(draw: random.Random, text: str, pattern: str, new: Callable[[str], str]) -> str:
  """One of the matches of a pattern replaced."""
  matches = list(re.finditer(pattern, text))
  if not matches:
    return text
  match = draw.choice(matches)
  return text[: match.start()] + new(match[0]) + text[match.end() :]


def _other_number(draw: random.Random, text: str) -> str:
  return _replaced(
    draw, text, r"(?<![\w.%#@\"])-?\d+(?![\w.])", lambda _: str(draw.choice(_NUMBERS))
  )


def _other_float(draw: random.Random, text: str) -> str:
  values = ("0.0", "-0.0", "1.0", "-2.5e+00", "0x7FC00000", "0xFF800000", "1.0e+30", "1.0e-30")
  return _replaced(draw, text, r"(?<![\w.])-?\d\.\d+(E[+-]?\d+)?", lambda _: draw.choice(values))


def _other_name(draw: random.Random, text: str) -> str:
  family = draw.choice(_FAMILIES)
  return _replaced(draw, text, rf"\b({'|'.join(family)})\b", lambda _: draw.choice(family))


def _other_operand(draw: random.Random, text: str) -> str:
  names = sorted(set(re.findall(r"%\w+", text)))
  return _replaced(draw, text, r"%\w+", lambda _: draw.choice(names)) if names else text


def _other_line(draw: random.Random, text: str) -> str:
  lines = text.splitlines()
  first, second = draw.randrange(len(lines)), draw.randrange(len(lines))
  kind = draw.choice(("drop", "repeat", "exchange"))
  if kind == "drop":
    del lines[first]
  elif kind == "repeat":
    lines.insert(second, lines[first])
  else:
    lines[first], lines[second] = lines[second], lines[first]
  return "\n".join(lines)


def _other_dtype(draw: random.Random, text: str) -> str:
  """Everywhere, so that the module stays consistent."""
  used = sorted({kind for kind in _DTYPES if re.search(rf"[x<]{kind}>", text)})
  if not used:
    return text
  old, new = draw.choice(used), draw.choice(_DTYPES)
  return re.sub(rf"(?<=[x<]){re.escape(old)}(?=>)", new, text)


def _other_size(draw: random.Random, text: str) -> str:
  """Everywhere in types."""
  sizes = sorted(set(re.findall(r"(?<=[<x])(\d+)(?=x)", text)))
  if not sizes:
    return text
  old, new = draw.choice(sizes), str(draw.choice((0, 1, 2, 3, 5, 8)))
  return re.sub(rf"(?<=[<x]){old}(?=x)", new, text)


def _other_character(draw: random.Random, text: str) -> str:
  at = draw.randrange(len(text))
  return text[:at] + draw.choice('{}()<>[],:=%@0x"?*-\\ \n') + text[at + 1 :]


_TEXTS: Mapping[str, _Text] = {
  "number": _other_number,
  "float": _other_float,
  "name": _other_name,
  "operand": _other_operand,
  "line": _other_line,
  "dtype": _other_dtype,
  "size": _other_size,
  "character": _other_character,
}
