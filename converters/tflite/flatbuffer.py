"""The flatbuffer of a .tflite model: unpacked, packed, and its metadata."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np

from .. import extras
from ..bundle.manifest import SignatureRecord
from ..export import ends

# Name of a metadata entry, which holds JSON: {signature: its inputs and outputs whose f32[...,2]
# stands for c64[...]}.
_COMPLEX = "jax2tf.complex"


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
  schema = tools().schema_fb
  model = schema.Model.GetRootAs(np.memmap(path, mode="r"), 0)  # reads no weights
  for i in range(model.MetadataLength()):
    entry = model.Metadata(i)
    if entry.Name().decode() == _COMPLEX:
      return json.loads(model.Buffers(entry.Buffer()).DataAsNumpy().tobytes())
  return {}
