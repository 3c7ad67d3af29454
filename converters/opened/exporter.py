"""Writes a closed SavedModel as an ordinary one."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jax2tf.errors import warn_user
from jax2tf.messages import Argument, ArgumentError, Message

from .. import stages
from ..bundle import paths, publish
from ..bundle.files import MANIFEST, SAVED_MODEL
from ..saved_model.draws import HOSTILE
from ..verify import plan
from ..verify.report import Report
from . import closed, comparison, files, modules, rewriting


class OpenError(RuntimeError):
  """An opened model computes other values than the closed model."""


@dataclass(frozen=True)
class Opened:
  """The result of `save`.

  Attributes:
    path: the SavedModel.
    count: the number of closed ops that were opened.
    report: the comparison with the closed model.
    notes: sentences about what could not be compared, or not with TensorFlow.
  """

  path: Path
  count: int
  report: Report
  notes: tuple[str, ...] = ()


def save(
  source: paths.Given,
  path: paths.Given,
  *,
  overwrite: bool = False,
  sizes: Mapping[str, int | Sequence[int]] | None = None,
  samples: int = 2,
  rtol: float | None = None,
  atol: float | None = None,
  untrusted: bool = False,
) -> Opened:
  """Converts a closed SavedModel to a SavedModel of ordinary TensorFlow ops with the same values.

  A closed SavedModel comes from `jax.experimental.jax2tf`, from Keras' `model.export` with the JAX
  backend, or from `jax2tf.convert(native_serialization=True)`. Its XlaCallModule ops hold compiled
  programs (StableHLO), which tf2onnx, OpenVINO, TF.js and most other tools refuse. Every such op
  becomes a call of a function of ordinary ops, at any place in the model. Everything else stays:
  signatures, variables, assets, names of functions, and saved gradients. Variables are copied, not
  loaded. A manifest describes the inputs of the signatures for `jax2tf batch` and `verify`.

  `save` compares the result with the closed model, and writes it only if they agree. It compares
  all signatures at several sizes with ordinary inputs, and the gradients if they are saved.
  Differences for NaN, infinities and extreme numbers cause a warning, as for the exporters.

  Args:
    source: the SavedModel, or the folder of its versions, of which the newest is opened.
    path: the folder of the new SavedModel.
    overwrite: whether to replace an existing folder, atomically.
    sizes: {dimension variable: size or sizes} at which to compare. The manifest names the
      variables; without a manifest, "b" is the first axis.
    samples: the number of random inputs per kind and size.
    rtol, atol: tolerances of floating point results, in place of the default tolerances of their
      dtypes.
    untrusted: whether the modules may be malicious. MLIR's parser can end the process for some
      bytes; if `untrusted` is True, a child process reads them first, as for `stablehlo.load`.

  Returns:
    the path and the report of the comparison.

  Raises:
    FileNotFoundError: there is no SavedModel.
    ValueError: the model has no closed ops; a file is damaged; an ArtifactError if JAX cannot read
      a module.
    NotImplementedError: an op cannot be opened; a LoweringError lists the operations of modules.
    FileExistsError: `path` exists and `overwrite` is False.
    NotADirectoryError: `path` is a file.
    OSError: the SavedModel cannot be written.
    OpenError: the opened model differs from the closed model.

  Examples:
    >>> import jax2tf, jax.numpy as jnp, tensorflow as tf
    >>> from jax2tf.converters import opened
    >>> closed = tf.Module()
    >>> closed.f = tf.function(
    ...   jax2tf.convert(jnp.sin, polymorphic_shapes=["b"], native_serialization=True),
    ...   input_signature=[tf.TensorSpec([None], tf.float32, "x")],
    ... )
    >>> tf.saved_model.save(closed, "closed_model")
    >>> opened.save("closed_model", "open_model").count
    2
  """
  options = plan.Comparison(sizes=sizes, samples=samples, rtol=rtol, atol=atol)
  target = _checked(path, overwrite)
  saved = publish.saved_model_in(paths.of(source, "source"), "source")
  with paths.fetched(saved) as directory, publish.beside(target.parent) as place:
    if not is_closed(directory):
      raise ArgumentError(
        "source",
        str(saved),
        problem="it has no closed ops: it is an ordinary SavedModel already",
        advice="use it as it is",
      )
    if untrusted:
      modules.check(files.read(directory).meta_graphs[0].graph_def)
    count, report, notes = _written(directory, place, str(saved), options)
    if target.exists():
      _checked(path, overwrite)  # again, because the comparison may have taken minutes
      publish.replace_folder(place, target)
    else:
      publish.move(place, target, last=SAVED_MODEL)
  return Opened(target, count, report, notes)


def _checked(path: paths.Given, overwrite: bool) -> Path:
  target = paths.of(path)
  if target.exists() and not target.is_dir():
    raise NotADirectoryError(
      Message(Argument("path", str(target)), problem="it is a file", advice="name a folder")
    )
  if not overwrite:
    publish.refuse_existing(target, "or another folder")
  elif target.exists():
    publish.check_replaceable(target)
  publish.check_writable(target.parent)
  return target


def is_closed(directory: Path) -> bool:
  """Whether a SavedModel has ops that `save` opens.

  Raises:
    ValueError: the file is damaged.
  """
  return bool(closed.nodes(files.read(directory).meta_graphs[0].graph_def))


@contextlib.contextmanager
def ordinary(saved: Path) -> Iterator[Path]:
  """A local SavedModel of ordinary ops: the directory itself, or an opened copy of a closed one,
  which is removed at the end.

  Args:
    saved: the SavedModel, or its address.

  Raises:
    ValueError, NotImplementedError, OpenError: as `save`.
  """
  with paths.fetched(saved) as directory:
    if not is_closed(directory):
      yield directory
      return
    with tempfile.TemporaryDirectory(prefix="jax2tf-") as folder:
      place = Path(folder, "model")
      _written(directory, place, str(saved), plan.Comparison())
      yield place


def _written(
  directory: Path, place: Path, label: str, options: plan.Comparison
) -> tuple[int, Report, tuple[str, ...]]:
  """(number of opened ops, report, notes) of the opened model, which is written to `place`."""
  with stages.stage("open the modules"):
    count = files.copied(directory, place, rewriting.opened)
  report, notes, record = comparison.compared(directory, place, label, options)
  _check_equal(report)
  if not (place / MANIFEST).exists():
    record.write(place)
  return count, report, notes


def _check_equal(report: Report) -> None:
  if wrong := [row for row in report.rows if not row.ok]:
    lines = "\n".join(f"  {row.place}: {row.problem}" for row in wrong[:8])
    raise OpenError(
      f"the opened model computes other values than the closed one, so nothing was "
      f"written:\n{lines}"
    )
  if noted := [row for row in report.rows if row.problem and row.values == HOSTILE]:
    lines = "\n".join(f"  {row.place}: {row.problem}" for row in noted[:4])
    warn_user(
      "the opened model computes other values than the closed one for NaN, infinities or extreme "
      f"numbers:\n{lines}"
    )
