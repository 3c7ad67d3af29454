"""Programs as ONNX files of ours and of another converter, side by side.

A worker exports a program, asks the other converter, in a process of its own environment, for its
file, and runs both in ONNX Runtime. The environment has the same JAX and stays in build/registry.
jax2onnx 0.17.1 needs JAX 0.10: with 0.12 it lacks ClosedJaxpr, in 5 of 17 programs tried.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import pathlib
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import onnx

from jax2tf.converters.bundle import calls
from jax2tf.converters.export import pipeline
from jax2tf.converters.onnx import exporter, opsets, protos, runtime, target
from jax2tf.converters.verify import plan
from jax2tf.tools.lab import environments, measure, workers
from jax2tf.tools.lab.pages.targets import CONVERTERS, FIGURES, REFUSED, RIGHT, WRONG
from jax2tf.tools.lab.target_rows import registry_rows
from tests.support.runtimes import REPOSITORY

# Writes the file of a row, and returns the seconds that this takes.
Export = Callable[[str, pathlib.Path], float]

_OTHER = "jax2onnx==0.17.1"
_PATIENCE = 180  # seconds for one row
_SHORT = 50e-3  # milliseconds; what takes less measures Python
_WARM = "lax.sin(x)"  # the first export of a process loads libraries

# |file - jax| <= tolerance * (largest |jax| + |jax|): sums of 256 numbers in another order.
_TOLERANCES = {np.dtype(np.float16): 4e-3, np.dtype(np.float32): 3e-5}

# The program of the other environment.
_PROGRAM = """
import importlib.util, os, sys, tempfile, time, types
spec = importlib.util.spec_from_file_location("registry_rows", sys.argv[1])
rows = importlib.util.module_from_spec(spec)
sys.modules["registry_rows"] = rows
spec.loader.exec_module(rows)
import jax2onnx
def answer(row, file):
  program = rows.program(row)
  inputs = [rows.INPUTS[name] for name in program.inputs]
  specs = [types.SimpleNamespace(shape=s, dtype=rows.DTYPES[dtype]) for dtype, s, _ in inputs]
  start = time.perf_counter()
  jax2onnx.to_onnx(program.fun, specs, return_mode="file", output_path=file)
  return time.perf_counter() - start
with tempfile.TemporaryDirectory() as folder:
  answer(sys.argv[2], os.path.join(folder, "warm.onnx"))
"""

# The program that takes our time. A comparison between two exports would fill the caches of the
# processor, and the other converter's process has none.
_OURS = """
import pathlib, sys, tempfile, warnings
warnings.simplefilter("ignore")
from jax2tf.tools.lab.target_rows import registry
def answer(row):
  with tempfile.TemporaryDirectory() as folder:
    return registry.written(row, pathlib.Path(folder, "ours.onnx"))[0]
