"""Paths that users give: local ones, and addresses in TensorFlow's other file systems, such as
`gs://bucket/model`.

Every function and command that takes a path asks `of` or `local` for it. `pathlib` would take an
address for a local folder "gs:".
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path, PurePath, PurePosixPath
from typing import Any, cast

from jax2tf.messages import Argument, ArgumentError, Message

Given = str | os.PathLike[str]

_SCHEME = r"[A-Za-z][A-Za-z0-9+.-]+"
# What pathlib makes of the beginning of an address.
_JOINED = re.compile(r"(gs|s3a?|hdfs|viewfs|ram|az|abfss?|https?|file):/", re.IGNORECASE)


class Address(PurePosixPath):
  """An address in another file system of TensorFlow. It has the names of a path; `tf.io.gfile`
  reads and writes what is there.

  Raises (all methods):
    OSError: the file system does not answer, or refuses.
  """

  def __str__(self) -> str:
    scheme, _, rest = super().__str__().partition(":/")
    return f"{scheme}://{rest}"

  @property
  def scheme(self) -> str:
    """`gs` of `gs://bucket/model`."""
    return self.parts[0].removesuffix(":")

  def exists(self) -> bool:
    """Whether there is a file or a folder."""
    return bool(_gfile("exists", self))

  def is_dir(self) -> bool:
    """Whether there is a folder."""
    return bool(_gfile("isdir", self))

  def is_file(self) -> bool:
    """Whether there is a file."""
    return self.exists() and not self.is_dir()

  def iterdir(self) -> Iterator[Address]:
    """What is in the folder."""
    return (self / name.rstrip("/") for name in _gfile("listdir", self))

  def unlink(self, missing_ok: bool = False) -> None:
    """Removes a file."""
    if not missing_ok or self.exists():
      _gfile("remove", self)

  def check_writable(self) -> None:
    """Raises OSError if the folder cannot be written. Leaves nothing behind."""
    existed, probe = self.exists(), self / f".saving-{uuid.uuid4().hex}"
    _gfile("makedirs", self)
    with _reported(self), _tensorflow().io.gfile.GFile(str(probe), "w") as file:
      file.write("jax2tf checks that it can write here")
    _gfile("remove", probe) if existed else _gfile("rmtree", self)

  def put(self, written: Path, last: str = "") -> None:
    """Copies a local file or folder to this address.

    A file appears under its name once it is complete. Of a folder the file `last` is copied last:
    without it no reader takes the others for a model. If the copy fails, the folder is removed.
    """
    if written.is_dir():
      self._put_folder(written, last)
      return
    _gfile("makedirs", self.parent)
    partial = self.with_name(f".saving-{uuid.uuid4().hex}-{self.name}")
    try:
      _copy(written, partial)
      _gfile("rename", partial, self, overwrite=True)
    except OSError:
      with contextlib.suppress(OSError):
        partial.unlink(missing_ok=True)
      raise

  def _put_folder(self, written: Path, last: str) -> None:
    files = [file.relative_to(written) for file in written.rglob("*") if file.is_file()]
    try:
      for file in sorted(files, key=lambda file: (str(file) == last, file)):
        _gfile("makedirs", (self / file).parent)
        _copy(written / file, self / file)
    except OSError:
      with contextlib.suppress(OSError):
        _gfile("rmtree", self)
      raise

  def fetch(self, folder: Path) -> Path:
    """Copies the file, or the folder with all in it, into a local folder. Returns the copy."""
    copy = folder / self.name
    if not self.is_dir():
      _gfile("copy", self, copy)
      return copy
    copy.mkdir()
    for each in self.iterdir():
      each.fetch(copy)
    return copy


def of(path: Given, argument: str = "path") -> Path:
  """The path, or the `Address`, that a user gave. Its type says Path: an Address has the names of
  one, and few of its methods.

  Args:
    path: a path, or an address as text.
    argument: its name in Python, for errors.

  Raises:
    ValueError: TensorFlow has no such file system; the address names no place; or it has gone
      through pathlib, which joins its slashes.
    OSError: the file system does not answer.
  """
  text = os.fspath(path)
  scheme, mark, rest = text.partition("://")
  if not mark or not re.fullmatch(_SCHEME, scheme):
    if _JOINED.match(text):
      whole = text.replace(":/", "://", 1)
      raise ArgumentError(
        argument,
        text,
        problem="it has lost a slash, as pathlib joins them",
        advice=f"pass the text {whole!r}, or ./{text} for a local file",
      )
    return Path(text)
  if scheme == "file":
    if not rest.startswith("/"):
      raise ArgumentError(
        argument,
        text,
        problem="it is not absolute",
        advice="write file:///folder/name, or a plain path",
      )
    return Path(rest)
  known = [
    name for name in _tensorflow().io.gfile.get_registered_schemes() if name not in ("", "file")
  ]
  if scheme not in known:
    schemes = ", ".join(f"{name}://" for name in sorted(known))
    raise ArgumentError(
      argument,
      text,
      problem=f"TensorFlow has no file system for {scheme}://, only for {schemes}",
      advice="import the package that adds it, such as tensorflow_io, or use a local path and copy "
      "the files",
    )
  if rest.startswith("/") or not rest:
    raise ArgumentError(
      argument, text, problem="it names no host or bucket", advice=f"write {scheme}://NAME/folder"
    )
  address = Address(text)
  address.exists()  # raises where nothing answers, before any work
  return cast(Path, address)


def local(path: Given, argument: str = "path") -> Path:
  """The path, where only local files can be used.

  Raises:
    ValueError: it is an address in another file system.
  """
  text = os.fspath(path)
  scheme, mark, _ = text.partition("://")
  if mark and scheme != "file" and re.fullmatch(_SCHEME, scheme):
    raise ArgumentError(
      argument,
      text,
      problem="it is not on this machine, and only local files are taken here",
      advice="copy it first",
    )
  return of(path, argument)


@contextlib.contextmanager
def fetched(path: Path) -> Iterator[Path]:
  """A local file or folder: `path` itself, or a copy of what is at an `Address`, removed at the
  end."""
  if not isinstance(path, Address):
    yield path
    return
  with tempfile.TemporaryDirectory(prefix="jax2tf-") as folder:
    yield path.fetch(Path(folder))


@contextlib.contextmanager
def opened(path: Given, argument: str = "path") -> Iterator[Path]:
  """A local file to read: the file of that path, or a copy as of `fetched`.

  Raises:
    FileNotFoundError: there is none.
    IsADirectoryError: it is a folder.
    ValueError, OSError: as `of`.
  """
  source = of(path, argument)
  if source.is_dir():
    raise IsADirectoryError(
      Message(Argument(argument, str(source)), problem="it is a folder", advice="name a file")
    )
  if not source.exists():
    raise FileNotFoundError(
      Message(Argument(argument, str(source)), problem="there is no such file")
    )
  with fetched(source) as file:
    yield file


def _tensorflow() -> Any:
  import tensorflow  # noqa: PLC0415  (seconds, and only for addresses)

  return tensorflow


def _gfile(name: str, *addresses: PurePath, **options: Any) -> Any:
  with _reported(addresses[0]):
    return getattr(_tensorflow().io.gfile, name)(*map(str, addresses), **options)


def _copy(written: Path, target: Address) -> None:
  """Copies a file, and looks whether it is whole."""
  with _reported(target):
    gfile = _tensorflow().io.gfile
    gfile.copy(str(written), str(target), overwrite=True)
    there, size = gfile.stat(str(target)).length, written.stat().st_size
  if there != size:
    raise OSError(f"{target} has {there} of {size} bytes after it was copied; try again")


@contextlib.contextmanager
def _reported(address: PurePath) -> Iterator[None]:
  """Raises OSError in place of TensorFlow's errors."""
  try:
    yield
  except _tensorflow().errors.OpError as error:
    raise OSError(
      f"{address}: its file system does not answer as it should ({' '.join(error.message.split())})"
    ) from error
