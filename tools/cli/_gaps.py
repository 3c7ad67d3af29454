"""Lists what a target lacks for a function, without writing files: for `jax2tf check`."""

from __future__ import annotations

import dataclasses
import importlib
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jax2tf._tf_compat.callbacks import callbacks_in
from jax2tf._tf_compat.callbacks import gap as gap_of
from jax2tf.converters import saved_model, stages
from jax2tf.converters.export.source import ExportError
from jax2tf.converters.saved_model.adapted import Adapted
from jax2tf.errors import LoweringError, UnsupportedEquation
from jax2tf.messages import message_of
from jax2tf.tools.cli._flags import worded
from jax2tf.tools.cli._loading import UsageError

TARGETS = ("serving", "onnx", "tflite", "tfjs")
_UNTRIED = " in TensorFlow; without --quick it is exported too"
Found = dict[str, Any]  # the fields of an UnsupportedEquation


def gaps(
  adapted_model: Adapted,
  inputs: Mapping[str, str],
  constraints: Sequence[str],
  targets: Sequence[str],
  quick: bool,
  sizes: Mapping[str, Sequence[int]],
) -> dict[str, list[Found]]:
  """{target: [{"op", "primitive", "reason", "advice", "where"}]}, found by an export to a temporary
  folder; `quick` only lowers.

  It exports because no table of ops predicts everything that a runtime lacks. A primitive without a
  lowering is a gap of every target, with an empty op. If the target's answers differ from JAX's,
  the op is empty and `where` says how. An entry with "left_out" is an equation that the export
  omits with a warning.

  Raises:
    UsageError: an unknown target.
    ImportError: the extra of a target is not installed.
  """
  if unknown := [target for target in targets if target not in TARGETS]:
    raise UsageError(
      f"--for={','.join(targets)}: {unknown[0]!r} is not a target; choose from {', '.join(TARGETS)}"
    )

  def model_with(idioms: str) -> saved_model.Model:
    model = saved_model.Model(
      adapted_model.params,
      state=adapted_model.state,
      polymorphic_constraints=constraints,
      idioms=idioms,
    )
    return model.add(adapted_model.fun, inputs=inputs, stateful=adapted_model.state is not None)

  try:
    model = model_with("exact")
  except LoweringError as error:
    return {target: [dataclasses.asdict(gap) for gap in error.gaps] for target in targets}
  graphs = (function.get_concrete_function().graph for function in model.signatures.values())
  callbacks = sorted({one for graph in graphs for one in callbacks_in(graph.as_graph_def())})
  # no target can store one in a file
  if lost := [dataclasses.asdict(gap_of(one)) for one in callbacks if one.text is None]:
    return dict.fromkeys(targets, lost)
  left_out = [dataclasses.asdict(gap_of(one)) | {"left_out": True} for one in callbacks]
  return {
    target: []
    if target == "serving"
    else left_out + ([] if quick else _gaps(model_with, target, sizes))
    for target in targets
  }


def _gaps(
  model_with: Callable[[str], saved_model.Model], target: str, sizes: Mapping[str, Sequence[int]]
) -> list[Found]:
  with (
    stages.stage(f"convert to {target}"),
    tempfile.TemporaryDirectory(prefix="jax2tf-check-") as folder,
    warnings.catch_warnings(),
  ):
    warnings.simplefilter("ignore")  # about NaN and infinities; `convert --to` shows it
    try:
      exporter = importlib.import_module(f"jax2tf.converters.{target}")
      exporter.save_model(model_with(exporter.IDIOMS), Path(folder, "model"), sizes=sizes)
    except ExportError as error:
      return [
        dataclasses.asdict(gap)
        for gap in error.gaps or [UnsupportedEquation("", "", "", worded(message_of(error)))]
      ]
  return []


def missing(gaps: Sequence[Found]) -> list[Found]:
  """The gaps that prevent an export."""
  return [gap for gap in gaps if not gap.get("left_out")]


def verdict(gaps_of_targets: Mapping[str, Sequence[Found]], quick: bool) -> str:
  """The verdict in one sentence."""
  lacking = [target for target, gaps in gaps_of_targets.items() if missing(gaps)]
  return (
    f"gaps in {', '.join(lacking)}"
    if lacking
    else (f"nothing is missing{_UNTRIED if quick else ''}")
  )


def text(gaps_of_targets: Mapping[str, Sequence[Found]], quick: bool) -> str:
  """The gaps as lines for a terminal."""
  lines = []
  for target, gaps in gaps_of_targets.items():
    untried = _UNTRIED if quick and target != "serving" else ""
    lines.append(
      f"{target}: "
      f"{f'{len(missing(gaps))} gaps' if missing(gaps) else f'nothing is missing{untried}'}"
    )
    for gap in gaps:
      equation = f" (of '{gap['primitive']}') at " if gap["primitive"] else ""
      what = "left out" if gap.get("left_out") else gap["op"] or ("no lowering" if equation else "")
      lines.append(f"  {what}{equation}{gap['where']}")
  return "\n".join(lines)
