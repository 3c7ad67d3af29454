"""Compares an opened SavedModel with the closed one: values, gradients, and what it writes."""

from __future__ import annotations

import contextlib
import functools
import tempfile
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tensorflow as tf

from jax2tf import _tf_compat
from jax2tf.stablehlo.functions import Function

from .. import stages
from ..bundle import calls, graphs, manifest, progress
from ..bundle.notation import Spec
from ..saved_model import described
from ..saved_model.domain import Domain
from ..verify import answers, plan
from ..verify.report import Report
from . import files, rewriting

_GRADIENT, _VARIABLE = "gradient of ", "variable "
_MOST_SIZES = 2  # combinations of sizes of a signature


def compared(
  closed: Path, opened: Path, label: str, options: plan.Comparison
) -> tuple[Report, tuple[str, ...], manifest.Manifest]:
  """Runs all signatures of both, with ordinary, hostile and subnormal inputs.

  The closed model is run by TensorFlow. A signature that TensorFlow cannot run, because its modules
  are newer or older than TensorFlow's StableHLO, is run with its modules under `jax.jit`.

  Args:
    closed, opened: the directories.
    label: the name of the model in the report.
    options: how to compare. By default, two sizes of each dimension variable.

  Returns:
    the report; what could not be compared, in sentences; and the manifest of the opened model, or
    what one would say of it.
  """
  with contextlib.ExitStack() as stack, stages.stage("compare"):
    theirs = _Reference(closed, stack)
    ours = _Model(opened, theirs.writing)
    stack.enter_context(jax.enable_x64(True))  # JAX draws the inputs, and keeps their dtypes
    record = _records(opened, ours)
    subjects = [
      _subject(name, each, record.constraints, ours, theirs)
      for name, each in record.signatures.items()
    ]
    sizes, examples = options.sizes or {}, options.examples or {}
    planned = plan.plan(subjects, record.constraints, sizes, options.samples, examples)
    runs = _few(planned, bool(sizes))
    expected = [*progress.over(answers.reference_answers(runs, ()), "compare", len(runs))]
    answered = [calls.answered(functools.partial(_prepared, ours, run), run.timed) for run in runs]
    report = answers.report(
      label,
      runs,
      answered,
      expected,
      versions={"tensorflow": tf.__version__},
      skipped={},
      hostile=False,
      tolerances=(options.rtol, options.atol),
    )
  has_gradient = any(map(theirs.gradients, record.signatures))
  return report, tuple(theirs.notes), replace(record, with_gradient=has_gradient)


def _few(runs: Sequence[plan.Run], all_sizes: bool) -> list[plan.Run]:
  """The runs at the first two combinations of sizes of each signature, because XLA compiles the
  closed model for each."""
  kept = []
  seen: dict[str, list[Mapping[str, int]]] = {}
  for run in runs:
    sizes = seen.setdefault(run.subject.name, [])
    if run.sizes not in sizes:
      sizes.append(run.sizes)
    if all_sizes or sizes.index(run.sizes) < _MOST_SIZES:
      kept.append(replace(run, timed=False))
  return kept


def _prepared(model: _Model, run: plan.Run) -> Callable[[], Mapping[str, Any]]:
  return functools.partial(model.answer, run.subject.name, run.subject.record.outputs, run.inputs)


def _records(directory: Path, model: _Model) -> manifest.Manifest:
  try:
    return manifest.read(directory)
  except FileNotFoundError:
    found = described.manifest_of(model.loaded)
    writing = _writing(model.loaded.signatures)
    signatures = {
      name: replace(each, stateful=name in writing) for name, each in found.signatures.items()
    }
    return replace(found, signatures=signatures)


def _writing(signatures: Mapping[str, Any]) -> list[str]:
  """The signatures with ops that write variables."""
  return [name for name, s in signatures.items() if graphs.writers(s.graph.as_graph_def())]


