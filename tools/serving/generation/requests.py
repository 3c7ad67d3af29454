"""Reads the bodies of OpenAI's API: `/v1/completions` and `/v1/chat/completions`.

A field that would change the text, and that this server does not have, is refused unless it has the
value that changes nothing. So a client gets no other text than it asked for.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jax2tf.tools.serving.generation.sampling import Sampling

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
_STOPS = 16  # strings
_COMPLETION_TOKENS = 16  # OpenAI's default of max_tokens there
# Fields that change nothing here: accounts, logs and prices.
_IGNORED = {
  "metadata",
  "parallel_tool_calls",
  "prompt_cache_key",
  "prompt_cache_retention",
  "safety_identifier",
  "service_tier",
  "store",
  "user",
}
# {field: its values that ask for nothing}
_NEUTRAL: Mapping[str, Sequence[Any]] = {
  "audio": (None,),
  "best_of": (None, 1),
  "echo": (None, False),
  "frequency_penalty": (None, 0),
  "function_call": (None, "none"),
  "functions": (None, []),
  "logit_bias": (None, {}),
  "logprobs": (None, False),
  "modalities": (None, ["text"]),
  "moderation": (None,),
  "n": (None, 1),
  "prediction": (None,),
  "presence_penalty": (None, 0),
  "reasoning_effort": (None, "none"),
  "response_format": (None, {"type": "text"}),
  "suffix": (None, ""),
  "tool_choice": (None, "none"),
  "tools": (None, []),
  "top_logprobs": (None, 0),
  "verbosity": (None,),
  "web_search_options": (None,),
}
_COMMON = {
  "max_tokens",
  "model",
  "return_token_ids",
  "seed",
  "stop",
  "stream",
  "stream_options",
  "temperature",
  "top_k",
  "top_p",
}
_OWN = {COMPLETIONS: {"prompt"}, CHAT: {"messages", "max_completion_tokens"}}


class BadRequestError(Exception):
  """A request that is not understood.

  Attributes:
    reason: a sentence for the client.
    field: the name of the field; empty if it is the whole body.
  """

  def __init__(self, reason: str, field: str = ""):
    super().__init__(reason)
    self.reason, self.field = reason, field


@dataclass(frozen=True)
class Asked:
  """A request.

  Attributes:
    path: `COMPLETIONS` or `CHAT`.
    model: its name.
    prompt: text or tokens; empty for a chat.
    messages: of a chat.
    sampling: how tokens are chosen.
    max_tokens: how many are chosen at most; None for as many as fit into the cache.
    stop: strings that end the text.
    stream: whether the text is sent while it grows.
    usage: whether a stream ends with the numbers of tokens.
    token_ids: whether the answer has the tokens too.
  """

  path: str
  model: str
  prompt: str | tuple[int, ...]
  messages: tuple[Mapping[str, Any], ...]
  sampling: Sampling
  max_tokens: int | None
  stop: tuple[str, ...]
  stream: bool
  usage: bool
  token_ids: bool


def parse(path: str, body: bytes) -> Asked:
  """The request of a body. Raises BadRequestError for one that is none."""
  try:
    fields = json.loads(body)
  except (ValueError, RecursionError) as error:
    raise BadRequestError(f"the body is not JSON: {error}") from error
  if not isinstance(fields, dict):
    raise BadRequestError("the body must be an object")
  return of_fields(path, fields)


def of_fields(path: str, fields: Mapping[str, Any]) -> Asked:
  """The request of the fields of a body. Raises BadRequestError for one that is none."""
  _check_names(path, fields)
  given = {name: value for name, value in fields.items() if value is not None}
  model = given.get("model")
  if not isinstance(model, str) or not model:
    raise BadRequestError("name the model; GET /v1/models lists them", "model")
  options = given.get("stream_options", {})
  if not isinstance(options, dict):
    raise BadRequestError("stream_options must be an object", "stream_options")
  return Asked(
    path=path,
    model=model,
    prompt=_prompt(given) if path == COMPLETIONS else "",
    messages=_messages(given) if path == CHAT else (),
    sampling=Sampling(
      temperature=_number(given, "temperature", 1.0, 0, 100),
      top_k=max(_integer(given, "top_k", 0, -1, 2**31), 0),  # some clients write -1 for all
      top_p=_number(given, "top_p", 1.0, 0, 1),
      seed=_integer(given, "seed", None, 0, 2**63),
    ),
    max_tokens=_most_tokens(path, given),
    stop=_stop(given.get("stop", [])),
    stream=_flag(given, "stream"),
    usage=_flag(options, "include_usage"),
    token_ids=_flag(given, "return_token_ids"),
  )


def _check_names(path: str, fields: Mapping[str, Any]) -> None:
  for name, value in fields.items():
    if name in _NEUTRAL:
      if not any(_same(value, neutral) for neutral in _NEUTRAL[name]):
        raise BadRequestError(f"this server has no {name}; leave it out", name)
    elif name not in _COMMON | _OWN[path] | _IGNORED:
      raise BadRequestError(f"there is no field {name[:100]!r}", name[:100])


def _same(value: Any, other: Any) -> bool:
  # 0 == False in Python, and OpenAI's `logprobs` is another request with each
  return isinstance(value, bool) == isinstance(other, bool) and bool(value == other)


def _prompt(given: Mapping[str, Any]) -> str | tuple[int, ...]:
  prompt = given.get("prompt")
  if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
    [prompt] = prompt  # a batch of one
  if isinstance(prompt, str):
    return prompt
  if not isinstance(prompt, list):
    raise BadRequestError("prompt must be a text, or a list of token ids", "prompt")
  tokens = [_whole(token) for token in prompt]
  if None in tokens:
    raise BadRequestError("prompt must be one text, or one list of token ids", "prompt")
  return tuple(token for token in tokens if token is not None)


def _messages(given: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
  messages = given.get("messages")
  if not isinstance(messages, list) or not messages:
    raise BadRequestError("messages must be a list of at least one message", "messages")
  return tuple(map(_message, messages))


def _message(message: Any) -> Mapping[str, Any]:
  if not isinstance(message, dict) or not isinstance(message.get("role"), str):
    raise BadRequestError("each message must be an object with a role and a content", "messages")
  content = message.get("content")
  if isinstance(content, list):
    parts = [
      part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
      for part in content
    ]
    texts = [part for part in parts if isinstance(part, str)]
    content = "".join(texts) if len(texts) == len(parts) else None
  if not isinstance(content, str):
    raise BadRequestError("the content of a message must be text", "messages")
  return {**message, "content": content}


def _most_tokens(path: str, given: Mapping[str, Any]) -> int | None:
  default = _COMPLETION_TOKENS if path == COMPLETIONS else None
  most = _integer(given, "max_tokens", default, 1, 2**31)
  return _integer(given, "max_completion_tokens", most, 1, 2**31)


def _stop(value: Any) -> tuple[str, ...]:
  strings = [value] if isinstance(value, str) else value
  is_list = isinstance(strings, list) and all(isinstance(each, str) for each in strings)
  if not is_list or len(strings) > _STOPS:
    raise BadRequestError(f"stop must be a text, or a list of at most {_STOPS} texts", "stop")
  return tuple(strings)


def _flag(given: Mapping[str, Any], name: str) -> bool:
  value = given.get(name, False)
  if not isinstance(value, bool):
    raise BadRequestError(f"{name} must be true or false", name)
  return value


def _number(given: Mapping[str, Any], name: str, default: float, low: float, high: float) -> float:
  value = given.get(name, default)
  if isinstance(value, bool) or not isinstance(value, int | float):
    raise BadRequestError(f"{name} must be a number", name)
  if not low <= value <= high or not math.isfinite(value):
    raise BadRequestError(f"{name} is {value}; it must be from {low} to {high}", name)
  return float(value)


def _integer(given: Mapping[str, Any], name: str, default: Any, low: int, high: int) -> Any:
  if name not in given:
    return default
  value = _whole(given[name])
  if value is None:
    raise BadRequestError(f"{name} must be an integer", name)
  if not low <= value < high:
    raise BadRequestError(f"{name} is {value}; it must be from {low} to {high - 1}", name)
  return value


def _whole(value: Any) -> int | None:
  """An integer, which gRPC's Struct has as a float; None for other values."""
  if isinstance(value, float) and value.is_integer():
    return int(value)
  return value if isinstance(value, int) and not isinstance(value, bool) else None
