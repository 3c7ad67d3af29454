"""Is a SavedModel what the JAX function says? Each signature, run in a process without JAX, against jax.jit of the function."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tqdm

from jax2tf.converters import _publish, _verify_child, _verify_plan, _verify_report, manifest
from jax2tf.converters._verify_report import Latency, Report, Row, VerificationError

__all__ = ["Latency", "Report", "Row", "VerificationError", "verify"]

# |model - reference| <= atol + rtol * |reference|, in units of the dtype's precision (2**-23 for float32). TensorFlow's kernels and XLA
# add in other orders and round other products, so a sum of n terms is off by about sqrt(n) units, and layers add up; the
# narrow dtypes are summed in float32 and rounded a few times only. Where terms cancel, the error is that of the terms: hence atol,
# which is that of outputs about 1 and grows with their median size.
_RTOL_UNITS = {8: 256, 4: 256, 2: 8, 1: 2}  # by bytes
_ATOL_UNITS = {8: 32, 4: 32, 2: 8, 1: 2}

Answers = Sequence[Mapping[str, Any]]  # of the child: {"outputs": {name: array}, "error": str, "seconds": float or None}


def verify(
  path: str | os.PathLike[str],
  reference: Callable[..., Any] | Mapping[str, Callable[..., Any]],
  *,
  params: Any = None,
  sizes: Mapping[str, int | Sequence[int]] | None = None,
  samples: int = 3,
  rtol: float | None = None,
  atol: float | None = None,
  signatures: Sequence[str] | None = None,
  inputs: _verify_plan.Given | None = None,
  report: str | os.PathLike[str] | None = None,
) -> Report:
  """Runs a SavedModel in a fresh process without JAX, through every signature, and compares it with the JAX functions.

  Args:
    path: a version's directory, or a model's directory, of which the newest version is taken.
    reference: the JAX function `fun(params, *inputs)`, or {signature: function}. It takes the inputs of the signature one by one, in
      their order, without those that are passed through; inputs that were saved as a tree are put together again by a lambda. A
      signature with optional inputs has another order: there the function's arguments are named as the inputs. A signature
      with preprocess or postprocess needs an entry of its own, which is called as it is and not under jax.jit.
    params: the parameters; without them the reference is `fun(*inputs)`.
    sizes: {dimension variable: size or sizes}; those not given take several that meet the constraints. Each size occurs; not each
      combination.
    samples: how many draws of ordinary inputs for each combination of sizes, and how many of hostile ones.
    rtol, atol: for all floating point outputs, in place of those of their dtypes. Integers, bools and strings must be equal.
    signatures: the names of those to compare; all if not given.
    inputs: {input: array, or callable(rng, shape, dtype) that draws one}, for those that normally distributed numbers, or
      integers from 0 to 9, do not suit. The array of an input fixes its sizes.
    report: a folder for `Report.write`.

  Returns:
    the report, also when the model is wrong: `Report.raise_for_mismatch` raises.

  Raises:
    FileNotFoundError: `path` is no SavedModel, or none of `jax2tf.converters.saved_model`.
    ValueError: a signature, a variable or an input that the model does not have, a reference that is missing or takes other
      arguments, sizes that break a constraint, arrays that do not fit the signature.
    ImportError: `report` needs the packages of the extra jax2tf[verify].
  """
  for package in ("tabulate", "jinja2", "matplotlib") if report is not None else ():
    _verify_report.extra(package)
  if samples < 1:
    raise ValueError(f"samples = {samples}; at least one draw is needed")
  directory = _directory(Path(path))
  record = manifest.read(directory)
  inputs = inputs or {}
  chosen = _verify_plan.chosen(record, signatures, inputs)
  lead = () if params is None else (params,)
  subjects, skipped = _verify_plan.subjects(chosen, reference, len(lead), inputs)
  runs = _verify_plan.plan(subjects, record.constraints, sizes or {}, samples, inputs)
  with tqdm.tqdm(total=2 * len(runs), desc=f"verify {directory.name}", leave=False, disable=None) as progress:
    expected = list(_reference_answers(runs, lead, progress))
    response = _run_without_jax(directory, runs, progress)
  found = response["runs"] or [{"outputs": {}, "error": f"no answer without JAX: {response['error']}", "seconds": None}] * len(runs)
  rows = list(_rows(runs, found, expected, rtol, atol))
  if signatures is None:
    unknown = [name for name in response["signatures"] if name not in record.signatures and not name.startswith("__")]
    skipped |= dict.fromkeys(unknown, f"the manifest does not know it; save the model again, or leave it out: signatures={list(chosen)}")
  latencies = tuple(
    Latency(run.subject.name, run.sizes, answer["seconds"], seconds)
    for run, answer, (_, seconds) in zip(runs, found, expected, strict=True)
    if seconds is not None and answer["seconds"] is not None
  )
  versions = {"jax": jax.__version__, "numpy": np.__version__, **response["versions"]}
  result = Report(str(directory), tuple(rows), latencies, skipped, versions)
  if report is not None:
    result.write(report)
  return result


def _directory(path: Path) -> Path:
  """The version's directory."""
  if not path.is_dir():
    raise FileNotFoundError(f"path = {str(path)!r} is no directory; give what saved_model.save returned, or the folder of the versions")
  if (found := _publish.saved_model_in(path)) is None:
    raise FileNotFoundError(f"path = {str(path)!r} holds neither saved_model.pb nor a numbered version; save a model there first")
  return found


