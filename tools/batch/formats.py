"""Reads and writes files of rows in windows: Parquet, TFRecord of tf.train.Example, CSV, JSON lines
and .npy.

CSV, JSON lines and TFRecord may be compressed by gzip, with a name that ends in .gz. A format is a
class with `columns` (the column names, if the file has them), `read` and `writer`. `of` finds it by
the suffix.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import importlib
import io
import itertools
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from jax2tf.tools.batch.cells import Answer, check_names, is_text, objects, plain, read_json


@dataclass(frozen=True)
class Window:
  """Some rows of a file.

  Attributes:
    columns: the requested columns that the file has.
    carried: the other columns, in the form that the writer of the same format takes.
    done: the fraction of the file that has been read, 0 to 1.
    faults: row -> why it could not be read.
  """

  columns: Mapping[str, np.ndarray]
  carried: Any
  done: float
  faults: Mapping[int, str] = field(default_factory=dict)


class Writer(Protocol):
  """Writes windows to one file. Carried columns must come from a file of the same format."""

  def write(self, carried: Any, answer: Answer) -> None: ...
  def close(self) -> None: ...


class Format(Protocol):
  def columns(self, path: Path) -> list[str] | None: ...
  def read(self, path: Path, columns: Sequence[str], window: int) -> Iterator[Window]: ...
  def writer(self, path: Path) -> Writer: ...


def of(path: str | Path) -> Format:
  """The format of a file.

  Raises:
    ValueError: the suffix is unknown.
    ImportError: the format needs a package that is not installed.
  """
  name = Path(path).name.lower()
  # of the shards x.tfrecord-00000-of-00010
  whole = re.sub(r"-\d+-of-\d+$", "", name.removesuffix(".gz"))
  form = _FORMATS.get(Path(whole).suffix)
  if form is None or (name.endswith(".gz") and not issubclass(form, _Lines)):
    raise ValueError(f"{path} has an unknown format; a name ends in {', '.join(_FORMATS)}")
  return form()


class Parquet:
  """Parquet by pyarrow; carried columns keep their types."""

  def __init__(self) -> None:
    try:
      self._parquet = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
      raise ImportError("reading Parquet needs pyarrow: pip install 'jax2tf[batch]'") from error

  def columns(self, path: Path) -> list[str]:
    with self._parquet.ParquetFile(path) as file:
      return list(file.schema_arrow.names)

  def read(self, path: Path, columns: Sequence[str], window: int) -> Iterator[Window]:
    from jax2tf.tools.batch import arrow  # noqa: PLC0415  (pyarrow)

    with self._parquet.ParquetFile(path) as file:
      total, done = file.metadata.num_rows, 0
      for batch in file.iter_batches(window):
        done += batch.num_rows
        yield Window(arrow.columns(batch, columns), arrow.without(batch, columns), done / total)
      if not total:
        empty = file.schema_arrow.empty_table()
        yield Window(arrow.columns(empty, columns), arrow.without(empty, columns), 1.0)

  def writer(self, path: Path) -> Writer:
    return _ParquetWriter(self._parquet, path)


class _ParquetWriter:
  def __init__(self, parquet: Any, path: Path):
    self._parquet, self._path = parquet, path
    self._writer: Any = None

  def write(self, carried: Any, answer: Answer) -> None:
    from jax2tf.tools.batch import arrow  # noqa: PLC0415

    table = arrow.table(carried, answer)
    if self._writer is None:
      self._writer = self._parquet.ParquetWriter(self._path, table.schema)
    self._writer.write_table(table)

  def close(self) -> None:
    if self._writer is not None:
      self._writer.close()


class _Lines:
  """Formats in which a row is a dict, and a column that a row does not have is missing. Subclasses
  define `rows` and `writer`."""

  def read(self, path: Path, columns: Sequence[str], window: int) -> Iterator[Window]:
    rows: list[dict[str, Any]] = []
    faults: dict[int, str] = {}
    done, size = 0.0, max(1, path.stat().st_size)
    for row, fault, position in self.rows(path):
      if fault:
        faults[len(rows)] = fault
      rows.append(row)
      done = min(1.0, position / size)  # of the compressed size, for TFRecord
      if len(rows) == window:
        yield _window(rows, columns, done, faults)
        rows, faults = [], {}
    if rows or not done:
      yield _window(rows, columns, 1.0, faults)

  def rows(self, path: Path) -> Iterator[tuple[dict[str, Any], str, int]]:
    """(row, its fault or "", the position in the file after it)."""
    raise NotImplementedError


def _window(
  rows: list[dict[str, Any]], columns: Sequence[str], done: float, faults: Mapping[int, str]
) -> Window:
  window = {name: objects([row.get(name) for row in rows]) for name in columns}
  return Window(
    window,
    [{key: value for key, value in row.items() if key not in columns} for row in rows],
    done,
    faults,
  )


class _LinesWriter:
  def __init__(self, file: Any):
    self._file = file

  def write(self, carried: Any, answer: Answer) -> None:
    for index, i in enumerate(answer.rows):
      check_names(carried[i], answer.outputs)
      self.put({**carried[i], **{name: array[index] for name, array in answer.outputs.items()}})

  def put(self, row: dict[str, Any]) -> None:
    self._file.write(json.dumps({key: plain(value) for key, value in row.items()}) + "\n")

  def close(self) -> None:
    self._file.close()


class JsonLines(_Lines):
  def columns(self, path: Path) -> list[str]:
    """Those of the first hundred rows, since a row need not have them all."""
    return list(
      dict.fromkeys(name for row, _, _ in itertools.islice(self.rows(path), 100) for name in row)
    )

  def rows(self, path: Path) -> Iterator[tuple[dict[str, Any], str, int]]:
    with _open(path) as (binary, content):
      for line in content:
        if not line.strip():
          continue
        try:
          row = read_json(line)
        except RecursionError as error:
          yield {}, str(error), binary.tell()
          continue
        except ValueError as error:
          yield {}, f"is not JSON: {error}", binary.tell()
          continue
        yield (
          (row, "", binary.tell())
          if isinstance(row, dict)
          else ({}, "is no JSON object", binary.tell())
        )

  def writer(self, path: Path) -> Writer:
    return _LinesWriter(_text(path))


@contextlib.contextmanager
def _open(path: Path) -> Iterator[tuple[Any, Any]]:
  """(the file, whose position tells how much of it has been read, its content without
  compression)."""
  with (
    path.open("rb") as binary,
    gzip.GzipFile(fileobj=binary) if path.suffix == ".gz" else binary as content,
  ):
    yield binary, content


class _Gzip(gzip.GzipFile):
  """Without a name and a time in its header, so that equal rows give equal files."""

  def __init__(self, path: Path):
    self._binary = path.open("wb")
    super().__init__("", "wb", fileobj=self._binary, mtime=0)

  def close(self) -> None:
    super().close()
    self._binary.close()


def _text(path: Path) -> Any:
  """A new text file, compressed if its name says so."""
  return io.TextIOWrapper(
    _Gzip(path) if path.suffix == ".gz" else path.open("wb"), encoding="utf-8", newline=""
  )


class Csv(_Lines):
  """CSV with a header; a list in a cell is JSON."""

  carried: Sequence[str] = ()  # of the file that was read last

  def __init__(self) -> None:
    # of Python's parser; its 131,072 characters are less than a long list
    csv.field_size_limit(2**31 - 1)

  def columns(self, path: Path) -> list[str]:
    with _open(path) as (_, content), self._decoded(content) as text:
      return next(csv.reader(text), [])

  def _decoded(self, content: Any) -> io.TextIOWrapper:
    # Excel begins UTF-8 with a byte order mark. Bytes that are no UTF-8 become surrogates, so that
    # only their row is bad.
    return io.TextIOWrapper(content, encoding="utf-8-sig", errors="surrogateescape", newline="")

  def read(self, path: Path, columns: Sequence[str], window: int) -> Iterator[Window]:
    self.carried = [name for name in self.columns(path) if name not in columns]
    yield from super().read(path, columns, window)

  def rows(self, path: Path) -> Iterator[tuple[dict[str, Any], str, int]]:
    with _open(path) as (binary, content), self._decoded(content) as text:
      lines = csv.reader(text)
      names = next(lines, [])
      if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"{path} has two columns {twice[0]!r}; rename one")
      for cells in lines:
        if not cells:
          continue  # an empty line
        fault = (
          ""
          if len(cells) == len(names)
          else f"has {len(cells)} cells, and the header has {len(names)}"
        )
        if not all(map(is_text, cells)):
          fault = "is not UTF-8"
        yield {} if fault else dict(zip(names, cells, strict=True)), fault, binary.tell()

  def writer(self, path: Path) -> Writer:
    return _CsvWriter(_text(path), self)


class _CsvWriter(_LinesWriter):
  _rows: Any = None

  def __init__(self, file: Any, form: Csv):
    super().__init__(file)
    self._form = form

  def write(self, carried: Any, answer: Answer) -> None:
    if self._rows is None:
      self._rows = csv.writer(self._file, lineterminator="\n")
      self._rows.writerow([*self._form.carried, *answer.outputs])
    super().write(carried, answer)

  def put(self, row: dict[str, Any]) -> None:
    self._rows.writerow(
      [value if isinstance(value, str) else _cell(value) for value in row.values()]
    )


def _cell(value: Any) -> str:
  text_or_value = plain(value)
  return text_or_value if isinstance(text_or_value, str) else json.dumps(text_or_value)


class TfRecord(_Lines):
  """TFRecord of tf.train.Example; a feature is a flat list."""

  def columns(self, path: Path) -> None:
    return None

  def rows(self, path: Path) -> Iterator[tuple[dict[str, Any], str, int]]:
    import tensorflow as tf  # noqa: PLC0415  (only a worker reads)

    offset = 0
    try:
      for record in tf.data.TFRecordDataset(
        str(path), _COMPRESSION.get(path.suffix)
      ).as_numpy_iterator():
        offset += len(record) + 16  # the length and two checksums
        try:
          features = tf.train.Example.FromString(record).features.feature
        except Exception as error:  # each implementation of protobuf has its own
          yield {}, f"is no tf.train.Example: {error}", offset
          continue
        yield {name: _feature(value) for name, value in features.items()}, "", offset
    except tf.errors.DataLossError as error:
      if offset:
        raise
      raise ValueError(
        f"{path} has no TFRecord at its beginning; if it is compressed by gzip, let its name end "
        "in .gz"
      ) from error

  def writer(self, path: Path) -> Writer:
    return _TfRecordWriter(path)


_COMPRESSION = {".gz": "GZIP"}


def _feature(feature: Any) -> np.ndarray | None:
  kind = feature.WhichOneof("kind")
  if kind is None:
    return None
  return np.array(
    getattr(feature, kind).value,
    {"bytes_list": object, "float_list": np.float32, "int64_list": np.int64}[kind],
  )


class _TfRecordWriter(_LinesWriter):
  def __init__(self, path: Path):
    import tensorflow as tf  # noqa: PLC0415

    super().__init__(tf.io.TFRecordWriter(str(path), _COMPRESSION.get(path.suffix)))
    self._train = tf.train

  def put(self, row: dict[str, Any]) -> None:
    train, features = self._train, {}
    for name, value in row.items():
      array = np.asarray(value).ravel()
      if value is None:
        features[name] = train.Feature()  # as it was read
      elif array.dtype.kind in "OSU":
        features[name] = train.Feature(
          bytes_list=train.BytesList(
            value=[v if isinstance(v, bytes) else str(v).encode() for v in array]
          )
        )
      elif array.dtype.kind in "biu":
        features[name] = train.Feature(int64_list=train.Int64List(value=array.tolist()))
      elif array.dtype == np.float64:
        raise ValueError(
          f"{name!r} is float64, and tf.train.Example holds only float32; write another format"
        )
      else:
        features[name] = train.Feature(float_list=train.FloatList(value=array.astype(np.float32)))
    self._file.write(train.Example(features=train.Features(feature=features)).SerializeToString())


class Npy:
  """One array with the rows in dimension 0: the only input or output of the model."""

  def columns(self, path: Path) -> None:
    return None

  def read(self, path: Path, columns: Sequence[str], window: int) -> Iterator[Window]:
    array = np.load(path, mmap_mode="r", allow_pickle=False)
    for begin in range(0, max(1, len(array)), window):
      part = np.asarray(array[begin : begin + window])
      yield Window({columns[0]: part}, None, min(1.0, (begin + window) / max(1, len(array))))

  def writer(self, path: Path) -> Writer:
    return _NpyWriter(path)


class _NpyWriter:
  def __init__(self, path: Path):
    self._path, self._rows = path, 0
    self._kind: np.ndarray | None = None
    self._file: Any = None

  def write(self, carried: Any, answer: Answer) -> None:
    del carried
    [(name, array)] = answer.outputs.items()
    if answer.faults:
      raise ValueError(
        f"row {min(answer.faults)} {answer.faults[min(answer.faults)]}; .npy cannot hold missing "
        "rows"
      )
    if array.dtype.kind == "O":
      raise ValueError(
        f"output {name!r} has rows of several sizes or texts, which .npy does not hold; read and "
        "write another format"
      )
    if self._file is None:
      self._file, self._kind = self._path.open("wb"), array
      self._header()
    self._rows += len(array)
    self._file.write(np.ascontiguousarray(array).tobytes())

  def _header(self) -> None:
    assert self._kind is not None
    header = {
      "descr": np.lib.format.dtype_to_descr(self._kind.dtype),
      "fortran_order": False,
      "shape": (self._rows, *self._kind.shape[1:]),
    }
    self._file.seek(0)
    np.lib.format.write_array_header_1_0(self._file, header)

  def close(self) -> None:
    if self._file is not None:
      self._header()  # NumPy 2.4 leaves room in the header for a larger number of rows
      self._file.seek(0, os.SEEK_END)
      self._file.close()


_FORMATS: dict[str, Any] = {
  ".parquet": Parquet,
  ".tfrecord": TfRecord,
  ".csv": Csv,
  ".jsonl": JsonLines,
  ".ndjson": JsonLines,
  ".npy": Npy,
}
