"""`jax2tf serve`: the flags of the server and their defaults."""

from __future__ import annotations

from typing import Any

import click

from jax2tf.converters.bundle import paths
from jax2tf.tools import gpus
from jax2tf.tools.cli._failures import failures
from jax2tf.tools.cli._verb import ALLOW_OPS, needs_posix, takes_debug

_PORT = click.IntRange(1, 65535)
_FILE = click.Path(exists=True, dir_okay=False, resolve_path=True)


@click.command(context_settings={"show_default": True})
@click.argument("directory", metavar="[DIR]", required=False)
@click.option(
  "--model_config_file",
  help="A ModelServerConfig of TF Serving, which names the models instead of DIR.",
)
@click.option(
  "--model_name",
  help="The name of the one model in DIR for clients; by default the name of the folder.",
)
@click.option(
  "--replicas",
  type=click.IntRange(1),
  help="The number of processes that run the models; by default 2, or one for each GPU.",
  show_default=False,
)
@click.option("--device", type=click.Choice(gpus.DEVICES), default=gpus.AUTO, help=gpus.DEVICE_HELP)
@click.option(
  "--host",
  default="127.0.0.1",
  help="The address to listen on; 0.0.0.0 is all addresses of this machine.",
)
@click.option("--grpc_port", type=_PORT, default=8500, help="The port of PredictionService.")
@click.option("--http_port", type=_PORT, default=8501, help="The port of the REST API.")
@click.option(
  "--tls_cert", type=_FILE, help="The server's certificate chain, in PEM; both ports then use TLS."
)
@click.option("--tls_key", type=_FILE, help="The key of the certificate, in PEM.")
@click.option(
  "--tls_client_ca",
  type=_FILE,
  help="An authority, in PEM; clients without a certificate from it are rejected.",
)
@click.option(
  "--max_batch_size",
  type=click.IntRange(1),
  default=256,
  help="The largest number of rows in a batch; 1 disables batching.",
)
@click.option(
  "--batch_wait_ms",
  type=click.FloatRange(0),
  default=2.0,
  help="How long the first request of a batch waits.",
)
@click.option(
  "--max_request_mb",
  type=click.IntRange(1, 2047),
  default=64,
  help="The size limit of a request in MB.",
)
@click.option(
  "--max_queued_requests",
  type=click.IntRange(1),
  default=1000,
  help="The limit of requests in progress in a proxy.",
)
@click.option(
  "--max_sessions",
  type=click.IntRange(1),
  default=16,
  help="The limit of texts that a replica generates at once.",
)
@click.option(
  "--max_cache_mb",
  type=click.IntRange(1),
  default=4096,
  help="The limit of their caches together, in MB, in a replica.",
)
@click.option(
  "--client_seconds",
  type=click.FloatRange(0.1),
  default=30.0,
  help="The time limit for a client to send a request.",
)
@click.option("--allow-ops", multiple=True, metavar="OP,OP", help=ALLOW_OPS)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, also for a failure.")
@takes_debug
def serve(debug: bool, **arguments: Any) -> int:
  """Serves models by gRPC and REST with Ray Serve.

  DIR holds the versions of a model (DIR/1/saved_model.pb), or a folder for each model.
  Models and versions may be added and removed while the server runs.

  \b
  Example:
    jax2tf serve build/model --grpc_port 8500 --http_port 8501
  """
  with failures(debug=debug):
    needs_posix()
    from jax2tf.tools.serving import server  # noqa: PLC0415

    for name in ("directory", "model_config_file"):
      if arguments[name] is not None:
        arguments[name] = str(paths.local(arguments[name], name))
    server.run(**arguments)
  return 0
