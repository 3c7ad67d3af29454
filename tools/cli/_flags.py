"""The flags of a command by the arguments of the Python API for which they stand."""

from __future__ import annotations

import click

from jax2tf.messages import Text


def of_command() -> dict[str, str]:
  """{argument: flag, or the name of a positional one}, of the command that runs. A parameter of a
  command has the name of the argument to which its value goes."""
  parameters = click.get_current_context().command.params
  return {parameter.name: _word(parameter) for parameter in parameters if parameter.name}


def _word(parameter: click.Parameter) -> str:
  if isinstance(parameter, click.Argument):
    return parameter.human_readable_name.strip("[].")
  return parameter.opts[0]


def worded(text: str) -> str:
  """The text in the words of the command that runs."""
  return text.for_command(of_command()) if isinstance(text, Text) else text
