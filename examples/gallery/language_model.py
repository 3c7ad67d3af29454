"""How does a language model of JAX get into a web page, onto a phone and behind a server?

A small decoder learns poems of Lewis Carroll in JAX. One `generation.Decoder` is exported three
times: for ONNX Runtime GenAI, whose file ONNX Runtime Web runs in the browser; for LiteRT-LM; and
for `jax2tf serve`, which streams. Each continues the same prompt token by token, with a key-value
cache, and all texts must be JAX's. --serve leaves the page open for your own prompts.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import http.client
import json
import shutil
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from jax2tf.examples import quiet, train_step
from jax2tf.examples.browser import export
from jax2tf.examples.gallery.poems import POEMS

with quiet.startup():
  import jax
  import jax.numpy as jnp
  import optax

  from jax2tf.converters import generation
  from jax2tf.examples.gallery import chart, processes
  from jax2tf.examples.palette import COLOURS

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "browser" / "generate"
HEADS, CONTEXT = 4, 256
STOP, VOCABULARY = 0, 448
PROMPT = "The moon was shining"
Tree = dict[str, Any]


@dataclass(frozen=True)
class Continued:
  """What an engine wrote behind the prompt.

  Attributes:
    text: the text.
    seconds: when each piece of it was there, after the first one.
  """

  text: str
  seconds: Sequence[float]


def tokenizer() -> tokenizers.Tokenizer:
  """A byte-level BPE of the poems; token 0 ends a text."""
  made = tokenizers.ByteLevelBPETokenizer()
  made.train_from_iterator(
    POEMS, vocab_size=VOCABULARY, special_tokens=["<end>"], show_progress=False
  )
  return made


def init(width: int, layers: int) -> Tree:
  rng = np.random.default_rng(0)

  def matrix(*shape: int) -> np.ndarray:
    return (rng.standard_normal(shape) / np.sqrt(shape[-2])).astype(np.float32)

  def layer() -> Tree:
    square = {name: matrix(width, width) for name in ("query", "key", "value", "out")}
    return {**square, "up": matrix(width, 4 * width), "down": matrix(4 * width, width)}

  return {
    "tokens": matrix(VOCABULARY, width),
    "layers": [layer() for _ in range(layers)],
    "head": matrix(width, VOCABULARY),
  }


def init_cache(batch: int, length: int, *, width: int, layers: int) -> list[Tree]:
  rows = jnp.zeros((batch, length, HEADS, width // HEADS))
  return [{"keys": rows, "values": rows} for _ in range(layers)]


def step(
  params: Tree, tokens: jax.Array, positions: jax.Array, cache: list[Tree], mask: jax.Array
) -> tuple[jax.Array, list[Tree]]:
  """tokens and positions i32[b,s], mask bool[b,s,C] -> (logits f32[b,s,v], the cache with the new
  rows)."""
  x, after = params["tokens"][tokens], []
  for layer, rows in zip(params["layers"], cache, strict=True):
    y = jax.nn.standardize(x)
    query, key, value = (
      (y @ layer[name]).reshape(*tokens.shape, HEADS, -1) for name in ("query", "key", "value")
    )
    start = (0, positions[0, 0], 0, 0)
    keys = jax.lax.dynamic_update_slice(rows["keys"], turned(key, positions), start)
    values = jax.lax.dynamic_update_slice(rows["values"], value, start)
    after.append({"keys": keys, "values": values})
    scores = jnp.einsum("bshd,bthd->bhst", turned(query, positions), keys) * key.shape[-1] ** -0.5
    shares = jax.nn.softmax(jnp.where(mask[:, None], scores, -1e30))
    x += jnp.einsum("bhst,bthd->bshd", shares, values).reshape(x.shape) @ layer["out"]
    x += jax.nn.gelu(jax.nn.standardize(x) @ layer["up"]) @ layer["down"]
  return jax.nn.standardize(x) @ params["head"], after


def turned(x: jax.Array, positions: jax.Array) -> jax.Array:
  """Rotary positions (https://arxiv.org/abs/2104.09864): x f32[b,s,h,d]."""
  first, second = jnp.split(x, 2, axis=-1)
  size = first.shape[-1]
  angles = positions[..., None, None] * 100.0 ** (-jnp.arange(size) / size)
  cos, sin = jnp.cos(angles), jnp.sin(angles)
  return jnp.concatenate([first * cos - second * sin, first * sin + second * cos], axis=-1)


def train(vocabulary: tokenizers.Tokenizer, params: Tree, new_cache: Any, steps: int) -> Tree:
  """Learns random pieces of the poems, with the step that is exported and an empty cache."""
  texts = [[*vocabulary.encode(poem).ids, STOP] for poem in POEMS]
  text = jnp.array([token for one in texts for token in one])
  size = CONTEXT // 2
  positions = jnp.arange(size)[None]
  mask = (positions <= positions[0][:, None])[None]

  def loss(params: Tree, batch: dict[str, jax.Array]) -> jax.Array:
    pieces = text[batch["starts"][:, None] + jnp.arange(size + 1)]
    scores, _ = step(params, pieces[:, :-1], positions, new_cache(len(pieces), size), mask)
    return optax.softmax_cross_entropy_with_integer_labels(scores, pieces[:, 1:]).mean()

  optimiser = optax.adam(optax.warmup_cosine_decay_schedule(0, 3e-3, steps // 10, steps))
  starts = np.random.default_rng(0).integers(0, len(text) - size, (steps, 8))
  params, _, losses = train_step.train(
    train_step.make_step(loss, optimiser),
    params,
    optimiser.init(params),
    {"starts": starts},
    "training in JAX",
  )
  weights = sum(x.size for x in jax.tree.leaves(params))
  print(f"{weights:,} parameters, {len(text):,} tokens: loss {losses[0]:.2f} -> {losses[-1]:.2f}")
  return jax.tree.map(np.asarray, params)


def in_jax(decoder: generation.Decoder, vocabulary: tokenizers.Tokenizer, new: int) -> Continued:
  call = jax.jit(decoder.call, donate_argnums=3)
  params = jax.device_put(decoder.params)
  tokens: list[int] = []
  times: list[float] = []
  for _ in range(2):  # the first time JAX compiles
    cache = jax.tree.map(jnp.array, decoder.init_cache(1, CONTEXT))
    tokens, times = [], []
    given, read = vocabulary.encode(PROMPT).ids, 0
    while len(tokens) < new:
      positions = read + np.arange(len(given))[None]
      scores, cache = call(params, np.array([given]), positions, cache)
      token, read = int(np.argmax(scores[0, -1])), read + len(given)
      if token == STOP:
        break
      tokens.append(token)
      times.append(time.perf_counter())
      given = [token]
  return Continued(vocabulary.decode(tokens), [end - times[0] for end in times])


def in_browser(folder: Path, new: int, *, stays: bool) -> Continued:
  """Chromium opens the page beside the model, and asks for the prompt."""
  from playwright import sync_api  # noqa: PLC0415  (only this part needs it)

  with export.server(folder, 8000 if stays else 0) as server, contextlib.ExitStack() as stack:
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    stack.callback(server.shutdown)
    address = f"http://127.0.0.1:{server.server_port}/"
    playwright = stack.enter_context(sync_api.sync_playwright())
    chromium = playwright.chromium.launch(
      executable_path=shutil.which("chromium") or shutil.which("google-chrome"),
      args=["--no-sandbox"],
    )
    page = chromium.new_page()
    page.goto(address)
    page.wait_for_function("document.getElementById('status').textContent === 'Ready.'")
    for _ in range(2):  # the first time Chromium compiles
      found = page.evaluate("([prompt, most]) => generate(prompt, most)", [PROMPT, new])
    chromium.close()
    if stays:
      input(f"{address} is open; Enter ends it")
  return Continued(found["text"], found["seconds"])


def in_engine(name: str, model: Path, new: int) -> Continued:
  """An engine for language models, in a process without JAX and TensorFlow."""
  script = HERE / "language_model_engines.py"
  command = [sys.executable, "-P", str(script), name, str(model), PROMPT, str(new)]
  done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
  return Continued(**json.loads(done.stdout.splitlines()[-1]))


def in_server(models: Path, new: int) -> Continued:
  """`jax2tf serve`, asked by OpenAI's route for completions, whose answer is a stream of events."""
  grpc_port, port = processes.free_ports()
  flags = (f"--grpc_port={grpc_port}", f"--http_port={port}", "--replicas=1")
  with (
    processes.started("-m", "jax2tf.tools.cli", "serve", str(models), *flags),
    contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection,
  ):
    pieces: list[str] = []
    times: list[float] = []
    for _ in range(2):  # the first request warms up the model
      asked = {"model": models.name, "prompt": PROMPT, "max_tokens": new, "temperature": 0}
      connection.request("POST", "/v1/completions", json.dumps({**asked, "stream": True}))
      pieces, times = [], []
      for line in connection.getresponse():
        if line.startswith(b"data: {"):
          pieces.append(json.loads(line[6:])["choices"][0]["text"])
          times.append(time.perf_counter())
  return Continued("".join(pieces), [end - times[0] for end in times])


def save(decoder: generation.Decoder, folder: Path) -> dict[str, Path]:
  """{engine: file or folder}."""
  found = {}
  for target, path in (
    ("onnxruntime-genai", folder / "page" / "model"),
    ("litert-lm", folder / "poems.litertlm"),
    ("saved_model", folder / "poems"),
  ):
    path.parent.mkdir(parents=True, exist_ok=True)
    options: dict[str, Any] = {"version": 1} if target == "saved_model" else {}
    saved = generation.save(decoder, path, target=target, overwrite=True, **options)
    print(f"{target}: {saved.size / 1e6:.1f} MB, {saved.report.verdict}")
    found[target] = path
  return found


def write_page(folder: Path) -> None:
  """The page and the two libraries that it needs, from npm."""
  for file in PAGE.iterdir():
    shutil.copy(file, folder)
  command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"]
  subprocess.run(command, cwd=folder, check=True)
  packages = folder / "node_modules"
  web = packages / "onnxruntime-web" / "dist"
  for stem in ("ort.wasm.min", "ort-wasm-simd-threaded"):
    shutil.copy(web / f"{stem}.mjs", folder)
  shutil.copy(web / "ort-wasm-simd-threaded.wasm", folder)
  shutil.copy(packages / "@huggingface/tokenizers/dist/tokenizers.min.mjs", folder)
  shutil.rmtree(packages)


def main(arguments: Sequence[str] | None = None) -> dict[str, Continued]:
  """{engine: what it wrote}."""
  options = _parser().parse_args(arguments)
  folder = options.picture.with_suffix("")
  folder.mkdir(parents=True, exist_ok=True)
  vocabulary = tokenizer()
  vocabulary.save(str(folder / "tokenizer.json"))
  new_cache = functools.partial(init_cache, width=options.width, layers=options.layers)
  decoder = generation.Decoder(
    step=step,
    params=train(vocabulary, init(options.width, options.layers), new_cache, options.steps),
    init_cache=new_cache,
    context_length=CONTEXT,
    stop_tokens=[STOP],
    tokenizer=folder / "tokenizer.json",
  )
  files = save(decoder, folder)
  write_page(folder / "page")

  found = {"JAX": in_jax(decoder, vocabulary, options.new)}
  found["ONNX Runtime Web in Chromium"] = in_browser(
    folder / "page", options.new, stays=options.serve
  )
  for engine, target in (("LiteRT-LM", "litert-lm"), ("ONNX Runtime GenAI", "onnxruntime-genai")):
    found[engine] = in_engine(target, files[target], options.new)
  found["jax2tf serve, streamed"] = in_server(files["saved_model"], options.new)

  for engine, one in found.items():
    assert one.text == found["JAX"].text, (
      f"{engine} wrote {one.text!r}, and JAX {found['JAX'].text!r}"
    )
    rate = (len(one.seconds) - 1) / one.seconds[-1]
    print(f"{engine}: JAX's text, {rate:,.0f} pieces of text a second")
  draw(found, options.picture)
  return found


def draw(found: dict[str, Continued], file: Path) -> None:
  names = ("jax", "chromium", "tflite", "onnx", "ours")
  figure, (times, text) = chart.subplots(1, 2, size=(10, 4.6))
  for (engine, one), name in zip(found.items(), names, strict=True):
    milliseconds = 1e3 * np.asarray(one.seconds)
    times.plot(milliseconds, np.arange(len(milliseconds)), COLOURS[name], label=engine)
  times.set(
    title="The same text from five engines",
    xlabel="milliseconds after the first token",
    ylabel="tokens so far",
  )
  times.legend(loc="upper left", bbox_to_anchor=(0, -0.14), frameon=False, ncols=2, fontsize=8)
  text.axis("off")
  lines = [
    piece
    for line in (PROMPT + found["JAX"].text).splitlines()
    for piece in (textwrap.wrap(line, 48, drop_whitespace=False) or [""])
  ]
  text.set_title("What all of them write", loc="left")
  text.text(0, 0.98, "\n".join(lines), va="top", family="monospace", fontsize=8.5)
  chart.save(figure, file)


def _parser() -> argparse.ArgumentParser:
  made = chart.parser(__doc__, "language_model")
  made.add_argument("--width", type=int, default=128)
  made.add_argument("--layers", type=int, default=3)
  made.add_argument("--steps", type=int, default=400, help="of training")
  made.add_argument("--new", type=int, default=110, help="tokens to generate, at most")
  made.add_argument("--serve", action="store_true", help="leave the page open")
  return made


if __name__ == "__main__":
  main()
