"""What a function would lack in a target, before anything is kept: for `jax2tf check`."""

from __future__ import annotations

import dataclasses
import importlib
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jax2tf._tf_effects import Callback, callbacks_in
from jax2tf.converters import saved_model
from jax2tf.converters.export.source import ExportError
from jax2tf.errors import LoweringError
from jax2tf.tools.cli._loading import UsageError

TARGETS = ("serving", "onnx", "tflite", "tfjs")
Gap = dict[str, Any]


def gaps(
  fun: Callable[..., Any], params: Any, inputs: Mapping[str, str], constraints: Sequence[str], targets: Sequence[str], state: Any = None
) -> dict[str, list[Gap]]:
  """{target: [{"op", "primitive", "where"}]}, found by exporting into a folder that is then gone.

  No table of ops knows all that a runtime may lack. For a primitive without a lowering the op is empty, and every target has it;
  where the target's answers differ there is no op, and `where` says how. What an export leaves out with a warning has "left_out".

  Raises:
    UsageError: a target that is not known.
    ImportError: the extra of a target is not installed.
  """
  if unknown := [target for target in targets if target not in TARGETS]:
    raise UsageError(f"--for={','.join(targets)}: {unknown[0]!r} is no target; name some of {', '.join(TARGETS)}")
  try:
    model = saved_model.Model(params, state=state, polymorphic_constraints=constraints)
    model.add(fun, inputs=inputs, stateful=state is not None)
  except LoweringError as error:
    return {target: [{"op": "", "primitive": gap.primitive, "where": gap.where} for gap in error.gaps] for target in targets}
  callbacks = _callbacks(model)
  if lost := [_gap("PyFunc", c) for c in callbacks if c.text is None]:  # no file of any target can hold one
    return dict.fromkeys(targets, lost)
  left_out = [_gap("PrintV2", c) | {"left_out": True} for c in callbacks]
  return {target: [] if target == "serving" else [*left_out, *_gaps(model, target)] for target in targets}


def _callbacks(model: saved_model.Model) -> list[Callback]:
  graphs = (function.get_concrete_function().graph for function in model.signatures.values())
  return sorted({one for graph in graphs for one in callbacks_in(graph.as_graph_def())})


def _gap(op: str, of: Callback) -> Gap:
  return {"op": op, "primitive": of.what, "where": of.where}


def _gaps(model: saved_model.Model, target: str) -> list[Gap]:
  with tempfile.TemporaryDirectory(prefix="jax2tf-check-") as folder, warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of NaN and infinities; `convert --to` says it
    try:
      importlib.import_module(f"jax2tf.converters.{target}").save_model(model, Path(folder, "model"))
    except ExportError as error:
      return [dataclasses.asdict(use) for use in error.uses] or [{"op": "", "primitive": "", "where": str(error)}]
  return []


def missing(gaps: Sequence[Gap]) -> list[Gap]:
  """Those that keep a target from taking the function."""
  return [gap for gap in gaps if not gap.get("left_out")]


def text(found: Mapping[str, Sequence[Gap]]) -> str:
  """Lines for a terminal."""
  lines = []
  for target, gaps in found.items():
    lines.append(f"{target}: {f'{len(missing(gaps))} gaps' if missing(gaps) else 'nothing is missing'}")
    for gap in gaps:
      asked = f" (of '{gap['primitive']}') at " if gap["primitive"] else ""
      what = "left out" if gap.get("left_out") else gap["op"] or ("no lowering" if asked else "")
      lines.append(f"  {what}{asked}{gap['where']}")
  return "\n".join(lines)
