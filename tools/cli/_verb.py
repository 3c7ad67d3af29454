"""Shared parts of the verbs: answers as text or JSON, errors in one line, and the options for a
function and its inputs."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.util
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from jax2tf.tools import quiet
from jax2tf.tools.cli._failures import failures, say, warnings_as_lines
from jax2tf.tools.cli._json import dumps
from jax2tf.tools.cli._progress import Progress

# (value for --json, with a verdict; text; exit code)
Answer = tuple[Mapping[str, Any], str, int]

ALLOW_OPS = (
  "Ops that a model may have although they reach files, the network or Python; `jax2tf "
  "inspect` lists them. May be repeated."
)

takes_debug = click.option("--debug", is_flag=True, help="Show the traceback of an error.")


def needs_posix() -> None:
  """Refuses a verb that needs what Windows lacks: locks of folders, `select` on pipes, signals.

  Raises:
    OSError: this system lacks them.
  """
  if importlib.util.find_spec("fcntl") is None:
    raise OSError("this runs on Linux and macOS only; on Windows, use its Subsystem for Linux")


def verb(function: Callable[..., Answer]) -> click.Command:
  """Makes a command of `function`: it prints the answer and returns its exit code. The function may
  import TensorFlow and JAX."""

  @click.command
  @click.option("--json", "as_json", is_flag=True, help="Print JSON, also for a failure.")
  @takes_debug
  @functools.wraps(function)
  def command(as_json: bool, debug: bool, **arguments: Any) -> int:
    progress = Progress(click.get_current_context().command_path)
    with (
      failures(debug=debug, without_params=arguments.get("params", "") is None),
      progress.shown(),
    ):
      # what the user's code prints; stdout has the result alone
      with contextlib.redirect_stdout(sys.stderr):
        value, text, code = _answer(function, arguments, progress)
      say(dumps(value) if as_json else text)
    return code

  return command


def _answer(
  function: Callable[..., Answer], arguments: Mapping[str, Any], progress: Progress
) -> Answer:
  with progress.stage("import TensorFlow and JAX"), quiet.startup():
    import tensorflow  # noqa: F401, PLC0415
  from absl import logging as absl_logging  # noqa: PLC0415  (TensorFlow's and JAX's)

  from jax2tf.converters import stages  # noqa: PLC0415  (which imports TensorFlow)

  absl_logging.set_verbosity(absl_logging.ERROR)
  logging.getLogger().setLevel(logging.ERROR)
  with stages.shown_by(progress.stage), warnings_as_lines():
    return function(**arguments)


@dataclasses.dataclass(frozen=True)
class Named:
  """The options that name a function or a model; `_loading.model` documents them."""

  function: str
  library: str | None
  params: str | None
  state: str | None
  batched: bool
  polymorphic_constraints: Sequence[str]


def takes_function(function: Callable[..., Answer]) -> Callable[..., Answer]:
  """Adds the options of a `Named`; `function` gets them as `named`."""

  @functools.wraps(function)
  def command(**options: Any) -> Answer:
    named = Named(**{field.name: options.pop(field.name) for field in dataclasses.fields(Named)})
    return function(named=named, **options)

  for decorate in (
    click.option(
      "--constraint",
      "polymorphic_constraints",
      multiple=True,
      help='A condition on dimension variables, "b<=512"; may be repeated.',
    ),
    click.option(
      "--batched",
      is_flag=True,
      help="For a model of equinox that takes one example: map it over dimension 0 of the inputs.",
    ),
    click.option(
      "--state",
      help="Sources as for --params; for a function (params, state, *inputs) -> (state, outputs).",
    ),
    click.option(
      "--params",
      help=".npz, .safetensors, an Orbax checkpoint, or module:factory; by default an empty tree.",
    ),
    click.option(
      "--library",
      type=click.Choice(["nnx", "linen", "haiku", "equinox"]),
      help="The library of a model; by default detected from its type.",
    ),
    click.argument("function", metavar="MODULE:FUNCTION"),
  ):
    decorate(command)
  return command


_INPUT = 'The name, dtype and shape of an input, "x=f32[b,784]"; may be repeated.'
takes_inputs = click.option("--input", "inputs", multiple=True, required=True, help=_INPUT)
takes_inputs_of_function = click.option(
  "--input", "inputs", multiple=True, help=f"{_INPUT} A file has its own."
)
takes_sizes = click.option(
  "--size",
  "sizes",
  multiple=True,
  help='A size of a dimension variable at which to compare, "b=8"; may be repeated.',
)
