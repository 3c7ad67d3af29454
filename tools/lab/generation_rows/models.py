"""Small decoders of libraries in each engine, token by token against JAX without a cache."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import pathlib
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any

from jax2tf.tools.lab import workers
from jax2tf.tools.lab.generation_rows import decoders
from tests.support import byte_tokenizer

# {title: (target, its options)}
TARGETS: dict[str, tuple[str, dict[str, Any]]] = {
  "saved_model": ("saved_model", {}),
  "litert-lm": ("litert-lm", {}),
  "litert-lm int8": ("litert-lm", {"quantization": "dynamic_int8"}),
  "onnxruntime-genai": ("onnxruntime-genai", {}),
  "openvino-genai": ("openvino-genai", {}),
}
_SECONDS = 1200  # the time limit of a row, on two busy cores
_PACKAGES = {"tunix": "google-tunix"}

# {what an error advises: the option}
_REMEDIES = {"own_pieces=True": "own_pieces", "paged_attention=False": "paged_attention"}

# {"version": of the library, "tokens": [equal, of], "near": ties, "with": what the first attempt
# advised, "bytes": of the file, "seconds": of the export with its loops, "engines": {engine:
# [equal, of]}}, or {"refused": the reason}
Numbers = dict[str, Any]


def rows() -> list[str]:
  """A model and a target each, of the libraries that are installed."""
  found = []
  for name, (module, _) in decoders.MODELS.items():
    if importlib.util.find_spec(module) is None:
      print(f"{module} is not installed")
      continue
    found += [f"{name} @ {target}" for target in TARGETS]
  return found


def measured(names: Sequence[str]) -> Iterator[tuple[str, Numbers]]:
  """Each row in another process."""
  tasks = [tuple(name.split(" @ ")) for name in names]
  yield from workers.each(_row, tasks, _lost, renewed_after=5, seconds=_SECONDS)


def faults(numbers: dict[str, Numbers]) -> list[str]:
  """Rows without quantization whose engine chose other tokens without a refusal."""
  return [
    f"{name}: {row['tokens']}"
    for name, row in numbers.items()
    if "tokens" in row and "int8" not in name and row["tokens"][0] + row["near"] < row["tokens"][1]
  ]


def _row(name: str, target: str) -> tuple[str, Numbers]:
  with tempfile.TemporaryDirectory() as folder:
    return f"{name} @ {target}", _saved(name, target, pathlib.Path(folder))


def _saved(name: str, target: str, folder: pathlib.Path) -> Numbers:
  engine, options = TARGETS[target]
  # LiteRT-LM takes text. OpenVINO's tokenizers need the package transformers.
  tokenizer = _tokenizer(folder / "tokenizer.json") if engine == "litert-lm" else None
  decoder = decoders.decoder(name, tokenizer=tokenizer, stop_tokens=[1])
  start = time.monotonic()
  try:
    made, remedies = _with_remedies(decoder, folder / "model", target=engine, **options)
  except Exception as error:
    return {"refused": f"{type(error).__name__}: {error}"[:600]}
  seconds = time.monotonic() - start
  shares = {engine: [*share] for engine, share in made.report.agreement.items()}
  near = sum(row.near for row in made.report.rows)
  return {
    "version": _version(decoders.MODELS[name][0]),
    "tokens": [sum(equal for equal, _ in shares.values()), sum(of for _, of in shares.values())],
    "near": near,
    "with": remedies,
    "bytes": made.size,
    "seconds": round(seconds),
    "engines": shares,
  }


def _with_remedies(decoder: Any, path: pathlib.Path, **options: Any) -> tuple[Any, list[str]]:
  """(what `generation.save` returns, the options that errors of earlier attempts advised)."""
  from jax2tf.converters import generation  # noqa: PLC0415

  taken: list[str] = []
  while True:
    try:
      return generation.save(decoder, path, **options), taken
    except (generation.ExportError, ValueError) as error:
      advised = [name for said, name in _REMEDIES.items() if said in str(error)]
      if not advised or advised[0] in taken:
        raise
      taken.append(advised[0])
      options[advised[0]] = advised[0] == "own_pieces"


def _version(module: str) -> str:
  try:
    return importlib.metadata.version(_PACKAGES.get(module, module))
  except importlib.metadata.PackageNotFoundError:  # a checkout
    return ""


def _tokenizer(path: pathlib.Path) -> pathlib.Path:
  """A tokenizer of single bytes, whose other ids stand for nothing."""
  before = ["<pad>", "<eos>", "<bos>"]
  unused = range(decoders.VOCABULARY - len(before) - 256)
  made = byte_tokenizer.made(before, after=[f"<unused{i}>" for i in unused])
  made.save(str(path))
  return path


def _lost(error: workers.LostError, name: str, target: str) -> tuple[str, Numbers]:
  return f"{name} @ {target}", {"refused": str(error)}
