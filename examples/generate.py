"""How does a text generator become a SavedModel with a key-value cache?

Trains the decoder of decoder.py (once) and saves it with its key-value cache as build/generate/1/.
It has three signatures: `prefill` reads texts into slots of the cache, `decode` appends a token to
each, `generate` makes whole texts without the stored cache. generate_serve.py, which never imports
JAX, then generates texts. The tokens must equal JAX's; build/generate/speed.png shows both times.
"""

from __future__ import annotations

import functools
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track

from jax2tf.examples import decoder, decoder_training, quiet

with quiet.startup():
  import jax
  import matplotlib

  from jax2tf.converters import saved_model
  from jax2tf.examples.palette import COLOURS


matplotlib.use("Agg")  # draws to files, without a display
import matplotlib.pyplot as plt
from matplotlib.ticker import LogLocator

HERE = Path(__file__).resolve().parent
BUILD = Path("build", "generate")
SLOTS, TOKENS, TEMPERATURE = 4, 512, 0.7
PROMPTS = ['The "with" statement', "A list is", "class Counter:\n", "Functions"]


def prefill(
  params: Any, cache: Any, slots: Any, tokens: Any, lengths: Any, seeds: Any, temperature: Any
) -> Any:
  """(cache with new texts, the next token of each)."""
  cache, scores = decoder.prefill(params, cache, slots, tokens, lengths)
  return cache, {"token": decoder.sample(scores, seeds, lengths, temperature)}


def decode(params: Any, cache: Any, slots: Any, tokens: Any, seeds: Any, temperature: Any) -> Any:
  """(cache with one more token in each text, the next token of each)."""
  cache, scores = decoder.decode(params, cache, slots, tokens)
  return cache, {"token": decoder.sample(scores, seeds, cache["lengths"][slots], temperature)}


def build(params: Any, slots: int = SLOTS, length: int = decoder.LENGTH) -> saved_model.Model:
  """The three signatures; batch and length of the prompts are symbolic."""
  model = saved_model.Model(
    params, state=decoder.empty_cache(slots, length), polymorphic_constraints=[f"s <= {length}"]
  )
  common = {"seeds": "i32[b]", "temperature": "f32[]"}
  prompts = {"tokens": "i32[b,s]", "lengths": "i32[b]"}
  model.add(
    prefill, inputs={"slots": "i32[b]", **prompts, **common}, signatures="prefill", stateful=True
  )
  model.add(
    decode,
    inputs={"slots": "i32[b]", "tokens": "i32[b]", **common},
    signatures="decode",
    stateful=True,
  )
  model.add(
    decoder.generate,
    inputs={**prompts, **common, "count": "i32[]"},
    outputs=["tokens"],
    signatures="generate",
  )
  return model


def request(vocabulary: Any, prompts: list[str] = PROMPTS) -> dict[str, np.ndarray]:
  """The common inputs of prefill and generate, padded to one length."""
  ids = [vocabulary.encode(prompt).ids for prompt in prompts]
  lengths = np.array([len(row) for row in ids], np.int32)
  tokens = np.zeros((len(ids), max(lengths)), np.int32)
  for row, found in zip(tokens, ids, strict=True):
    row[: len(found)] = found
  return {
    "tokens": tokens,
    "lengths": lengths,
    "seeds": np.arange(len(ids), dtype=np.int32),
    "temperature": np.array(TEMPERATURE, np.float32),
  }


def in_jax(params: Any, given: dict[str, np.ndarray], count: int) -> tuple[np.ndarray, np.ndarray]:
  """(tokens i32[b,count], seconds of each), by prefill and decode under jax.jit with a donated
  cache."""
  first, after = jax.jit(prefill, donate_argnums=1), jax.jit(decode, donate_argnums=1)
  seeds, temperature = given["seeds"], given["temperature"]
  slots, params = np.arange(len(seeds), dtype=np.int32), jax.device_put(params)
  cache, made = first(
    params,
    jax.device_put(decoder.empty_cache(SLOTS)),
    slots,
    given["tokens"],
    given["lengths"],
    seeds,
    temperature,
  )
  found, seconds = [made["token"]], []
  for _ in track(range(count - 1), "JAX, with its cache", console=Console(stderr=True)):
    start = time.perf_counter()
    cache, made = after(params, cache, slots, found[-1], seeds, temperature)
    found.append(jax.block_until_ready(made["token"]))
    seconds.append(time.perf_counter() - start)
  return np.stack(found, axis=1), np.array(seconds)


def without_cache(params: Any, given: dict[str, np.ndarray], sizes: list[int]) -> np.ndarray:
  """Seconds for one more token of texts of these lengths without a cache, which reads the whole
  text again."""
  scores, times = jax.jit(lambda params, tokens: decoder.logits(params, tokens)[:, -1]), []
  for size in track(sizes, "JAX, without a cache", console=Console(stderr=True)):
    tokens = np.resize(given["tokens"], (len(given["tokens"]), size))
    jax.block_until_ready(scores(params, tokens))
    times.append(min(_seconds(functools.partial(scores, params, tokens)) for _ in range(3)))
  return np.array(times)


def _seconds(call: Callable[[], Any]) -> float:
  start = time.perf_counter()
  jax.block_until_ready(call())
  return time.perf_counter() - start


def main(
  directory: Path = BUILD, *, steps: int = decoder_training.STEPS, count: int = TOKENS
) -> None:
  params, vocabulary = decoder_training.load(directory, steps)
  given = request(vocabulary)
  expected, seconds = in_jax(params, given, count)
  again = without_cache(params, given, sizes := [2**k for k in range(4, 10) if 2**k <= count])

  start = time.perf_counter()
  saved = build(params).save(directory, version=1, overwrite=True)
  size = sum(file.stat().st_size for file in saved.rglob("*") if file.is_file())
  print(f"saved {saved}: {size / 1e6:.1f} MB in {time.perf_counter() - start:.1f} s", flush=True)

  vocabulary.save(str(directory / "tokenizer.json"))
  np.savez(directory / "request.npz", allow_pickle=False, expected=expected, **given)
  subprocess.run([sys.executable, str(HERE / "generate_serve.py"), str(directory)], check=True)
  in_tf = np.load(directory / "seconds.npy")
  draw({"JAX": seconds, "TensorFlow without JAX": in_tf}, sizes, again, directory / "speed.png")


def draw(
  with_cache: dict[str, np.ndarray], sizes: list[int], again: np.ndarray, file: Path
) -> None:
  figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
  for (name, seconds), colour in zip(
    with_cache.items(), (COLOURS["jax"], COLOURS["ours"]), strict=True
  ):
    # other processes cause outliers
    steady = np.median(np.lib.stride_tricks.sliding_window_view(seconds, 9), axis=1)
    axes.plot(4 + np.arange(len(steady)), 1e3 * steady, colour, label=f"{name}, with its cache")
  axes.plot(
    sizes, 1e3 * again, COLOURS["hand"], marker="o", label="JAX, reading the whole text again"
  )
  axes.set(
    title=f"One token more for {SLOTS} texts",
    xlabel="tokens in each text",
    ylabel="milliseconds",
    yscale="log",
  )
  axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
  axes.yaxis.set_major_formatter("{x:g}")
  axes.yaxis.set_minor_formatter("")
  axes.legend()
  figure.savefig(file, dpi=120)
  plt.close(figure)
  print(f"time for each token: {file}")


if __name__ == "__main__":
  main(*map(Path, sys.argv[1:2]))
