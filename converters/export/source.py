"""Shared parts of the exporters: the source model, the refusals, and the comparison of the file
with JAX."""

from __future__ import annotations

import contextlib
import copyreg
import functools
import os
import re
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf
from jax.experimental import checkify

from jax2tf import pytrees, survey
from jax2tf._tf_compat import callbacks
from jax2tf.errors import UnsupportedEquation, warn_user
from jax2tf.idioms import fused
from jax2tf.messages import Argument, ArgumentError, Aside, Message, Text

from .. import stages
from ..bundle import graphs, manifest, paths, progress, publish
from ..bundle.calls import Answer
from ..opened.exporter import ordinary
from ..saved_model import described, kinds
from ..saved_model.builder import Model
from ..saved_model.draws import HOSTILE, SUBNORMAL
from ..saved_model.state import State
from ..verify import answers as compare
from ..verify import plan, references
from ..verify.report import Report
from . import advice, freezing, replay

# Runs of a file -> the answer of its runtime to each.
Runner = Callable[[Sequence[plan.Run]], Sequence[Answer]]


_UNKNOWN_LINE = "an unknown line: the model has no JAX function, or another one created this op"


class ExportError(RuntimeError):
  """A target cannot run a function, or computes different outputs.

  Attributes:
    target: "onnx", "tflite" or "tfjs".
    uses: the ops that the target lacks, with the primitives and the source lines that use them.
    gaps: the same, with the reasons.
  """

  def __init__(
    self,
    target: str,
    message: str,
    uses: Sequence[survey.Use] = (),
    reasons: Mapping[str, str] | None = None,
  ):
    listed = [f"\n  {use.op} (of '{use.primitive}') at {use.where}" for use in uses]
    super().__init__(Text(message, *listed))
    self.target, self.uses = target, tuple(uses)
    why = reasons or {}
    other = "rewrite this line with other JAX functions, or choose another target"
    self.gaps = [
      UnsupportedEquation(
        use.primitive, why.get(use.op) or f"{target} has no such op", other, use.where, use.op
      )
      for use in uses
    ]

  def __reduce__(self) -> tuple[Any, ...]:
    """An exception would be made again of its text alone, in another process."""
    return copyreg.__newobj__, (type(self), *self.args), vars(self)  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Signature:
  """A signature to export.

  Attributes:
    name: its name in the SavedModel.
    record: inputs and outputs in jaxpr notation, with symbolic dimensions.
    function: the ConcreteFunction.
    reference: the function of the inputs to compare with: the JAX function, or else the SavedModel
      run by TensorFlow.
    traced: the JAX function and the specs of its arguments, if available.
    owner: the model, referenced here so that its variables stay alive.
    state: the state of a stateful signature without TensorFlow processors. The reference then takes
      and returns it, as in `plan.Subject`.
  """

  name: str
  record: manifest.SignatureRecord
  function: Any
  reference: Callable[..., Any]
  traced: tuple[Callable[..., Any], tuple[Any, ...]] | None
  owner: Any
  state: State | None = None

  def frozen(
    self, table: Mapping[str, replay.Replacement], held: Mapping[tf.DType, tf.DType] | None = None
  ) -> Any:
    """The function with constant parameters and a target's replacements; see `freezing.frozen`."""
    return freezing.frozen(self.function, table, held)

  @cached_property
  def uses(self) -> Sequence[survey.Use]:
    """The ops with the source lines that use them; empty for a SavedModel without its function."""
    return survey.ops_of(self.traced[0], *self.traced[1]) if self.traced else ()

  @cached_property
  def modules(self) -> frozenset[str]:
    """The paths of the user's name scopes in the names of ops.

    Raises:
      ArgumentError: the JAX function is not available.
    """
    if not self.traced:
      raise ArgumentError(
        "functions",
        "modules",
        problem="a SavedModel does not say which name scopes are modules",
        advice="export the JAX function, or the saved_model.Model",
      )
    return survey.modules_of(self.traced[0], *self.traced[1])

  def refuse(self, target: str, runtime: str, ops: Mapping[str, str]) -> ExportError:
    """The error for ops {type: why}, with the source lines that use them."""
    refused = [use for use in self.uses if use.op in ops]
    unknown = [op for op in ops if op not in {use.op for use in refused}]
    refused += [survey.Use(op, "?", _UNKNOWN_LINE) for op in unknown]
    ops = advice.reasons(ops)
    why = "; ".join(dict.fromkeys(reason for reason in ops.values() if reason))
    return ExportError(
      target,
      f"{runtime} cannot take signature {self.name!r}{f' ({why})' if why else ''}, which needs",
      refused,
      ops,
    )


