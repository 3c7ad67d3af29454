"""The `jax2tf` command: its verbs, and one line for each error in its arguments."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence

import click

import jax2tf
from jax2tf.tools.cli import (
  batch,
  check,
  convert,
  diff,
  generate,
  inspect,
  opening,
  query,
  serve,
  verify,
)
from jax2tf.tools.cli._failures import described, interrupted
from jax2tf.tools.cli._json import dumps


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(jax2tf.__version__, message="%(prog)s %(version)s")
def command() -> None:
  """Converts JAX functions to TensorFlow, checks them and serves them."""


for _verb in (
  convert.convert,
  inspect.inspect,
  check.check,
  verify.verify,
  serve.serve,
  query.query,
  diff.diff,
  batch.batch,
  generate.generate,
):
  command.add_command(_verb)
command.add_command(opening.opening, "open")


def main(argv: Sequence[str] | None = None) -> None:
  """The entry point of the `jax2tf` command. Raises SystemExit with its exit code."""
  error: click.ClickException
  # closed by the caller; another file must not get its number, because TensorFlow writes there
  if sys.stderr is None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    sys.stderr = os.fdopen(2, "w")
  try:
    sys.exit(command.main(argv, prog_name="jax2tf", standalone_mode=False))
  except click.exceptions.NoArgsIsHelpError as found:
    found.show()
    sys.exit(found.exit_code)
  except click.ClickException as found:
    error = found
  except (click.Abort, KeyboardInterrupt):  # Ctrl-C before a verb starts
    error = interrupted()
  if "--json" in (sys.argv if argv is None else argv):
    with contextlib.suppress(OSError):  # stdout may be what failed
      click.echo(dumps(described(error)))
  context = getattr(error, "ctx", None)
  click.echo(f"{context.command_path if context else 'jax2tf'}: {error.format_message()}", err=True)
  sys.exit(error.exit_code)
