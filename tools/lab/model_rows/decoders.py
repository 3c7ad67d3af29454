"""Decoders of language models at real sizes: the time and the memory of an export, the size of the
file, and the time of the next token; or the tokens that an engine generates."""

from __future__ import annotations

import functools
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax2tf.converters import generation, onnx, saved_model, tflite
from jax2tf.converters.bundle import children
from jax2tf.converters.generation import litert_lm_bundle
from jax2tf.tools.lab import measure, workers

# {"seconds": of the export with its comparison, "peak": its largest memory in bytes, "held": that
# of the parameters and the libraries before it, "weights": in bytes, "file": in bytes, "token":
# milliseconds of a token relative to jax.jit with a donated cache, "compiled": the same in
# tf.function(jit_compile=True); or for an engine "tokens": [equal to JAX's without a cache, of]}
Numbers = dict[str, Any]


@dataclass(frozen=True)
class Shape:
  """The sizes of a decoder with Gemma's layers and a tied embedding."""

  vocabulary: int
  width: int
  layers: int
  heads: int
  head: int
  hidden: int
  length: int = 512
  dtype: str = "float32"


SHAPES = {
  "90M f32": Shape(32_768, 640, 12, 4, 256, 2048),
  "270M f32": Shape(262_144, 640, 18, 4, 256, 2048),
  "1B bf16": Shape(262_144, 1152, 26, 4, 256, 6912, dtype="bfloat16"),
}
_FILES = ("saved-model", "onnx", "tflite")
_ENGINES = ("litert-lm", "onnxruntime-genai")
# Without tolerances a difference above the default ones is compared with float64, which takes twice
# the weights. bfloat16 has 8 bits, and each runtime rounds to them in other places of 26 layers.
_TOLERANCES: dict[str, dict[str, float]] = {
  "float32": {"rtol": 1e-3, "atol": 1e-3},
  "bfloat16": {"rtol": 0.1, "atol": 0.3},
}


def rows() -> list[str]:
  """Each decoder at each target."""
  return [f"{shape}: {target}" for shape in SHAPES for target in (*_FILES, *_ENGINES)]


def measured(names: Sequence[str]) -> Iterator[tuple[str, Numbers]]:
  """Exports each row in one process, and runs it in another."""
  for row in names:
    shape, target = row.split(": ")
    with tempfile.TemporaryDirectory(prefix="jax2tf-decoder-") as folder:
      if target in _ENGINES:
        yield row, workers.alone(in_engine, shape, target, folder)
        continue
      numbers = workers.alone(exported, shape, target, folder)
      path = numbers.pop("path")
      numbers["token"] = workers.alone(token, shape, target, path)
      if target == "saved-model":
        numbers["compiled"] = workers.alone(
          functools.partial(token, compiled=True), shape, target, path
        )
      yield row, numbers


def parameters(shape: Shape) -> Any:
  """Random parameters as JAX arrays."""
  rng = np.random.default_rng(0)

  def weight(*sizes: int) -> jax.Array:
    values = rng.standard_normal(sizes, np.float32)
    values *= np.float32(sizes[0] ** -0.5)
    return jnp.asarray(values, shape.dtype)

  width, hidden, attended = shape.width, shape.hidden, shape.heads * shape.head
  scale = jnp.zeros(width, shape.dtype)
  layers = [
    {
      "q": weight(width, attended),
      "k": weight(width, shape.head),
      "v": weight(width, shape.head),
      "o": weight(attended, width),
      "gate": weight(width, hidden),
      "up": weight(width, hidden),
      "down": weight(hidden, width),
      "before": scale,
      "after": scale,
    }
    for _ in range(shape.layers)
  ]
  return {"embedding": weight(shape.vocabulary, width), "layers": layers, "last": scale}


