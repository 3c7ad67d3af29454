"""A Ray cluster: Ray Serve starts the replicas, checks their health, and replaces those that die.

The server starts this process. It ends when Ray's own processes die, because only a new cluster can replace them.
"""

from __future__ import annotations

import logging
import os
import secrets
import select
import shutil
import sys
import threading
import time
from pathlib import Path

# Ray (2.60) reads these at import, and its processes inherit them. Its ports require the token. They listen on 127.0.0.1 only, including
# metrics, if Ray believes that this machine cannot be part of a larger cluster. After its store (GCS) dies, a node lives for a minute
# without replacing replicas; 3 s are enough here.
os.environ.update(
  RAY_USAGE_STATS_ENABLED="0",
  RAY_AUTH_MODE="token",
  RAY_AUTH_TOKEN=secrets.token_hex(32),
  RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0",
  RAY_gcs_rpc_server_reconnect_timeout_s="3",
)

import ray
from ray import serve
from ray._private import node, worker

from jax2tf.tools.serving import child
from jax2tf.tools.serving.child import DRAIN_SECONDS, Options
from jax2tf.tools.serving.replica import Replica

# Ray (2.60): a single node does not need these services, which scale clusters, forward logs and show pages. Each is a Python process
# that takes up to a second of CPU to start, and 100 MB.
for _idle in ("start_monitor", "start_log_monitor", "start_api_server"):
  setattr(node.Node, _idle, lambda *_, **__: None)


def main(options: Options) -> int:
  """Keeps the replicas alive until standard input ends and the proxies are done. Returns the exit code. Raises Ray's errors."""
  logging.getLogger("ray.serve").setLevel(logging.ERROR)
  _start_ray(options.replicas)
  ending = threading.Event()
  threading.Thread(target=_end_with_ray, args=[ending], daemon=True).start()
  serve.start(proxy_location="Disabled", logging_config={"log_level": "ERROR", "enable_access_log": False})
  deployment = serve.deployment(
    num_replicas=options.replicas, health_check_period_s=5, health_check_timeout_s=30, graceful_shutdown_timeout_s=10
  )
  serve.run(deployment(Replica).bind(options), name="models", route_prefix=None)
  select.select([0], [], [])
  ending.set()
  end = time.monotonic() + DRAIN_SECONDS
  while time.monotonic() < end and any(map(child.is_alive, Path(options.run).glob("*.ready"))):
    time.sleep(0.05)
  ray.shutdown()
  shutil.rmtree(options.run, ignore_errors=True)  # a killed server cannot do it
  return 0


def _end_with_ray(ending: threading.Event) -> None:
  # In a thread: Ray Serve (2.60) waits forever for a replica that starts on a dead node.
  own = worker.global_worker.node
  assert own is not None
  while not ending.wait(0.2):
    if dead := {kind for kind, _ in own.dead_processes()} & {"gcs_server", "raylet"}:
      print(f"{' and '.join(sorted(dead))} of Ray died; its replicas restart", file=sys.stderr, flush=True)
      os._exit(1)


def _start_ray(replicas: int, tries: int = 3) -> None:
  # Ray (2.60) raises a bare Exception if its processes need more than 15 s to start, which happens on a busy machine.
  for left in reversed(range(tries)):
    try:
      ray.init(
        address="local",
        # Logical CPUs, not cores: Ray needs one for each replica and some spare ones to start anything.
        num_cpus=replicas + 3,
        include_dashboard=False,
        logging_level=logging.ERROR,
        log_to_driver=False,
        object_store_memory=100 << 20,  # requests bypass Ray's proxy
        _node_ip_address="127.0.0.1",
      )
      return
    except Exception as error:
      if not left or "timed out during startup" not in str(error):
        raise
