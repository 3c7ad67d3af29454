"""What the server sets in Ray: settings by the environment, and the private names of Ray that have
no public setting instead.

No other module may import a private module of Ray (ruff, TID251). If a name is gone in a new
release of Ray, tests/serving/test_serve_life.py says so: look up what the release does in its
place, and change or delete the function here.
"""

from __future__ import annotations

import importlib
import secrets
from collections.abc import Callable, Mapping
from typing import Any

# Private names that the server replaces -> why.
IDLE = (
  "a single node does not need these services, which scale clusters, forward logs and show "
  "pages: each takes a second of CPU and 100 MB"
)
LOOPBACK = (
  "Ray Serve opens a port on all interfaces for calls between deployments, and unpickles "
  "what arrives; nothing here needs it"
)
PRIVATE: Mapping[tuple[str, str], str] = {
  ("ray._private.node", "Node.start_monitor"): IDLE,
  ("ray._private.node", "Node.start_log_monitor"): IDLE,
  ("ray._private.node", "Node.start_api_server"): IDLE,
  ("ray.serve._private.replica", "add_port_to_grpc_server"): LOOPBACK,
}


def environment(variables: Mapping[str, str], run: str) -> dict[str, str]:
  """The environment of a cluster. Ray (2.60) reads these at import, and its processes inherit them.

  Args:
    variables: the environment of the server. What it says of the memory monitor and of niceness
      counts.
    run: the private folder of the server.
  """
  defaults = {
    # The monitor kills replicas when the machine is short of memory, whoever uses it. The kernel
    # then kills a process anyway, by size alone if Ray does not put replicas first. A dead replica
    # is replaced.
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_worker_oom_score_adjustment": "0",
    # Ray lets its processes give way to every other process of the machine.
    "RAY_worker_niceness": "0",
  }
  return {
    **defaults,
    **variables,
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray's ports require the token.
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
    # Its port for metrics would require none. `/metrics` has those of the server.
    "RAY_enable_metrics_collection": "0",
    # They listen on 127.0.0.1 only, if Ray believes that this machine cannot be part of a larger
    # cluster.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # After its store (GCS) dies, a node lives for a minute without replacing replicas; 3 s are
    # enough here.
    "RAY_gcs_rpc_server_reconnect_timeout_s": "3",
    # Sockets and logs.
    "RAY_TMPDIR": run,
    "TMPDIR": run,
  }


def memory_monitor(variables: Mapping[str, str]) -> str:
  """What to do if Ray's memory monitor is on, which kills processes; "" if it is off."""
  period = variables.get("RAY_memory_monitor_refresh_ms", "0")
  if period == "0":
    return ""
  return (
    f"; RAY_memory_monitor_refresh_ms={period} turns on Ray's memory monitor, which kills them "
    "when the machine uses much memory: unset it, or free memory"
  )


def without_idle_services() -> None:
  """Ray starts no services that nothing here uses. A service that this Ray does not have is left
  out."""
  for module, path in PRIVATE:
    if PRIVATE[module, path] is IDLE:
      _replace(module, path, lambda *_, **__: None)


def listen_on_loopback() -> None:
  """The ports that Ray Serve opens in this process are on 127.0.0.1 alone. Raises RuntimeError if
  this Ray has another way to open them."""
  [(module, path)] = [name for name, reason in PRIVATE.items() if reason is LOOPBACK]
  if not _replace(module, path, lambda server, _: server.add_insecure_port("127.0.0.1:0")):
    raise RuntimeError(
      f"this Ray has no {module}.{path}, so a port would be open to other machines: pip install "
      "'ray[serve-grpc]==2.60.*'"
    )


def missing() -> list[str]:
  """The private names that this Ray does not have."""
  return [f"{module}.{path}" for module, path in PRIVATE if _owner(module, path) is None]


def _replace(module: str, path: str, value: Callable[..., Any]) -> bool:
  owner = _owner(module, path)
  if owner is not None:
    setattr(owner, path.rpartition(".")[2], value)
  return owner is not None


def _owner(module: str, path: str) -> Any | None:
  """What has the attribute that `path` ends with; None if it is gone."""
  try:
    owner: Any = importlib.import_module(module)
    *parents, name = path.split(".")
    for each in parents:
      owner = getattr(owner, each)
    getattr(owner, name)
  except (ImportError, AttributeError):
    return None
  return owner
