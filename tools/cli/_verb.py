"""What the verbs share: answers as text or JSON, errors in one line, and the options that name a function and its inputs."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import click

from jax2tf.tools import quiet

# value for machines, text for people, exit code
Answer = tuple[Any, str, int]

_TYPED_WRONG = (FileNotFoundError, FileExistsError, NotADirectoryError, ModuleNotFoundError, ValueError)


class _RefusedError(click.UsageError):
  """The command is right, and the answer is no."""

  exit_code = 1


@contextlib.contextmanager
def failures() -> Iterator[None]:
  """Exit code 2 for a command that cannot be carried out as given, 1 for a function that has no lowering."""
  try:
    yield
  except NotImplementedError as error:
    raise _RefusedError(str(error), click.get_current_context()) from error
  except _TYPED_WRONG as error:
    raise click.UsageError(str(error), click.get_current_context()) from error


def verb(function: Callable[..., Answer]) -> click.Command:
  """A command that prints the answer of `function`, which may import TensorFlow and JAX, and returns its exit code."""

  @click.command
  @click.option("--json", "as_json", is_flag=True, help="Print JSON.")
  @functools.wraps(function)
  def command(as_json: bool, **arguments: Any) -> int:
    with quiet.startup():
      import tensorflow  # noqa: F401, PLC0415
    from absl import logging as absl_logging  # noqa: PLC0415  (TensorFlow's and JAX's)

    absl_logging.set_verbosity(absl_logging.ERROR)
    logging.getLogger().setLevel(logging.ERROR)
    with failures():
      value, text, code = function(**arguments)
    click.echo(json.dumps(value, indent=2) if as_json else text)
    return code

  return command


def takes_function(command: Callable[..., Answer]) -> Callable[..., Answer]:
  """Adds `function`, `params`, `state` and `constraints`."""
  for decorate in (
    click.option("--constraint", "constraints", multiple=True, help='On dimension variables, "b<=512"; may be repeated.'),
    click.option("--state", help="As --params, of a function (params, state, *inputs) -> (state, outputs)."),
    click.option("--params", help=".npz, .safetensors, an Orbax checkpoint, or module:factory; none: an empty tree."),
    click.argument("function", metavar="MODULE:FUNCTION"),
  ):
    command = decorate(command)
  return command


takes_inputs = click.option("--input", "inputs", multiple=True, required=True, help='"x=f32[b,784]"; may be repeated.')
