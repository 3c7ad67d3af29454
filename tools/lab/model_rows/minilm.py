"""MiniLM at every target and quantization: size, error on a hundred sentences, latency.

The sentences come from this project's documents. Batches have different sizes and lengths, so both
dimensions are dynamic.
"""

from __future__ import annotations

import importlib
import pathlib
import re
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jax2tf.examples import minilm, minilm_text
from jax2tf.tools.lab import reports

SENTENCES = 100
BATCHES = (1, 3, 7, 16)  # sizes of consecutive batches
# {row: (exporter, its options)}
_ROWS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
  "onnx": ("onnx", {}),
  "tflite": ("tflite", {}),
  "tflite-float16": ("tflite", {"quantization": "float16"}),
  "tflite-dynamic_int8": ("tflite", {"quantization": "dynamic_int8"}),
  "tflite-int8": ("tflite", {"quantization": "int8"}),
  "tflite-int4": ("tflite", {"quantization": "int4"}),
  "tfjs": ("tfjs", {"backends": ["wasm"]}),
  "tfjs-float16": ("tfjs", {"backends": ["wasm"], "quantization": "float16"}),
  "tfjs-uint8": ("tfjs", {"backends": ["wasm"], "quantization": "uint8"}),
}

Numbers = dict[str, Any]
Batch = Mapping[str, np.ndarray]


def rows() -> list[str]:
  """Each target with each quantization."""
  return [*_ROWS]


def measured(names: Sequence[str]) -> Iterator[tuple[str, Numbers]]:
  """Exports each row, and compares the answers with JAX's."""
  params, given, encode = minilm.parameters(), list(_batches()), jax.jit(minilm.encode)
  expected = [np.asarray(encode(params, **batch)) for batch in given]
  for name in names:
    yield name, _row(name, params, given, expected)


def _batches() -> Iterator[Batch]:
  """The sentences, in batches of several sizes. A batch is as long as its longest sentence."""
  rest, k = _sentences(), 0
  while rest:
    size = BATCHES[k % len(BATCHES)]
    yield dict(zip(("input_ids", "attention_mask"), minilm_text.tokenize(rest[:size]), strict=True))
    rest, k = rest[size:], k + 1


def _sentences() -> list[str]:
  """The first hundred sentences of the documents with 4 to 60 words."""
  text = " ".join(
    (reports.DOCS / name).read_text(encoding="utf-8")
    for name in ("architecture.md", "limitations.md", "guide/serving.md")
  )
  found = [s.strip() for s in re.split(r"(?<=[.:])\s+", re.sub(r"[|`#*\n]+", " ", text))]
  return [s for s in found if 4 <= len(s.split()) <= 60][:SENTENCES]


def _row(name: str, params: Any, given: Sequence[Batch], expected: Sequence[np.ndarray]) -> Numbers:
  """{"bytes", "max_abs", "cosine", "ratio", "seconds"} of an export with default idioms, or
  {"refused": reason}."""
  target, options = _ROWS[name]
  exporter = importlib.import_module(f"jax2tf.converters.{target}")
  more = {"representative_dataset": given[:4]} if name == "tflite-int8" else {}
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder, f"minilm.{target}")
    start = time.perf_counter()
    try:
      made = exporter.save(
        minilm.encode,
        params,
        path,
        inputs={"input_ids": "i32[b,s]", "attention_mask": "i32[b,s]"},
        outputs=["embedding"],
        polymorphic_constraints=[f"s <= {minilm_text.MAX_TOKENS}"],
        examples=dict(given[2]),
        samples=1,
        **options,
        **more,
      )
    except exporter.ExportError as error:
      return {"refused": str(error).splitlines()[-1].strip()}
    seconds = time.perf_counter() - start
    found = [np.asarray(exporter.run(path, batch)["embedding"]) for batch in given]
  pairs = list(zip(found, expected, strict=True))
  ratios = [latency.model / latency.reference for latency in made.report.latencies]
  return {
    "bytes": made.size,
    "max_abs": max(float(np.abs(y - z).max()) for y, z in pairs),
    "cosine": min(float(_cosines(y, z).min()) for y, z in pairs),
    "ratio": statistics.median(ratios) if ratios else None,
    "seconds": seconds,
  }


def _cosines(found: np.ndarray, expected: np.ndarray) -> np.ndarray:
  """Of each row."""
  norms = np.linalg.norm(found, axis=-1) * np.linalg.norm(expected, axis=-1)
  return (found * expected).sum(-1) / norms
