"""What of a function or a SavedModel stays on a device: for `check --device` and `inspect
--device`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import tensorflow as tf

import jax2tf
from jax2tf.converters import stages
from jax2tf.converters.bundle import paths, publish
from jax2tf.converters.bundle.notation import Spec
from jax2tf.converters.saved_model.adapted import Adapted
from jax2tf.devices import Readiness, readiness
from jax2tf.tools.cli._inspection import table

# What stands in the summary, in this order.
_COUNTS = {
  "no kernel": "ops without a kernel",
  "bounce": "bounces to the host",
  "predicate": "waits for a predicate",
  "int32": "copies for int32",
  "upload": "values of the host",
}
# Kinds that need no line of their own, without --json.
_QUIET = ("return", "upload", "result", "on the host")


@dataclasses.dataclass(frozen=True)
class Subject:
  """A converted function, and the specs of its arguments: parameters, state, inputs."""

  function: Any
  specs: Sequence[Any]


def subject(model: Adapted, inputs: Mapping[str, str], constraints: Sequence[str]) -> Subject:
  """The function of a model, whose parameters and state are arguments."""
  specs = [Spec.parse(text, name) for name, text in inputs.items()]
  trees = [model.params] if model.state is None else [model.params, model.state]
  converted = jax2tf.convert(
    model.fun,
    polymorphic_shapes=[*(None for _ in trees), *(", ".join(spec.texts) for spec in specs)],
    polymorphic_constraints=constraints,
  )
  of_inputs = [tf.TensorSpec(spec.sizes, tf.as_dtype(spec.dtype)) for spec in specs]
  return Subject(converted, [*map(_specs, trees), *of_inputs])


def of_function(subject: Subject, device: str, with_gradient: bool) -> Readiness:
  """The readiness of a function, or of the function and its gradient."""
  with stages.stage(f"read the kernels of {device}"):
    return readiness(subject.function, *subject.specs, device=device, gradient=with_gradient)


def of_saved_model(directory: str | Path, device: str) -> dict[str, Readiness]:
  """{signature: its readiness}.

  Raises:
    FileNotFoundError: there is no SavedModel.
  """
  saved = publish.saved_model_in(paths.of(directory, "path"))
  with paths.fetched(saved) as path, stages.stage(f"read the kernels of {device}"):
    signatures = tf.saved_model.load(str(path)).signatures
    return {name: readiness(signatures[name], device=device) for name in sorted(signatures)}


def as_json(found: Readiness) -> dict[str, Any]:
  """The readiness as JSON values."""
  return {
    "device": found.device,
    "registry": found.registry,
    "tensorflow": tf.__version__,
    "ops": found.ops,
    "counts": {kind: found.count(kind) for kind in _COUNTS},
    "findings": [dataclasses.asdict(finding) for finding in found.findings],
  }


def text(found: Readiness) -> str:
  """The readiness for a terminal."""
  counts = ", ".join(f"{found.count(kind)} {words}" for kind, words in _COUNTS.items())
  head = (
    f"{found.device}: of {found.ops} ops: {counts}\n"
    f"read from the kernels of {found.registry} in TensorFlow {tf.__version__}; nothing ran there"
  )
  rows = [
    (
      finding.kind,
      f"{finding.op} {finding.dtypes}" + (f", {finding.operand}" if finding.operand else ""),
      str(finding.count),
      "yes" if finding.loops else "",
      finding.where or finding.name,
    )
    for finding in found.findings
    if finding.kind not in _QUIET
  ]
  if not rows:
    return head
  advice = dict.fromkeys(
    f"{finding.kind}: {finding.advice}" for finding in found.findings if finding.kind not in _QUIET
  )
  listed = table(("", "op", "count", "in a loop", "at"), rows)
  return "\n\n".join([head, listed, "\n".join(advice)])


def verdict(found: Readiness) -> str:
  """The verdict in one sentence."""
  if found.is_ready:
    return f"every op stays on the {found.device}"
  return f"{found.missing} ops without a kernel, {found.bounces} bounces on the {found.device}"


def _specs(tree: Any) -> Any:
  return jax.tree.map(lambda x: tf.TensorSpec(x.shape, tf.as_dtype(x.dtype)), tree)
