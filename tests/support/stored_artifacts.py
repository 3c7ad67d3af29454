"""Reads the artifacts and closed models that other releases wrote:
tests/stablehlo/artifacts/README.md."""

from __future__ import annotations

import dataclasses
import functools
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np

from tests.support.archives import npz

_FOLDER = Path(__file__).parents[1] / "stablehlo" / "artifacts"
VERSIONS = ("0.4.26", "0.4.38", "0.5.3", "0.7.2", "0.10.2", "0.12.0.1")
_NEWER = {"0.12.0.1": (0, 12)}  # whose StableHLO takes the jaxlib of this JAX or a later one
_NARROW = {np.dtype(t).name: np.dtype(t) for t in (ml_dtypes.bfloat16, ml_dtypes.int4)}


@dataclasses.dataclass(frozen=True)
class Artifact:
  """A file of `jax.export`, and what the JAX that wrote it computes.

  Attributes:
    blob: the file.
    arguments: the leaves of the arguments and then of the keyword arguments.
    results: the leaves of the results.
    gradients: those of the sum of the sines of floating results, with respect to all arguments;
      empty for an artifact without derivatives.
    about: what the manifest says of it.
  """

  blob: bytes
  arguments: list[Any]
  results: list[Any]
  gradients: list[Any]
  about: Mapping[str, Any]


def is_readable(version: str) -> bool:
  """Whether the installed jaxlib reads the StableHLO of a release of JAX."""
  return jax.version.__version_info__ >= _NEWER.get(version, (0,))


def cases(version: str) -> tuple[str, ...]:
  """The names of the artifacts of a release of JAX."""
  return tuple(_manifest(version)["cases"])


def artifact(version: str, case: str) -> Artifact:
  """One artifact of a release of JAX."""
  files = _files(version)
  arrays = npz(files[f"{case}.npz"])
  arguments, results, gradients = (_values(arrays, prefix) for prefix in ("in", "out", "grad"))
  about = _manifest(version)["cases"][case]
  return Artifact(files[f"{case}.bin"], arguments, results, gradients, about)


def _values(arrays: Mapping[str, np.ndarray], prefix: str) -> list[Any]:
  names = [name for name in arrays if name.startswith(prefix)]
  names.sort(key=lambda name: int(name.partition(".")[0].removeprefix(prefix)))
  return [_value(arrays[name], name.partition(".")[2]) for name in names]


def _value(array: np.ndarray, dtype: str) -> Any:
  if dtype.startswith("key<"):
    return jax.random.wrap_key_data(array, impl="threefry2x32")
  return array.astype(_NARROW.get(dtype, array.dtype))


def _files(version: str) -> dict[str, bytes]:
  return _members(f"jax-{version}.tar.xz")


@functools.cache
def _members(name: str) -> dict[str, bytes]:
  with tarfile.open(_FOLDER / name) as archive:
    return {member.name: archive.extractfile(member).read() for member in archive}


def _manifest(version: str) -> dict[str, Any]:
  return json.loads(_files(version)["manifest.json"])


def torch_modules() -> dict[str, tuple[bytes, Mapping[str, np.ndarray]]]:
  """{name: (StableHLO, arrays)} of the PyTorch modules. The arrays are weights "w0", "w1" ..., the
  input "x", PyTorch's result "y", and "kept": which of `*weights, x` the StableHLO takes."""
  files = _members("torch-modules.tar.xz")
  names = [name.removesuffix(".npz") for name in files if name.endswith(".npz")]
  return {n: (files[f"{n}.mlir.bc"], npz(files[f"{n}.npz"])) for n in names}


def closed_models(folder: Path) -> list[Path]:
  """Unpacks the closed SavedModels into a folder; their paths in order. Beside each is an .npz of
  its name."""
  with tarfile.open(_FOLDER / "closed-models.tar.xz") as archive:
    archive.extractall(folder, filter="data")
  return sorted(path for path in folder.iterdir() if path.is_dir())