def _reference_answers(
  runs: Sequence[_verify_plan.Run], lead: tuple[Any, ...], progress: tqdm.tqdm
) -> Iterator[tuple[dict[str, np.ndarray], float | None]]:
  """The outputs of the reference, and the median seconds of a timed call."""
  on_device = jax.tree.map(lambda leaf: jnp.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf, lead)
  for run in runs:
    subject = run.subject
    args = [jnp.asarray(run.inputs[name]) if subject.only_jax else run.inputs[name] for name in subject.order]
    arguments = (*(on_device if subject.only_jax else lead), *args)

    def call(subject: _verify_plan.Subject = subject, arguments: tuple[Any, ...] = arguments) -> Any:
      return jax.block_until_ready(subject.reference(*arguments))

    try:
      outputs = subject.named(call(), run.inputs)
    except Exception as error:
      error.add_note(f"in the reference of signature {subject.name!r}, at {dict(run.sizes)} with {run.values} inputs")
      raise
    yield outputs, _verify_child.median_seconds(call) if run.timed else None
    progress.update()


def _run_without_jax(directory: Path, runs: Sequence[_verify_plan.Run], progress: tqdm.tqdm) -> dict[str, Any]:
  """The answers of the model, in a process of its own; see `_verify_child`."""
  request = {
    "directory": str(directory),
    "runs": [{"signature": run.subject.name, "inputs": dict(run.inputs), "timed": run.timed} for run in runs],
  }
  environment = {"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ}
  if jax.default_backend() == "cpu":
    # A GPU multiplies with fewer bits (TF32), and would be compared with JAX on a CPU.
    environment["CUDA_VISIBLE_DEVICES"] = "-1"
  with tempfile.TemporaryDirectory(prefix="jax2tf-verify-") as folder:
    request_file, response_file, log = (Path(folder, name) for name in ("request", "response", "log"))
    request_file.write_bytes(pickle.dumps(request))
    # -P: the folder of the script holds modules of ours, which are not to be found as top-level ones.
    command = [sys.executable, "-P", _verify_child.__file__, str(request_file), str(response_file)]
    with log.open("wb") as stderr, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, env=environment, text=True) as child:
      try:
        for line in child.stdout or ():
          progress.update(line == "done\n")
      except BaseException:
        child.kill()
        raise
    if response_file.exists():
      return dict(pickle.loads(response_file.read_bytes()))
    last = log.read_text(errors="replace").strip().splitlines()[-1:] or ["it said nothing"]
    return {"error": f"its process ended with {child.returncode}: {last[0]}", "signatures": [], "runs": [], "packages": [], "versions": {}}


def _rows(
  runs: Sequence[_verify_plan.Run],
  found: Answers,
  expected: Sequence[tuple[dict[str, np.ndarray], float | None]],
  rtol: float | None,
  atol: float | None,
) -> Iterator[Row]:
  """One for each output at each assignment of sizes and kind of inputs, in the order of the runs."""
  rows: dict[tuple[Any, ...], Row] = {}
  for run, answer, (outputs, _) in zip(runs, found, expected, strict=True):
    for output, difference in _differences(answer, outputs, rtol, atol):
      key = (run.subject.name, *run.sizes.items(), run.values, output)
      rows[key] = difference.joined(rows.get(key) or Row(run.subject.name, output, run.sizes, run.values))
  yield from rows.values()


@dataclass(frozen=True)
class _Difference:
  """The figures of one array, as in `Row`."""

  dtype: str
  problem: str = ""
  max_abs: float | None = None
  max_rel: float | None = None
  max_ulp: float | None = None
  of_tolerance: float | None = None

  def joined(self, row: Row) -> Row:
    """The row with one sample more: the largest of the figures, the first of the problems."""
    figures = {}
    for name in ("max_abs", "max_rel", "max_ulp", "of_tolerance"):
      both = [x for x in (getattr(row, name), getattr(self, name)) if x is not None]
      figures[name] = max(both) if both else None
    return replace(row, dtype=row.dtype or self.dtype, samples=row.samples + 1, problem=row.problem or self.problem, **figures)


