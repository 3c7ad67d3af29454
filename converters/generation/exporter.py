"""The way from a decoder to an engine's file, the same for every target: check, compare JAX with
itself, write, run the engine, compare, publish."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jax2tf.messages import Argument, ArgumentError, Message, Text

from .. import stages
from ..bundle import paths, publish
from ..export.source import ExportError
from . import conversations as plans
from . import loops, report
from . import target as targets
from .conversations import Conversation, Runner
from .decoder import Decoder
from .report import LoopReport
from .target import Target


@dataclass(frozen=True)
class Saved:
  """The result of `save`.

  Attributes:
    path: the file, or the folder.
    report: the comparison with JAX.
    size: the total size of the files in bytes.
  """

  path: Path
  report: LoopReport
  size: int


def save(
  decoder: Decoder,
  path: str | os.PathLike[str],
  *,
  target: str,
  conversations: Sequence[Conversation] | None = None,
  own_pieces: bool = False,
  tolerance: float | None = None,
  least_agreement: float | None = None,
  overwrite: bool = False,
  **options: Any,
) -> Saved:
  """Writes a language model for an engine, runs it there, and compares its tokens with JAX's.

  Nothing is written unless the tokens agree. The comparison is a greedy loop: prompts of several
  lengths, read in pieces, up to the end of the cache, and a second turn.

  Args:
    decoder: the model.
    path: the file or folder, as the target writes it.
    target: the engine, one of `TARGETS`.
    conversations: what to compare, tuples of `Turn`; by default random prompts of several lengths.
    own_pieces: for a model which computes something else from a prompt in pieces than from the
      whole prompt: compare with JAX in the engine's pieces. By default such a model is refused.
    tolerance: the share of the largest logit by which logits may differ from JAX's. By default, the
      tolerance of the coarsest dtype of parameters, cache and logits (`TOLERANCES`).
    least_agreement: for a file with rounded weights, the smallest share of tokens that must equal
      JAX's. By default, the share is only reported.
    overwrite: whether to replace an existing file or folder.
    options: options of the target.

  Returns:
    the path, the report of the comparison and the size.

  Raises:
    ExportError: the engine's runtime lacks ops, or the tokens or logits differ from JAX's.
    ValueError: the engine refuses such a decoder; an option is unknown; `rules` are wrong.
    FileExistsError: `path` exists and `overwrite` is False.
    OSError: it cannot be written.
    ImportError: a package of the target's extra is missing.
  """
  chosen = targets.of(target, options)
  final = paths.of(path)
  chosen.check_path(final, overwrite)
  chosen.check(decoder)
  comparison = _Comparison.of(chosen, decoder, conversations, tolerance, own_pieces)
  with publish.beside(chosen.parent(final)) as place:
    with stages.stage(f"write for {target}"):
      written = chosen.write(decoder, place)
    found = comparison.report(str(final), written)
    _refuse(chosen, found, least_agreement)
    chosen.check_path(final, overwrite)  # again, because the comparison may have taken minutes
    size = _size(written)
    published = chosen.publish(written, final, overwrite)
  return Saved(published, found, size)


def compare(
  decoder: Decoder,
  path: str | os.PathLike[str],
  *,
  target: str,
  conversations: Sequence[Conversation] | None = None,
  own_pieces: bool = False,
  tolerance: float | None = None,
  **options: Any,
) -> LoopReport:
  """Runs a file or folder that `save` wrote, and compares its tokens with JAX's.

  Args:
    decoder: the model.
    path: the file or folder.
    target: the engine, one of `TARGETS`.
    conversations, own_pieces, tolerance: as for `save`.
    options: the options that it was written with.

  Returns:
    the report; `ok` says whether the tokens agree.

  Raises:
    ExportError: JAX differs from itself; see `own_pieces`.
    FileNotFoundError: there is no such file.
    ValueError: the engine refuses such a decoder; an option is unknown; `rules` are wrong.
    ImportError: a package of the target's extra is missing.
  """
  chosen = targets.of(target, options)
  given = chosen.saved_in(_existing(path))
  chosen.check(decoder)
  comparison = _Comparison.of(chosen, decoder, conversations, tolerance, own_pieces)
  with tempfile.TemporaryDirectory(prefix="jax2tf-") as folder:
    # what a check writes stands beside the file
    link = Path(folder) / given.name
    link.symlink_to(given.absolute(), target_is_directory=given.is_dir())
    return comparison.report(str(given), link)


def run(path: str | os.PathLike[str], prompt: str, *, target: str, new: int = 32) -> str:
  """Generates a text in an engine, with the most probable tokens.

  Args:
    path: a file or folder that `save` wrote, with a tokenizer.
    prompt: the text to continue, as it is.
    target: the engine, one of `TARGETS`.
    new: the largest number of tokens to generate.

  Returns:
    the text after the prompt.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: there is no such target, or it runs no text.
    ImportError: a package of the target's extra is missing.
    RuntimeError: the engine fails. The message quotes it.
  """
  return targets.of(target, {}).continued(_existing(path), prompt, new)


def _existing(path: str | os.PathLike[str]) -> Path:
  given = paths.of(path)
  if not given.exists():
    raise FileNotFoundError(
      Message(
        Argument("path", str(given)), problem="there is no such file", advice="save a model first"
      )
    )
  return given


@dataclass(frozen=True)
class _Comparison:
  """What a file is compared with.

  Attributes:
    target, decoder: of which the file is.
    conversations: what to run.
    tolerance: as for `save`.
    reference: JAX's logits.
    remarks: for the report.
  """

  target: Target
  decoder: Decoder
  conversations: Sequence[Conversation]
  tolerance: float
  reference: loops.Reference
  remarks: Sequence[str]

  @classmethod
  def of(
    cls,
    target: Target,
    decoder: Decoder,
    conversations: Sequence[Conversation] | None,
    tolerance: float | None,
    own_pieces: bool,
  ) -> _Comparison:
    """Compares JAX with itself. The arguments are those of `save`.

    Raises:
      ExportError, ArgumentError: JAX differs from itself.
    """
    if conversations is None:
      conversations = plans.planned(decoder, target.pieces(decoder))
    plans.check_given(decoder, conversations)
    tolerance = report.tolerance_of([*decoder.dtypes]) if tolerance is None else tolerance
    with stages.stage("compare JAX with itself"):
      reference, remarks = _reference(decoder, target, conversations, tolerance, own_pieces)
    return cls(target, decoder, conversations, tolerance, reference, remarks)

  def report(self, model: str, written: Path) -> LoopReport:
    """Runs what was written, and compares it."""
    rows = []
    for engine, run_in in self.target.runners(self.decoder, written).items():
      with stages.stage(f"generate in {engine}"):
        generated = run_in(self.conversations)
      rows += [
        report.compared(
          engine,
          one,
          made,
          self.reference,
          self.tolerance,
          rounds=self.target.rounds(),
          stops=self.decoder.stop_tokens,
        )
        for one, made in zip(self.conversations, generated, strict=True)
      ]
    return LoopReport(model, tuple(rows), self.target.versions(), tuple(self.remarks))


def _reference(
  decoder: Decoder,
  target: Target,
  conversations: Sequence[Conversation],
  tolerance: float,
  own_pieces: bool,
) -> tuple[loops.Reference, list[str]]:
  """What to compare the file with, after JAX's loops were compared with each other."""
  whole: loops.Reference = loops.Whole(decoder, conversations)
  pieces = target.cut(decoder)
  differences = _differences(
    "JAX in pieces", conversations, loops.in_jax(decoder, pieces), whole, tolerance
  )
  reference, remarks = whole, []
  if differences and not own_pieces:
    raise ExportError(
      target.name,
      Text(
        "in JAX itself, this model computes something else from a prompt in the engine's pieces "
        "than from the whole prompt:",
        *[f"\n  {line}" for line in differences],
        "\ncorrect the step, its cache or the reference; or pass ",
        Argument("own_pieces", True),
        " to compare with JAX in the same pieces",
      ),
    )
  if differences:
    reference = loops.own_pieces(decoder, pieces)
    remarks = [
      f"in JAX itself, {len(differences)} of {len(conversations)} conversations differ when a "
      "prompt is read in pieces, so the file was compared with JAX in the same pieces"
    ]
  if decoder.cache.of_kind("ruled") and not target.whole_cache:
    by_rules = loops.in_jax(decoder, pieces, by_rules=True)
    wrong = _differences("JAX by rules", conversations, by_rules, reference, tolerance)
    if wrong:
      leaves = ", ".join(leaf.path for leaf in decoder.cache.of_kind("ruled"))
      raise ArgumentError(
        "rules",
        problem="\n".join(
          [f"with {leaves} by the rules, JAX itself computes something else:", *wrong]
        ),
        advice="say what the leaf is before a call at given positions",
      )
  return reference, remarks


def _differences(
  name: str,
  conversations: Sequence[Conversation],
  run: Runner,
  reference: loops.Reference,
  tolerance: float,
) -> list[str]:
  rows = [
    report.compared(name, one, made, reference, tolerance)
    for one, made in zip(conversations, run(conversations), strict=True)
  ]
  return LoopReport("", tuple(rows)).problems()


def _refuse(target: Target, found: LoopReport, least_agreement: float | None) -> None:
  problems = found.problems()
  if least_agreement is not None:
    problems += [
      f"{engine}: {equal} of {tokens} tokens are JAX's, fewer than least_agreement="
      f"{least_agreement}"
      for engine, (equal, tokens) in found.agreement.items()
      if equal < least_agreement * tokens
    ]
  if problems:
    wrong = dict.fromkeys(row.engine for row in found.rows if row.problem)
    advice = [advice for engine in wrong if (advice := target.advice(engine))]
    lines = [found.verdict, *(f"  {problem}" for problem in problems)]
    advised = [part for one in advice for part in ("\n", one)]
    raise ExportError(target.name, Text("\n".join(lines), *advised, "\nnothing was written"))


def _size(path: Path) -> int:
  files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
  return sum(file.stat().st_size for file in files)
