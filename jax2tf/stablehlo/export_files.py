"""Reads the files of `jax.export`, whose own reader refuses those of half a year ago.

They are flatbuffers; the fields are those of jax/_src/export/serialization.fbs, to which JAX only
adds. Versions 2 (JAX 0.4.26) to 12 (JAX 0.12) differ in where the avals stand.
"""

from __future__ import annotations

import struct
import tokenize
from collections.abc import Callable, Iterator
from typing import Any

import flatbuffers
import jax
import ml_dtypes
import numpy as np
from flatbuffers import number_types
from jax import export

from jax2tf._jax_compat import exports
from jax2tf.stablehlo.artifacts import Artifact, Aval, Convention, Source

# Of nodes of a tree; and of all, which a changed file could make endless.
_DEEPEST, _MOST_NODES = 100, 1_000_000


class NoExportError(ValueError):
  """The bytes are no file of `jax.export`, or a damaged one; str() says why."""


def read(data: bytes) -> Artifact:
  """The artifact in the bytes of a file.

  Raises:
    NoExportError: the bytes are no such file.
  """
  try:
    start = struct.unpack_from("<I", data)[0]
    if not 4 <= start < len(data):
      raise NoExportError("it does not begin as a flatbuffer does")
    return _exported(_Table(data, start), 0)
  except (struct.error, IndexError, UnicodeDecodeError, OverflowError, TypeError) as error:
    raise NoExportError(f"it is cut or changed ({error})") from None


class _Table:
  """A table of a flatbuffer, whose fields are numbered."""

  def __init__(self, data: bytes, position: int):
    if not 0 <= position < len(data):
      raise NoExportError("it is cut or changed (an offset points outside)")
    self._data, self._table = data, flatbuffers.table.Table(data, position)

  def _place(self, field: int) -> int:
    """Of a field in the data; 0 if the table lacks it."""
    offset = self._table.Offset(4 + 2 * field)
    return int(self._table.Pos + offset) if offset else 0

  def number(self, field: int, kind: Any, default: int = 0) -> int:
    place = self._place(field)
    return int(self._table.Get(kind, place)) if place else default

  def table(self, field: int) -> _Table | None:
    place = self._place(field)
    return _Table(self._data, self._table.Indirect(place)) if place else None

  def text(self, field: int) -> str:
    place = self._place(field)
    return self._text_at(place) if place else ""

  def _text_at(self, place: int) -> str:
    return bytes(self._table.String(place)).decode()

  def bytes(self, field: int) -> bytes:
    start, length = self._vector(field, 1)
    return self._data[start : start + length]

  def numbers(self, field: int, kind: Any) -> list[int]:
    start, length = self._vector(field, kind.bytewidth)
    return [int(self._table.Get(kind, start + kind.bytewidth * each)) for each in range(length)]

  def tables(self, field: int) -> Iterator[_Table]:
    start, length = self._vector(field, 4)
    for each in range(length):
      yield _Table(self._data, self._table.Indirect(start + 4 * each))

  def texts(self, field: int) -> list[str]:
    start, length = self._vector(field, 4)
    return [self._text_at(start + 4 * each) for each in range(length)]

  def _vector(self, field: int, width: int) -> tuple[int, int]:
    """Where a vector starts, and its length."""
    place = self._place(field)
    if not place:
      return 0, 0
    place += self._table.Get(number_types.UOffsetTFlags, place)
    length = int(self._table.Get(number_types.UOffsetTFlags, place))
    if place + 4 + width * length > len(self._data):
      raise NoExportError("it is cut or changed (a vector ends outside)")
    return place + 4, length


# Numbers of the fields of the table Exported.
_NAME, _IN_TREE, _IN_AVALS, _OUT_TREE, _OUT_AVALS, _FEW_DEVICES = 1, 2, 3, 4, 5, 6
_PLATFORMS, _MODULE, _VERSION, _KEPT, _VJP, _DEVICES = 9, 13, 14, 15, 17, 18
_UNIQUE_AVALS, _IN_AVAL_INDICES, _OUT_AVAL_INDICES = 19, 22, 23

_SHORT, _LONG, _BYTE = number_types.Uint16Flags, number_types.Uint32Flags, number_types.Int8Flags