def _subject(
  name: str,
  record: manifest.SignatureRecord,
  constraints: Sequence[str],
  ours: _Model,
  theirs: _Reference,
) -> plan.Subject:
  """A signature, with gradients and written variables among its results."""
  theirs.examine(name, record, constraints)
  more = dict.fromkeys([*ours.written(name), *theirs.gradients(name)], "")
  record = replace(
    record, outputs={**record.outputs, **more}, stateful=False, resets=False, passed_through=[]
  )
  order = list(record.inputs)

  def reference(*arrays: Any) -> Mapping[str, Any]:
    given = {key: np.asarray(x) for key, x in zip(order, arrays, strict=True)}
    return theirs.answer(name, record.outputs, given)

  return plan.Subject(name, record, reference, order)


class _Model:
  """A loaded SavedModel. Each call starts with the variables as they were saved.

  Args:
    directory: of it.
    writing: the signatures that may write variables; by default those with such ops.
  """

  def __init__(self, directory: Path, writing: Collection[str] | None = None):
    self.loaded = tf.saved_model.load(str(directory))
    signatures = self.loaded.signatures
    if writing is None:
      writing = _writing(signatures)
    self._saved = {name: [(v, v.numpy()) for v in _variables(signatures[name])] for name in writing}

  def answer(
    self, name: str, wanted: Mapping[str, str], inputs: Mapping[str, np.ndarray]
  ) -> dict[str, np.ndarray]:
    """The outputs of a call, the gradients that are `wanted`, and the written variables."""
    for variable, value in self._saved.get(name, ()):
      variable.assign(value)
    signature = self.loaded.signatures[name]
    tensors = {key: tf.constant(x) for key, x in inputs.items()}
    targets = [each for each in wanted if each.startswith(_GRADIENT)]
    if targets:
      results, gradients = _with_gradients(signature, tensors)
      values = {key: y.numpy() for key, y in results.items()}
      values |= {each: gradients[each.removeprefix(_GRADIENT)] for each in targets}
    else:
      values = {key: y.numpy() for key, y in signature(**tensors).items()}
    after = [v.numpy() for v, _ in self._saved.get(name, ())]
    return values | {f"{_VARIABLE}{number}": value for number, value in enumerate(after)}

  def written(self, name: str) -> list[str]:
    """Names for the values of the variables after a call, if the signature may write any."""
    return [f"{_VARIABLE}{number}" for number in range(len(self._saved.get(name, ())))]


class _Reference:
  """The closed model: run by TensorFlow, or with its modules under `jax.jit`.

  Attributes:
    notes: what cannot be compared, or not with TensorFlow.
  """

  def __init__(self, directory: Path, stack: contextlib.ExitStack):
    self._directory, self._stack = directory, stack
    self._models: dict[str, _Model] = {}
    self._gradients: dict[str, list[str]] = {}
    self.notes: list[str] = []

  @functools.cached_property
  def _in_tensorflow(self) -> _Model:
    return _Model(self._directory)

  @functools.cached_property
  def _in_jax(self) -> _Model:
    return _Model(self._stack.enter_context(_called_back(self._directory)))

  @property
  def writing(self) -> list[str]:
    """The signatures that may write variables."""
    return [
      name for name in self._in_tensorflow.loaded.signatures if self._in_tensorflow.written(name)
    ]

  def examine(
    self, name: str, record: manifest.SignatureRecord, constraints: Sequence[str]
  ) -> None:
    """Finds out how a signature runs, and whether it has gradients, by a call of each kind.

    Raises:
      tf.errors.OpError: it does not run in any way.
    """
    example = _example(record, constraints)
    try:
      self._in_tensorflow.answer(name, {}, example)
      model = self._in_tensorflow
    except (tf.errors.OpError, LookupError) as error:
      model = self._in_jax
      model.answer(name, {}, example)
      reason = " ".join(str(error).split())[:200]
      self.notes.append(
        f"signature {name!r}: TensorFlow cannot run the closed model ({reason}), so its modules "
        "run under jax.jit"
      )
    self._models[name] = model
    self._gradients[name] = self._checked_gradients(name, example)

  def _checked_gradients(self, name: str, example: Mapping[str, np.ndarray]) -> list[str]:
    signature = self._models[name].loaded.signatures[name]
    if not any(map(_is_floating, signature.structured_outputs.values())):
      return []
    nodes = graphs.nodes(signature.graph.as_graph_def())
    if not any("_gradient_op_type" in node.attr for node in nodes):
      return []
    inputs = signature.structured_input_signature[1]
    names = [f"{_GRADIENT}{key}" for key, _ in _sources(signature, inputs)]
    try:
      self._models[name].answer(name, dict.fromkeys(names, ""), example)
    except Exception as error:  # TensorFlow raises errors of many kinds, AssertionError too
      reason = " ".join(str(error).split())[:200] or type(error).__name__
      self.notes.append(f"signature {name!r}: the closed model has no gradients ({reason})")
      return []
    return names

  def gradients(self, name: str) -> list[str]:
    """Names for the gradients that a signature has."""
    return self._gradients[name]

  def answer(
    self, name: str, wanted: Mapping[str, str], inputs: Mapping[str, np.ndarray]
  ) -> dict[str, np.ndarray]:
    """As `_Model.answer`."""
    return self._models[name].answer(name, wanted, inputs)


