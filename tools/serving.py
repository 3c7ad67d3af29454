"""Starts the server of examples/serve_ray.py in a process of its own, which never imports JAX."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import jax2tf
from jax2tf.tools._loading import UsageError

# In a checkout; installed, the examples are the package jax2tf.examples.
_PLACES = (Path(__file__).resolve().parent.parent / "examples", Path(jax2tf.__file__).parent / "examples")


def run(directory: str, *, replicas: int, grpc_port: int, http_port: int) -> int:
  """Serves until it is interrupted; the exit code of the server.

  Raises:
    UsageError: there is no such folder, or no server to start.
  """
  if not Path(directory).is_dir():
    raise UsageError(f"{directory} is no folder; name the one that holds the versions of the model, as --out of `jax2tf convert`")
  script = next((place / "serve_ray.py" for place in _PLACES if (place / "serve_ray.py").exists()), None)
  if script is None:
    raise UsageError("examples/serve_ray.py is not installed; run from a checkout")
  flags = [f"--replicas={replicas}", f"--grpc_port={grpc_port}", f"--http_port={http_port}"]
  process = subprocess.Popen([sys.executable, str(script), directory, *flags])
  # Ctrl-C reaches the server by itself, which then ends in order; so does a signal to end that is meant for us.
  signal.signal(signal.SIGTERM, lambda *_: process.terminate())
  signal.signal(signal.SIGINT, lambda *_: None)
  return process.wait()