def decode(
  shape: Shape, params: Any, token: jax.Array, position: jax.Array, cache: dict[str, jax.Array]
) -> dict[str, Any]:
  """token i32[1,s], position i32[s], cache {k_0: f32[1,length,1,head], ...} -> logits f32[1,s,v],
  and the cache with the new rows."""
  count = token.shape[1]
  x = params["embedding"][token] * jnp.asarray(shape.width**0.5, shape.dtype)
  visible = jnp.where(jnp.arange(shape.length) <= position[:, None], 0.0, -1e30)
  new: dict[str, jax.Array] = {}
  for i, layer in enumerate(params["layers"]):
    y = _normalised(x, layer["before"])
    for name in "kv":
      entry = (y @ layer[name]).reshape(1, count, 1, shape.head)
      entry = _rotated(entry, position) if name == "k" else entry
      row = entry.astype(cache[f"{name}_{i}"].dtype)
      new[f"{name}_{i}"] = jax.lax.dynamic_update_slice(
        cache[f"{name}_{i}"], row, (0, position[0], 0, 0)
      )
    query = _rotated((y @ layer["q"]).reshape(1, count, shape.heads, shape.head), position)
    keys, values = (new[f"{name}_{i}"].astype(x.dtype) for name in "kv")
    scores = jnp.einsum("bqnh,bkoh->bnqk", query, keys).astype(jnp.float32) * shape.head**-0.5
    weights = jax.nn.softmax(scores + visible, -1).astype(x.dtype)
    x += jnp.einsum("bnqk,bkoh->bqnh", weights, values).reshape(1, count, -1) @ layer["o"]
    y = _normalised(x, layer["after"])
    x += (jax.nn.gelu(y @ layer["gate"]) * (y @ layer["up"])) @ layer["down"]
  logits = _normalised(x, params["last"]) @ params["embedding"].T
  return {"logits": logits.astype(jnp.float32), "new": new}


def _normalised(x: jax.Array, scale: jax.Array) -> jax.Array:
  y = x.astype(jnp.float32)
  y *= jax.lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + 1e-6)
  return (y * (1 + scale.astype(jnp.float32))).astype(x.dtype)


def _rotated(x: jax.Array, position: jax.Array) -> jax.Array:
  half = x.shape[-1] // 2
  angles = position.astype(jnp.float32)[:, None, None] * 10_000.0 ** (-jnp.arange(half) / half)
  first, second = x[..., :half].astype(jnp.float32), x[..., half:].astype(jnp.float32)
  sin, cos = jnp.sin(angles), jnp.cos(angles)
  return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1).astype(
    x.dtype
  )


def exported(name: str, target: str, folder: str) -> Numbers:
  """Exports a decoder into a folder."""
  shape = SHAPES[name]
  params = jax.block_until_ready(parameters(shape))
  fun = functools.partial(decode, shape)
  cache = {key: f"f32{list(x.shape)}".replace(" ", "") for key, x in _cache(shape).items()}
  inputs = {"token": "i32[1,1]", "position": "i32[1]", "cache": cache}
  place = Path(folder, "saved" if target == "saved-model" else f"model.{target}")
  compared: dict[str, Any] = {
    "samples": 1,
    "examples": {"token": np.array([[5]], np.int32), "position": np.array([20], np.int32)},
    **_TOLERANCES[shape.dtype],
  }
  weights = sum(x.nbytes for x in jax.tree.leaves(params))
  with _Memory() as memory:
    start, held = time.perf_counter(), memory.now()
    if target == "saved-model":
      path = saved_model.save(fun, params, place, inputs=inputs, trainable=False)
      size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    else:
      made = {"onnx": onnx, "tflite": tflite}[target].save(
        fun, params, place, inputs=inputs, **compared
      )
      path, size = made.path, made.size
    seconds = time.perf_counter() - start
  return {
    "seconds": seconds,
    "peak": memory.peak,
    "held": held,
    "weights": weights,
    "file": size,
    "path": str(path),
  }


def token(name: str, target: str, path: str, *, compiled: bool = False) -> float:
  """The time of a token in the file's runtime, relative to jax.jit with a donated cache.
  `compiled`: compile the loaded SavedModel with XLA."""
  shape = SHAPES[name]
  params, cache = parameters(shape), _cache(shape)
  first, position = np.array([[5]], np.int32), np.array([20], np.int32)
  inputs = {"token": first, "position": position} | {f"cache_{k}": x for k, x in cache.items()}
  jitted = jax.jit(functools.partial(decode, shape), donate_argnums=3)
  kept = [jax.tree.map(jnp.asarray, cache)]

  def in_jax() -> None:
    results = jitted(params, first, position, kept.pop())
    kept.append(results["new"])
    np.asarray(results["logits"])

  calls: dict[str, Callable[[], Any]] = {
    "jax": in_jax,
    "file": functools.partial(_runner(target, path, compiled), inputs),
  }
  ms = measure.milliseconds(calls, 10)
  return ms["file"] / ms["jax"]


