"""Compares each signature of a SavedModel, run in a process without JAX, with jax.jit of its
function."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jax2tf.messages import Argument, ArgumentError, Message, Text

from .. import stages
from ..bundle import calls, children, manifest, notation, paths, progress, publish
from ..bundle.notation import Spec
from ..saved_model import kinds, values
from ..saved_model.arguments import check_constraint
from ..saved_model.state import Layout
from . import answers as compare
from . import plan, subjects
from .report import Report, check_writable


def verify(
  path: str | os.PathLike[str],
  reference: Callable[..., Any] | Mapping[str, Callable[..., Any]],
  *,
  params: Any = None,
  state: Any = None,
  sizes: Mapping[str, int | Sequence[int]] | None = None,
  samples: int = 3,
  rtol: float | None = None,
  atol: float | None = None,
  signatures: Sequence[str] | None = None,
  inputs: Mapping[str, Any] | None = None,
  hostile: bool = False,
  report: str | os.PathLike[str] | None = None,
  polymorphic_constraints: Sequence[str] = (),
  device: str | None = None,
) -> Report:
  """Runs every signature of a SavedModel in a new process without JAX, and compares the outputs
  with the JAX functions.

  Args:
    path: the directory of a version; or the directory of a model, whose newest version is compared.
    reference: the JAX function `fun(params, *inputs)`, or {signature: function}. It takes the
      inputs of the signature one by one, in order, without the inputs that are passed through; wrap
      a function of a pytree in a lambda. If a signature has optional inputs, name the function's
      arguments like the inputs. A signature with preprocess or postprocess needs its own entry,
      which does not run under jax.jit.
    params: the parameters. Without them the reference is `fun(*inputs)`.
    state: the initial state of the model. The reference of a stateful signature is `fun(params,
      state, *inputs) -> (state, outputs)`. It is called several times in a row, and the state is
      compared after every call. A reset needs no reference.
    sizes: {dimension variable: size or sizes}. By default several sizes that satisfy the
      constraints. Every size is used, but not every combination.
    samples: the number of draws of ordinary and of hostile inputs per combination of sizes.
    rtol, atol: tolerances of all floating point outputs, in place of the default tolerances of
      their dtypes. Integers, bools and strings must be equal.
    signatures: the names of the signatures to compare. By default all.
    inputs: {input: array, or callable(rng, shape, dtype)}, in place of random values. Random floats
      are normally distributed. Random integers are from 0 to 9, or of the whole range for 8-bit
      inputs that the function uses as floats. An array fixes the sizes of its input.
    hostile: whether differences for hostile inputs (NaN, infinities, extreme numbers) make the
      model wrong. By default, the verdict and the report only list them, because kernels of
      TensorFlow and XLA may differ there.
    report: a folder for `Report.write`. It must be writable before the model runs.
    polymorphic_constraints: further conditions on the sizes, besides those of the model.
    device: the device on which TensorFlow runs the model, "cpu" or "gpu". By default, TensorFlow
      uses a GPU only if JAX has one, because its products on a GPU (TF32) are less precise than
      JAX's products on a CPU. The versions in the report name the device.

  Returns:
    the report, even if outputs differ. `Report.raise_for_mismatch` raises for differences.

  Raises:
    FileNotFoundError: `path` is not a SavedModel of `jax2tf.converters.saved_model`.
    ValueError: the model lacks a signature, a variable or an input that is named; a reference is
      missing or takes other arguments; sizes break a constraint; arrays do not fit the signature;
      the state is missing or does not fit the model; a file is damaged; the device does not exist.
    OSError: `report` is not writable.
    ImportError: `report` needs the packages of jax2tf[verify].

  Examples:
    >>> import jax.numpy as jnp, numpy as np
    >>> from jax2tf.converters import saved_model
    >>> from jax2tf.converters.verify import verify
    >>> w = np.eye(2, dtype=np.float32)
    >>> path = saved_model.save(lambda w, x: x @ w, w, "verified", inputs={"x": "f32[b,2]"})
    >>> verify(path, lambda w, x: x @ w, params=w, samples=1).ok
    True
  """
  if device not in (None, "cpu", "gpu"):
    raise ArgumentError("device", device, problem="there is no such device", advice="cpu or gpu")
  if report is not None:
    check_writable(report)
  plan.check_draws(sizes, samples)
  kinds.check_names("polymorphic_constraints", polymorphic_constraints)
  folder = _directory(paths.of(path))
  with paths.fetched(folder) as directory:
    record = manifest.read(directory)
    inputs = inputs or {}
    chosen = subjects.chosen(record.signatures, signatures, inputs)
    lead = () if params is None else (params,)
    remembered = _state(record, chosen, state)
    compared, skipped = subjects.subjects(chosen, reference, params is not None, inputs, remembered)
    for text in polymorphic_constraints:
      check_constraint(
        text,
        notation.dimensions(
          {name: spec for one in chosen.values() for name, spec in one.inputs.items()}
        ),
      )
    with stages.stage("read the graph"):  # fails early if a file is damaged
      graph = values.meta_graph(directory)
      values.readers(directory, graph)
    runs = plan.plan(
      compared, [*record.constraints, *polymorphic_constraints], sizes or {}, samples, inputs, lead
    )
    with stages.stage("compare"), progress.bar(f"verify {folder.name}", 2 * len(runs)) as shown:
      initial = remembered[1] if remembered else ()
      expected = [*shown.over(compare.reference_answers(runs, lead, initial))]
      on_cpu = device == "cpu" or (device is None and jax.default_backend() == "cpu")
      response = _run_without_jax(directory, runs, shown.advance, on_cpu)
    if device == "gpu" and response["versions"].get("device") == "cpu":
      raise ArgumentError(
        "device",
        device,
        problem="TensorFlow finds no GPU",
        advice="install its CUDA libraries, pip install 'tensorflow[and-cuda]', or leave it out",
      )
    if not response["runs"]:  # the model was not loaded
      values.check(directory, graph)
    answered = response["runs"] or [
      calls.failed(f"no answer without JAX: {response['error']}")
    ] * len(runs)
    if signatures is None:
      unknown = [
        name
        for name in response["signatures"]
        if name not in record.signatures and not name.startswith("__")
      ]
      others = Argument("signatures", list(chosen))
      skipped |= dict.fromkeys(
        unknown,
        Message(
          problem="the manifest does not know it",
          advice=Text("save the model again, or choose the others: ", others),
        ),
      )
    result = compare.report(
      str(folder),
      runs,
      answered,
      expected,
      tolerances=(rtol, atol),
      hostile=hostile,
      skipped=skipped,
      versions={"numpy": np.__version__, **response["versions"]},
    )
  if report is not None:
    result.write(report)
  return result


def _directory(path: Path) -> Path:
  """The directory of the version."""
  if not path.is_dir():
    raise FileNotFoundError(
      Message(
        Argument("path", str(path)),
        problem="it is not a directory",
        advice="pass a SavedModel, or the directory of its versions",
      )
    )
  return publish.saved_model_in(path, "path")


def _state(
  record: manifest.Manifest, chosen: Mapping[str, manifest.SignatureRecord], state: Any
) -> tuple[Layout, list[Any]] | None:
  """The layout of the state and its initial values; None if no chosen signature is stateful."""
  stateful = [name for name, signature in chosen.items() if signature.stateful]
  if not stateful:
    return None
  if state is None:
    raise ArgumentError(
      "state",
      None,
      problem=f"signature {stateful[0]!r} is stateful",
      advice=Text("pass the initial state, or choose others with ", Argument("signatures")),
    )
  layout = Layout.of(state)
  initial = layout.stored(state)
  specs = {path: str(Spec.of(x)) for path, x in zip(layout.paths, initial, strict=True)}
  if specs != dict(record.state):
    raise ArgumentError(
      "state",
      problem=f"it has {specs}, and the model has {dict(record.state)}",
      advice="pass the state that the model was created with",
    )
  return layout, initial


def _run_without_jax(
  directory: Path, runs: Sequence[plan.Run], after_run: Callable[[], object], on_cpu: bool = True
) -> dict[str, Any]:
  """The answers of the model, from a separate process, which sees no GPU if it is `on_cpu`; see
  `child`."""
  request = {
    "directory": str(directory),
    "runs": [
      {
        "signature": run.subject.name,
        "inputs": dict(run.inputs),
        "timed": run.timed,
        "continues": run.continues,
        "state": run.subject.paths,
      }
      for run in runs
    ],
  }
  environment = {"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ}
  if on_cpu:
    environment["CUDA_VISIBLE_DEVICES"] = "-1"
  ended = children.script(
    Path(__file__).with_name("child.py"), request, environment=environment, after_run=after_run
  )
  if ended.response is not None:
    return dict(ended.response)
  return {
    "error": f"its process ended with {ended.code}: {ended.reason}",
    "signatures": [],
    "runs": [],
    "packages": [],
    "versions": {},
  }