@dataclass(frozen=True)
class Source:
  """The model to export.

  Attributes:
    signatures: {name: signature}.
    constraints: conditions on the dimension variables.
    label: the name of the model in reports.
    idioms: as the model was made.
  """

  signatures: Mapping[str, Signature]
  constraints: Sequence[str]
  label: str
  idioms: str = "exact"

  @classmethod
  def of(
    cls,
    model: Model | Source | str | os.PathLike[str],
    *,
    signatures: Sequence[str] | None = None,
    reference: Any = None,
    params: Any = None,
    idioms: str | None = None,
  ) -> Source:
    """From a builder, or any SavedModel, opened if it is closed. A `Source` is returned unchanged.

    Args:
      model: the builder, or the directory of a version, or of a model: of its newest version.
      signatures: names of the signatures to export. By default all; if a function has several
        names, the first of them.
      reference: for a directory, the JAX function `fun(params, *inputs)`, or {signature: function}.
        By default, the SavedModel itself.
      params: the parameters of `reference`. Without them it is `fun(*inputs)`.
      idioms: the idioms that the model must have. By default any.

    Raises:
      FileNotFoundError: there is no SavedModel.
      ValueError: a signature is unknown; a builder gets a reference, but has its own; the function
        calls back into Python; the model has other idioms; a file is damaged.
      NotImplementedError, OpenError: as `opened.save`, of a closed SavedModel.
    """
    if isinstance(model, Source):
      return model
    if isinstance(model, Model):
      if reference is not None or params is not None:
        name = "params" if reference is None else "reference"
        raise ArgumentError(
          name,
          problem="it is for a saved model, and this Model has its own functions and parameters",
          advice="leave it out",
        )
      _check_idioms(idioms, model.idioms, "this builder")
      signatures_of_model = _of_builder(model, _chosen(model.records, signatures))
      return cls(
        _warned(signatures_of_model), model.polymorphic_constraints, "the model", model.idioms
      )
    saved = publish.saved_model_in(paths.of(model, "model"), "model")
    with contextlib.ExitStack() as stack:
      directory = stack.enter_context(ordinary(saved))
      loaded, record = described.loaded(directory, signatures)
      _check_idioms(idioms, record.idioms, str(saved))
      chosen = _chosen(record.signatures, signatures)
      functions = _functions(reference, chosen)
      weakref.finalize(loaded, stack.pop_all().close)  # the model may read its assets later
    signatures_of_model = {
      name: _of_loaded(loaded, name, one, functions.get(name), params)
      for name, one in chosen.items()
    }
    return cls(_warned(signatures_of_model), record.constraints, str(saved), record.idioms)

  def refuse_writers(self, target: str, runtime: str, has_state: bool = False) -> None:
    """Raises ExportError for a signature that writes variables, whose values the file would lose. A
    target may support a state."""
    for name, signature in self.signatures.items():
      if not (has_state and signature.state) and (
        writers := graphs.writers(signature.function.graph.as_graph_def())
      ):
        raise ExportError(
          target,
          Message(
            problem=Text(
              runtime, f" cannot keep what signature {name!r} writes ({', '.join(writers)})"
            ),
            advice=Text(
              Aside("choose others with ", Argument("signatures"), ", or "),
              "export a function that takes its state as an input and returns the new one",
            ),
          ),
        )

  def refuse(self, target: str, runtime: str, ops: Mapping[str, str]) -> ExportError:
    """The error for ops {type: why}, of the first signature with such an op."""
    signatures = list(self.signatures.values())
    asking = [one for one in signatures if any(use.op in ops for use in one.uses)]
    return (asking or signatures)[0].refuse(target, runtime, ops)

  @cached_property
  def _asked(self) -> dict[Any, tuple[list[plan.Run], list[compare.Expected]]]:
    """{key of the comparison: (runs, answers of the reference)}, shared by several runtimes or
    forms of a file."""
    return {}

  def subjects(self) -> list[plan.Subject]:
    """The signatures with their references."""
    return [
      plan.Subject(
        s.name, s.record, s.reference, s.record.own_inputs, s.state.layout.paths if s.state else ()
      )
      for s in self.signatures.values()
    ]

  @cached_property
  def _planned(self) -> dict[Any, list[plan.Run]]:
    """{key of the comparison: runs}."""
    return {}

  def runs(self, options: plan.Comparison) -> list[plan.Run]:
    """The runs of `compared`: ordinary, hostile and subnormal inputs of each signature, at several
    sizes."""
    if (key := options.key()) not in self._planned:
      self._planned[key] = self._plan(options)
    return self._planned[key]

  def _plan(self, options: plan.Comparison) -> list[plan.Run]:
    examples = dict(options.examples or {})
    for name in examples:
      if not any(name in one.record.inputs for one in self.signatures.values()):
        taken = [name for one in self.signatures.values() for name in one.record.inputs]
        raise ArgumentError(
          Argument("examples", key=name),
          problem=f"the signatures take no such input, only {', '.join(taken)}",
        )
    return plan.plan(
      self.subjects(), self.constraints, options.sizes or {}, options.samples, examples
    )

  def compared(
    self,
    answer: Runner,
    target: str,
    runtime: str,
    options: plan.Comparison = plan.Comparison(),  # noqa: B008  (frozen)
    *,
    versions: Mapping[str, str],
    timed: bool = True,
    precision: np.dtype[Any] | None = None,
  ) -> Report:
    """Runs the file and the reference on the same inputs, as `verify` does. `timed`: measure
    latencies. `precision`: the dtype that the file computes in, if the reference computes in a
    wider one; its range is that of ordinary inputs and of the caller's, and others are left out.

    Outputs for ordinary inputs, and for the caller's, must agree. For hostile inputs (NaN,
    infinities, extreme integers) the kernels of a runtime may differ. Then one warning says so, and
    the report lists the differences.

    Raises:
      ExportError: the file fails, or differs from the reference.
    """
    with stages.stage(f"compare in {runtime}"):
      if (key := options.key()) not in self._asked:
        requested = self.runs(options)
        initial = next((s.state.stored() for s in self.signatures.values() if s.state), ())
        answers = compare.reference_answers(requested, (), initial)
        self._asked[key] = requested, [*progress.over(answers, f"compare {target}", len(requested))]
      runs, expected = self._asked[key]
      if precision is not None:
        taken = [i for i, run in enumerate(runs) if run.values not in (SUBNORMAL, HOSTILE)]
        runs = [runs[i] for i in taken]
        expected = [expected[i].computed_in(precision) for i in taken]
      answered = answer([replace(run, timed=run.timed and timed) for run in runs])
      report = compare.report(
        f"{self.label} in {runtime}",
        runs,
        answered,
        expected,
        tolerances=(options.rtol, options.atol),
        hostile=False,
        skipped={},
        versions=versions,
      )
    if wrong := [row for row in report.rows if not row.ok]:
      lines = "\n".join(f"  {row.place}: {row.problem}" for row in wrong[:8])
      raise ExportError(
        target,
        f"{runtime} computes different outputs than the reference, so nothing was "
        f"written:\n{lines}",
      )
    if noted := [row for row in report.rows if row.problem and row.values == HOSTILE]:
      lines = "\n".join(f"  {row.place}: {row.problem}" for row in noted[:4])
      warn_user(
        f"{runtime} computes different outputs than JAX for NaN, infinities or extreme "
        f"numbers:\n{lines}"
      )
    return report