def _example(record: manifest.SignatureRecord, constraints: Sequence[str]) -> dict[str, np.ndarray]:
  """Inputs of ones."""
  domain = Domain(record, constraints)
  shapes = domain.shapes(domain.few({}, {})[0])
  return {
    name: np.full(shape, b"", object)
    if Spec.parse(record.inputs[name]).is_string
    else np.ones(shape, Spec.parse(record.inputs[name]).dtype)
    for name, shape in shapes.items()
  }


@contextlib.contextmanager
def _called_back(directory: Path) -> Iterator[Path]:
  """A copy of a closed model for this process, whose modules JAX runs."""
  held: dict[str, Callable[..., Any]] = {}

  def token(function: Function) -> str:
    name = f"jax2tf_opened_{uuid.uuid4().hex}"
    compiled = jax.jit(function)

    def run(*arrays: np.ndarray) -> Sequence[np.ndarray]:
      with function.precision():
        return [np.asarray(result) for result in jax.tree.leaves(compiled(*arrays))]

    held[name] = run
    return name

  with tempfile.TemporaryDirectory(prefix="jax2tf-") as folder:
    copy = Path(folder, "model")
    files.copied(directory, copy, lambda graph: rewriting.called_back(graph, token))
    _tf_compat.python_functions.update(held)
    try:
      yield copy
    finally:
      for name in held:
        _tf_compat.python_functions.pop(name, None)


def _variables(signature: Any) -> list[Any]:
  return list({v.handle.ref(): v for v in signature.variables}.values())


def _is_floating(spec: Any) -> bool:
  return bool(spec.dtype.is_floating or spec.dtype.is_complex)


def _sources(signature: Any, inputs: Mapping[str, Any]) -> list[tuple[str, Any]]:
  """What a gradient is taken for: floating point inputs, and trainable variables by number."""
  trained = [v for v in _variables(signature) if v.trainable and _is_floating(v)]
  return [
    *((name, x) for name, x in inputs.items() if _is_floating(x)),
    *((f"variable {number}", v) for number, v in enumerate(trained)),
  ]


def _with_gradients(signature: Any, inputs: Mapping[str, Any]) -> tuple[Any, dict[str, np.ndarray]]:
  """(results, {source: gradient of the sum of the sines of the floating point results})."""
  sources = _sources(signature, inputs)
  with tf.GradientTape() as tape:
    for _, x in sources:
      tape.watch(x)
    results = signature(**inputs)
    total = sum(tf.reduce_sum(tf.math.real(tf.sin(y))) for y in results.values() if _is_floating(y))
  gradients = tape.gradient(
    total, [x for _, x in sources], unconnected_gradients=tf.UnconnectedGradients.ZERO
  )
  arrays = [tf.convert_to_tensor(gradient).numpy() for gradient in gradients]
  return results, {key: array for (key, _), array in zip(sources, arrays, strict=True)}
