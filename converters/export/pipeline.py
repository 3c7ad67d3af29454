"""The way from a model to a file of another runtime, the same for every target: check, convert,
compare, publish."""

from __future__ import annotations

import abc
import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from jax2tf.messages import ArgumentError

from ..bundle import children, manifest, paths, publish
from ..saved_model.builder import Model
from ..verify import plan
from ..verify.report import Report
from .ends import UnpairedOpsError
from .source import Runner, Source


@dataclass(frozen=True)
class Exported:
  """The result of an export.

  Attributes:
    path: the file, or the folder.
    report: the comparison with JAX.
    size: the total size of the files in bytes.
    oldest_runtime: for ONNX, the oldest release of ONNX Runtime that opens the file and agrees for
      ordinary inputs, such as "1.14"; empty for other targets.
    oldest_runtime_for_nan: the same for NaN and infinities too.
  """

  path: Path
  report: Report
  size: int
  oldest_runtime: str = ""
  oldest_runtime_for_nan: str = ""

  @classmethod
  def at(cls, path: Path, report: Report) -> Exported:
    """Describes a published file or folder.

    Args:
      path: the file, or the folder.
      report: the comparison with JAX.

    Returns:
      the path and the report, with the total size of the files.
    """
    return cls(path, report, _size(path))


@dataclass(frozen=True)
class Written:
  """What a target has written in a temporary place.

  Attributes:
    path: the file or folder that gets the name.
    parts: further files, which stand beside it under the names that they have.
    oldest_runtime, oldest_runtime_for_nan: as in `Exported`.
  """

  path: Path
  parts: tuple[Path, ...] = ()
  oldest_runtime: str = ""
  oldest_runtime_for_nan: str = ""

  @property
  def size(self) -> int:
    """In bytes."""
    return sum(map(_size, (self.path, *self.parts)))


W = TypeVar("W", bound=Written)
_LARGE = 2**28  # bytes of files


@dataclass(frozen=True)
class Target(abc.ABC, Generic[W]):
  """What is particular to a target. An instance has the options of one export.

  Attributes:
    name: "onnx", as `ExportError.target` has it.
    runtime: what runs the files, for errors and reports.
    of_one: what has one signature, "an ONNX model"; empty if a file takes several.
    overwrite: whether to replace an existing file.
    comparison: how to compare the file with the function.
  """

  name: ClassVar[str]
  runtime: ClassVar[str]
  of_one: ClassVar[str] = ""

  overwrite: bool
  comparison: plan.Comparison

  @abc.abstractmethod
  def check_path(self, path: Path) -> None:
    """Raises the errors of the path, before the conversion and after it."""

  @abc.abstractmethod
  def check(self) -> None:
    """Raises the errors of options and of missing packages, which need no conversion."""

  def accept(self, source: Source) -> None:
    """Raises the errors of a model that needs no conversion to be refused.

    Raises:
      ExportError: a signature writes variables, whose values the file would lose.
    """
    source.refuse_writers(self.name, self.runtime)

  @abc.abstractmethod
  def write(self, source: Source, place: Path, name: str) -> W:
    """Converts the model, and writes it below `place`, which does not exist. `name` is the name
    that the file or folder is to have.

    Raises:
      ExportError: the target lacks ops or dtypes, all listed with their source lines.
    """

  @abc.abstractmethod
  def compare(self, source: Source, written: W) -> Report:
    """Runs what was written, and compares it with the reference.

    Raises:
      ExportError: it fails, or differs from the reference.
    """

  def publish(self, written: W, path: Path) -> None:
    """Gives what was written its name."""
    publish.move(written.path, path)


def exported(
  target: Target[Any],
  model: Any,
  path: paths.Given,
  *,
  signatures: Sequence[str] | None = None,
  reference: Any = None,
  params: Any = None,
  idioms: str | None = None,
) -> Exported:
  """Exports a model. The arguments are those of `save_model` of each target."""
  final = _checked(target, path)
  source = Source.of(
    model, signatures=signatures, reference=reference, params=params, idioms=idioms
  )
  return _exported(target, source, final)


def _exported(target: Target[Any], source: Source, final: Path) -> Exported:
  if target.of_one and len(source.signatures) != 1:
    raise ArgumentError(
      "signatures",
      problem=f"the model has {', '.join(source.signatures)}, and {target.of_one} has one",
      advice="choose one of them",
    )
  target.accept(source)
  return completed(
    target,
    final,
    lambda place: _written(target, source, place, final.name),
    lambda written: target.compare(source, written),
  )


def _written(target: Target[W], source: Source, place: Path, name: str) -> W:
  try:
    return target.write(source, place, name)
  except UnpairedOpsError as error:
    raise source.refuse(target.name, target.runtime, error.ops) from error


def exported_function(
  target: Target[Any],
  fun: Any,
  params: Any,
  path: paths.Given,
  *,
  inputs: Mapping[str, Any],
  outputs: Sequence[str] | Mapping[str, str] | None,
  polymorphic_constraints: Sequence[str],
  idioms: str,
) -> Exported:
  """Exports `fun(params, *inputs)`. The arguments are those of `save` of each target."""
  final = _checked(target, path)
  source = source_of(
    fun,
    params,
    inputs=inputs,
    outputs=outputs,
    polymorphic_constraints=polymorphic_constraints,
    idioms=idioms,
  )
  return _exported(target, source, final)


def source_of(
  fun: Any,
  params: Any,
  *,
  inputs: Mapping[str, Any],
  outputs: Sequence[str] | Mapping[str, str] | None = None,
  polymorphic_constraints: Sequence[str] = (),
  idioms: str,
) -> Source:
  """What `exported_function` exports of `fun(params, *inputs)`."""
  model = _Exported(
    params, trainable=False, polymorphic_constraints=polymorphic_constraints, idioms=idioms
  )
  return Source.of(model.add(fun, inputs=inputs, outputs=outputs))


class _Exported(Model):
  """A model that is not saved."""

  _is_saved = False


def completed(
  target: Target[W], path: Path, write: Callable[[Path], W], compare: Callable[[W], Report]
) -> Exported:
  """Writes in a temporary place, compares, and publishes at `path`. If one of them fails, `path` is
  as it was."""
  with publish.beside(path.parent) as place:
    written = write(place)
    if written.size > _LARGE:
      # JAX may compute the reference with the weights in a wider dtype, of which it needs a copy.
      gc.collect()  # graphs have cycles
      children.give_back()
    report = compare(written)
    target.check_path(path)  # again, because the comparison may have taken minutes
    size = written.size
    target.publish(written, path)
  return Exported(path, report, size, written.oldest_runtime, written.oldest_runtime_for_nan)


def _checked(target: Target[Any], path: paths.Given) -> Path:
  """The path, after what needs no conversion to be refused."""
  final = paths.of(path)
  target.check_path(final)
  target.check()
  return final


def single(
  answer: Runner, inputs: Mapping[str, Any], signature: str = "serving_default"
) -> dict[str, np.ndarray]:
  """{output: array} of one call. Raises RuntimeError, which quotes the runtime, if the call
  fails."""
  subject = plan.Subject(signature, manifest.SignatureRecord({}, {}), lambda: None, [])
  arrays = {name: np.asarray(x) for name, x in inputs.items()}
  (answer_of_run,) = answer([plan.Run(subject, {}, "given", arrays, False)])
  if answer_of_run["error"]:
    raise RuntimeError(answer_of_run["error"])
  return answer_of_run["outputs"]


def _size(path: Path) -> int:
  files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
  return sum(file.stat().st_size for file in files)
