"""What is particular to an engine, and the engines by name.

A module that adds a target gives it a line in `MODULES`; it is imported when it is asked for, for
it may need an extra.
"""

from __future__ import annotations

import abc
import dataclasses
import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from jax2tf.messages import ArgumentError

from ..bundle import publish
from . import loops
from .conversations import Runner
from .decoder import Decoder

# {name: module:class}
MODULES = {
  "litert-lm": f"{__package__}.litert_lm:LiteRTLM",
  "onnxruntime-genai": f"{__package__}.onnxruntime_genai:OnnxRuntimeGenAI",
  "openvino-genai": f"{__package__}.openvino_genai:OpenvinoGenAI",
  "saved_model": f"{__package__}.saved_model:SavedModel",
}


@dataclass(frozen=True, kw_only=True)
class Target(abc.ABC):
  """What is particular to an engine. An instance has the options of one export.

  Attributes:
    name: "litert-lm".
    example: a path for errors, "model.litertlm".
    folder: whether the target writes a folder.
    whole_cache: whether the engine passes all leaves of the cache on, so that none needs a rule.
  """

  name: ClassVar[str]
  example: ClassVar[str]
  folder: ClassVar[bool] = False
  whole_cache: ClassVar[bool] = False

  @abc.abstractmethod
  def check(self, decoder: Decoder) -> None:
    """Raises the errors of options, of missing packages, and of decoders that the engine refuses,
    before anything is computed."""

  @abc.abstractmethod
  def pieces(self, decoder: Decoder) -> Sequence[int]:
    """The numbers of tokens that the engine reads in one call; empty if it reads any number."""

  @abc.abstractmethod
  def write(self, decoder: Decoder, place: Path) -> Path:
    """Writes the file or folder below `place`, which does not exist, and returns it.

    Raises:
      ExportError: the engine's runtime lacks ops or dtypes.
    """

  @abc.abstractmethod
  def runners(self, decoder: Decoder, written: Path) -> Mapping[str, Runner]:
    """{engine: what runs conversations in it}. Engines do not stop at stop tokens there, and add no
    start token. A runner returns what fails as `Generated.problem`. It may write beside `written`,
    in a folder that is removed afterwards."""

  def continued(self, path: Path, prompt: str, new: int) -> str:
    """The text that the engine generates behind a prompt.

    Raises:
      ArgumentError: the target runs no text.
      RuntimeError: the engine fails.
    """
    raise ArgumentError("target", self.name, problem="it runs no text")

  def cut(self, decoder: Decoder) -> loops.Pieces:
    """How the engine cuts a prompt."""
    sizes = self.pieces(decoder)
    return loops.in_pieces(sizes) if sizes else loops.at_once

  def rounds(self) -> bool:
    """Whether the file has rounded weights, so that some tokens are not JAX's."""
    return False

  def advice(self, engine: str) -> str:
    """What a user can do if the tokens differ in an engine; empty if nothing particular."""
    del engine
    return ""

  def versions(self) -> dict[str, str]:
    """{package: version} of what makes and runs the file."""
    return {}

  def check_path(self, path: Path, overwrite: bool) -> None:
    """Raises FileExistsError, IsADirectoryError or OSError for a path that cannot be written."""
    if not self.folder:
      publish.check_file(path, overwrite, self.example)
      return
    if not overwrite:
      publish.refuse_existing(path, "or another path")
    publish.check_replaceable(path)
    publish.check_writable(path.parent)

  def parent(self, path: Path) -> Path:
    """The folder in which the file or folder gets its name."""
    return path.parent

  def saved_in(self, path: Path) -> Path:
    """What `write` wrote, in what the user names."""
    return path

  def publish(self, written: Path, path: Path, overwrite: bool) -> Path:
    """Gives what was written its name, and returns that.

    Raises:
      FileExistsError: it exists, and `overwrite` is False.
    """
    del overwrite  # `check_path` has refused it
    if self.folder and path.exists():
      publish.replace_folder(written, path)
    else:
      publish.move(written, path)
    return path


def of(name: str, options: Mapping[str, Any]) -> Target:
  """The target with these options.

  Raises:
    ArgumentError: there is no such target, or it has no such option.
    ImportError: a package of its extra is missing.
  """
  if name not in MODULES:
    raise ArgumentError(
      "target", name, problem="there is no such target", advice=f"give one of {sorted(MODULES)}"
    )
  module, _, class_name = MODULES[name].partition(":")
  target = getattr(importlib.import_module(module), class_name)
  known = [field.name for field in dataclasses.fields(target)]
  for option in options:
    if option not in known:
      raise ArgumentError(
        option,
        options[option],
        problem=f"target {name!r} has no such option",
        advice=f"its options are {', '.join(known)}",
      )
  made: Target = target(**options)
  return made
