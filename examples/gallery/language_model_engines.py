"""Continues a text in an engine for language models, with the most probable tokens, and prints
{"text", "seconds": when each piece was there, after the first one}.

Usage: language_model_engines.py litert-lm|onnxruntime-genai MODEL PROMPT TOKENS. It imports neither
JAX nor TensorFlow.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator


def litert_lm(model: str, prompt: str, new: int) -> Iterator[str]:
  import litert_lm  # noqa: PLC0415  (one of the two engines)

  litert_lm.set_min_log_severity(litert_lm.LogSeverity.ERROR)
  greedy = litert_lm.SamplerConfig(top_k=1, top_p=1.0, temperature=1.0)
  with (
    tempfile.TemporaryDirectory() as cache,
    litert_lm.Engine(model, backend=litert_lm.Backend.CPU(), cache_dir=cache) as engine,
    engine.create_session(
      apply_prompt_template=False, max_output_tokens=new, sampler_config=greedy
    ) as session,
  ):
    session.run_prefill([prompt])
    for response in session.run_decode_async():
      yield response.texts[0]


def onnxruntime_genai(model: str, prompt: str, new: int) -> Iterator[str]:
  import onnxruntime_genai  # noqa: PLC0415

  loaded = onnxruntime_genai.Model(model)
  vocabulary = onnxruntime_genai.Tokenizer(loaded)
  tokens, stream = vocabulary.encode(prompt), vocabulary.create_stream()
  search = onnxruntime_genai.GeneratorParams(loaded)
  search.set_search_options(max_length=len(tokens) + new, do_sample=False)
  generator = onnxruntime_genai.Generator(loaded, search)
  generator.append_tokens(tokens)
  while not generator.is_done():
    generator.generate_next_token()
    if generator.token_count() > len(tokens):
      yield stream.decode(generator.get_next_tokens()[0])


def main(engine: str, model: str, prompt: str, new: int) -> None:
  pieces, times = [], []
  run = {"litert-lm": litert_lm, "onnxruntime-genai": onnxruntime_genai}[engine]
  for piece in run(model, prompt, new):
    pieces.append(piece)
    times.append(time.perf_counter())
  print(json.dumps({"text": "".join(pieces), "seconds": [t - times[0] for t in times]}))


if __name__ == "__main__":
  asked_engine, asked_model, asked_prompt, most = sys.argv[1:]
  main(asked_engine, asked_model, asked_prompt, int(most))
