"""What a proxy of `jax2tf serve` reads: bodies of slow clients, compressed bodies, and requests
whose end is not clear."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import types
import zlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import uvicorn

from jax2tf.tools.serving import balance, bodies, by_http
from tests.serving.serve_models import options

MEGABYTE = 1 << 20
BODY = b'{"instances": [[1, 2]]}'


class _Echo:
  """Replicas that answer with the body."""

  count = 1

  async def ask(
    self, service: str, method: str, data: bytes, seconds: float | None
  ) -> tuple[bytes, balance.Served]:
    del service, method, seconds
    return b"200\n" + data.partition(b"\n")[2], balance.UNKNOWN


@contextlib.asynccontextmanager
async def _proxy(tmp_path: Path) -> AsyncIterator[tuple[int, bodies.Bodies]]:
  """The port of an HTTP server that takes requests of 1 MB, and what it holds."""
  given, counted = options(tmp_path), types.SimpleNamespace(count=lambda *_: None)
  held = bodies.Bodies(given.max_bytes, given.client_seconds)
  application: Any = by_http.Application(_Echo(), balance.Queue(1000), held, counted, given)  # type: ignore[arg-type]
  config = uvicorn.Config(
    application,
    port=0,
    http=by_http.protocol(given.client_seconds),
    lifespan="off",
    log_config=None,
  )
  running = by_http.Server(config)
  serving = asyncio.create_task(running.serve())
  while not running.started:
    await asyncio.sleep(0.01)
  yield running.servers[0].sockets[0].getsockname()[1], held
  running.should_exit = True
  await serving


def _request(body: bytes, *headers: bytes, size: int | None = None) -> bytes:
  lines = [b"POST /v1/models/m:predict HTTP/1.1", b"Host: localhost", *headers]
  return b"\r\n".join(
    [*lines, b"Content-Length: %d" % (len(body) if size is None else size), b"", body]
  )


async def _sent(port: int, data: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
  reader, writer = await asyncio.open_connection("127.0.0.1", port)
  writer.write(data)
  return reader, writer


async def _answers(port: int, data: bytes) -> bytes:
  """All that comes back until the server closes the connection."""
  reader, writer = await _sent(port, data)
  found = await asyncio.wait_for(reader.read(), 30)
  writer.close()
  return found


CLOSE = b"Connection: close"
CHUNKED = b"Transfer-Encoding: chunked"
HIDDEN = b"GET /-/healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
PACKED = gzip.compress(BODY)
TWO = gzip.compress(BODY[:5]) + gzip.compress(BODY[5:])
HALF = gzip.compress(bytes(MEGABYTE // 2))
REQUESTS: dict[str, tuple[bytes, bytes, bytes]] = {
  "plain": (_request(BODY, CLOSE), b" 200 ", BODY),
  "two lengths": (_request(b"0\r\n\r\n" + HIDDEN, CHUNKED), b" 400 ", b"send one of them"),
  "gzip": (_request(PACKED, b"Content-Encoding: GZip", CLOSE), b" 200 ", BODY),
  "x-gzip": (_request(PACKED, b"Content-Encoding: x-gzip", CLOSE), b" 200 ", BODY),
  "gzip of two members": (_request(TWO, b"Content-Encoding: gzip", CLOSE), b" 200 ", BODY),
  "bytes after gzip": (
    _request(PACKED + b"more", b"Content-Encoding: gzip", CLOSE),
    b" 400 ",
    b"not gzip",
  ),
  "gzip of half a member": (
    _request(TWO[:-9], b"Content-Encoding: gzip", CLOSE),
    b" 400 ",
    b"ends too early",
  ),
  "gzip without a member": (
    _request(b"", b"Content-Encoding: gzip", CLOSE),
    b" 400 ",
    b"ends too early",
  ),
  "members too large together": (
    _request(HALF * 3, b"Content-Encoding: gzip", CLOSE),
    b" 413 ",
    b"more than 1048576 bytes",
  ),
  "tiny members": (
    _request(gzip.compress(b"") * 2000, b"Content-Encoding: gzip", CLOSE),
    b" 400 ",
    b"more than 1000 members",
  ),
  "identity": (_request(BODY, b"Content-Encoding: identity", CLOSE), b" 200 ", BODY),
  "another coding": (
    _request(BODY, b"Content-Encoding: br", CLOSE),
    b" 415 ",
    b"send gzip, or none",
  ),
  "gzip twice": (
    _request(PACKED, b"Content-Encoding: gzip", b"Content-Encoding: gzip", CLOSE),
    b" 415 ",
    b"'gzip, gzip'",
  ),
}


def test_how_a_body_may_be_sent(tmp_path: Path) -> None:
  async def run() -> dict[str, bytes]:
    async with _proxy(tmp_path) as (port, held):
      found = {name: await _answers(port, data) for name, (data, _, _) in REQUESTS.items()}
      assert held.held == 0
      return found

  found = asyncio.run(run())
  assert {name: words in found[name] for name, (_, _, words) in REQUESTS.items()} == dict.fromkeys(
    REQUESTS, True
  ), found
  assert {
    name: found[name].split(b"\r\n")[0].count(code) for name, (_, code, _) in REQUESTS.items()
  } == dict.fromkeys(REQUESTS, 1)
  assert {name: answer.count(b"HTTP/1.1 ") for name, answer in found.items()} == dict.fromkeys(
    REQUESTS, 1
  )


def test_slow_clients_share_a_budget_of_memory(tmp_path: Path) -> None:
  """Of 24 clients that send most of a large body, those fit that make 16 MB; small requests are
  answered all the time."""

  async def run() -> None:
    async with _proxy(tmp_path) as (port, held):
      body = bytes(MEGABYTE)
      connections = [await _sent(port, _request(body[:-1], size=len(body))) for _ in range(24)]
      while held.held < 15.5 * MEGABYTE:
        await asyncio.sleep(0.02)
      assert await _answers(port, _request(BODY, CLOSE)) != b""
      for _, writer in connections:
        writer.write(body[-1:])
      codes = [
        (await asyncio.wait_for(reader.readline(), 30)).split()[1] for reader, _ in connections
      ]
      assert held.held <= 16 * MEGABYTE
      assert codes.count(b"200") in (16, 17), codes  # 64 KB of each body are free
      assert codes.count(b"429") == 24 - codes.count(b"200")
      for _, writer in connections:
        writer.close()
      assert b" 200 " in await _answers(port, _request(body, CLOSE))
      assert held.held == 0

  asyncio.run(run())


@contextlib.contextmanager
def _refused(code: grpc.StatusCode, words: str) -> Iterator[None]:
  with pytest.raises(balance.RefusedError, match=words) as caught:
    yield
  assert caught.value.code == code


def test_slow_clients_by_grpc_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
  monkeypatch.setattr(bodies, "_SLOW_SECONDS", 0.1)

  async def run() -> None:
    held, never = bodies.Bodies(MEGABYTE, client_seconds=0.5), asyncio.Event()

    async def read(wait: Any) -> str:
      try:
        async with held.reading_message():
          await wait
      except balance.RefusedError as refusal:
        return refusal.code.name
      return "OK"

    slow = [asyncio.create_task(read(never.wait())) for _ in range(20)]
    await asyncio.sleep(0.2)
    assert await read(asyncio.sleep(0)) == "OK"
    codes = await asyncio.gather(*slow)
    assert {code: codes.count(code) for code in codes} == {
      "DEADLINE_EXCEEDED": 16,
      "RESOURCE_EXHAUSTED": 4,
    }
    assert await read(asyncio.sleep(0.2)) == "OK"

  asyncio.run(run())


def test_a_message_counts_until_it_is_answered() -> None:
  held = bodies.Bodies(MEGABYTE, 1.0)
  with contextlib.ExitStack() as stack:
    for _ in range(16):
      stack.enter_context(held.share()).take(MEGABYTE)
    stack.enter_context(held.share()).take(MEGABYTE)
    with (
      held.share() as share,
      _refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "the limit is 16777216; send it later"),
    ):
      share.take(MEGABYTE)
    with held.share() as share:
      share.take(60_000)
  assert held.held == 0


def test_a_compressed_body_is_not_decompressed_beyond_its_limit() -> None:
  bomb = gzip.compress(bytes(64 * MEGABYTE))
  assert bodies.decompressed(bomb, MEGABYTE) is None
  assert bodies.decompressed(gzip.compress(bytes(MEGABYTE)), MEGABYTE) == bytes(MEGABYTE)
  with pytest.raises(zlib.error):
    bodies.decompressed(BODY, MEGABYTE)
