"""`jax2tf serve` streams text: OpenAI's routes and gRPC, asked by plain clients."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tokenizers
from google.protobuf import json_format, struct_pb2

from jax2tf.converters import generation, saved_model
from jax2tf.converters.generation import Turn, loops
from tests.support import byte_tokenizer, clients
from tests.support import tiny_decoder as tiny

CONTEXT = 4096  # long enough for a text that is not finished before the next request comes
PROMPT = "a 漢!"
TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}:"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
  return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> tokenizers.Tokenizer:
  """A tokenizer of bytes, of which a character may take several tokens."""
  text = "abcdefghijklmnopqrstuvwxyz .,:!?'-é漢😀"
  made = byte_tokenizer.made(of=text, after=["<s>", "</s>"])
  assert made.get_vocab_size() <= tiny.VOCABULARY
  made.save(str(folder / "tokenizer.json"))
  return made


@pytest.fixture(scope="module")
def decoder(folder: Path, tokenizer: tokenizers.Tokenizer) -> generation.Decoder:
  return tiny.counting_decoder(
    context_length=CONTEXT,
    stop_tokens=[tokenizer.token_to_id("</s>")],
    start_token=tokenizer.token_to_id("<s>"),
    tokenizer=folder / "tokenizer.json",
    chat_template=TEMPLATE,
  )


@pytest.fixture(scope="module")
def server(folder: Path, decoder: generation.Decoder) -> Iterator[clients.Server]:
  talk = (Turn((1, 2, 3), 2),)
  generation.save(decoder, folder / "tiny", target="saved_model", conversations=[talk])
  plain = {"x": "f32[b]"}
  saved_model.save(lambda w, x: w * x, np.float32(2), folder / "plain", inputs=plain)
  with clients.serving(folder, "--replicas=1", "--max_sessions=2") as running:
    yield running


Ask = Callable[..., http.client.HTTPResponse]


@pytest.fixture
def ask(server: clients.Server) -> Iterator[Ask]:
  opened: list[http.client.HTTPConnection] = []

  def call(path: str, **fields: Any) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60)
    opened.append(connection)
    if fields:
      connection.request("POST", path, json.dumps({"model": "tiny", **fields}))
    else:
      connection.request("GET", path)
    return connection.getresponse()

  yield call
  for connection in opened:
    connection.close()


def _events(response: http.client.HTTPResponse) -> list[dict[str, Any]]:
  """The events of a whole stream."""
  assert response.headers["content-type"] == "text/event-stream"
  *events, done, rest = response.read().split(b"\n\n")
  assert (done, rest) == (b"data: [DONE]", b"")
  return [json.loads(event.removeprefix(b"data: ")) for event in events]


def _metric(ask: Ask, name: str) -> float:
  lines = ask("/metrics").read().decode().splitlines()
  return sum(
    float(line.split()[-1]) for line in lines if line.startswith((f"{name} ", f"{name}{{"))
  )


def test_the_tokens_are_those_of_jax(
  ask: Ask, decoder: generation.Decoder, tokenizer: tokenizers.Tokenizer
) -> None:
  prompt = [decoder.start_token, *tokenizer.encode(PROMPT).ids]
  [expected] = loops.in_jax(decoder, loops.at_once)([(Turn(tuple(prompt), 24),)])
  options = {"prompt": PROMPT, "max_tokens": 24, "temperature": 0, "return_token_ids": True}
  *events, last = _events(
    ask("/v1/completions", **options, stream=True, stream_options={"include_usage": True})
  )
  tokens = [token for event in events for token in event["choices"][0]["token_ids"]]
  assert tokens == list(expected.turns[0])
  assert last["choices"] == []
  count = len(prompt)
  assert last["usage"] == {
    "prompt_tokens": count, "completion_tokens": 24, "total_tokens": count + 24
  }  # fmt: skip
  text = "".join(event["choices"][0]["text"] for event in events)
  assert text == tokenizer.decode(tokens)
  [choice] = json.load(ask("/v1/completions", **options))["choices"]
  assert (choice["text"], choice["token_ids"], choice["finish_reason"]) == (text, tokens, "length")


def test_a_chat_with_a_seed_and_a_stop_string(ask: Ask) -> None:
  messages = [{"role": "user", "content": PROMPT}]
  options = {"messages": messages, "seed": 1, "max_tokens": 60}
  whole = json.load(ask("/v1/chat/completions", **options))
  text = whole["choices"][0]["message"]["content"]
  assert whole["object"] == "chat.completion"
  assert json.load(ask("/v1/chat/completions", **options))["choices"] == whole["choices"]
  stop = text[4:6]
  events = _events(ask("/v1/chat/completions", **options, stop=[stop], stream=True))
  deltas = [event["choices"][0]["delta"] for event in events]
  assert deltas[0]["role"] == "assistant"
  assert "".join(delta["content"] for delta in deltas) == text[: text.index(stop)]
  assert events[-1]["choices"][0]["finish_reason"] == "stop"


def test_grpc_streams_the_same(ask: Ask, server: clients.Server) -> None:
  fields = {"model": "tiny", "prompt": PROMPT, "max_tokens": 9, "seed": 2}
  [choice] = json.load(ask("/v1/completions", **fields))["choices"]
  with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
    stream = channel.unary_stream(
      "/jax2tf.Generation/Completions",
      request_serializer=struct_pb2.Struct.SerializeToString,
      response_deserializer=struct_pb2.Struct.FromString,
    )
    chunks = [*map(json_format.MessageToDict, stream(_struct(fields), timeout=60))]
    with pytest.raises(grpc.RpcError) as refused:
      [*stream(_struct({**fields, "model": "plain"}), timeout=60)]
  assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == choice["text"]
  assert chunks[-1]["choices"][0]["finish_reason"] == choice["finish_reason"]
  assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def _struct(fields: dict[str, Any]) -> struct_pb2.Struct:
  return json_format.ParseDict(fields, struct_pb2.Struct())


def test_sessions_are_bounded_and_end_when_the_client_leaves(ask: Ask) -> None:
  endless = {"prompt": [5, 6], "max_tokens": CONTEXT, "temperature": 0, "stream": True}
  held = [ask("/v1/completions", **endless, return_token_ids=True) for _ in range(2)]
  first = [response.readline() for response in held]  # both are being generated
  refused = ask("/v1/completions", **endless)
  assert all(line.startswith(b"data: ") for line in first)
  assert (refused.status, refused.headers["retry-after"]) == (429, "1")
  assert json.load(refused)["error"]["code"] == "rate_limit_exceeded"
  assert _metric(ask, "jax2tf_sessions") == 2
  assert _metric(ask, "jax2tf_cache_bytes") == 2 * (4 * CONTEXT * 16 * 4 + 4)
  for response in held:
    response.close()
  end = time.monotonic() + 30
  while _metric(ask, "jax2tf_sessions") and time.monotonic() < end:
    time.sleep(0.02)
  generated = _metric(ask, "jax2tf_generated_tokens_total")
  assert json.load(ask("/v1/completions", prompt=[5, 6], max_tokens=1))["usage"]
  assert _metric(ask, "jax2tf_generated_tokens_total") == generated + 1


@pytest.mark.parametrize(
  ("path", "fields", "status", "said"),
  [
    ("/v1/completions", {"prompt": "a", "model": "plain"}, 400, "model 'plain' generates no text"),
    ("/v1/completions", {"prompt": "a", "model": "other"}, 404, "no model 'other' here"),
    ("/v1/completions", {"prompt": "a", "model": "tiny/versions/2"}, 404, "version 2 of 'tiny'"),
    ("/v1/completions", {"prompt": [59]}, 400, "the model tokens 0 to 58"),
    ("/v1/completions", {"prompt": [1] * CONTEXT}, 400, f"the model's context {CONTEXT}"),
    ("/v1/chat/completions", {"messages": []}, 400, "at least one message"),
    ("/v1/completions", {}, 405, "send POST"),
  ],
)
def test_refusals_have_the_form_of_openai(
  ask: Ask, path: str, fields: dict[str, Any], status: int, said: str
) -> None:
  response = ask(path, **fields)
  error = json.load(response)["error"]
  assert (response.status, error["type"]) == (status, "invalid_request_error")
  assert said in error["message"]


def test_models_and_metrics(ask: Ask) -> None:
  listed = json.load(ask("/v1/models"))["data"]
  assert [(model["id"], model["object"]) for model in listed] == [
    ("plain", "model"), ("tiny", "model")
  ]  # fmt: skip
  before = _metric(ask, "jax2tf_first_token_seconds_count")
  json.load(ask("/v1/completions", prompt="a", max_tokens=3, temperature=0))
  assert _metric(ask, "jax2tf_first_token_seconds_count") == before + 1
  assert _metric(ask, "jax2tf_tokens_per_second_count") > 0
