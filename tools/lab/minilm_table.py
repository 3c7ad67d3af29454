"""MiniLM at every target: size, error on a hundred sentences, latency; docs/reports/minilm.md.
Needs a checkout.

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import click
import jax
import numpy as np
import tabulate
import tqdm

from jax2tf.examples.palette import COLOURS
from jax2tf.tools.lab import measure, reports
from jax2tf.tools.lab.options import commas

_SENTENCES = 100
_BATCHES = (1, 3, 7, 16)  # sizes of consecutive batches
# {row: (exporter, its options)}
ROWS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
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
TITLES = {"onnx": "ONNX Runtime", "tflite": "LiteRT", "tfjs": "TF.js, wasm in Node.js"}


def sentences() -> list[str]:
  """The first hundred sentences of the documents with 4 to 60 words."""
  text = " ".join(
    (reports.DOCS / name).read_text(encoding="utf-8")
    for name in ("architecture.md", "limitations.md", "guide/serving.md")
  )
  found = [s.strip() for s in re.split(r"(?<=[.:])\s+", re.sub(r"[|`#*\n]+", " ", text))]
  return [s for s in found if 4 <= len(s.split()) <= 60][:_SENTENCES]


def batches(
  tokenize: Callable[[Sequence[str]], tuple[np.ndarray, np.ndarray]],
) -> Iterator[dict[str, np.ndarray]]:
  """The sentences as {input: array}, in batches of several sizes. A batch is as long as its longest
  sentence."""
  rest, k = sentences(), 0
  while rest:
    size = _BATCHES[k % len(_BATCHES)]
    yield dict(zip(("input_ids", "attention_mask"), tokenize(rest[:size]), strict=True))
    rest, k = rest[size:], k + 1


def cosines(found: np.ndarray, expected: np.ndarray) -> np.ndarray:
  """Of each row."""
  return (found * expected).sum(-1) / (
    np.linalg.norm(found, axis=-1) * np.linalg.norm(expected, axis=-1)
  )


def measured(
  row: str, params: Any, given: Sequence[Mapping[str, np.ndarray]], expected: Sequence[np.ndarray]
) -> dict[str, Any]:
  """{"bytes", "max_abs", "cosine", "ratio", "seconds"} of one export with default idioms, or
  {"refused": reason}."""
  from jax2tf.examples import minilm, minilm_text  # noqa: PLC0415  (behind the flags: it imports JAX)

  target, options = ROWS[row]
  exporter = importlib.import_module(f"jax2tf.converters.{target}")
  more: dict[str, Any] = {"representative_dataset": given[:4]} if row == "tflite-int8" else {}
  specs = {"input_ids": "i32[b,s]", "attention_mask": "i32[b,s]"}
  common = {
    "inputs": specs,
    "outputs": ["embedding"],
    "polymorphic_constraints": [f"s <= {minilm_text.MAX_TOKENS}"],
  }
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder, f"minilm.{target}")
    start = time.perf_counter()
    try:
      made = exporter.save(
        minilm.encode, params, path, **common, examples=dict(given[2]), samples=1, **options, **more
      )
    except exporter.ExportError as error:
      return {"refused": str(error).splitlines()[-1].strip()}
    seconds = time.perf_counter() - start
    found = [np.asarray(exporter.run(path, one)["embedding"]) for one in given]
  return {
    "bytes": made.size,
    "max_abs": max(float(np.abs(y - z).max()) for y, z in zip(found, expected, strict=True)),
    "cosine": min(float(cosines(y, z).min()) for y, z in zip(found, expected, strict=True)),
    "ratio": statistics.median(x.model / x.reference for x in made.report.latencies)
    if made.report.latencies
    else None,
    "seconds": seconds,
  }


@click.command
@click.option(
  "--only",
  default="",
  callback=commas,
  help="Names of rows, such as onnx or tflite-int8; by default all.",
)
def main(only: list[str]) -> None:
  """Exports and measures the rows, and writes the document."""
  from jax2tf.examples import minilm, minilm_text  # noqa: PLC0415  (behind the flags: it imports JAX)

  params = minilm.parameters()
  given = list(batches(minilm_text.tokenize))
  encode = jax.jit(minilm.encode)
  expected = [np.asarray(encode(params, **one)) for one in tqdm.tqdm(given, desc="JAX")]
  for row in tqdm.tqdm(only or list(ROWS), desc="targets"):
    reports.update(
      "minilm", {row: measured(row, params, given, expected)}, list(ROWS), markdown, picture
    )


def picture(report: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> None:
  """Plots sizes against errors for the newest version: a colour for each runtime, a marker for each
  scheme."""
  pyplot = measure.pyplot()
  version, found = max(report.items(), key=lambda item: [int(part) for part in item[0].split(".")])
  rows = {
    tuple(f"{name}-none".split("-")[:2]): row for name, row in found.items() if "refused" not in row
  }
  markers = dict(zip(dict.fromkeys(scheme for _, scheme in rows), "osD^vP", strict=False))
  figure, axes = pyplot.subplots(figsize=(9, 4.5), layout="constrained")
  for (target, scheme), row in rows.items():
    place = row["bytes"] / 1e6, row["max_abs"]
    label = TITLES[target] if scheme == "none" else f"{TITLES[target]}, {scheme}"
    # shows both of two markers at one place
    hollow = "none" if target == "tfjs" else COLOURS[target]
    axes.plot(
      *place,
      markers[scheme],
      color=COLOURS[target],
      markerfacecolor=hollow,
      markersize=8,
      linestyle="",
      label=label,
    )
  axes.set(
    xlabel="size, MB", ylabel="largest difference from JAX\n(embeddings of length 1)", yscale="log"
  )
  axes.set_title(f"MiniLM, {_SENTENCES} sentences, JAX {version}")
  axes.grid(alpha=0.3)
  figure.legend(loc="outside right center")
  figure.savefig(reports.picture("minilm.png"), dpi=120)
  pyplot.close(figure)


def markdown(report: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
  """The document in Markdown."""
  lines = [
    "# MiniLM at every target",
    "",
    "Generated by `make minilm`; do not edit. all-MiniLM-L6-v2, 22 million parameters, with "
    "dynamic batch and length, on",
    f"{_SENTENCES} sentences in batches of {', '.join(map(str, _BATCHES))}. The columns: the "
    "largest difference of a component from JAX's",
    "(embeddings have length 1), the smallest cosine similarity with JAX's embedding, the latency "
    "of a call relative to `jax.jit` (on",
    "two CPU cores), and the time of the export including its comparison with JAX.",
    "",
    "![size and error](minilm.png)",
    "",
  ]
  for version, rows in sorted(report.items()):
    table, refused = [], []
    for name in filter(rows.__contains__, ROWS):
      target, _, scheme = name.partition("-")
      row = rows[name]
      if "refused" in row:
        refused.append(f"{TITLES[target]} refuses {scheme}: {row['refused']}")
        continue
      ratio = f"{row['ratio']:.2g}" if row["ratio"] else ""
      figures = [
        f"{row['bytes'] / 1e6:.1f}",
        f"{row['max_abs']:.1e}",
        f"{row['cosine']:.5f}",
        ratio,
        f"{row['seconds']:.0f}",
      ]
      table.append([TITLES[target], scheme or "none", *figures])
    titles = ["runtime", "quantization", "MB", "max abs", "cosine", "latency / jax.jit", "export s"]
    lines += [
      f"## JAX {version}",
      "",
      tabulate.tabulate(table, titles, tablefmt="github", disable_numparse=True),
      "",
      *refused,
      "",
    ]
  return "\n".join(lines)


if __name__ == "__main__":
  main()
