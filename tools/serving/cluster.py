"""A Ray cluster: Ray Serve starts the replicas, checks their health, and replaces those that die.

The server starts this process. It ends when Ray's own processes die, because only a new cluster can
replace them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
import time
from pathlib import Path

import psutil
import ray
from ray import serve

from jax2tf.tools import gpus
from jax2tf.tools.serving import child, deaths, place, ray_settings, watchdog
from jax2tf.tools.serving.child import DRAIN_SECONDS, Options
from jax2tf.tools.serving.replica import Replica

# The processes that a cluster cannot do without, by the names that Linux has for them.
_VITAL = ("gcs_server", "raylet")


def main(options: Options) -> int:
  """Keeps the replicas alive until standard input ends and the proxies are done. Returns the exit
  code. Raises Ray's errors."""
  logging.getLogger("ray.serve").setLevel(logging.ERROR)
  ray_settings.without_idle_services()
  _start_ray(options.replicas, len(options.gpus))
  ending = threading.Event()
  threading.Thread(target=_end_with_ray, args=[options, ending], daemon=True).start()
  serve.start(
    proxy_location="Disabled", logging_config={"log_level": "ERROR", "enable_access_log": False}
  )
  # The server's watchdog finds replicas that hang, sooner. Ray Serve learns by this check that a
  # replica has died.
  deployment = serve.deployment(
    num_replicas=options.replicas,
    health_check_period_s=1,
    health_check_timeout_s=30,
    graceful_shutdown_timeout_s=10,
    ray_actor_options={"num_gpus": gpus.share(options.replicas, len(options.gpus))},
  )
  serve.run(deployment(Replica).bind(options, os.getpid()), name="models", route_prefix=None)
  asyncio.run(_until_the_input_ends(Path(options.run)))
  ending.set()
  end = time.monotonic() + DRAIN_SECONDS
  while time.monotonic() < end and any(map(child.is_alive, Path(options.run).glob("*.ready"))):
    time.sleep(0.05)
  ray.shutdown()
  deaths.end_sessions({os.getsid(0)})
  # a killed server cannot do it
  if not any(map(child.is_alive, Path(options.run).glob("*.server"))):
    place.remove(Path(options.run))
  return 0


async def _until_the_input_ends(run: Path) -> None:
  ended = asyncio.Event()
  asyncio.get_running_loop().add_reader(0, ended.set)
  async with await watchdog.answer(run, _ask_ray):
    await ended.wait()


def _ask_ray() -> None:
  """Returns if Ray answers: its store, its node and the controller of Ray Serve. Raises Ray's
  errors."""
  if not all(each["Alive"] for each in ray.nodes()):
    raise RuntimeError("the node of Ray is dead")
  serve.status()


def _end_with_ray(options: Options, ending: threading.Event) -> None:
  # In a thread: Ray Serve (2.60) waits forever for a replica that starts on a dead node.
  vital = {each.pid: each.name() for each in psutil.Process().children() if each.name() in _VITAL}
  while not ending.wait(0.2):
    if dead := [reason for pid, name in vital.items() if (reason := _death(pid, name))]:
      deaths.fail(options, " and ".join(dead))
      os._exit(1)


def _death(pid: int, name: str) -> str:
  """Why a child of this process ended, which stays for Ray to wait for; "" if it runs."""
  try:
    state = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
  except ChildProcessError:  # Ray was first to wait for it
    return f"{name} of Ray ended"
  if state is None:
    return ""
  by_signal = state.si_code in (os.CLD_KILLED, os.CLD_DUMPED)
  return f"{name} of Ray " + (
    f"was killed by {signal.Signals(state.si_status).name}"
    if by_signal
    else f"ended with code {state.si_status}"
  )


def _start_ray(replicas: int, n_gpus: int, tries: int = 3) -> None:
  # Ray (2.60) raises a bare Exception if its processes need more than 15 s to start, which happens
  # on a busy machine.
  for left in reversed(range(tries)):
    try:
      ray.init(
        address="local",
        # Logical CPUs, not cores: Ray needs one for each replica and some spare ones to start
        # anything.
        num_cpus=replicas + 3,
        num_gpus=n_gpus,
        include_dashboard=False,
        logging_level=logging.ERROR,
        log_to_driver=False,
        object_store_memory=100 << 20,  # requests bypass Ray's proxy
      )
      return
    except Exception as error:
      if not left or "timed out during startup" not in str(error):
        raise
