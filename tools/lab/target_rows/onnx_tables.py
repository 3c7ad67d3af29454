"""Asks releases of ONNX Runtime whether `jax2tf.converters.onnx.releases` has its tables right."""

from __future__ import annotations

import pathlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import onnx

from jax2tf.converters.onnx import releases
from jax2tf.tools.lab.target_rows import onnx_nan
from jax2tf.tools.lab.target_rows.onnx_releases import Release

# ONNX Runtime 1.16 is the first that lists its kernels.
_LISTS_KERNELS = 16
# float16 and bfloat16 do not need a kernel of their own, and exported files have no narrower ones.
_INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
_DTYPES = {f"tensor({name})": name for name in ("float", "double", "bool", *_INTEGERS)}
_VARIABLES = ("T", "T1")  # the type variables of first operands


def differences(found: Sequence[Release]) -> list[str]:
  """What the tables have otherwise than the releases."""
  tables: tuple[tuple[str, Mapping[Any, int], Mapping[Any, int]], ...] = (
    ("opset", releases.OPSETS, dict(opsets(found))),
    ("kernel", releases.KERNELS, dict(kernels(found))),
    ("NaN in kernel", releases.NAN, dict(onnx_nan.first_right(found))),
  )
  return [
    f"{kind} {key}: first in 1.{real.get(key)}, and the table has 1.{table.get(key)}"
    for kind, table, real in tables
    for key in dict.fromkeys([*table, *real])
    if table.get(key) != real.get(key)
  ]


def opsets(found: Sequence[Release]) -> Iterator[tuple[int, int]]:
  """(opset, the first release that opens it) from opset 18 to the newest of onnx."""
  of = onnx.helper
  with tempfile.TemporaryDirectory() as folder:
    for opset in range(min(releases.OPSETS), onnx.defs.onnx_opset_version() + 1):
      ends = [of.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2]) for name in "xy"]
      graph = of.make_graph([of.make_node("Abs", ["x"], ["y"])], "abs", ends[:1], ends[1:])
      imports = [of.make_opsetid("", opset)]
      version = of.find_min_ir_version_for(imports)
      path = pathlib.Path(folder, f"{opset}.onnx")
      onnx.save(of.make_model(graph, opset_imports=imports, ir_version=version), str(path))
      if numbers := [release.number for release in found if release.opens(path)]:
        yield opset, min(numbers)


def kernels(found: Sequence[Release]) -> Iterator[tuple[tuple[str, str], int]]:
  """((op, dtype), the first release with a kernel for opset 18 from which on each has one), for
  those that not all releases have."""
  have = {r.number: _kernels(r) for r in found if r.number >= _LISTS_KERNELS}
  newest = have[max(have)]
  for kernel in sorted(newest):
    without = [number for number, there in have.items() if kernel not in there]
    if without:
      yield kernel, min(number for number in have if number > max(without))


def _kernels(release: Release) -> set[tuple[str, str]]:
  opset = min(releases.OPSETS)
  known = {schema.name for schema in onnx.defs.get_all_schemas_with_history()}
  return {
    (op, _DTYPES[dtype])
    for op, first, last, types in release.kernels()
    if op in known and first <= opset <= last
    for dtype in _of_first_operand(types)
    if dtype in _DTYPES
  }


def _of_first_operand(types: Mapping[str, Sequence[str]]) -> Iterator[str]:
  for variable in _VARIABLES:
    yield from types.get(variable, ())
