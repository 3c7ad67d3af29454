"""A user's program for three models on every target; prints a JSON line for each.

It imports nothing from the checkout: `wheel` runs a copy of it elsewhere.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("CI", "true")  # otherwise importing OpenVINO forks and sends telemetry
import flax.nnx as nnx
import jax
import jax.numpy as jnp
import keras
import numpy as np
import openvino
import tensorflow as tf

import jax2tf
import jax2tf.keras
from jax2tf.converters import onnx, saved_model, tfjs, tflite, verify


@dataclass(frozen=True)
class Ready:
  """A model to save, its function for references, and how to draw its inputs."""

  model: saved_model.Model
  fun: Callable[..., Any]
  params: Any
  inputs: Mapping[str, str]
  sizes: Mapping[str, int]
  examples: Mapping[str, Any] = field(default_factory=dict)


class Vision(nnx.Module):
  """Convolution, BatchNorm, Dropout."""

  def __init__(self, rngs: nnx.Rngs):
    self.conv, self.norm = (
      nnx.Conv(1, 16, (3, 3), strides=2, rngs=rngs),
      nnx.BatchNorm(16, rngs=rngs),
    )
    self.dropout, self.out = nnx.Dropout(0.3, rngs=rngs), nnx.Linear(14 * 14 * 16, 10, rngs=rngs)

  def __call__(self, image: jax.Array) -> jax.Array:
    x = nnx.relu(self.norm(self.conv(image)))
    return nnx.softmax(self.out(self.dropout(x.reshape(-1, 14 * 14 * 16))))


def vision() -> Ready:
  inputs, module = {"image": "f32[b,28,28,1]"}, Vision(nnx.Rngs(0))
  graph, state = nnx.split(nnx.clone(module))

  def fun(state: Any, image: jax.Array) -> jax.Array:
    model = nnx.merge(graph, state)
    model.eval()
    return model(image)

  return Ready(
    saved_model.from_flax_nnx(module, inputs=inputs), fun, nnx.to_pure_dict(state), inputs, {"b": 4}
  )


class Block(nnx.Module):
  """Attention over a key-value cache, then two dense layers."""

  def __init__(self, width: int, rngs: nnx.Rngs):
    self.before, self.attend = (
      nnx.LayerNorm(width, rngs=rngs),
      nnx.MultiHeadAttention(4, width, decode=True, rngs=rngs),
    )
    self.behind, self.up, self.down = (
      nnx.LayerNorm(width, rngs=rngs),
      nnx.Linear(width, 512, rngs=rngs),
      nnx.Linear(512, width, rngs=rngs),
    )

  def __call__(self, x: jax.Array) -> jax.Array:
    x = x + self.attend(self.before(x))
    return x + self.down(nnx.gelu(self.up(self.behind(x))))


class Gpt(nnx.Module):
  """Four blocks; a call takes one token for each text."""

  def __init__(self, rngs: nnx.Rngs, *, width: int = 128, room: int = 24):
    self.width, self.room = width, room
    self.tokens, self.places = nnx.Embed(256, width, rngs=rngs), nnx.Embed(room, width, rngs=rngs)
    self.blocks = nnx.List([Block(width, rngs) for _ in range(4)])
    self.norm, self.head = nnx.LayerNorm(width, rngs=rngs), nnx.Linear(width, 256, rngs=rngs)

  def __call__(self, token: jax.Array, place: jax.Array) -> jax.Array:
    x = self.tokens(token) + self.places(place)
    for block in self.blocks:
      x = block(x)
    return self.head(self.norm(x))


def gpt() -> Ready:
  graph, params, *rest = nnx.split(Gpt(nnx.Rngs(0)), nnx.Param, ...)

  def generate(
    params: Any, prompt: jax.Array, seed: jax.Array, temperature: jax.Array
  ) -> jax.Array:
    model, (batch, length) = nnx.merge(graph, params, *rest), prompt.shape
    for block in model.blocks:
      block.attend.init_cache((batch, model.room, model.width))
    whole, cache, *other = nnx.split(model, nnx.Cache, ...)

    def step(carry: Any, i: jax.Array) -> tuple[Any, None]:
      cache, tokens, key = carry
      model = nnx.merge(whole, cache, *other)
      logits = model(jax.lax.dynamic_slice_in_dim(tokens, i, 1, 1), jnp.full((1, 1), i))[:, 0]
      key, drawn = jax.random.split(key)
      given = jax.lax.dynamic_index_in_dim(tokens, i + 1, 1, keepdims=False)
      token = jnp.where(
        i + 1 < length,
        given,
        jax.random.categorical(drawn, logits / temperature).astype(tokens.dtype),
      )
      tokens = jax.lax.dynamic_update_index_in_dim(tokens, token, i + 1, 1)
      return (nnx.state(model, nnx.Cache), tokens, key), None

    begin = (cache, jnp.pad(prompt, ((0, 0), (0, 12))), jax.random.key(seed))
    return jax.lax.scan(step, begin, jnp.arange(length + 11))[0][1]

  inputs = {"prompt": "i32[b,s]", "seed": "i32[]", "temperature": "f32[]"}
  examples = {
    "prompt": lambda rng, shape, dtype: rng.integers(0, 256, shape).astype(dtype),
    "seed": np.int32(1),
    "temperature": np.float32(0.7),
  }
  leaves = nnx.to_pure_dict(params)
  return Ready(
    _model(leaves, generate, inputs), generate, leaves, inputs, {"b": 2, "s": 5}, examples
  )


@jax.custom_vjp
def clipped(x: jax.Array) -> jax.Array:
  """The identity, with clipped cotangents."""
  return x


clipped.defvjp(lambda x: (x, None), lambda _, g: (jnp.clip(g, -1.0, 1.0),))


def ode() -> Ready:
  def fun(params: Any, y: jax.Array) -> jax.Array:
    def slope(y: jax.Array) -> jax.Array:
      return clipped(jnp.tanh(y @ params["in"]) @ params["out"])

    def step(y: jax.Array, _: Any) -> tuple[jax.Array, None]:
      half = y + 0.05 * slope(y)
      return y + 0.1 * slope(half), None

    return jax.lax.scan(step, y, None, length=10)[0]

  rng, inputs = np.random.default_rng(0), {"y": "f32[b,2]"}
  params = {
    "in": rng.standard_normal((2, 16), np.float32),
    "out": 0.1 * rng.standard_normal((16, 2), np.float32),
  }
  model = keras.Sequential(
    [keras.Input((2,)), layer := jax2tf.keras.Layer(fun, params, inputs=inputs)]
  )
  model.compile(optimizer=keras.optimizers.Adam(1e-2), loss="mse")
  start = rng.standard_normal((256, 2), np.float32)
  # a quarter turn
  losses = model.fit(start, start[:, ::-1] * [1, -1], epochs=5, verbose=0).history["loss"]
  assert losses[-1] < losses[0], losses
  params = {weight.path.rsplit("/", 1)[-1]: np.asarray(weight) for weight in layer.weights}
  return Ready(_model(params, fun, inputs), fun, params, inputs, {"b": 4})


def _model(params: Any, fun: Callable[..., Any], inputs: Mapping[str, str]) -> saved_model.Model:
  model = saved_model.Model(params)
  model.add(fun, inputs=inputs, outputs=["result"])
  return model


def _of_report(report: Any) -> dict[str, Any]:
  report.raise_for_mismatch()
  latency, rows = (
    report.latencies[0],
    [row for row in report.rows if row.values in ("ordinary", "given")],
  )
  return {
    "ms": 1e3 * latency.model,
    "jax ms": 1e3 * latency.reference,
    "difference": max(row.max_abs or 0.0 for row in rows),
  }


def _directly(ready: Ready, call: Callable[[dict[str, np.ndarray]], Any]) -> dict[str, Any]:
  """The same figures for a runtime that no exporter compares."""
  rng, given = np.random.default_rng(0), {}
  for name, text in ready.inputs.items():
    dtype, dims = (
      {"f32": np.float32, "i32": np.int32}[text[:3]],
      text[4:-1].split(",") if text[4:-1] else [],
    )
    shape = tuple(ready.sizes.get(dim) or int(dim) for dim in dims)
    drawn = ready.examples.get(
      name, lambda rng, shape, dtype: rng.standard_normal(shape).astype(dtype)
    )
    given[name] = drawn(rng, shape, dtype) if callable(drawn) else np.asarray(drawn)
  reference = jax.jit(ready.fun)
  expected, found = np.asarray(reference(ready.params, *given.values())), np.asarray(call(given))
  np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
  return {
    "ms": _milliseconds(lambda: np.asarray(call(given))),
    "jax ms": _milliseconds(
      lambda: jax.block_until_ready(reference(ready.params, *given.values()))
    ),
    "difference": float(np.abs(found.astype(float) - expected).max()),
  }


def _milliseconds(call: Callable[[], Any]) -> float:
  times = []
  for _ in range(9):
    start = time.perf_counter()
    call()
    times.append(time.perf_counter() - start)
  return 1e3 * float(np.median(times))


def native(ready: Ready, place: Path) -> dict[str, Any]:
  shapes = [None, *(f"({text[text.index('[') + 1 : -1]})" for text in ready.inputs.values())]
  converted = jax2tf.convert(ready.fun, polymorphic_shapes=shapes, native_serialization=True)
  module = tf.Module()
  module.f = tf.function(
    lambda **inputs: converted(ready.params, *(inputs[name] for name in ready.inputs)),
    autograph=False,
  )
  specs = {}
  for name, text in ready.inputs.items():
    dims = (
      [int(dim) if dim.isdigit() else None for dim in text[4:-1].split(",")] if text[4:-1] else []
    )
    specs[name] = tf.TensorSpec(dims, {"f": tf.float32, "i": tf.int32}[text[0]], name)
  tf.saved_model.save(module, str(place), signatures=module.f.get_concrete_function(**specs))
  loaded = tf.saved_model.load(str(place)).signatures["serving_default"]
  return _directly(
    ready,
    lambda given: next(
      iter(loaded(**{name: tf.constant(x) for name, x in given.items()}).values())
    ),
  )


def in_openvino(ready: Ready, place: Path) -> dict[str, Any]:
  core = openvino.Core()
  directory = ready.model.save(place)
  compiled = core.compile_model(
    core.read_model(str(directory)), "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
  )
  return _directly(ready, lambda given: next(iter(compiled(given).values())))


def in_tensorflow(ready: Ready, place: Path) -> dict[str, Any]:
  directory = ready.model.save(place)
  report = verify.verify(
    directory,
    ready.fun,
    params=ready.params,
    sizes=ready.sizes,
    samples=1,
    inputs=dict(ready.examples),
  )
  return _of_report(report)


def _exported(module: Any, **options: Any) -> Callable[[Ready, Path], dict[str, Any]]:
  def export(ready: Ready, place: Path) -> dict[str, Any]:
    made = module.save_model(
      ready.model, place, sizes=ready.sizes, samples=1, examples=dict(ready.examples), **options
    )
    return _of_report(made.report)

  return export


TARGETS = {
  "SavedModel": in_tensorflow,
  "native": native,
  "LiteRT": _exported(tflite),
  "ONNX Runtime": _exported(onnx),
  "TF.js": _exported(tfjs, backends=["wasm"]),
  "OpenVINO": in_openvino,
}


def main(folder: Path, names: Sequence[str]) -> None:
  for build in (vision, gpt, ode):
    chosen = [target for target in TARGETS if f"{build.__name__} {target}" in names]
    if not chosen:
      continue
    ready = build()
    for target in chosen:
      start = time.perf_counter()
      try:
        found = TARGETS[target](ready, folder / f"{build.__name__}-{target.replace(' ', '-')}")
      except Exception as error:  # the row has the error
        found = {"refused": f"{type(error).__name__}: {' '.join(str(error).split())}"[:500]}
      seconds = time.perf_counter() - start
      print(
        json.dumps({"row": f"{build.__name__} {target}", "seconds": seconds, **found}), flush=True
      )


if __name__ == "__main__":
  main(Path(sys.argv[1]), sys.argv[2:])
