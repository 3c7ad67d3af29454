"""`jax2tf generate`: language models for engines that generate text."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import click

from jax2tf.tools.cli._verb import Answer, verb

_takes_decoder = click.argument("decoder", metavar="MODULE:DECODER")
_takes_target = click.option(
  "--for",
  "target",
  required=True,
  metavar="ENGINE",
  help="The engine, such as litert-lm; docs/guide/language-models.md lists all.",
)
_takes_options = click.option(
  "--option",
  "options",
  multiple=True,
  metavar="NAME=VALUE",
  help="An option of the engine, as JSON or text: prefill_lengths=[16,128]; may be repeated.",
)
_takes_own_pieces = click.option(
  "--own_pieces", is_flag=True, help="Compare with JAX in the engine's pieces of a prompt."
)
_takes_tolerance = click.option(
  "--tolerance", type=float, help="The share of the largest logit by which logits may differ."
)


def _takes_comparison(function: Callable[..., Answer]) -> Callable[..., Answer]:
  for decorate in (_takes_options, _takes_own_pieces, _takes_tolerance, _takes_target):
    function = decorate(function)
  return function


@click.group
def generate() -> None:
  """Writes language models for engines, and runs them there."""


@verb
@_takes_decoder
@click.option("--out", "path", required=True, metavar="PATH", help="The file or folder to write.")
@_takes_comparison
@click.option(
  "--least_agreement",
  type=click.FloatRange(0, 1),
  help="For rounded weights: the least share of tokens that are JAX's.",
)
@click.option("--overwrite", is_flag=True, help="Replace the file or folder.")
def export(
  decoder: str, path: str, target: str, options: Sequence[str], overwrite: bool, **comparison: Any
) -> Answer:
  """Writes a decoder for an engine, if the engine generates the same tokens as JAX. DECODER is a
  jax2tf.converters.generation.Decoder, or a function that returns one.

  \b
  Example:
    jax2tf generate export model:decoder --for litert-lm --out model.litertlm
  """
  from jax2tf.converters import generation  # noqa: PLC0415

  saved = generation.save(
    _decoder(decoder), path, target=target, overwrite=overwrite, **comparison, **_options(options)
  )
  value = {"verdict": saved.report.verdict, "path": str(saved.path), "bytes": saved.size}
  return value, f"saved {saved.path} ({saved.size:,} bytes); {saved.report.verdict}", 0


@verb
@click.argument("path", metavar="PATH")
@_takes_decoder
@_takes_comparison
def compare(
  path: str, decoder: str, target: str, options: Sequence[str], **comparison: Any
) -> Answer:
  """Runs a file or folder in its engine, and compares its tokens with a decoder in JAX.

  \b
  Example:
    jax2tf generate compare model.litertlm model:decoder --for litert-lm
  """
  from jax2tf.converters import generation  # noqa: PLC0415

  report = generation.compare(
    _decoder(decoder), path, target=target, **comparison, **_options(options)
  )
  return json.loads(report.json()), report.text(), int(not report.ok)


@verb
@click.argument("path", metavar="PATH")
@click.argument("prompt")
@_takes_target
@click.option(
  "--new",
  type=click.IntRange(1),
  default=32,
  show_default=True,
  help="The most tokens to generate.",
)
def run(path: str, prompt: str, target: str, new: int) -> Answer:
  """Continues a text in the engine, with the most probable tokens.

  \b
  Example:
    jax2tf generate run model.litertlm "Once upon a time" --for litert-lm
  """
  from jax2tf.converters import generation  # noqa: PLC0415

  text = generation.run(path, prompt, target=target, new=new)
  return {"verdict": "generated", "text": text}, text, 0


for _verb in (export, run, compare):
  generate.add_command(_verb)


def _decoder(name: str) -> Any:
  from jax2tf.converters import generation, stages  # noqa: PLC0415
  from jax2tf.tools.cli import _loading  # noqa: PLC0415

  with stages.stage("load the decoder"):
    value = _loading.attribute(name)
    if callable(value):
      value = value()
  if not isinstance(value, generation.Decoder):
    raise _loading.UsageError(
      f"{name} is {type(value).__name__}; name a jax2tf.converters.generation.Decoder, or a "
      "function without arguments that returns one"
    )
  return value


def _options(texts: Sequence[str]) -> dict[str, Any]:
  """["a=[1]", "b=c"] -> {"a": [1], "b": "c"}."""
  options: dict[str, Any] = {}
  for text in texts:
    name, equals, value = text.partition("=")
    if not (name and equals):
      raise click.UsageError(f"--option={text!r} is not of the form NAME=VALUE")
    try:
      options[name] = json.loads(value)
    except ValueError:
      options[name] = value
  return options
