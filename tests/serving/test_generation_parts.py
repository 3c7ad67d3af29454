"""What generates text in a server, without a server: sampling, growing texts, requests, templates,
limits."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from jax2tf.tools.serving import balance, generating, streams
from jax2tf.tools.serving.generation import requests, templates, texts
from jax2tf.tools.serving.generation.requests import CHAT, COMPLETIONS, BadRequestError
from jax2tf.tools.serving.generation.sampling import Sampler, Sampling
from jax2tf.tools.serving.model import RefusedError
from jax2tf.tools.serving.streams import Part

LOGITS = np.log(np.float32([0.1, 0.4, 0.4, 0.06, 0.04, 0]) + np.float32(1e-38))


def _drawn(count: int, **options: Any) -> list[int]:
  sampler = Sampler(Sampling(**options))
  return [sampler(LOGITS) for _ in range(count)]


def test_temperature_0_takes_the_first_of_the_most_probable() -> None:
  assert _drawn(3, temperature=0) == [1, 1, 1]


def test_tokens_are_drawn_by_their_probabilities() -> None:
  shares = np.bincount(_drawn(4000, seed=0), minlength=6) / 4000
  # three standard deviations of a share of 0.4 are 0.023
  np.testing.assert_allclose(shares, [0.1, 0.4, 0.4, 0.06, 0.04, 0], atol=0.025)
  cold = np.bincount(_drawn(4000, seed=0, temperature=0.5), minlength=6) / 4000
  np.testing.assert_allclose(cold[:3], np.square([0.1, 0.4, 0.4]) / 0.3352, atol=0.025)


def test_a_seed_repeats_the_tokens() -> None:
  assert _drawn(50, seed=3) == _drawn(50, seed=3) != _drawn(50, seed=4)


@pytest.mark.parametrize(
  ("options", "tokens"),
  [
    ({"top_k": 1}, {1}),
    ({"top_k": 2}, {1, 2}),
    ({"top_p": 0.3}, {1}),
    ({"top_p": 0.75}, {1, 2}),
    ({"top_p": 0.85}, {0, 1, 2}),
    ({"top_p": 0.0}, {1}),
    ({"top_k": 2, "top_p": 0.45}, {1}),
    ({"top_k": 99, "top_p": 1.0}, {0, 1, 2, 3, 4}),
    ({"temperature": 1e-300}, {1, 2}),
  ],
)
def test_only_the_most_probable_tokens_are_drawn(options: dict[str, Any], tokens: set[int]) -> None:
  assert {*_drawn(300, seed=1, **options)} == tokens


@pytest.mark.parametrize("bad", [[0, np.nan], [0, np.inf], [-np.inf, -np.inf]])
def test_logits_that_are_no_numbers_are_refused(bad: list[float]) -> None:
  with pytest.raises(ValueError, match="not numbers"):
    Sampler(Sampling())(np.float32(bad))


class _Bytes:
  """A tokenizer of bytes which drops a space before the first token, as some do."""

  def encode(self, text: str) -> list[int]:
    return list(text.encode())

  def decode(self, tokens: Sequence[int]) -> str:
    return bytes(tokens).decode(errors="replace").removeprefix(" ")

  def piece(self, token: int) -> str:
    return chr(token)


@pytest.mark.parametrize(
  "text", ["a é 漢字 😀!", "漢 " * 100, "x" * 200, "e\N{COMBINING ACUTE ACCENT}"]
)
def test_a_text_grows_by_whole_characters(text: str) -> None:
  growing = texts.Growing(_Bytes())
  parts = [growing.add(token) for token in _Bytes().encode(text)]
  assert "\N{REPLACEMENT CHARACTER}" not in "".join(parts)
  assert "".join(parts) + growing.end() == text


def test_bytes_that_are_no_character_come_at_the_end() -> None:
  growing = texts.Growing(_Bytes())
  assert [growing.add(token) for token in b"a\xe6\xbc"] == ["a", "", ""]
  assert growing.end() == "\N{REPLACEMENT CHARACTER}"


def test_sentencepiece_reads_and_writes_text(tmp_path: Path) -> None:
  import sentencepiece  # noqa: PLC0415

  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(["the cat sat on the mat", "a cat and a hat"] * 20),
    model_prefix=str(tmp_path / "tiny"),
    vocab_size=60,
    byte_fallback=False,
    hard_vocab_limit=False,
  )
  tokenizer = texts.tokenizer_of(tmp_path / "tiny.model")
  growing = texts.Growing(tokenizer)
  parts = [growing.add(token) for token in tokenizer.encode("the hat and a mat")]
  assert "".join(parts) + growing.end() == "the hat and a mat"
  assert tokenizer.piece(1) == "<s>"


def test_a_stop_string_is_not_sent() -> None:
  stops = texts.Stops(["END", "<|"])
  assert stops.add("one E") == ("one ", False)
  assert stops.add("N") == ("", False)
  assert stops.add("T <") == ("ENT ", False)
  assert stops.add("b EN") == ("<b ", False)
  assert stops.add("D and") == ("", True)


def test_a_begun_stop_string_is_sent_at_the_end() -> None:
  stops = texts.Stops(["aab"])
  assert stops.add("aaa") == ("a", False)
  assert stops.end() == "aa"


@pytest.mark.parametrize(
  ("path", "fields", "said"),
  [
    (COMPLETIONS, {"prompt": "a"}, "name the model"),
    (COMPLETIONS, {"model": "m"}, "prompt must be a text"),
    (COMPLETIONS, {"model": "m", "prompt": ["a", "b"]}, "one text"),
    (COMPLETIONS, {"model": "m", "prompt": [1, 2.5]}, "one list of token ids"),
    (COMPLETIONS, {"model": "m", "prompt": "a", "n": 2}, "this server has no n"),
    (COMPLETIONS, {"model": "m", "prompt": "a", "logprobs": 0}, "no logprobs"),
    (COMPLETIONS, {"model": "m", "prompt": "a", "best": 2}, "no field 'best'"),
    (COMPLETIONS, {"model": "m", "prompt": "a", "temperature": -1}, "from 0 to 100"),
    (COMPLETIONS, {"model": "m", "prompt": "a", "temperature": "1"}, "must be a number"),
    (COMPLETIONS, {"model": "m", "prompt": "a", "top_p": 1.5}, "from 0 to 1"),
    (COMPLETIONS, {"model": "m", "prompt": "a", "max_tokens": 0}, "from 1"),
    (COMPLETIONS, {"model": "m", "prompt": "a", "seed": 1.5}, "must be an integer"),
    (COMPLETIONS, {"model": "m", "prompt": "a", "stop": [1]}, "stop must be a text"),
    (COMPLETIONS, {"model": "m", "prompt": "a", "stream": 1}, "true or false"),
    (COMPLETIONS, {"model": "m", "prompt": "a", "messages": []}, "no field 'messages'"),
    (CHAT, {"model": "m", "messages": []}, "at least one message"),
    (CHAT, {"model": "m", "messages": [{"role": "user"}]}, "must be text"),
    (CHAT, {"model": "m", "messages": [{"content": "a"}]}, "with a role"),
    (
      CHAT,
      {"model": "m", "messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
      "must be text",
    ),
    (CHAT, {"model": "m", "messages": [{}], "tools": [{}]}, "no tools"),
  ],
)
def test_what_cannot_be_answered_is_refused(path: str, fields: Any, said: str) -> None:
  with pytest.raises(BadRequestError, match=said):
    requests.parse(path, json.dumps(fields).encode())


def test_fields_of_a_request() -> None:
  parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
  asked = requests.of_fields(
    CHAT,
    {
      "model": "m",
      "messages": [{"role": "user", "content": parts}],
      "max_tokens": 5.0,  # as gRPC's Struct has it
      "n": 1,
      "top_k": -1,
      "stop": "x",
      "user": "someone",
      "seed": None,
    },
  )
  assert asked.messages == ({"role": "user", "content": "ab"},)
  assert (asked.max_tokens, asked.stop) == (5, ("x",))
  assert asked.sampling == Sampling()
  assert requests.of_fields(COMPLETIONS, {"model": "m", "prompt": [[1, 2.0]]}).prompt == (1, 2)


def test_a_template_makes_a_prompt() -> None:
  source = (
    "{{ bos_token }}{% for m in messages %}\n{{ m.role }}: {{ m.content | tojson }}\n{% endfor %}\n"
    "{% if add_generation_prompt %}model:{% endif %}"
  )
  template = templates.Template(source, "<s>", "</s>")
  assert template([{"role": "user", "content": "é"}]) == '<s>user: "é"\nmodel:'


@pytest.mark.parametrize(
  "source",
  ["{{ raise_exception('no system') }}", "{{ ''.__class__.__mro__ }}", "{{ messages + 1 }}"],
)
def test_a_template_that_fails_is_an_error_of_the_request(source: str) -> None:
  with pytest.raises(templates.TemplateError, match="refuses these messages"):
    templates.Template(source, "", "")([])


def test_sessions_and_their_caches_are_bounded() -> None:
  sessions = generating.Sessions(2, 100)
  with sessions.place(60):
    with pytest.raises(RefusedError, match="1 texts are being generated") as refused:
      sessions.place(50).__enter__()
    assert refused.value.code == grpc.StatusCode.RESOURCE_EXHAUSTED
    with sessions.place(40), pytest.raises(RefusedError, match="2 texts"):
      sessions.place(0).__enter__()
  assert (sessions.count, sessions.cache_bytes) == (0, 0)
  with pytest.raises(RefusedError, match="larger --max_cache_mb") as refused:
    sessions.place(101).__enter__()
  assert refused.value.code == grpc.StatusCode.FAILED_PRECONDITION


@contextlib.asynccontextmanager
async def _replica(socket: Path, stream: Any) -> AsyncIterator[None]:
  server = grpc.aio.server()
  handler = grpc.unary_stream_rpc_method_handler(stream)
  server.add_generic_rpc_handlers(
    (grpc.method_handlers_generic_handler(balance.REST_SERVICE, {streams.METHOD: handler}),)
  )
  server.add_insecure_port(f"unix:{socket}")
  await server.start()
  yield
  await server.stop(None)


async def _full(data: bytes, context: Any) -> None:
  del data
  await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "full")


def test_a_stream_is_of_a_replica_with_room_and_as_fast_as_its_reader(tmp_path: Path) -> None:
  written, ended = 0, asyncio.Event()

  async def endless(data: bytes, context: Any) -> None:
    nonlocal written
    assert data == b"question"
    try:
      while True:
        await context.write(Part(bytes(1 << 16), tokens=1).encoded())
        written += 1
    finally:
      ended.set()

  async def run() -> None:
    nonlocal written
    replicas = balance.Replicas(tmp_path)
    async with _replica(tmp_path / "1.sock", _full), _replica(tmp_path / "2.sock", endless):
      looking = asyncio.create_task(replicas.look())
      while replicas.count < 2:
        await asyncio.sleep(0.01)
      for _ in range(2):  # either is the first once
        ended.clear()
        async with contextlib.aclosing(replicas.stream(b"question", None)) as parts:
          part = await anext(parts)
          assert (len(part.data), part.tokens) == (1 << 16, 1)
          await asyncio.sleep(0.5)  # until the buffers on the way are full
          written = 0
          await asyncio.sleep(0.2)
          assert written == 0
        await asyncio.wait_for(ended.wait(), 10)
      looking.cancel()

  asyncio.run(run())


def test_a_stream_of_full_replicas_is_refused(tmp_path: Path) -> None:
  async def run() -> None:
    replicas = balance.Replicas(tmp_path)
    async with _replica(tmp_path / "1.sock", _full), _replica(tmp_path / "2.sock", _full):
      looking = asyncio.create_task(replicas.look())
      while replicas.count < 2:
        await asyncio.sleep(0.01)
      with pytest.raises(balance.RefusedError, match="full") as refused:
        await anext(replicas.stream(b"question", None))
      assert refused.value.code == grpc.StatusCode.RESOURCE_EXHAUSTED
      looking.cancel()

  asyncio.run(run())
