"""The flatbuffer of a .tflite model: unpacked, packed, and its metadata."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import flatbuffers
import numpy as np

from .. import extras
from ..bundle.manifest import SignatureRecord
from ..export import ends

# Name of a metadata entry, which holds JSON: {signature: its inputs and outputs whose f32[...,2]
# stands for c64[...]}.
_COMPLEX = "jax2tf.complex"
_OPERATORS = 10  # the field of a subgraph in LiteRT's schema


class _Builder(flatbuffers.Builder):  # type: ignore[misc]
  """Aligns vectors of bytes, the weights, to 16 bytes, as LiteRT's schema requires. Its Python code
  does not."""

  def StartVector(self, size: int, count: int, alignment: int) -> Any:  # noqa: N802
    return super().StartVector(size, count, 16 if size == 1 else alignment)


def tools() -> Any:
  """LiteRT's module with the classes of its schema."""
  return extras.module("ai_edge_litert.tools.flatbuffer_utils", "tflite", "exporting to TFLite")


def unpacked(model: bytes) -> Any:
  """The ModelT of a .tflite model."""
  return tools().read_model_from_bytearray(bytearray(model))


def packed(model_object: Any, size: int) -> bytes:
  """The .tflite model of a ModelT; `size` is about its size."""
  builder = _Builder(size)
  builder.Finish(model_object.Pack(builder), file_identifier=b"TFL3")
  return bytes(builder.Output())


def with_complex(model: bytes, records: Mapping[str, SignatureRecord]) -> bytes:
  """The .tflite model with {signature: its complex inputs and outputs} in its metadata."""
  names = {name: ends.complex_names(record) for name, record in records.items()}
  if not any(names.values()):
    return model
  schema, model_object = tools().schema_fb, unpacked(model)
  entry = schema.MetadataT()
  entry.name, entry.buffer = _COMPLEX.encode(), len(model_object.buffers)
  buffer = schema.BufferT()
  buffer.data = list(json.dumps(names).encode())
  model_object.buffers.append(buffer)
  model_object.metadata = [*(model_object.metadata or []), entry]
  return packed(model_object, len(model))


def complex_names(path: Path) -> Mapping[str, Sequence[str]]:
  """{signature: its complex inputs and outputs} of a .tflite file."""
  model = _mapped(path)
  for i in range(model.MetadataLength()):
    entry = model.Metadata(i)
    if entry.Name().decode() == _COMPLEX:
      return json.loads(model.Buffers(entry.Buffer()).DataAsNumpy().tobytes())
  return {}


def has_variables(path: Path) -> bool:
  """Whether the signatures of a .tflite file share variables."""
  model, builtin = _mapped(path), tools().BuiltinOperator
  codes = (model.OperatorCodes(i) for i in range(model.OperatorCodesLength()))
  return any(code.BuiltinCode() == builtin.VAR_HANDLE for code in codes)


def with_one_signature(path: Path, signature: str, place: Path) -> None:
  """Copies a .tflite file, with only the first op of its other signatures: LiteRT packs the weights
  of each signature when it opens a file. It does not use XNNPACK if the first signature has no op.
  """
  shutil.copyfile(path, place)
  model = _mapped(place, mode="r+")
  defined = [model.SignatureDefs(i) for i in range(model.SignatureDefsLength())]
  graphs = {one.SignatureKey().decode(): one.SubgraphIndex() for one in defined}
  for number in {*graphs.values()} - {graphs[signature]}:
    graph = model.Subgraphs(number)
    if graph.OperatorsLength() > 1:
      operators = graph._tab.Vector(graph._tab.Offset(_OPERATORS))
      graph._tab.Bytes[operators - 4 : operators] = (1, 0, 0, 0)  # the length of the vector


def _mapped(path: Path, mode: Literal["r", "r+"] = "r") -> Any:
  """The Model of a .tflite file, mapped into memory."""
  return tools().schema_fb.Model.GetRootAs(np.memmap(path, mode=mode), 0)