def _exported(table: _Table, order: int) -> Artifact:
  if order > _DEEPEST:
    raise NoExportError("it is changed (its VJPs have VJPs without end)")
  module = table.bytes(_MODULE)
  if not module:
    raise NoExportError("it has no module")
  scope = export.SymbolicScope(())
  unique = [_aval(each, scope) for each in table.tables(_UNIQUE_AVALS)]

  def avals(field: int, indices_field: int) -> tuple[Aval, ...]:
    indices = table.numbers(indices_field, _LONG)
    if indices:
      return tuple(unique[index] for index in indices)
    return tuple(_aval(each, scope) for each in table.tables(field))

  in_avals = avals(_IN_AVALS, _IN_AVAL_INDICES)
  out_avals = avals(_OUT_AVALS, _OUT_AVAL_INDICES)
  vjp = table.table(_VJP)
  convention = Convention(
    in_tree=_tree(table.table(_IN_TREE), in_avals),
    in_avals=in_avals,
    out_tree=_tree(table.table(_OUT_TREE), out_avals),
    out_avals=out_avals,
    platforms=tuple(table.texts(_PLATFORMS)),
    kept=tuple(table.numbers(_KEPT, _SHORT)),
    devices=table.number(_DEVICES, _LONG) or table.number(_FEW_DEVICES, number_types.Int16Flags, 1),
  )
  return Artifact(
    name=table.text(_NAME),
    module=Source(module),
    convention=convention,
    vjp=None if vjp is None else _exported(vjp, order + 1),
  )


def _key_dtype(implementation: str) -> Callable[[], Any]:
  return lambda: jax.eval_shape(lambda: jax.random.key(0, impl=implementation)).dtype


_DTYPES: dict[int, Any] = {
  0: bool,
  1: np.int8,
  2: np.int16,
  3: np.int32,
  4: np.int64,
  5: np.uint8,
  6: np.uint16,
  7: np.uint32,
  8: np.uint64,
  9: np.float16,
  10: np.float32,
  11: np.float64,
  12: np.complex64,
  13: np.complex128,
  14: ml_dtypes.bfloat16,
  15: ml_dtypes.int4,
  16: ml_dtypes.uint4,
  17: ml_dtypes.float8_e4m3b11fnuz,
  18: ml_dtypes.float8_e4m3fn,
  19: ml_dtypes.float8_e4m3fnuz,
  20: ml_dtypes.float8_e5m2,
  21: ml_dtypes.float8_e5m2fnuz,
  22: jax.dtypes.float0,
  23: ml_dtypes.float8_e4m3,
  24: ml_dtypes.float8_e3m4,
  25: ml_dtypes.float8_e8m0fnu,
  26: ml_dtypes.float4_e2m1fn,
}
_KEY_DTYPES = {27: _key_dtype("threefry2x32"), 28: _key_dtype("rbg"), 29: _key_dtype("unsafe_rbg")}


def _aval(table: _Table, scope: Any) -> Aval:
  kind = table.number(2, _BYTE)
  if kind in _KEY_DTYPES:
    dtype = _KEY_DTYPES[kind]()
  elif kind in _DTYPES:
    dtype = np.dtype(_DTYPES[kind])
  else:
    raise NoExportError(f"it has an array of a dtype that this version does not know ({kind})")
  try:
    return Aval(tuple(export.symbolic_shape(",".join(table.texts(1)), scope=scope)), dtype)
  except (ValueError, tokenize.TokenError) as error:  # of JAX's parser, or of Python's
    raise NoExportError(f"it has no sizes where sizes stand ({error})") from None


def _tree(table: _Table | None, avals: tuple[Aval, ...]) -> Any:
  """The structure of a tree that has the avals as its leaves."""
  if table is None:
    raise NoExportError("it lacks the structure of its arguments")
  tree: Any = None
  leaves = iter([jax.ShapeDtypeStruct((), np.float32)] * len(avals))
  nodes = iter(range(_MOST_NODES))
  try:
    tree = jax.tree.structure(_node(table, leaves, nodes, 0))
  except StopIteration:
    raise NoExportError("it has other leaves in its trees than arrays") from None
  if tree.num_leaves != len(avals):
    raise NoExportError("it has other leaves in its trees than arrays")
  return tree


def _node(table: _Table, leaves: Iterator[Any], nodes: Iterator[int], depth: int) -> Any:
  next(nodes)
  if depth > _DEEPEST:
    raise NoExportError(f"its trees nest deeper than {_DEEPEST} levels")
  kind = table.number(0, _BYTE)
  if kind == 0:
    return next(leaves)
  children = [_node(child, leaves, nodes, depth + 1) for child in table.tables(1)]
  if kind == 5:
    return _registered(table.text(3), table.bytes(4), children)
  plain: dict[int, Callable[[], Any]] = {
    1: lambda: None,
    2: lambda: tuple(children),
    3: lambda: children,
    4: lambda: dict(zip(table.texts(2), children, strict=True)),
  }
  if kind not in plain:
    raise NoExportError(f"it has a tree of a kind that this version does not know ({kind})")
  return plain[kind]()


def _registered(name: str, auxiliary: bytes, children: list[Any]) -> Any:
  try:
    return exports.tree_node(name, auxiliary, children)
  except KeyError:
    raise NoExportError(
      f"its arguments or results have a class {name!r} that this process does not know; register "
      "it first, by jax.export.register_pytree_node_serialization or "
      "register_namedtuple_serialization"
    ) from None
