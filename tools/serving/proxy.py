"""A proxy: listens on both ports and forwards each request to the replica with the fewest requests.

The server starts two proxies, which share the ports (SO_REUSEPORT), so that one remains when the
other dies. They import neither Ray nor TensorFlow, so a new one starts within a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import os
import signal
import ssl
from pathlib import Path
from typing import Any

import grpc
import uvicorn
from grpc_health.v1 import health_pb2_grpc
from starlette.middleware.trustedhost import TrustedHostMiddleware

from jax2tf.tools.serving import by_grpc, by_http, child, connections, watchdog
from jax2tf.tools.serving.balance import Queue, Replicas
from jax2tf.tools.serving.bodies import Bodies
from jax2tf.tools.serving.child import DRAIN_SECONDS, Options
from jax2tf.tools.serving.metrics import Metrics

_LOOK_SECONDS = 1.0
# A gRPC connection without a call is closed after this time, so that others can take its place.
# Clients open it again at their next call.
_IDLE_SECONDS = 60.0


def _grpc_server(service: by_grpc.Service, options: Options) -> grpc.aio.Server:
  server = grpc.aio.server(
    options=[
      ("grpc.so_reuseport", 1),
      ("grpc.max_receive_message_length", options.max_bytes),
      ("grpc.max_send_message_length", -1),
      ("grpc.server_handshake_timeout_ms", int(1e3 * options.client_seconds)),
      ("grpc.max_allowed_incoming_connections", connections.most()),
      ("grpc.max_connection_idle_ms", int(1e3 * max(options.client_seconds, _IDLE_SECONDS))),
    ]
  )
  server.add_generic_rpc_handlers(service.handlers())
  health_pb2_grpc.add_HealthServicer_to_server(service.health, server)
  address = f"{options.url_host}:{options.grpc_port}"
  if not options.tls_cert:
    server.add_insecure_port(address)
    return server
  pair = (Path(options.tls_key).read_bytes(), Path(options.tls_cert).read_bytes())
  clients = Path(options.tls_client_ca).read_bytes() if options.tls_client_ca else None
  server.add_secure_port(
    address, grpc.ssl_server_credentials([pair], clients, require_client_auth=bool(clients))
  )
  return server


def _http_server(application: Any, options: Options) -> by_http.Server:
  if ipaddress.ip_address(options.host).is_loopback:
    # A web page that resolves its own name to 127.0.0.1 (DNS rebinding) sends that name as the
    # host.
    application = TrustedHostMiddleware(
      application, ["127.0.0.1", "localhost", options.url_host], www_redirect=False
    )
  return by_http.Server(
    uvicorn.Config(
      application,
      http=connections.bounded(by_http.protocol(options.client_seconds), connections.most()),
      ws="none",
      lifespan="off",
      log_config=None,
      access_log=False,
      server_header=False,
      timeout_graceful_shutdown=int(DRAIN_SECONDS),
      ssl_certfile=options.tls_cert or None,
      ssl_keyfile=options.tls_key or None,
      ssl_ca_certs=options.tls_client_ca or None,
      ssl_cert_reqs=ssl.CERT_REQUIRED if options.tls_client_ca else ssl.CERT_NONE,
    )
  )


async def _count(metrics: Metrics) -> None:
  while True:
    with contextlib.suppress(OSError):  # such as no free descriptor, for a while
      metrics.look()
    await asyncio.sleep(_LOOK_SECONDS)


async def _serve(options: Options) -> None:
  replicas, queue = Replicas(Path(options.run)), Queue(options.max_queued_requests)
  metrics = Metrics(Path(options.run), lambda: queue.taken, lambda: replicas.count)
  bodies = Bodies(options.max_bytes, options.client_seconds)
  service = by_grpc.Service(replicas, queue, bodies, metrics)
  looking = [
    asyncio.create_task(each) for each in (replicas.look(), _count(metrics), service.watch_health())
  ]
  grpc_server = _grpc_server(service, options)
  http_server = _http_server(
    by_http.Application(replicas, queue, bodies, metrics, options), options
  )
  listener = child.bound(options.host, options.http_port)
  loop, stop = asyncio.get_running_loop(), asyncio.Event()
  loop.add_reader(0, stop.set)
  loop.add_signal_handler(signal.SIGTERM, stop.set)
  await grpc_server.start()
  http = asyncio.create_task(http_server.serve([listener]))
  health = await watchdog.answer(Path(options.run))
  ready = Path(options.run, f"{os.getpid()}.ready")
  ready.touch()
  for task in looking:
    # without this task the proxy would not find new replicas; the server restarts it
    task.add_done_callback(lambda _: stop.set())
  await stop.wait()
  loop.remove_reader(0)
  child.note(options, "ending", str(queue.taken))
  http_server.should_exit = True
  health.close()
  await asyncio.gather(service.end(), http)
  ready.unlink(missing_ok=True)
  os._exit(0)  # exit immediately: asyncio would cancel calls that arrived meanwhile


def main(options: Options) -> int:
  """Serves until standard input ends and the accepted requests are answered."""
  logging.disable(logging.ERROR)
  asyncio.run(_serve(options))
  return 0