def _differences(
  answer: Mapping[str, Any], expected: Mapping[str, np.ndarray], rtol: float | None, atol: float | None
) -> Iterator[tuple[str, _Difference]]:
  found = answer["outputs"]
  for name in dict.fromkeys([*expected, *found]):
    if answer["error"]:
      yield name, _Difference("", f"the model fails: {answer['error']}")
    elif name not in found:
      yield name, _Difference("", f"the model has no output {name!r}; it has: {', '.join(found)}")
    elif name not in expected:
      yield name, _Difference("", f"the reference has no output {name!r}; it has: {', '.join(expected)}")
    else:
      yield name, _difference(_verify_plan.as_numpy(found[name]), expected[name], rtol, atol)


def _difference(found: np.ndarray, expected: np.ndarray, rtol: float | None, atol: float | None) -> _Difference:
  """The model's array against the reference's."""
  dtype = _dtype_name(expected)
  if found.dtype != expected.dtype:
    return _Difference(dtype, f"the model's dtype is {_dtype_name(found)}, the reference's {dtype}")
  if found.shape != expected.shape:
    return _Difference(dtype, f"the model's shape is {found.shape}, the reference's {expected.shape}")
  if jnp.issubdtype(expected.dtype, np.inexact):
    return _inexact_difference(found, expected, rtol, atol)
  wrong = np.asarray(found != expected)
  if dtype in ("string", "bool"):
    return _Difference(dtype, _places(wrong, found, expected))
  largest = max((abs(int(x) - int(y)) for x, y in zip(found[wrong], expected[wrong], strict=True)), default=0)
  return _Difference(dtype, _places(wrong, found, expected), float(largest))


def _inexact_difference(found: np.ndarray, expected: np.ndarray, rtol: float | None, atol: float | None) -> _Difference:
  """Floating point and complex arrays; NaN agrees with NaN, and an infinity with the same infinity."""
  info = jnp.finfo(expected.dtype)
  x, y = _parts(found), _parts(expected)
  size = np.abs(y).max(-1, keepdims=True)  # of a complex number, the larger of its parts, which share their error
  ordinary = np.where(np.isfinite(size), size, 0)
  rtol = _RTOL_UNITS[info.bits // 8] * float(info.eps) if rtol is None else rtol
  if atol is None:
    finite = size[np.isfinite(size)]
    atol = _ATOL_UNITS[info.bits // 8] * float(info.eps) * max(1.0, float(np.median(finite)) if finite.size else 0.0)
  with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
    difference = np.where((x == y) | (np.isnan(x) & np.isnan(y)), 0, np.abs(x - y))
    difference = np.where(np.isnan(difference), np.inf, difference)
    share = np.where(difference == 0, 0, difference / (atol + rtol * ordinary))
    relative = np.where((difference == 0) | (size <= atol), 0, difference / size)
    exponent = np.maximum(np.frexp(ordinary)[1] - 1, info.minexp)
    ulp = np.where((difference == 0) | (size <= atol), 0, difference / np.ldexp(1.0, exponent - info.nmant))
  nan = np.isnan(x).any(-1) != np.isnan(y).any(-1)
  problem = f"NaN at other places: {_places(nan, found, expected)}" if nan.any() else _places((share > 1).any(-1), found, expected)
  figures = [float(np.where(np.isnan(a), np.inf, a).max(initial=0)) for a in (difference, relative, ulp, share)]
  return _Difference(_dtype_name(expected), problem, *figures)


def _parts(array: np.ndarray) -> np.ndarray:
  """float64[..., 1], or of a complex array its two parts, float64[..., 2]."""
  if jnp.issubdtype(array.dtype, np.complexfloating):
    return np.stack([array.real, array.imag], -1).astype(np.float64)
  return array.astype(np.float64)[..., None]


def _places(wrong: np.ndarray, found: np.ndarray, expected: np.ndarray) -> str:
  """How many elements are wrong, and the first of them; empty if none is."""
  if not wrong.any():
    return ""
  first = tuple(int(i) for i in np.argwhere(wrong)[0])
  where = f"at {list(first)} " if first else ""
  return f"{np.count_nonzero(wrong)} of {wrong.size} elements differ; {where}the model has {found[first]}, the reference {expected[first]}"


def _dtype_name(array: np.ndarray) -> str:
  return "string" if array.dtype == object else array.dtype.name
