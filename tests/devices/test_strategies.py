"""tf.distribute over processes: converted functions train as on one device, and no wait is without
end."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.pipelines

ROOT = Path(__file__).resolve().parents[2]
SERVER = """
import json, sys, tensorflow as tf
# TF 2.21: a server runs a closure and answers requests by the same threads. With the two of a small
# machine it waits for itself.
config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=4)
cluster, job, task = json.loads(sys.argv[1])
spec = tf.train.ClusterSpec(cluster)
server = tf.distribute.Server(spec, job, task, protocol="grpc", config=config)
assert sys.modules["jax"] is None
sys.stdin.read()
"""


def addresses(count: int) -> list[str]:
  """Of ports that nobody has now."""
  with contextlib.ExitStack() as stack:
    sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
    for s in sockets:
      s.bind(("127.0.0.1", 0))
    return [f"127.0.0.1:{s.getsockname()[1]}" for s in sockets]


@contextlib.contextmanager
def running(
  commands: list[list[str]], environments: list[dict[str, str]] | None = None
) -> Iterator[list[subprocess.Popen[str]]]:
  """Processes that end with the context: they read to the end of their input, or are killed."""
  with contextlib.ExitStack() as stack:
    found = []
    for command, environment in zip(commands, environments or [{}] * len(commands), strict=True):
      process = subprocess.Popen(
        command,
        env=os.environ | environment,
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
      )
      stack.callback(_ended, process)
      found.append(process)
    yield found


def _ended(process: subprocess.Popen[str]) -> None:
  try:
    process.communicate(timeout=20)
  except subprocess.TimeoutExpired:
    process.kill()
    process.communicate()


def test_parameter_servers_without_jax(without_jax):
  cluster = dict(zip(("worker", "ps"), (addresses(2), addresses(1)), strict=True))
  tasks = [("worker", 0), ("worker", 1), ("ps", 0)]
  with running([[without_jax, "-c", SERVER, json.dumps([cluster, *task])] for task in tasks]):
    command = [sys.executable, "-m", "tests.devices.parameter_servers", json.dumps(cluster)]
    run = subprocess.run(
      command, cwd=ROOT, capture_output=True, text=True, timeout=180, check=False
    )
  assert run.returncode == 0, run.stderr[-3000:]
  assert run.stdout.split()[-1] == "equal"


def test_workers_that_mirror_each_other():
  cluster = {"worker": addresses(2)}
  environments = [
    {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": i}})}
    for i in range(2)
  ]
  with running(
    [[sys.executable, "-m", "tests.gradients.mirrored_replicas"]] * 2, environments
  ) as workers:
    said = [worker.communicate(timeout=180) for worker in workers]
  for worker, (out, err) in zip(workers, said, strict=True):
    assert worker.returncode == 0, err[-3000:]
    assert out.split()[-1] == "equal"
