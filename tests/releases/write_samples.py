"""Writes models and files of this version, which every later version has to open:
`python -m tests.releases.write_samples` (`make samples`).

The archive `<version>.tar.xz` beside this file has them, and the values that JAX computes.
"""

from __future__ import annotations

import contextlib
import json
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import tensorflow as tf

import jax2tf
import jax2tf.keras
from jax2tf.converters import generation, onnx, saved_model, tfjs, tflite
from jax2tf.tools.cli.main import main as command
from tests.support import tiny_decoder

PARAMS = {"w": np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3), "b": np.ones(3, np.float32)}
X = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
PROMPT, TOKENS = (3, 1, 4, 1, 5), 8


def predict(params: Any, x: Any) -> Any:
  """x f32[b,4] -> f32[b,3]."""
  return jnp.tanh(x @ params["w"] + params["b"])


def step(params: Any, state: Any, x: Any) -> Any:
  """The same and random numbers, with a counter and a key."""
  key, drawn = jax.random.split(state["key"])
  y = predict(params, x) + jax.random.normal(drawn, (3,))
  return {"key": key, "n": state["n"] + 1}, {"y": y, "n": state["n"]}


def write(folder: Path) -> None:
  """All samples, into an empty folder."""
  inputs = {"x": "f32[b,4]"}
  options = {"inputs": inputs, "outputs": ["y"]}
  saved_model.save(predict, PARAMS, folder / "model", with_gradient=True, **options)
  onnx.save(predict, PARAMS, folder / "model.onnx", **options)
  tflite.save(predict, PARAMS, folder / "model.tflite", **options)
  tfjs.save(predict, PARAMS, folder / "model_js", **options)
  np.savez(folder / "model.npz", x=X, y=predict(PARAMS, X), dx=_gradient(X))
  _write_state(folder)
  _write_keras(folder)
  _write_native(folder)
  _write_batch(folder)
  decoder = tiny_decoder.decoder()
  generation.save(decoder, folder / "decoder", target="saved_model", piece=4)
  (folder / "decoder.json").write_text(json.dumps(_greedy(decoder)))


def _gradient(x: np.ndarray) -> jax.Array:
  return jax.grad(lambda x: jnp.sum(predict(PARAMS, x) ** 2))(x)


def _write_state(folder: Path) -> None:
  state = {"key": jax.random.key(3), "n": 0}
  made = saved_model.Model(PARAMS, state=state)
  made.add(step, inputs={"x": "f32[b,4]"}, stateful=True, method="step").add_reset()
  made.save(folder / "state")
  results = []
  for _ in range(3):
    state, result = step(PARAMS, state, X)
    results.append(result["y"])
  np.savez(folder / "state.npz", x=X, y=np.stack(results))


def _write_keras(folder: Path) -> None:
  layer = jax2tf.keras.Layer(predict, PARAMS, inputs={"x": "f32[b,4]"})
  model = keras.Sequential([keras.Input((4,)), layer])
  model.save(folder / "net.keras")


def _write_native(folder: Path) -> None:
  """What `jax.experimental.jax2tf` would write, by our `convert`."""
  module = tf.Module()
  module.w = tf.nest.map_structure(tf.Variable, PARAMS)
  converted = jax2tf.convert(predict, polymorphic_shapes=[None, "b, _"], native_serialization=True)
  spec = tf.TensorSpec((None, 4), tf.float32, "x")
  module.predict = tf.function(
    lambda x: converted(module.w, x), input_signature=[spec], autograph=False
  )
  tf.saved_model.save(module, str(folder / "native"))


def _write_batch(folder: Path) -> None:
  """Rows, and the results of `jax2tf batch` of them."""
  rows = [json.dumps({"id": i, "x": row.tolist()}) for i, row in enumerate(X)]
  (folder / "rows.jsonl").write_text("\n".join([*rows, ""]))
  words = ["batch", "model", "rows.jsonl", "results", "--workers=1"]
  with contextlib.chdir(folder), contextlib.suppress(SystemExit):
    command(words)


def _greedy(decoder: generation.Decoder) -> dict[str, list[int]]:
  """The most probable tokens after a prompt, without a cache."""
  tokens = list(PROMPT)
  for _ in range(TOKENS):
    whole, positions = jnp.array([tokens]), jnp.arange(len(tokens))[None]
    cache = decoder.init_cache(1, tiny_decoder.CONTEXT)
    logits, _ = decoder.call(decoder.params, whole, positions, cache)
    tokens.append(int(jnp.argmax(logits[0, -1])))
  return {"prompt": list(PROMPT), "new": tokens[len(PROMPT) :]}


def main() -> None:
  archive = Path(__file__).with_name(f"{jax2tf.__version__}.tar.xz")
  with tempfile.TemporaryDirectory() as place:
    write(Path(place))
    with tarfile.open(archive, "w:xz") as file:
      for path in sorted(Path(place).iterdir()):
        file.add(path, path.name)
  print(f"{archive}: {archive.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
  main()