answer(sys.argv[1])
"""


def rows() -> list[str]:
  """The programs."""
  return [*registry_rows.ROWS]


def measured(names: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
  """What `side_by_side` says of each program."""
  _other_python()  # installs it once, before the workers start
  yield from workers.each(_row, [(name,) for name in names], _lost, seconds=_PATIENCE)


def faults(numbers: Mapping[str, Any]) -> list[str]:
  """The programs whose file of ours is wrong without an error."""
  return [f"{name}: our file is wrong" for name, row in numbers.items() if row["ours"][0] == WRONG]


def side_by_side(row: str, exports: Mapping[str, Export]) -> dict[str, Any]:
  """The files of converters for a program.

  Args:
    row: the program.
    exports: {converter: how it writes a file}.

  Returns:
    "library": that of the program; {converter: [verdict, why]}; "seconds", "nodes", "bytes", "ms":
    a number for each converter, or None. The milliseconds are the medians of five runs of
    alternating calls of files that are all right, if one of them takes more than 50 microseconds.
  """
  program = registry_rows.program(row)
  verdicts: dict[str, list[str]] = {}
  figures: dict[str, dict[str, float]] = {figure: {} for figure in FIGURES}
  sessions: dict[str, Any] = {}
  with tempfile.TemporaryDirectory(prefix="jax2tf-registry-") as folder:
    for converter, export in exports.items():
      file = pathlib.Path(folder, f"{converter}.onnx")
      try:
        figures["seconds"][converter] = export(row, file)
        session = _session(file)
        why = _difference(program, session)
      except Exception as error:  # whatever a converter raises
        verdicts[converter] = [REFUSED, calls.sentence(error)]
        continue
      verdicts[converter] = [WRONG, why] if why else [RIGHT, ""]
      figures["nodes"][converter] = sum(1 for _ in protos.nodes(onnx.load(file).graph))
      figures["bytes"][converter] = file.stat().st_size
      sessions[converter] = session
  if all(verdict == RIGHT for verdict, _ in verdicts.values()):
    figures["ms"] = _milliseconds(program, sessions)
  return {
    "library": registry_rows.ROWS[row],
    **verdicts,
    **{name: [of.get(converter) for converter in exports] for name, of in figures.items()},
  }


def our_export(row: str, file: pathlib.Path) -> float:
  """Writes our file, and compares it. Returns the seconds that another process takes to write it.

  Raises:
    ExportError, NotImplementedError: as `onnx.save`.
    RuntimeError: the other process ends.
  """
  _, compared = written(row, file)
  compared()
  seconds, error = _ours().ask(row)
  if error:
    raise RuntimeError(error)
  return float(seconds)


def written(row: str, file: pathlib.Path) -> tuple[float, Callable[[], Any]]:
  """Writes our file. Returns the seconds, and what compares the file with JAX."""
  program = registry_rows.program(row)
  start = time.perf_counter()
  specs = {name: registry_rows.spec(name) for name in program.inputs}
  source = pipeline.source_of(
    lambda _, *inputs: program.fun(*inputs), {}, inputs=specs, idioms=exporter.IDIOMS
  )
  exported = target.Onnx(True, plan.Comparison(samples=1), opsets.OLDEST, target.LARGEST)
  made = exported.write(source, file.parent / f"{file.stem}-made", file.name)
  made.path.rename(file)
  seconds = time.perf_counter() - start
  return seconds, lambda: exported.compare(source, dataclasses.replace(made, path=file))


@functools.cache
def _ours() -> environments.Program:
  """Our converter in a process of its own."""
  return environments.Program(pathlib.Path(sys.executable), _OURS, _WARM, seconds=_PATIENCE)


def other_export(row: str, file: pathlib.Path) -> float:
  """Has the other converter write its file. Returns the seconds.

  Raises:
    RuntimeError: it refuses the row, or its process ends. The message quotes it.
  """
  seconds, error = _other().ask(row, str(file))
  if error:
    raise RuntimeError(error)
  return float(seconds)


@functools.cache
def _other() -> environments.Program:
  """The other converter of this worker."""
  arguments = (registry_rows.__file__, _WARM)
  return environments.Program(_other_python(), _PROGRAM, *arguments, seconds=_PATIENCE)


def _other_python() -> pathlib.Path:
  """That of an environment with the other converter, our JAX and our libraries."""
  ours = ("jax", "flax", "equinox", "onnxruntime")
  requirements = [_OTHER, *(f"{name}=={importlib.metadata.version(name)}" for name in ours)]
  folder = REPOSITORY / "build" / "registry" / f"jax-{jax.__version__}"
  return environments.installed(folder, requirements, [sys.executable])


def _row(row: str) -> tuple[str, dict[str, Any]]:
  with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    ours, other = CONVERTERS
    return row, side_by_side(row, {ours: our_export, other: other_export})


def _lost(error: workers.LostError, row: str) -> tuple[str, dict[str, Any]]:
  nothing = {figure: [None] * len(CONVERTERS) for figure in FIGURES}
  verdicts = {converter: [REFUSED, str(error)] for converter in CONVERTERS}
  return row, {"library": registry_rows.ROWS[row], **verdicts, **nothing}


def _session(file: pathlib.Path) -> Any:
  options = runtime.quiet_options()
  options.intra_op_num_threads = 1
  return runtime.session(str(file), options)


def _call(program: registry_rows.Program, session: Any, batch: int) -> Callable[[], list[Any]]:
  names = [given.name for given in session.get_inputs()]
  inputs = dict(zip(names, program.arrays(batch), strict=True))
  return lambda: session.run(None, inputs)


def _difference(program: registry_rows.Program, session: Any) -> str:
  """Where the values of a file are not those of jax.jit."""
  for batch in registry_rows.SIZES:
    expected = jax.jit(program.fun)(*program.arrays(batch))
    actual = _call(program, session, batch)()
    for i, (one, other) in enumerate(zip(actual, map(np.asarray, expected), strict=True)):
      if one.shape != other.shape:
        return f"output {i} has shape {one.shape}, and JAX's has {other.shape}"
      if not _is_close(one, other):
        return f"output {i} has other values with b = {batch}"
  return ""


def _is_close(actual: np.ndarray, expected: np.ndarray) -> bool:
  if expected.dtype not in _TOLERANCES:
    return np.array_equal(actual, expected)
  tolerance = _TOLERANCES[expected.dtype]
  largest = np.abs(expected[np.isfinite(expected)], dtype=np.float64).max(initial=0)
  return np.allclose(actual, expected, tolerance, tolerance * largest, equal_nan=True)


def _milliseconds(program: registry_rows.Program, sessions: Mapping[str, Any]) -> dict[str, float]:
  batch = registry_rows.SIZES[-1]
  ways = {name: _call(program, session, batch) for name, session in sessions.items()}
  if max(measure.milliseconds(ways, 0.0).values()) < _SHORT:
    return {}
  runs = measure.runs(ways, seconds=0.5)
  return {name: statistics.median(series) for name, series in runs.items()}
