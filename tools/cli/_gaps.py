"""What a function would lack in a target, before anything is kept: for `jax2tf check`."""

from __future__ import annotations

import dataclasses
import importlib
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jax2tf import _tf_compat
from jax2tf.converters import saved_model
from jax2tf.converters.export.source import ExportError
from jax2tf.errors import LoweringError
from jax2tf.tools.cli._loading import UsageError

TARGETS = ("serving", "onnx", "tflite", "tfjs")


def gaps(
  fun: Callable[..., Any], params: Any, inputs: Mapping[str, str], constraints: Sequence[str], targets: Sequence[str]
) -> dict[str, list[dict[str, str]]]:
  """{target: [{"op", "primitive", "where"}]}, found by exporting into a folder that is then gone.

  No table of ops knows all that a runtime may lack. For a primitive without a lowering the op is empty, and every target has it;
  where the target's answers differ there is no op, and `where` says how.

  Raises:
    UsageError: a target that is not known.
    ImportError: the extra of a target is not installed.
  """
  if unknown := [target for target in targets if target not in TARGETS]:
    raise UsageError(f"--for={','.join(targets)}: {unknown[0]!r} is no target; name some of {', '.join(TARGETS)}")
  try:
    model = saved_model.Model(params, polymorphic_constraints=constraints).add(fun, inputs=inputs)
  except LoweringError as error:
    return {target: [{"op": "", "primitive": gap.primitive, "where": gap.where} for gap in error.gaps] for target in targets}
  if callbacks := _callbacks(model):  # no file of any target can hold one
    return dict.fromkeys(targets, callbacks)
  return {target: [] if target == "serving" else _gaps(model, target) for target in targets}


def _callbacks(model: saved_model.Model) -> list[dict[str, str]]:
  graphs = (function.get_concrete_function().graph for function in model.signatures.values())
  found = {one: None for graph in graphs for one in _tf_compat.callbacks_in(graph.as_graph_def())}
  return [{"op": "PyFunc", "primitive": what, "where": where} for what, where in found]


def _gaps(model: saved_model.Model, target: str) -> list[dict[str, str]]:
  with tempfile.TemporaryDirectory(prefix="jax2tf-check-") as folder, warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of NaN and infinities; `convert --to` says it
    try:
      importlib.import_module(f"jax2tf.converters.{target}").save_model(model, Path(folder, "model"))
    except ExportError as error:
      return [dataclasses.asdict(use) for use in error.uses] or [{"op": "", "primitive": "", "where": str(error)}]
  return []


def text(found: Mapping[str, Sequence[Mapping[str, str]]]) -> str:
  """Lines for a terminal."""
  lines = []
  for target, missing in found.items():
    lines.append(f"{target}: {'nothing is missing' if not missing else f'{len(missing)} gaps'}")
    for gap in missing:
      lines.append(
        f"  {gap['op'] or 'no lowering'} (of '{gap['primitive']}') at {gap['where']}" if gap["primitive"] else f"  {gap['where']}"
      )
  return "\n".join(lines)
