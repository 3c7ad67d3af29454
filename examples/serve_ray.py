"""How do I serve a SavedModel by gRPC and REST without TF Serving?

Usage: serve_ray.py MODEL_DIR [--replicas=2] [--grpc_port=8500] [--http_port=8501]

Ray Serve hosts TF Serving's two interfaces, so clients of TF Serving need no change: tensorflow.serving.PredictionService (Predict,
GetModelMetadata) and /v1/models/NAME[/versions/N][:predict|/metadata]. MODEL_DIR holds numbered versions, as saved_model.save writes
them. Prints one line when it is ready and stops on SIGTERM. Serves this machine only. docs/serving.md says more.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import secrets
import signal
import threading
from collections.abc import Sequence
from pathlib import Path

from absl import app, flags

# Ray reads these when it is imported, and its processes inherit them. Its own ports listen on all interfaces: they answer those
# alone who know the token.
os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))

import ray
from ray import serve

import serve_ray_proxy
from serve_ray_replica import Options, PredictionService

_REPLICAS = flags.DEFINE_integer("replicas", 2, "How many processes run the model.", lower_bound=1)
_GRPC_PORT = flags.DEFINE_integer("grpc_port", 8500, "Where PredictionService listens.", lower_bound=1, upper_bound=65535)
_HTTP_PORT = flags.DEFINE_integer("http_port", 8501, "Where the REST API listens.", lower_bound=1, upper_bound=65535)
_MODEL_NAME = flags.DEFINE_string("model_name", None, "The name that clients give; the folder's own if not given.")
_MAX_BATCH = flags.DEFINE_integer("max_batch_size", 256, "Rows that run together at most; 1 batches nothing.", lower_bound=1)
_BATCH_WAIT = flags.DEFINE_float("batch_wait_ms", 2.0, "How long the first request of a batch waits for others.", lower_bound=0.0)
_MAX_MEGABYTES = flags.DEFINE_integer("max_request_mb", 64, "Larger requests are refused.", lower_bound=1, upper_bound=2047)
_MAX_QUEUED = flags.DEFINE_integer("max_queued_requests", 10_000, "With more waiting, requests are refused.", lower_bound=1)


def main(argv: Sequence[str]) -> None:
  """Serves until SIGTERM or SIGINT."""
  if len(argv) != 2:
    raise app.UsageError("name one folder of versions: serve_ray.py MODEL_DIR")
  folder = Path(argv[1]).resolve()
  if not any(file.parent.name.isdecimal() for file in folder.glob("*/saved_model.pb")):
    raise app.UsageError(f"MODEL_DIR is {folder}, which has no version to serve; saved_model.save(..., {argv[1]!r}) writes {argv[1]}/1/")
  stop = threading.Event()
  for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda *_: stop.set())
  options = Options(
    folder=folder,
    name=_MODEL_NAME.value or folder.name,
    max_batch_size=_MAX_BATCH.value,
    batch_wait_seconds=_BATCH_WAIT.value / 1e3,
    max_bytes=_MAX_MEGABYTES.value << 20,
  )
  try:
    _start(options)
    print(
      f"serving {options.name!r}: gRPC 127.0.0.1:{_GRPC_PORT.value}, REST http://127.0.0.1:{_HTTP_PORT.value}/v1/models/{options.name}",
      flush=True,
    )
    stop.wait()
  finally:
    with contextlib.redirect_stdout(io.StringIO()):  # Ray 2.60 prints that the controller died, which is what a shutdown is
      if ray.is_initialized():
        serve.shutdown()
        ray.shutdown()


def _start(options: Options) -> None:
  # The processes of the cluster inherit these, and the folder of these examples.
  os.environ.update(
    PYTHONPATH=os.pathsep.join(filter(None, (str(Path(__file__).resolve().parent), os.environ.get("PYTHONPATH")))),
    RAY_SERVE_GRPC_MAX_MESSAGE_SIZE=str(options.max_bytes),
  )
  handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
  logging.getLogger("ray.serve").setLevel(logging.ERROR)
  _start_ray()
  for number, handler in handlers.items():  # Ray has put its own in their place, which end the process at once
    signal.signal(number, handler)
  serve.start(
    http_options={"host": "127.0.0.1", "port": _HTTP_PORT.value},
    grpc_options={
      "port": _GRPC_PORT.value,
      "grpc_servicer_functions": [f"{serve_ray_proxy.__name__}.{serve_ray_proxy.add_to_server.__name__}"],
      "enable_reflection": False,  # the proxy has no TensorFlow to describe its messages with
    },
    logging_config={"log_level": "ERROR", "enable_access_log": False},
  )
  deployment = serve.deployment(
    num_replicas=_REPLICAS.value,
    max_ongoing_requests=1000,
    max_queued_requests=_MAX_QUEUED.value,
    health_check_period_s=5,
    health_check_timeout_s=30,
    graceful_shutdown_timeout_s=10,
  )
  serve.run(deployment(PredictionService).bind(options), name=options.name, route_prefix="/")


def _start_ray(tries: int = 3) -> None:
  # Ray (2.60) gives its own processes 15 s to start, which a busy machine may exceed once, and raises a bare Exception then.
  for left in reversed(range(tries)):
    try:
      ray.init(
        address="local",
        # CPUs that Ray gives away, not cores: one for each replica, and some to spare, or nothing would ever start.
        num_cpus=_REPLICAS.value + 3,
        include_dashboard=False,
        logging_level=logging.ERROR,
        log_to_driver=False,
        object_store_memory=256 << 20,
        _node_ip_address="127.0.0.1",
      )
      return
    except Exception as error:
      if not left or "timed out during startup" not in str(error):
        raise


if __name__ == "__main__":
  app.run(main)
