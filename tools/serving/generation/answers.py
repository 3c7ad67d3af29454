"""Writes steps of a text as the objects of OpenAI's API."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Any

from jax2tf.tools.serving.generation.requests import CHAT, Asked
from jax2tf.tools.serving.generation.writer import Step, Text


class Answer:
  """The objects that answer one request: chunks of a stream, or one for the whole text."""

  def __init__(self, asked: Asked):
    self._asked = asked
    self._is_chat = asked.path == CHAT
    self._begun = False
    self._common = {
      "id": f"{'chatcmpl' if self._is_chat else 'cmpl'}-{uuid.uuid4().hex}",
      "created": int(time.time()),
      "model": asked.model,
    }

  def chunk(self, step: Step) -> dict[str, Any] | None:
    """The chunk of a step; None for one that has nothing to say."""
    choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": step.finish or None}
    if self._asked.token_ids:
      choice["token_ids"] = list(step.tokens)
    elif not (step.text or step.finish):
      return None
    if self._is_chat:
      role = {} if self._begun else {"role": "assistant"}
      choice["delta"] = {**role, "content": step.text}
    else:
      choice["text"] = step.text
    self._begun = True
    return self._object([choice], ".chunk", {"usage": None} if self._asked.usage else {})

  def usage(self, text: Text) -> dict[str, Any]:
    """The chunk that ends a stream with the numbers of tokens."""
    return self._object([], ".chunk", {"usage": _usage(text)})

  def whole(self, steps: Sequence[Step], text: Text) -> dict[str, Any]:
    """The answer to a request without a stream."""
    content = "".join(step.text for step in steps)
    choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": steps[-1].finish}
    if self._asked.token_ids:
      choice["token_ids"] = [token for step in steps for token in step.tokens]
    if self._is_chat:
      choice["message"] = {"role": "assistant", "content": content, "refusal": None}
    else:
      choice["text"] = content
    return self._object([choice], "", {"usage": _usage(text)})

  def _object(self, choices: list[Any], suffix: str, more: dict[str, Any]) -> dict[str, Any]:
    kind = f"chat.completion{suffix}" if self._is_chat else "text_completion"
    return {**self._common, "object": kind, "choices": choices, **more}


def _usage(text: Text) -> dict[str, int]:
  return {
    "prompt_tokens": text.prompt_tokens,
    "completion_tokens": text.tokens,
    "total_tokens": text.prompt_tokens + text.tokens,
  }
