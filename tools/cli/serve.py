"""`jax2tf serve`: the server's flags, which stand here alone."""

from __future__ import annotations

from typing import Any

import click

from jax2tf.tools.cli._failures import failures
from jax2tf.tools.cli._verb import takes_debug

_PORT = click.IntRange(1, 65535)


@click.command(context_settings={"show_default": True})
@click.argument("directory", metavar="DIR")
@click.option("--replicas", type=click.IntRange(1), default=2, help="How many processes run the model.")
@click.option("--grpc_port", type=_PORT, default=8500, help="Where PredictionService listens.")
@click.option("--http_port", type=_PORT, default=8501, help="Where the REST API listens.")
@click.option("--model_name", help="The name that clients give; the folder's own if not given.")
@click.option("--max_batch_size", type=click.IntRange(1), default=256, help="Rows that run together at most; 1 batches nothing.")
@click.option("--batch_wait_ms", type=click.FloatRange(0), default=2.0, help="How long the first request of a batch waits for others.")
@click.option("--max_request_mb", type=click.IntRange(1, 2047), default=64, help="Larger requests are refused.")
@click.option("--max_queued_requests", type=click.IntRange(1), default=10_000, help="With more under way in a proxy, requests are refused.")
@click.option("--client_seconds", type=click.FloatRange(0.1), default=30.0, help="A client that takes longer to send a request is cut.")
@takes_debug
def serve(directory: str, model_name: str | None, debug: bool, **limits: Any) -> int:
  """Serves the versions of a model in DIR by gRPC and REST with Ray Serve, on this machine."""
  with failures(debug=debug):
    from jax2tf.tools.serving import server  # noqa: PLC0415

    server.run(directory, model_name, **limits)
  return 0