def in_engine(name: str, target: str, folder: str) -> Numbers:
  """Saves a decoder for an engine, which generates 4 tokens behind prompts of 5 and 20."""
  shape = SHAPES[name]
  tokenizer = Path(folder, "tokenizer.json")
  litert_lm_bundle.one_for_one(tokenizer, shape.vocabulary)
  params = jax.block_until_ready(parameters(shape))
  decoder = generation.Decoder(
    step=functools.partial(_step, shape),
    params=params,
    init_cache=lambda batch, length: jax.tree.map(
      jnp.asarray, _cache(shape, batch=batch, length=length)
    ),
    context_length=shape.length,
    stop_tokens=[1],
    tokenizer=tokenizer if target == "litert-lm" else None,
  )
  prompts = np.random.default_rng(0).integers(2, shape.vocabulary, (20,)).tolist()
  asked = [(generation.Turn(tuple(prompts[:length]), new=4),) for length in (5, 20)]
  options: dict[str, Any] = {"prefill_lengths": [16]} if target == "litert-lm" else {}
  with _Memory() as memory:
    start, held = time.perf_counter(), memory.now()
    made = generation.save(
      decoder, Path(folder, "model"), target=target, conversations=asked, **options
    )
    seconds = time.perf_counter() - start
  shares = made.report.agreement.values()
  return {
    "seconds": seconds,
    "peak": memory.peak,
    "held": held,
    "weights": sum(x.nbytes for x in jax.tree.leaves(params)),
    "file": made.size,
    "tokens": [sum(equal for equal, _ in shares), sum(of for _, of in shares)],
  }


def _step(
  shape: Shape, params: Any, tokens: jax.Array, positions: jax.Array, cache: Any
) -> tuple[jax.Array, Any]:
  """As `generation.Decoder` takes it."""
  results = decode(shape, params, tokens, positions[0], cache)
  return results["logits"], results["new"]


def _cache(shape: Shape, batch: int = 1, length: int | None = None) -> dict[str, np.ndarray]:
  sizes = (batch, shape.length if length is None else length, 1, shape.head)
  return {f"{n}_{i}": np.zeros(sizes, np.float32) for i in range(shape.layers) for n in "kv"}


def _runner(target: str, path: str, compiled: bool) -> Any:
  """A function of the named inputs."""
  if target == "tflite":
    from ai_edge_litert.interpreter import Interpreter  # noqa: PLC0415

    runner = Interpreter(model_path=path, num_threads=2).get_signature_runner()
    return lambda named: runner(**named)
  if target == "onnx":
    import onnxruntime  # noqa: PLC0415

    session = onnxruntime.InferenceSession(path)
    return lambda inputs: session.run(None, inputs)
  import tensorflow as tf  # noqa: PLC0415

  loaded = tf.saved_model.load(path)
  signature = loaded.signatures["serving_default"]
  called = tf.function(lambda named: signature(**named), autograph=False, jit_compile=compiled)
  kept: dict[str, tf.Tensor] = {}  # as JAX's cache, which stays on its side too

  def run(inputs: Any) -> None:
    given = {name: tf.constant(x) for name, x in inputs.items() if name not in kept}
    results = called(given | kept)
    for name, x in results.items():
      if name != "logits":
        kept[name.replace("new_", "cache_", 1)] = x
    results["logits"].numpy()

  run.loaded = loaded  # type: ignore[attr-defined]  # else its variables are freed
  return run


class _Memory:
  """Watches the anonymous and shared memory of this process and its children, from a process of its
  own, because this one may hold Python's lock for seconds.

  Attributes:
    peak: the largest in bytes, when it has ended.
  """

  peak = 0

  def __enter__(self) -> _Memory:
    children.give_back()  # what the random parameters took in float32
    self._watcher = subprocess.Popen(
      [sys.executable, "-c", _WATCH], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    return self

  def __exit__(self, *_: Any) -> None:
    self.peak = int(self._watcher.communicate()[0])

  def now(self) -> int:
    """That of this process."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(_KINDS))


_KINDS = ("RssAnon", "RssShmem")
# It ends when its stdin is closed.
_WATCH = f"""
import os, pathlib, select, sys

def status(process):
  try:
    lines = pathlib.Path('/proc', process, 'status').read_text().splitlines()
  except OSError:
    return '', 0
  size = sum(int(x.split()[1]) << 10 for x in lines if x.startswith({_KINDS}))
  return next(x.split()[1] for x in lines if x.startswith('PPid')), size

own, peak = str(os.getppid()), 0
while not select.select([sys.stdin], [], [], 0.03)[0]:
  known = {{n: status(n) for n in os.listdir('/proc') if n.isdigit() and n != str(os.getpid())}}
  wanted = {{own}}
  for _ in range(3):
    wanted |= {{n for n, (parent, _) in known.items() if parent in wanted}}
  peak = max(peak, sum(known[n][1] for n in wanted if n in known))
print(peak)
"""
