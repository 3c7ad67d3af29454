"""Generates the texts of one loaded model, token by token."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jax2tf.converters.bundle.manifest import GenerationRecord
from jax2tf.converters.bundle.notation import Spec
from jax2tf.converters.bundle.sessions import Session
from jax2tf.tools.serving.generation import templates, texts
from jax2tf.tools.serving.generation.requests import CHAT, Asked, BadRequestError
from jax2tf.tools.serving.generation.sampling import Sampler

STOP, LENGTH = "stop", "length"


@dataclass(frozen=True)
class Step:
  """What one token brings.

  Attributes:
    text: what can be sent; empty where a character or a stop string may still come.
    tokens: the token, unless it is a stop token.
    finish: `STOP` or `LENGTH`; empty while the text goes on.
  """

  text: str
  tokens: tuple[int, ...]
  finish: str


class Writer:
  """A loaded model that generates text.

  Attributes:
    record: what its manifest says.
    cache_bytes: of the cache of one text.
  """

  def __init__(
    self,
    record: GenerationRecord,
    directory: Path,
    signatures: Mapping[str, Callable[..., Any]],
    constant: Callable[[np.ndarray], Any],
  ):
    """Reads the tokenizer and the template. Without the packages that they need, the model still
    takes token ids.

    Args:
      record: of the manifest.
      directory: of the version.
      signatures: those of the loaded model.
      constant: tf.constant.
    """
    self.record = record
    self._signatures, self._constant = signatures, constant
    self._missing = ""
    self._tokenizer: texts.Tokenizer | None = None
    self._template: templates.Template | None = None
    try:
      if record.tokenizer:
        self._tokenizer = texts.tokenizer_of(directory / record.tokenizer)
      if record.chat_template and self._tokenizer:
        self._template = self._template_of(self._tokenizer)
    except ModuleNotFoundError as error:
      self._missing = str(error)

  @property
  def cache_bytes(self) -> int:
    arrays = [Spec.parse(text) for text in self.record.cache.values()]
    return sum(math.prod(map(int, spec.dims or ())) * spec.dtype.itemsize for spec in arrays)

  @property
  def writes_text(self) -> bool:
    """Whether there is a tokenizer, so that answers are more than token ids."""
    return self._tokenizer is not None

  def prompt(self, asked: Asked) -> list[int]:
    """The tokens of the prompt.

    Raises:
      BadRequestError: the model takes no text or no chat, or the prompt does not fit into its
        cache.
    """
    record = self.record
    if isinstance(asked.prompt, tuple):
      tokens = list(asked.prompt)
    else:
      tokens = self._with_tokenizer().encode(self._text(asked))
    if asked.stop:
      self._with_tokenizer()
    outside = [token for token in tokens if not 0 <= token < record.vocabulary]
    if outside:
      raise BadRequestError(
        f"the prompt has token {outside[0]}, and the model tokens 0 to {record.vocabulary - 1}",
        "prompt",
      )
    if record.start_token is not None and tokens[:1] != [record.start_token]:
      tokens = [record.start_token, *tokens]
    if not tokens:
      raise BadRequestError("the prompt is empty", "prompt")
    if len(tokens) >= record.context_length:
      raise BadRequestError(
        f"the prompt has {len(tokens)} tokens, and the model's context {record.context_length}, of "
        "which the answer needs one at least",
        "prompt",
      )
    return tokens

  def warm_up(self) -> None:
    """Runs both signatures once. Raises the errors of the runtime."""
    session = Session(self.record, self._signatures, self._constant)
    session([0, 0][: self.record.context_length - 1])
    session([0])

  def begin(self, asked: Asked, prompt: list[int]) -> Text:
    """A new text in a session of its own.

    Args:
      asked: the request.
      prompt: its tokens.
    """
    session = Session(self.record, self._signatures, self._constant)
    return Text(self.record, session, self._tokenizer, asked, prompt)

  def _text(self, asked: Asked) -> str:
    if asked.path != CHAT:
      return str(asked.prompt)
    if self._template is None:
      raise BadRequestError(
        self._missing or "this model has no chat template; send a prompt to /v1/completions"
      )
    try:
      return self._template(asked.messages)
    except templates.TemplateError as error:
      raise BadRequestError(str(error), "messages") from error

  def _with_tokenizer(self) -> texts.Tokenizer:
    if self._tokenizer is None:
      raise BadRequestError(
        self._missing or "this model has no tokenizer; send token ids, without stop", "prompt"
      )
    return self._tokenizer

  def _template_of(self, tokenizer: texts.Tokenizer) -> templates.Template:
    record = self.record
    bos = "" if record.start_token is None else tokenizer.piece(record.start_token)
    eos = tokenizer.piece(record.stop_tokens[0]) if record.stop_tokens else ""
    return templates.Template(record.chat_template, bos, eos)


class Text:
  """A text in the making.

  Attributes:
    prompt_tokens: the number of tokens of the prompt.
    tokens: the number of tokens that were chosen, with a stop token.
    seconds: when the last of them was chosen, since this text was begun.
  """

  def __init__(
    self,
    record: GenerationRecord,
    session: Session,
    tokenizer: texts.Tokenizer | None,
    asked: Asked,
    prompt: list[int],
  ):
    self._session, self._unread = session, prompt
    self._sampler = Sampler(asked.sampling)
    self._growing = texts.Growing(tokenizer) if tokenizer else None
    self._stops = texts.Stops(asked.stop)
    self._stop_tokens = {*record.stop_tokens}
    room = record.context_length - len(prompt)
    self._most = room if asked.max_tokens is None else min(asked.max_tokens, room)
    self._begun = time.monotonic()
    self.prompt_tokens, self.tokens, self.seconds = len(prompt), 0, 0.0

  def step(self) -> Step:
    """Reads what is not in the cache yet, and chooses the next token.

    Raises:
      ValueError: the logits are not numbers.
      Exception: of the runtime.
    """
    token = self._sampler(self._session(self._unread))
    self._unread = [token]
    self.tokens += 1
    self.seconds = time.monotonic() - self._begun
    if token in self._stop_tokens:
      return Step(self._rest(), (), STOP)
    text, stopped = self._stops.add(self._growing.add(token) if self._growing else "")
    if stopped:
      return Step(text, (token,), STOP)
    if self.tokens == self._most:
      return Step(text + self._rest(), (token,), LENGTH)
    return Step(text, (token,), "")

  def _rest(self) -> str:
    """What was kept back, at the end of the text."""
    text, stopped = self._stops.add(self._growing.end() if self._growing else "")
    return text if stopped else text + self._stops.end()
