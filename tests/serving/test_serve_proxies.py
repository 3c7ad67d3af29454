"""A proxy of `jax2tf serve` alone, before a replica of the test: slow clients, certificates, a full
queue, what it counts, its end."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import os
import signal
import socket
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import uvicorn

from jax2tf.tools.serving import balance, by_http, child, signals, supervisor
from tests.serving.serve_models import options
from tests.support.certificates import certificate
from tests.support.ports import free_ports

SERVICE = "tensorflow.serving.PredictionService"


def test_a_client_that_does_not_take_its_answer_is_cut() -> None:
  asked = asyncio.Event()

  async def application(scope: Any, receive: Any, send: Any) -> None:
    asked.set()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": bytes(64 << 20)})

  async def connections() -> int:
    server = by_http.Server(
      uvicorn.Config(application, http=by_http.protocol(0.2), lifespan="off", log_config=None)
    )
    listener = socket.create_server(("127.0.0.1", 0))
    serving = asyncio.create_task(server.serve([listener]))
    _, writer = await asyncio.open_connection(*listener.getsockname())
    writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await asyncio.wait_for(asked.wait(), 10)
    await asyncio.sleep(1)
    left = len(server.server_state.connections)
    writer.transport.abort()
    server.should_exit = True
    await serving
    return left

  assert asyncio.run(connections()) == 0


@contextlib.asynccontextmanager
async def _answering(run: Path, answer: Any) -> AsyncIterator[None]:
  """A replica, for a proxy: it answers each Predict, and each question by REST, with `answer`."""
  replica = grpc.aio.server()
  handler = grpc.unary_unary_rpc_method_handler(answer)
  for service, method in ((SERVICE, "Predict"), (balance.REST_SERVICE, balance.REST)):
    replica.add_generic_rpc_handlers(
      (grpc.method_handlers_generic_handler(service, {method: handler}),)
    )
  replica.add_insecure_port(f"unix:{run}/{os.getpid()}.sock")
  await replica.start()
  yield
  await replica.stop(None)


def test_a_proxy_that_ends_cancels_no_call(tmp_path: Path) -> None:
  grpc_port, http_port = free_ports(2)
  codes: collections.Counter[str] = collections.Counter()

  async def echo(data: bytes, context: Any) -> bytes:
    del context
    await asyncio.sleep(0.01)
    return data

  async def ask(call: Any) -> None:
    while True:
      try:
        await call(b"x", timeout=30)
        codes["OK"] += 1
      except grpc.aio.AioRpcError as error:
        codes[error.code().name] += 1
        return

  async def run(process: subprocess.Popen[bytes]) -> None:
    async with (
      _answering(tmp_path, echo),
      grpc.aio.insecure_channel(f"127.0.0.1:{grpc_port}") as channel,
    ):
      await asyncio.wait_for(channel.channel_ready(), 60)
      asking = [
        asyncio.create_task(ask(channel.unary_unary(f"/{SERVICE}/Predict"))) for _ in range(200)
      ]
      await asyncio.sleep(1)
      assert process.stdin is not None
      process.stdin.close()
      await asyncio.gather(*asking)

  with child.start("proxy", options(tmp_path, grpc_port=grpc_port, http_port=http_port)) as process:
    asyncio.run(run(process))
  assert codes["OK"] > 200
  assert codes.keys() <= {"OK", "UNAVAILABLE"}, codes
  assert codes["UNAVAILABLE"] == 200


def test_a_second_ctrl_c_ends_at_once(
  tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
  """The server says how many requests it still answers, and Ctrl-C then leaves them without an
  answer."""
  grpc_port, http_port = free_ports(2)
  monkeypatch.setattr(supervisor, "_PROXIES", 1)

  async def never(data: bytes, context: Any) -> bytes:
    del context
    taken.set()
    await asyncio.sleep(60)
    return data

  def is_interrupted(noted: signals.Signals) -> bool:
    with pytest.raises(KeyboardInterrupt):
      supervisor._end(served, [proxy], True, noted)
    return True

  async def run() -> None:
    async with (
      _answering(tmp_path, never),
      grpc.aio.insecure_channel(f"127.0.0.1:{grpc_port}") as channel,
    ):
      await asyncio.wait_for(channel.channel_ready(), 60)
      call = channel.unary_unary(f"/{SERVICE}/Predict")(b"x", timeout=60)
      await asyncio.wait_for(taken.wait(), 60)
      noted = signals.Signals()
      ending = asyncio.create_task(asyncio.to_thread(is_interrupted, noted))
      said = ""
      while "ending: 1 accepted requests are answered first" not in said:
        await asyncio.sleep(0.02)
        said += capsys.readouterr().err
      noted._note(signal.SIGINT, None)
      assert await ending
      assert await call.code() == grpc.StatusCode.UNAVAILABLE

  taken = asyncio.Event()
  served = options(tmp_path, grpc_port=grpc_port, http_port=http_port)
  proxy = supervisor.Child("proxy", served)
  asyncio.run(run())
  assert proxy.process.returncode == -signal.SIGKILL


def test_a_proxy_with_certificates_and_a_bounded_queue(tmp_path: Path) -> None:
  """Both ports ask clients for a certificate, and refuse what comes when one request is under
  way."""
  grpc_port, http_port = free_ports(2)
  cert, key = certificate(tmp_path)
  with_tls = options(
    tmp_path,
    grpc_port=grpc_port,
    http_port=http_port,
    tls_cert=cert,
    tls_key=key,
    tls_client_ca=cert,
    max_queued_requests=1,
  )
  url = f"https://127.0.0.1:{http_port}"
  context = ssl.create_default_context(cafile=cert)
  held: list[asyncio.Event] = []

  async def answer(data: bytes, context: Any) -> bytes:
    held[1].set()
    await held[0].wait()
    context.set_trailing_metadata(balance.Served("m", "1", "serving_default").metadata)
    return b"200\n{}" if data.startswith(b"POST") else data

  def get(path: str, body: bytes | None = None) -> tuple[int, str]:
    try:
      with urllib.request.urlopen(
        urllib.request.Request(url + path, body), context=context, timeout=30
      ) as found:
        return found.status, found.read().decode()
    except urllib.error.HTTPError as error:
      return error.code, error.read().decode()

  async def run() -> None:
    held[:] = [asyncio.Event(), asyncio.Event()]
    files = [Path(cert).read_bytes(), Path(key).read_bytes(), Path(cert).read_bytes()]
    credentials = grpc.ssl_channel_credentials(*files)
    async with (
      _answering(tmp_path, answer),
      grpc.aio.secure_channel(f"127.0.0.1:{grpc_port}", credentials) as channel,
    ):
      await asyncio.wait_for(channel.channel_ready(), 60)
      with pytest.raises(OSError):  # an alert of TLS, or no answer
        await asyncio.to_thread(get, "/-/healthz")
      context.load_cert_chain(cert, key)
      first = asyncio.create_task(asyncio.to_thread(get, "/v1/models/m:predict", b"{}"))
      await asyncio.wait_for(held[1].wait(), 30)
      with pytest.raises(grpc.aio.AioRpcError) as refused:
        await channel.unary_unary(f"/{SERVICE}/Predict")(b"x", timeout=30)
      assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
      code, body = await asyncio.to_thread(get, "/v1/models/m:predict", b"{}")
      assert (code, "1 requests are in progress" in body) == (429, True)
      # which is no request in this sense
      assert (await asyncio.to_thread(get, "/-/healthz"))[0] == 200
      held[0].set()
      assert await first == (200, "{}")
      await channel.unary_unary(f"/{SERVICE}/Predict")(b"x", timeout=30)
    code, body = await asyncio.to_thread(get, "/metrics")
    counted = {
      line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
      for line in body.splitlines()
      if line.startswith("jax2tf_requests_t")
    }
    labels = 'code="{}",interface="{}",method="{}",model="{}",signature="{}",version="{}"'
    written = f"jax2tf_requests_total{{{{{labels}}}}}".format
    served, unknown = ("m", "serving_default", "1"), ("", "", "")
    assert counted == {
      written("200", "rest", "predict", *served): 1,
      written("429", "rest", "predict", *unknown): 1,
      written("OK", "grpc", "Predict", *served): 1,
      written("RESOURCE_EXHAUSTED", "grpc", "Predict", *unknown): 1,
    }

  with child.start("proxy", with_tls) as process:
    asyncio.run(run())
    assert process.stdin is not None
    process.stdin.close()
