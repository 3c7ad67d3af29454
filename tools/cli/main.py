"""The `jax2tf` command: its verbs, and one line for each error in its arguments."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

import click

import jax2tf
from jax2tf.tools.cli import batch, check, convert, diff, inspect, query, serve, verify


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(jax2tf.__version__, message="%(prog)s %(version)s")
def command() -> None:
  """Converts JAX functions to TensorFlow, checks them and serves them."""


for _verb in (convert.convert, inspect.inspect, check.check, verify.verify, serve.serve, query.query, diff.diff, batch.batch):
  command.add_command(_verb)


def main(argv: Sequence[str] | None = None) -> None:
  """The entry point of the `jax2tf` command. Raises SystemExit with its exit code."""
  try:
    sys.exit(command.main(argv, prog_name="jax2tf", standalone_mode=False))
  except click.exceptions.NoArgsIsHelpError as error:
    error.show()
    sys.exit(error.exit_code)
  except click.ClickException as error:
    if "--json" in (sys.argv if argv is None else argv):
      failure = {"verdict": error.format_message(), "exit_code": error.exit_code, "gaps": getattr(error, "gaps", [])}
      print(json.dumps(failure, indent=2))
    context = getattr(error, "ctx", None)
    print(f"{context.command_path if context else 'jax2tf'}: {error.format_message()}", file=sys.stderr)
    sys.exit(error.exit_code)
  except (click.Abort, KeyboardInterrupt):  # Ctrl-C before a verb starts
    print("jax2tf: interrupted", file=sys.stderr)
    sys.exit(130)
