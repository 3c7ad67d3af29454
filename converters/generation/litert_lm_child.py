"""Runs conversations in LiteRT-LM, in a separate process. See `bundle/children.py`.

It is a script that needs only litert-lm-api. For conversations the bundle's tokenizer has one
character for each token.
"""

from __future__ import annotations

import runpy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import litert_lm

_calls = runpy.run_path(str(Path(__file__).parents[1] / "bundle" / "calls.py"))


def main(request: Mapping[str, Any]) -> Any:
  """{"model": path, "cache": folder, "first": code point of token 0, "conversations": [[(prompt,
  new)]]} -> [{"turns": [tokens], "problem": text}]; or {"model", "cache", "prompt": text, "new":
  tokens} -> {"text", "problem"}."""
  litert_lm.set_min_log_severity(litert_lm.LogSeverity.ERROR)
  engine = litert_lm.Engine(
    request["model"], backend=litert_lm.Backend.CPU(), cache_dir=request["cache"]
  )
  if "prompt" in request:
    return _continued(engine, request["prompt"], request["new"])
  answers = []
  for conversation in request["conversations"]:
    answers.append(_generated(engine, conversation, request["first"]))
    _calls["done"]()
  engine.close()
  return answers


def _continued(engine: Any, prompt: str, new: int) -> dict[str, str]:
  try:
    with _session(engine, new) as session:
      session.run_prefill([prompt])
      return {"text": session.run_decode().texts[0], "problem": ""}
  except Exception as error:  # what the engine refuses
    return {"text": "", "problem": _calls["sentence"](error)}


def _session(engine: Any, most: int) -> Any:
  greedy = litert_lm.SamplerConfig(top_k=1, top_p=1.0, temperature=1.0)
  return engine.create_session(
    apply_prompt_template=False, max_output_tokens=most, sampler_config=greedy
  )


def _generated(
  engine: Any, conversation: Sequence[tuple[Sequence[int], int]], first: int
) -> dict[str, Any]:
  turns: list[list[int]] = []
  most = max(new for _, new in conversation)  # a session has one limit for all its turns
  try:
    with _session(engine, most) as session:
      for prompt, _ in conversation:
        session.run_prefill(["".join(chr(first + token) for token in prompt)])
        text = session.run_decode().texts[0]
        turns.append([ord(character) - first for character in text])
  except Exception as error:  # what the engine refuses
    return {"turns": turns, "problem": _calls["sentence"](error)}
  return {"turns": turns, "problem": ""}


if __name__ == "__main__":
  _calls["respond"](main)
