"""What of a function or a SavedModel stays on a device: for `check --device` and `inspect
--device`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tensorflow as tf

import jax2tf
from jax2tf.converters import stages
from jax2tf.converters.bundle import paths, publish
from jax2tf.converters.bundle.manifest import SignatureRecord
from jax2tf.converters.bundle.notation import Spec
from jax2tf.converters.saved_model import draws
from jax2tf.converters.saved_model.adapted import Adapted
from jax2tf.converters.saved_model.domain import Domain
from jax2tf.devices import Finding, Readiness, readiness, reading, report, running
from jax2tf.tools.cli._inspection import table

# What stands in the summary, in this order.
_COUNTS = {
  report.NO_KERNEL: "ops without a kernel",
  report.BOUNCE: "bounces to the host",
  report.SYNC: "waits for a predicate",
  report.INT32: "copies for int32",
  report.UPLOAD: "values of the host",
}
# Where the graph of a function will run.
_PLATFORMS = {"gpu": ("cuda",), "tpu": ("tpu",)}
# Kinds that need no line of their own, without --json.
_QUIET = (report.RETURN, report.UPLOAD, report.RESULT, report.HARMLESS)


@dataclasses.dataclass(frozen=True)
class Subject:
  """A model, converted for a device.

  Attributes:
    fun: the function of JAX.
    trees: its first arguments: its parameters, and its state if it has one.
    graph: of the function, or of it and its gradient.
  """

  fun: Callable[..., Any]
  trees: Sequence[Any]
  graph: reading.Traced


def subject(
  model: Adapted,
  inputs: Mapping[str, str],
  constraints: Sequence[str],
  device: str,
  with_gradient: bool,
) -> Subject:
  """The function of a model, converted for a device; its parameters and state are arguments."""
  specs = [Spec.parse(text, name) for name, text in inputs.items()]
  trees = [model.params] if model.state is None else [model.params, model.state]
  converted = jax2tf.convert(
    model.fun,
    polymorphic_shapes=[*(None for _ in trees), *(", ".join(spec.texts) for spec in specs)],
    polymorphic_constraints=constraints,
    platforms=_PLATFORMS[device],
  )
  of_inputs = [tf.TensorSpec(spec.sizes, tf.as_dtype(spec.dtype)) for spec in specs]
  with stages.stage(f"convert for {device}"):
    graph = reading.traced(converted, [*map(_specs, trees), *of_inputs], with_gradient)
  return Subject(model.fun, trees, graph)


def of_function(subject: Subject, device: str) -> Readiness:
  """The readiness of a function, or of the function and its gradient."""
  with stages.stage(f"read the kernels of {device}"):
    return subject.graph.readiness(device)


def of_saved_model(directory: str | Path, device: str) -> dict[str, Readiness]:
  """{signature: its readiness}.

  Raises:
    FileNotFoundError: there is no SavedModel.
  """
  saved = publish.saved_model_in(paths.of(directory, "path"))
  with paths.fetched(saved) as path, stages.stage(f"read the kernels of {device}"):
    signatures = tf.saved_model.load(str(path)).signatures
    return {name: readiness(signatures[name], device=device) for name in sorted(signatures)}


@dataclasses.dataclass(frozen=True)
class Times:
  """How long a function takes: on the device, and in JAX where JAX has it run."""

  run: running.Run
  jax_milliseconds: float
  jax_backend: str


def times(subject: Subject, inputs: Mapping[str, np.ndarray], device: str) -> Times:
  """The times of a call with these inputs, on a device of TensorFlow such as GPU:0, and in JAX,
  always without the gradient there.

  Raises:
    ValueError: TensorFlow has no such device.
  """
  arguments = [*subject.trees, *inputs.values()]
  leaves = [np.asarray(x) for x in jax.tree.leaves(arguments)]
  with stages.stage(f"run on {device}"):
    on_device = running.run(subject.graph.concrete, leaves, device)
  compiled = jax.jit(subject.fun)
  in_jax = running.milliseconds(lambda: jax.block_until_ready(compiled(*arguments)))
  return Times(on_device, in_jax, jax.default_backend())


def drawn(
  inputs: Mapping[str, str], constraints: Sequence[str], sizes: Mapping[str, Sequence[int]]
) -> dict[str, np.ndarray]:
  """Ordinary inputs, at the sizes that are given.

  Raises:
    ValueError: sizes break a constraint.
  """
  domain = Domain(SignatureRecord(dict(inputs), {}), constraints)
  shapes = domain.shapes(domain.few(sizes, {})[0])
  rng = np.random.default_rng(0)
  return {
    name: draws.draw(rng, shape, np.dtype(domain.avals[name].dtype), "ordinary", 0, False)
    for name, shape in shapes.items()
  }


def as_json(found: Readiness, taken: Times | None = None) -> dict[str, Any]:
  """The readiness as JSON values, with the times if it ran."""
  measured = {}
  if taken is not None:
    measured["run"] = {
      "on": taken.run.device,
      "milliseconds": taken.run.milliseconds,
      "ops": taken.run.devices(),
      "copies": taken.run.copies,
      "jax": {"backend": taken.jax_backend, "milliseconds": taken.jax_milliseconds},
      "milliseconds_of": {f.name: taken.run.of(f.name)[1] for f in found.findings},
    }
  return measured | {
    "device": found.device,
    "registry": found.registry,
    "tensorflow": tf.__version__,
    "ops": found.ops,
    "counts": {kind: found.count(kind) for kind in _COUNTS},
    "findings": [dataclasses.asdict(finding) for finding in found.findings],
  }


def text(found: Readiness, taken: Times | None = None) -> str:
  """The readiness for a terminal, with the times if it ran."""
  counts = ", ".join(f"{found.count(kind)} {words}" for kind, words in _COUNTS.items())
  head = (
    f"{found.device}: of {found.ops} ops: {counts}\n"
    f"read from the kernels of {found.registry} in TensorFlow {tf.__version__}; "
    + (_took(taken) if taken else "nothing ran there")
  )
  listed = [finding for finding in found.findings if finding.kind not in _QUIET]
  if not listed:
    return head
  columns = ("", "op", "count", "in a loop", "at", *(["ms"] if taken else []))
  rows = [_row(finding, taken) for finding in listed]
  advice = dict.fromkeys(f"{finding.kind}: {finding.advice}" for finding in listed)
  return "\n\n".join([head, table(columns, rows), "\n".join(advice)])


def _row(finding: Finding, taken: Times | None) -> tuple[str, ...]:
  """A line of the table: the cells of a finding."""
  operand = f", {finding.operand}" if finding.operand else ""
  return (
    finding.kind,
    f"{finding.op} {finding.dtypes}{operand}",
    str(finding.count),
    "yes" if finding.loops else "",
    finding.where or finding.name,
    *([f"{taken.run.of(finding.name)[1]:.3f}"] if taken else []),
  )


def _took(taken: Times) -> str:
  """Where it ran, and how long it took."""
  run = taken.run
  ops = ", ".join(f"{count} ops on {device}" for device, count in run.devices().items())
  copies = ", ".join(
    f"{count} copies {kind} of {ms:.3f} ms" for kind, (count, ms) in run.copies.items()
  )
  return (
    f"a call on {run.device} took {run.milliseconds:.3f} ms: {ops}"
    + (f", {copies}" if copies else "")
    + f"; jax.jit on {taken.jax_backend} {taken.jax_milliseconds:.3f} ms"
  )


def verdict(found: Readiness) -> str:
  """The verdict in one sentence."""
  if found.is_ready:
    return f"every op stays on the {found.device}"
  return f"{found.missing} ops without a kernel, {found.bounces} bounces on the {found.device}"


def _specs(tree: Any) -> Any:
  return jax.tree.map(lambda x: tf.TensorSpec(x.shape, tf.as_dtype(x.dtype)), tree)