def _functions(reference: Any, chosen: Mapping[str, Any]) -> Mapping[str, Any]:
  """{signature: its JAX function, or None}."""
  functions = reference if isinstance(reference, Mapping) else dict.fromkeys(chosen, reference)
  if unknown := [name for name in functions if name not in chosen]:
    raise ArgumentError(
      Argument("reference", key=unknown[0]),
      problem=f"the signatures to export are: {', '.join(chosen)}",
    )
  return functions


def _of_loaded(
  loaded: Any, name: str, record: manifest.SignatureRecord, fun: Any, params: Any
) -> Signature:
  function = loaded.signatures[name]
  called = _closed if record.preprocessed or record.postprocessed else _jitted
  against = (
    _tensorflow(loaded, name, record) if fun is None else called(_unchecked(fun, function), params)
  )
  return Signature(name, record, function, against, None, loaded)


def _check_idioms(requested: str | None, converted_with: str, what: str) -> None:
  if requested is not None and fused.names_of(requested) != fused.names_of(converted_with):
    raise ArgumentError(
      "idioms",
      requested,
      problem=f"{what} was made with {converted_with!r}",
      advice=f"omit it, or create a Model(params, idioms={requested!r})",
    )


def _chosen(
  records: Mapping[str, manifest.SignatureRecord], names: Sequence[str] | None
) -> dict[str, manifest.SignatureRecord]:
  kinds.check_names("signatures", names)
  if names is not None:
    kinds.check_known("signatures", names, records)
    return {name: records[name] for name in names}
  first: dict[str, str] = {}
  for name, record in records.items():
    # records of different processors may be equal
    processed = record.preprocessed or record.postprocessed
    first.setdefault(name if processed else repr(record), name)
  return {name: records[name] for name in first.values()}


