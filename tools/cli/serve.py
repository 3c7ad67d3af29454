"""`jax2tf serve`: the server's flags, which stand here alone."""

from __future__ import annotations

from typing import Any

import click

from jax2tf.tools.cli._failures import failures
from jax2tf.tools.cli._verb import takes_debug

_PORT = click.IntRange(1, 65535)
_FILE = click.Path(exists=True, dir_okay=False, resolve_path=True)


@click.command(context_settings={"show_default": True})
@click.argument("directory", metavar="[DIR]", required=False)
@click.option("--model_config_file", help="A ModelServerConfig of TF Serving, which names the models in the place of DIR.")
@click.option("--model_name", help="The name that clients give to the one model in DIR; the folder's own if not given.")
@click.option("--replicas", type=click.IntRange(1), default=2, help="How many processes run the models.")
@click.option("--host", default="127.0.0.1", help="The address on which both ports are; 0.0.0.0 is all of this machine.")
@click.option("--grpc_port", type=_PORT, default=8500, help="Where PredictionService listens.")
@click.option("--http_port", type=_PORT, default=8501, help="Where the REST API listens.")
@click.option("--tls_cert", type=_FILE, help="The server's certificate and those above it, in PEM: both ports speak TLS.")
@click.option("--tls_key", type=_FILE, help="The key of the certificate, in PEM.")
@click.option("--tls_client_ca", type=_FILE, help="In PEM: clients without a certificate of this authority are refused.")
@click.option("--max_batch_size", type=click.IntRange(1), default=256, help="Rows that run together at most; 1 batches nothing.")
@click.option("--batch_wait_ms", type=click.FloatRange(0), default=2.0, help="How long the first request of a batch waits for others.")
@click.option("--max_request_mb", type=click.IntRange(1, 2047), default=64, help="Larger requests are refused.")
@click.option("--max_queued_requests", type=click.IntRange(1), default=1000, help="With more under way in a proxy, requests are refused.")
@click.option("--client_seconds", type=click.FloatRange(0.1), default=30.0, help="A client that takes longer to send a request is cut.")
@takes_debug
def serve(debug: bool, **arguments: Any) -> int:
  """Serves models by gRPC and REST with Ray Serve.

  DIR holds the versions of a model (DIR/1/saved_model.pb), or a folder for each of several models, which may come and go.
  """
  with failures(debug=debug):
    from jax2tf.tools.serving import server  # noqa: PLC0415

    server.run(**arguments)
  return 0
