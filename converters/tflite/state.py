"""A state in a .tflite file: variables that the interpreter keeps between calls.

An interpreter runs one call at a time, so the file needs no mutex.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import tensorflow as tf

from ..bundle import manifest
from ..bundle.calls import Answer
from ..export import freezing, replay, weights
from ..export.narrow import OF_4_BITS
from ..export.source import ExportError, Source
from ..saved_model.arguments import input_specs
from ..saved_model.state import State
from ..verify import plan
from . import runtime
from .runtime import RUNTIME, TARGET

SIGNATURE = "state"  # returns the state, which cannot be read otherwise
# LiteRT 2.3: the dtypes of variables.
_HELD = {d: d for d in (tf.float32, tf.int32, tf.int64, tf.bool)} | {tf.uint32: tf.int32}


def of(source: Source) -> State | None:
  """The state of the signatures. Raises ExportError if the file cannot hold it."""
  state = next(
    (signature.state for signature in source.signatures.values() if signature.state), None
  )
  if state is None:
    return None
  if wrong := [
    f"{path}: {spec}"
    for (path, spec), v in zip(state.specs().items(), state.variables, strict=True)
    if v.dtype not in _HELD
  ]:
    raise ExportError(
      TARGET,
      f"{RUNTIME} has no variables for the state {', '.join(wrong)}; keep it in another dtype, "
      "such as float32",
    )
  if SIGNATURE in source.signatures:
    raise ExportError(
      TARGET, f"signature {SIGNATURE!r} of the file returns the state; give yours another name"
    )
  return state


def converted(
  source: Source,
  state: State,
  table: Mapping[str, replay.Replacement],
  refuse: Callable[[Mapping[str, str]], Exception],
  large: Mapping[str, tf.Variable],
) -> bytes:
  """Converts the signatures, and one that returns the state; see `runtime.converted`. `large`:
  {input: variable} of weights that become inputs."""
  names = {f"jax2tf_state_{i}": variable for i, variable in enumerate(state.variables)}
  module = tf.Module()
  module.state_variables = [
    tf.Variable(_bits(v.read_value(), _HELD[v.dtype]), name=v.name.split(":")[0])
    for v in state.variables
  ]
  variables = dict(zip(names, module.state_variables, strict=True))

  def stateful(frozen: Any) -> Callable[..., dict[str, tf.Tensor]]:
    def call(**inputs: tf.Tensor) -> dict[str, tf.Tensor]:
      before = {
        name: _bits(variable.read_value(), names[name].dtype)
        for name, variable in variables.items()
      }
      results = dict(frozen(**inputs, **before))
      for name, variable in variables.items():
        variable.assign(_bits(results.pop(name), variable.dtype))
      return results

    return call

  def present() -> dict[str, tf.Tensor]:
    outputs = zip(
      _outputs(state.layout.paths), module.state_variables, state.variables, strict=True
    )
    return {output: _bits(variable.read_value(), v.dtype) for output, variable, v in outputs}

  signatures = {}
  for name, signature in source.signatures.items():
    frozen = freezing.frozen(
      signature.function,
      table,
      OF_4_BITS,
      state=names if signature.state else None,
      weights=weights.used(large, signature.function),
    )
    specs = {name: spec for name, spec in input_specs(frozen).items() if name not in names}
    signatures[name] = runtime.concrete(stateful(frozen), specs) if signature.state else frozen
  return runtime.converted(
    signatures | {SIGNATURE: runtime.concrete(present, {})}, runtime.with_variables, refuse, module
  )


def with_state(
  answers: Callable[[Sequence[plan.Run]], Sequence[Answer]],
) -> Callable[[Sequence[plan.Run]], Sequence[Answer]]:
  """`answers`, where each run of a stateful signature also has the state after it, read by an
  additional run."""
  subject = plan.Subject(SIGNATURE, manifest.SignatureRecord({}, {}), lambda: None, [])

  def of_both(runs: Sequence[plan.Run]) -> list[Answer]:
    requested: list[plan.Run] = []
    for run in runs:
      shown = plan.Run(subject, {}, run.values, {}, timed=False, continues=True)
      requested += [replace(run, timed=False), shown] if run.subject.paths else [run]
    answered = iter(answers(requested))
    return [
      _joined(run, next(answered), next(answered)) if run.subject.paths else next(answered)
      for run in runs
    ]

  return of_both


def _joined(run: plan.Run, answer: Answer, after: Answer) -> Answer:
  paths = zip(run.subject.paths, _outputs(run.subject.paths), strict=True)
  state = {f"state/{path}": after["outputs"].get(output) for path, output in paths}
  return {
    "outputs": answer["outputs"] | state,
    "error": answer["error"] or after["error"],
    "seconds": None,
  }


def _outputs(paths: Sequence[str]) -> list[str]:
  return [f"{SIGNATURE}_{i}_{re.sub(r'[^0-9A-Za-z]', '_', path)}" for i, path in enumerate(paths)]


def _bits(x: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
  return x if x.dtype == dtype else tf.bitcast(x, dtype)
