"""Generates the texts that clients ask a replica for, a few at a time."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import re
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from google.protobuf import json_format, message, struct_pb2

from jax2tf.tools.serving.generation import requests
from jax2tf.tools.serving.generation.answers import Answer
from jax2tf.tools.serving.generation.requests import Asked
from jax2tf.tools.serving.generation.writer import Step, Text, Writer
from jax2tf.tools.serving.model import Model, RefusedError, invalid
from jax2tf.tools.serving.streams import OVER_GRPC, Part, verb_path_body

_EVENTS, _JSON = "text/event-stream", "application/json"
_MODEL = re.compile(
  r"(?P<name>[^/:]+)(?:/versions/(?P<version>[0-9]{1,19})|/labels/(?P<label>.+))?"
)

# (name, version, label) -> the model. Raises RefusedError.
Find = Callable[[str, int | None, str], Model]


class Sessions:
  """Counts the texts in the making, at most `most`, and the bytes of their caches.

  Attributes:
    count, cache_bytes: of the texts now.
  """

  def __init__(self, most: int, most_bytes: int):
    self._most, self._most_bytes = most, most_bytes
    self.count = self.cache_bytes = 0

  @contextlib.contextmanager
  def place(self, size: int) -> Iterator[None]:
    """Counts one text during the block.

    Args:
      size: of its cache.

    Raises:
      RefusedError: there are too many, or the cache of this one alone is larger than all may be.
    """
    if size > self._most_bytes:
      raise RefusedError(
        grpc.StatusCode.FAILED_PRECONDITION,
        f"the cache of one text has {size} bytes, and this server has {self._most_bytes} for all; "
        "start it with a larger --max_cache_mb",
      )
    if self.count >= self._most or self.cache_bytes + size > self._most_bytes:
      raise RefusedError(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        f"{self.count} texts are being generated, with caches of {self.cache_bytes} bytes, which "
        "is the limit; send it later",
      )
    self.count += 1
    self.cache_bytes += size
    try:
      yield
    finally:
      self.count -= 1
      self.cache_bytes -= size


class Service:
  """Answers requests in parts."""

  def __init__(self, find: Find, sessions: Sessions):
    self._find, self._sessions = find, sessions
    # Steps of different texts take turns: two at once are no faster, since a step uses all cores.
    self._steps = ThreadPoolExecutor(max_workers=1, thread_name_prefix="generation")

  async def parts(self, request: bytes) -> AsyncGenerator[Part]:
    """The parts of the answer to a request of `streams`. When the caller ends it, the text ends
    with the token that is being computed.

    Raises:
      RefusedError: the request cannot be answered.
    """
    form, path, body = verb_path_body(request)
    try:
      over_grpc = form == OVER_GRPC
      asked = await asyncio.to_thread(_of_struct if over_grpc else requests.parse, path, body)
      model = self._model(asked.model)
      writer = _writer(asked.model, model)
      prompt = await asyncio.to_thread(writer.prompt, asked)
      if not writer.writes_text:
        asked = dataclasses.replace(asked, token_ids=True)
    except requests.BadRequestError as error:
      raise invalid(error.reason) from error
    with self._sessions.place(writer.cache_bytes):
      name = asked.model.partition("/")[0]
      yield Part(
        cache_bytes=writer.cache_bytes,
        media_type=_EVENTS if asked.stream else _JSON,
        model=name,
        version=str(model.version),
      )
      text = await self._in_turn(writer.begin, asked, prompt)
      if over_grpc:
        parts = self._stream(asked, text, _message)
      else:
        parts = self._stream(asked, text, _event) if asked.stream else self._whole(asked, text)
      async for part in parts:
        yield part

  async def _stream(
    self, asked: Asked, text: Text, encode: Callable[[Mapping[str, Any]], bytes]
  ) -> AsyncGenerator[Part]:
    answer, finish = Answer(asked), ""
    while not finish:
      step = await self._in_turn(text.step)
      finish = step.finish
      chunk = answer.chunk(step)
      yield _part(text, encode(chunk) if chunk else b"")
    if asked.usage:
      yield _part(text, encode(answer.usage(text)))
    if encode is _event:
      yield _part(text, b"data: [DONE]\n\n")

  async def _whole(self, asked: Asked, text: Text) -> AsyncGenerator[Part]:
    steps: list[Step] = []
    while not steps or not steps[-1].finish:
      steps.append(await self._in_turn(text.step))
      if len(steps) == 1:
        yield _part(text)  # for the time to the first token
    yield _part(text, json.dumps(Answer(asked).whole(steps, text)).encode())

  async def _in_turn(self, work: Callable[..., Any], *arguments: Any) -> Any:
    return await asyncio.get_running_loop().run_in_executor(self._steps, work, *arguments)

  def _model(self, asked: str) -> Model:
    match = _MODEL.fullmatch(asked)
    if match is None:
      raise invalid(f"model is {asked[:100]!r}; write NAME, NAME/versions/N or NAME/labels/L")
    version = int(match["version"]) if match["version"] else None
    return self._find(match["name"], version, match["label"] or "")


def _writer(name: str, model: Model) -> Writer:
  if model.writer is None:
    raise invalid(
      f"model {name!r} generates no text: it was not saved by jax2tf.converters.generation with "
      "target='saved_model'; send :predict"
    )
  return model.writer


def listed(names: Sequence[str], created: int) -> bytes:
  """The body of GET /v1/models."""
  data = [
    {"id": name, "object": "model", "created": created, "owned_by": "jax2tf"} for name in names
  ]
  return json.dumps({"object": "list", "data": data}).encode()


def _part(text: Text, data: bytes = b"") -> Part:
  return Part(data, text.tokens, text.seconds)


def _event(chunk: Mapping[str, Any]) -> bytes:
  return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def _message(chunk: Mapping[str, Any]) -> bytes:
  encoded: bytes = json_format.ParseDict(dict(chunk), struct_pb2.Struct()).SerializeToString()
  return encoded


def _of_struct(path: str, body: bytes) -> Asked:
  try:
    fields = json_format.MessageToDict(struct_pb2.Struct.FromString(body))
  except (message.DecodeError, json_format.Error, RecursionError) as error:
    raise requests.BadRequestError(f"the request is no google.protobuf.Struct: {error}") from error
  return requests.of_fields(path, fields)
