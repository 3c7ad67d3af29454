"""Installs TF.js from npm, and runs models in it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..bundle import children, durable
from ..bundle.calls import Answer
from ..bundle.notation import Spec
from ..export.ends import in_parts, of_parts
from ..verify import plan
from . import rule

VERSION = "4.22.0"
_HERE = Path(__file__).parent


def packages() -> Path:
  """Installs TF.js and its wasm backend, in the versions of package.json beside this file.

  They are installed once, in the user's cache, in a folder named by the version of TF.js and a hash
  of package-lock.json.

  Returns:
    the folder that contains node_modules.

  Raises:
    ImportError: Node.js or npm is missing, or npm cannot install the packages.

  Examples:
    >>> from jax2tf.converters import tfjs
    >>> (tfjs.packages() / "node_modules").is_dir()
    True
  """
  npm = _program("npm")
  cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "jax2tf")
  folder = (
    cache
    / f"tfjs-{VERSION}-{hashlib.sha256((_HERE / 'package-lock.json').read_bytes()).hexdigest()[:8]}"
  )
  if folder.is_dir():
    return folder
  cache.mkdir(parents=True, exist_ok=True)
  staging = Path(tempfile.mkdtemp(prefix=".tfjs-", dir=cache))
  try:
    for name in ("package.json", "package-lock.json"):
      shutil.copy(_HERE / name, staging / name)
    command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    environment = {**os.environ, "PATH": _path()}  # npm looks for node on PATH
    done = subprocess.run(
      command, cwd=staging, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
      raise ImportError(
        f"exporting to TF.js needs its packages, and npm ci failed:\n{done.stderr.strip()[-1000:]}"
      )
    try:
      durable.move(staging, folder)
    except OSError:  # another process installed it first
      if not folder.is_dir():
        raise
    return folder
  finally:
    shutil.rmtree(staging, ignore_errors=True)


def _path() -> str:
  """The search path of programs: first the folder of Python, where jax2tf[tfjs] installs
  Node.js."""
  return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def _program(name: str) -> str:
  program = shutil.which(name, path=_path())
  if program is None:
    raise ImportError(f"exporting to TF.js needs {name} of Node.js: pip install 'jax2tf[tfjs]'")
  return program


def answers(
  folder: Path, model: Path, backend: str, outputs: Mapping[str, str], runs: Sequence[plan.Run]
) -> Sequence[Answer]:
  """The answers of the model to the runs, in one Node.js process.

  Args:
    folder: the folder of the packages.
    model: the folder with model.json.
    backend: "cpu" or "wasm".
    outputs: {name: dtype and shape in jaxpr notation}.
    runs: the runs.

  Raises:
    RuntimeError: TF.js cannot load the model.
  """
  command = [_program("node"), str(_HERE / "run.cjs"), str(folder), str(model), backend]
  request = _request(list(outputs), runs)
  ended = children.program(command, request, patience=children.PATIENCE)
  runtime = f"TF.js {VERSION} ({backend})"
  if ended.late:
    raise RuntimeError(f"{runtime} did not answer within {children.PATIENCE} s")
  if ended.code:
    raise RuntimeError(f"{runtime} cannot load the model: {ended.errors.strip()[-2000:]}")
  head, _, data = ended.response.partition(b"\n")
  answered: list[Answer] = json.loads(head)
  for answer in answered:
    arrays = {key: _array(data, spec) for key, spec in answer["outputs"].items()}
    answer["outputs"] = {
      key: _of_dtype(array, Spec.parse(outputs[key]).dtype) for key, array in arrays.items()
    }
  return answered


def _request(outputs: Sequence[str], runs: Sequence[plan.Run]) -> Iterator[bytes]:
  """A line of JSON, and after it the arrays, to which it refers: numbers never pass through decimal
  text. The response has the same form."""
  listed, arrays, offset = [], [], 0
  for run in runs:
    inputs = {}
    for name, value in run.inputs.items():
      array = as_held(value)
      inputs[name] = {"dtype": array.dtype.name, "shape": array.shape, "offset": offset}
      arrays.append(array)
      offset += array.nbytes
    listed.append({"inputs": inputs, "timed": run.timed})
  yield json.dumps({"runs": listed, "outputs": outputs}).encode() + b"\n"
  yield from (array.tobytes() for array in arrays)


def as_held(array: np.ndarray) -> np.ndarray:
  """The array in the dtype that the model takes: float32, int32 or bool. uint32 becomes the int32
  of the same bits, complex64[b] float32[b,2]."""
  array = in_parts(array)
  return array.astype(rule.held_by_numpy(array.dtype))


def _array(data: bytes, spec: Mapping[str, Any]) -> np.ndarray:
  dtype, shape = np.dtype(spec["dtype"]), spec["shape"]
  return np.frombuffer(data, dtype, int(np.prod(shape, dtype=np.int64)), spec["offset"]).reshape(
    shape
  )


def _of_dtype(array: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
  """The array in the signature's dtype, if TF.js holds that dtype so. Otherwise unchanged, and the
  comparison reports it."""
  if dtype.kind == "c":
    return of_parts(array)
  return array.astype(dtype) if array.dtype == rule.held_by_numpy(dtype) else array
