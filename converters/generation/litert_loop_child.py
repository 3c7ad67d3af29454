"""Runs conversations in LiteRT as LiteRT-LM does, in a separate process: one buffer for each cache
before and after a call. See `bundle/children.py`.

It is a script that needs only LiteRT and NumPy. LiteRT's Interpreter has separate buffers, and
cannot see a file that reads a cache after it has written it.
"""

from __future__ import annotations

import runpy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ai_edge_litert.compiled_model import CompiledModel
from ai_edge_litert.hardware_accelerator import HardwareAccelerator
from ai_edge_litert.options import CpuOptions, Options

_calls = runpy.run_path(str(Path(__file__).parents[1] / "bundle" / "calls.py"))
_greedy = runpy.run_path(str(Path(__file__).with_name("greedy.py")))

# What LiteRT-LM 0.18.1 has in its mask where a token sees nothing.
_HIDDEN = np.float32(-0.7 * np.finfo(np.float32).max)


def main(request: Mapping[str, Any]) -> list[dict[str, Any]]:
  """{"model": path, "embedder": path or "", "weights": path of a new file, "sizes": [tokens of each
  prefill], "length": of the cache, "vocabulary": its size, "one_buffer": bool, "conversations":
  [[(prompt, new)]]} -> [{"turns": [tokens], "logits": [f32[n,V]]}]."""
  # Without the file, packed weights are in memory once for each signature.
  on_cpu = CpuOptions(num_threads=1, xnnpack_weight_cache_path=request["weights"])
  options = Options(hardware_accelerators=HardwareAccelerator.CPU, cpu_options=on_cpu)
  model = CompiledModel.from_file(request["model"], options=options)
  embedder = CompiledModel.from_file(request["embedder"]) if request["embedder"] else None
  answers = []
  for conversation in request["conversations"]:
    turns, logits = _greedy["greedy"](_session(model, embedder, request), conversation)
    answers.append({"turns": turns, "logits": logits})
    _calls["done"]()
  return answers


def _session(
  model: Any, embedder: Any, request: Mapping[str, Any]
) -> Callable[[Sequence[int]], np.ndarray]:
  decode = model.get_signature_list()["decode"]
  names = [name for name in decode["inputs"] if name.startswith("kv_cache_")]
  cache = {name: _empty(model, name) for name in names}
  spare = {name: _empty(model, name) for name in names}
  read = 0

  def call(signature: str, tokens: Sequence[int], size: int) -> Any:
    """Runs a signature, and returns the buffer of its logits, if it has one."""
    nonlocal cache, spare
    inputs = {
      name: model.create_input_buffer_by_name(signature, name)
      for name in model.get_signature_list()[signature]["inputs"]
      if name not in cache
    }
    filled = _filled(tokens, read, size, request["length"])
    if embedder is not None:
      filled["embeddings"] = _embeddings(embedder, filled["tokens"])
    for name, buffer in inputs.items():
      buffer.write(filled[name])
    after = cache if request["one_buffer"] else spare
    outputs = {
      name: after[name] if name in after else model.create_output_buffer_by_name(signature, name)
      for name in model.get_signature_list()[signature]["outputs"]
    }
    model.run_by_name(signature, inputs | cache, outputs)
    if not request["one_buffer"]:
      cache, spare = spare, cache
    return outputs.get("logits")

  def session(tokens: Sequence[int]) -> np.ndarray:
    nonlocal read
    begin = 0
    logits: Any = None
    for count in _greedy["pieces"](len(tokens), request["sizes"]):
      is_last = begin + count == len(tokens)
      size = 1 if is_last else min(size for size in request["sizes"] if size >= count)
      signature = "decode" if is_last else f"prefill_{size}"
      logits = call(signature, tokens[begin : begin + count], size)
      begin, read = begin + count, read + count
    found: np.ndarray = logits.read(request["vocabulary"], np.float32)
    return found

  return session


def _filled(tokens: Sequence[int], read: int, size: int, length: int) -> dict[str, np.ndarray]:
  """The inputs besides the cache, filled up as the engine does."""
  positions = read + np.arange(len(tokens))
  ids = np.zeros((1, size), np.int32)
  ids[0, : len(tokens)] = tokens
  input_pos = np.zeros(size, np.int32)
  input_pos[: len(tokens)] = positions
  mask = np.full((1, 1, size, length), _HIDDEN, np.float32)
  mask[0, 0, : len(tokens)][np.arange(length) <= positions[:, None]] = 0
  return {"tokens": ids, "input_pos": input_pos, "mask": mask}


def _embeddings(embedder: Any, tokens: np.ndarray) -> np.ndarray:
  """f32[1,s,D] of tokens i32[1,s], made one at a time."""
  taken = embedder.create_input_buffer_by_name("embedder", "token_ids")
  given = embedder.create_output_buffer_by_name("embedder", "embeddings")
  width = int(embedder.get_output_tensor_details("embedder")["embeddings"]["shape"][2])
  rows = []
  for token in tokens[0]:
    taken.write(token.reshape(1, 1))
    embedder.run_by_name("embedder", {"token_ids": taken}, {"embeddings": given})
    rows.append(given.read(width, np.float32))
  return np.stack(rows)[None]


def _empty(model: Any, name: str) -> Any:
  """A buffer of zeros."""
  buffer = model.create_input_buffer_by_name("decode", name)
  details = model.get_input_tensor_details("decode")[name]
  buffer.write(np.zeros(tuple(details["shape"]), details["dtype"]))
  return buffer


if __name__ == "__main__":
  _calls["respond"](main)