def _warned(signatures: dict[str, Signature]) -> dict[str, Signature]:
  """The signatures. Warns once of all prints and checks, which the replay leaves out."""
  definitions = [one.function.graph.as_graph_def() for one in signatures.values()]
  if warned := dict.fromkeys(
    callback for definition in definitions for callback in callbacks.callbacks_in(definition)
  ):
    callbacks.refuse(warned)
    lines = "".join(f"\n  {callback}" for callback in warned)
    warn_user(f"the export omits prints and checks, which only TensorFlow can run:{lines}")
  return signatures


def _unchecked(fun: Callable[..., Any], function: Any) -> Callable[..., Any]:
  """The JAX function, without its checks if the graph `function` has any, because jax.jit refuses
  checks."""
  checks = [
    callback
    for callback in callbacks.callbacks_in(function.graph.as_graph_def())
    if callback.what == "check"
  ]
  return (lambda *args: checkify.checkify(fun)(*args)[1]) if checks else fun


def _of_builder(
  model: Model, chosen: Mapping[str, manifest.SignatureRecord]
) -> dict[str, Signature]:
  signatures_of_model = {}
  params = model.shared_values()
  specs = pytrees.Leaves.of(
    params, [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in jax.tree.leaves(params)]
  )
  for name, record in chosen.items():
    function = model.functions.get(name)
    concrete = model.traced(name)
    if record.preprocessed or record.postprocessed:
      signatures_of_model[name] = Signature(
        name, record, concrete, _tensorflow(model, name, record), None, model
      )
      continue
    state = model.remembered if record.stateful else None
    if function is None:
      assert state  # a reset has no JAX function
      signatures_of_model[name] = Signature(
        name, record, concrete, functools.partial(_reset, state.first()), None, model, state
      )
      continue
    arguments, fun = (
      function.arguments,
      state.layout.of_stored(function.fun) if state else function.fun,
    )

    def reference(
      params: Any,
      *leaves: Any,
      fun: Any = fun,
      arguments: Any = arguments,
      order: Any = record.own_inputs,
    ) -> Any:
      before, inputs = leaves[: len(leaves) - len(order)], leaves[len(leaves) - len(order) :]
      named = dict(zip(order, inputs, strict=True))
      return fun(params, *before, *arguments.unflatten([named[n] for n in arguments.names]))

    before = [state.stored()] if state else []
    traced = fun, (specs, *before, *arguments.unflatten(arguments.avals))
    called = functools.partial(references.jitted(_unchecked(reference, concrete)), params)
    signatures_of_model[name] = Signature(name, record, concrete, called, traced, model, state)
  return signatures_of_model


def _reset(initial: Sequence[Any], *_: Any) -> Any:
  return list(initial), {"reset": jnp.int32(len(initial))}


def _jitted(fun: Callable[..., Any], params: Any) -> Callable[..., Any]:
  """The function of its inputs. Parameters are arguments, because XLA would fold constants, and
  NumPy arrays refuse tracer indices."""
  jitted = references.jitted(fun)
  return jitted if params is None else functools.partial(jitted, jax.tree.map(jnp.asarray, params))


def _closed(fun: Callable[..., Any], params: Any) -> Callable[..., Any]:
  return fun if params is None else lambda *inputs: fun(params, *inputs)


def _tensorflow(model: Any, name: str, record: manifest.SignatureRecord) -> Callable[..., Any]:
  """The signature run by TensorFlow, as the reference."""

  def run(*arrays: Any) -> dict[str, np.ndarray]:
    tensors = {
      n: tf.constant(np.asarray(x)) for n, x in zip(record.own_inputs, arrays, strict=True)
    }
    try:
      return {n: y.numpy() for n, y in model.signatures[name](**tensors).items()}
    except tf.errors.InvalidArgumentError as error:
      shapes_given = ", ".join(f"{n} {list(x.shape)}" for n, x in tensors.items())
      lines = [line.strip() for line in error.message.splitlines()]
      reason = next(
        re.sub(r"\{\{.*?\}\} ", "", line)
        for line in reversed(lines)
        if line and not line.startswith("[[")
      )
      raise ArgumentError(
        "sizes",
        problem=f"signature {name!r} fails in TensorFlow with the inputs {shapes_given} ({reason})",
        advice=Text("give ones that it takes", Aside(", or such ", Argument("examples"))),
      ) from error

  return run
