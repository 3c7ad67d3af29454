"""Makes the prompt of a chat by the template of a model."""

from __future__ import annotations

import datetime
import importlib
import json
from collections.abc import Mapping, Sequence
from typing import Any


class TemplateError(Exception):
  """The template refuses the messages."""


class Template:
  """A Jinja template, as files of Hugging Face have them: with `messages`, `add_generation_prompt`,
  `bos_token` and `eos_token`. It runs in Jinja's sandbox, for it comes from the model."""

  def __init__(self, source: str, bos_token: str, eos_token: str):
    """Raises ModuleNotFoundError without jinja2, and its errors for a source that is no
    template."""
    try:
      self._jinja: Any = importlib.import_module("jinja2")
    except ModuleNotFoundError as error:
      raise ModuleNotFoundError(
        "the chat template of this model needs jinja2: pip install 'jax2tf[generation]'",
        name="jinja2",
      ) from error
    sandbox = importlib.import_module("jinja2.sandbox")
    environment = sandbox.ImmutableSandboxedEnvironment(
      trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {"raise_exception": _raise, "strftime_now": _now}
    self._template = environment.from_string(source)
    self._tokens = {"bos_token": bos_token, "eos_token": eos_token}

  def __call__(self, messages: Sequence[Mapping[str, Any]]) -> str:
    """The prompt. Raises TemplateError."""
    try:
      prompt: str = self._template.render(
        messages=[*messages], add_generation_prompt=True, tools=None, **self._tokens
      )
    except (self._jinja.TemplateError, TypeError, ValueError, OverflowError) as error:
      raise TemplateError(f"the chat template refuses these messages: {error}") from error
    return prompt


def _to_json(value: Any, indent: int | None = None) -> str:
  return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise(message: str) -> None:
  raise ValueError(message)


def _now(format_: str) -> str:
  return datetime.datetime.now().strftime(format_)
