"""What does one JAX model cost in each runtime?

The program exports an MLP-Mixer to every target, compares it with JAX in the target's runtime, and
measures size and time of a call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jax2tf.examples import quiet

with quiet.startup():
  import jax

  from jax2tf.converters import onnx, saved_model, tfjs, tflite, verify
  from jax2tf.examples.gallery import chart
  from jax2tf.examples.palette import COLOURS

PATCH = 8
INPUTS, EXAMPLES = (
  {"images": "f32[b,64,64,3]"},
  {"images": lambda rng, shape, dtype: rng.uniform(0, 1, shape).astype(dtype)},
)
Params = dict[str, Any]


def init(width: int, layers: int) -> Params:
  rng, patches = np.random.default_rng(0), (64 // PATCH) ** 2

  def matrix(n: int, m: int) -> np.ndarray:
    return (rng.standard_normal((n, m)) / np.sqrt(n)).astype(np.float32)

  def layer() -> Params:
    sizes = {"patches": patches, "channels": width}
    return {name: {"up": matrix(n, 2 * n), "down": matrix(2 * n, n)} for name, n in sizes.items()}

  return {
    "stem": matrix(PATCH * PATCH * 3, width),
    "layers": [layer() for _ in range(layers)],
    "head": matrix(width, 10),
  }


def classify(params: Params, images: jax.Array) -> jax.Array:
  """An MLP-Mixer (https://arxiv.org/abs/2105.01601): images f32[b,64,64,3] -> f32[b,10]."""

  def mlp(p: Params, x: jax.Array) -> jax.Array:
    return jax.nn.gelu(x @ p["up"]) @ p["down"]

  side = images.shape[1] // PATCH
  patches = (
    images.reshape(-1, side, PATCH, side, PATCH, 3)
    .swapaxes(2, 3)
    .reshape(-1, side * side, PATCH * PATCH * 3)
  )
  x = patches @ params["stem"]
  for layer in params["layers"]:
    x += mlp(layer["patches"], jax.nn.standardize(x).swapaxes(1, 2)).swapaxes(1, 2)
    x += mlp(layer["channels"], jax.nn.standardize(x))
  return jax.nn.softmax(jax.nn.standardize(x).mean(axis=1) @ params["head"])


def in_tensorflow(params: Params, path: Path, **comparison: Any) -> Any:
  """An export: the path, its size and the report."""
  saved = saved_model.save(
    classify, params, path, inputs=INPUTS, outputs=["scores"], version=1, overwrite=True
  )
  report = verify.verify(
    saved,
    classify,
    params=params,
    sizes=comparison["sizes"],
    samples=1,
    inputs=comparison["examples"],
  )
  report.raise_for_mismatch()
  return saved, sum(file.stat().st_size for file in saved.rglob("*") if file.is_file()), report


def exported(save: Callable[..., Any], **options: Any) -> Callable[..., Any]:
  def make(params: Params, path: Path, **comparison: Any) -> Any:
    made = save(
      classify,
      params,
      path,
      inputs=INPUTS,
      outputs=["scores"],
      overwrite=True,
      samples=1,
      **options,
      **comparison,
    )
    return made.path, made.size, made.report

  return make


# title: (path, export function, colour)
TARGETS: dict[str, tuple[str, Callable[..., Any], str]] = {
  "TensorFlow": ("saved_model", in_tensorflow, "saved_model"),
  "ONNX Runtime": ("model.onnx", exported(onnx.save), "onnx"),
  "LiteRT": ("model.tflite", exported(tflite.save), "tflite"),
  "LiteRT, int8 weights": (
    "model_int8.tflite",
    exported(tflite.save, quantization="dynamic_int8"),
    "tflite",
  ),
  "TF.js, wasm in Node.js": ("tfjs", exported(tfjs.save, backends=["wasm"]), "tfjs"),
  "TF.js, float16 weights": (
    "tfjs_float16",
    exported(tfjs.save, backends=["wasm"], quantization="float16"),
    "tfjs",
  ),
}


def main(arguments: Sequence[str] | None = None) -> dict[str, tuple[float, float]]:
  """{title: (megabytes, milliseconds)}. The size for JAX is that of the parameters."""
  parser = chart.parser(__doc__, "one_model_everywhere")
  parser.add_argument("--width", type=int, default=256)
  parser.add_argument("--layers", type=int, default=6)
  options = parser.parse_args(arguments)
  params = init(options.width, options.layers)
  found, colours, references = {}, [COLOURS["jax"]], []
  for title, (name, make, colour) in TARGETS.items():
    path, size, report = make(
      params, options.picture.with_suffix("") / name, sizes={"b": [1]}, examples=EXAMPLES
    )
    found[title] = size / 1e6, 1e3 * report.latencies[0].model
    references.append(report.latencies[0].reference)
    largest = max(row.max_abs for row in report.rows)
    print(
      f"{title:23} {found[title][0]:6.2f} MB {found[title][1]:8.2f} ms, within {largest:.0e} of "
      f"JAX: {path}"
    )
    colours.append(COLOURS[colour])
  found = {
    "JAX, its parameters": (
      sum(x.nbytes for x in jax.tree.leaves(params)) / 1e6,
      1e3 * float(np.median(references)),
    ),
    **found,
  }

  figure, panels = chart.subplots(1, 2, size=(11, 3.6), sharey=True)
  for axes, values, name, form in zip(
    panels,
    zip(*found.values(), strict=True),
    ("size (MB)", "one image (ms)"),
    ("{:.1f}", "{:.2g}"),
    strict=True,
  ):
    axes.bar_label(axes.barh([*found], values, color=colours), fmt=form, padding=3)
    axes.set(xlabel=name, xlim=(0, 1.15 * max(values)))
  panels[0].invert_yaxis()
  figure.suptitle(
    f"One MLP-Mixer of {sum(x.size for x in jax.tree.leaves(params)) / 1e6:.1f} million "
    "parameters in each runtime, on a CPU"
  )
  chart.save(figure, options.picture)
  return found


if __name__ == "__main__":
  main()
