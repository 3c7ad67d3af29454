"""Complex inputs and outputs in a file, and the error for ops without a form in pairs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from ..bundle.manifest import SignatureRecord
from ..bundle.notation import Spec
from .pair import REAL, Pair, of_stacked, stacked


class UnpairedOpsError(NotImplementedError):
  """Ops of complex numbers that have no form in pairs of real ones.

  Attributes:
    ops: {type of op: why}.
  """

  def __init__(self, ops: Mapping[str, str]):
    listed = "; ".join(f"{op}: {why}" for op, why in ops.items())
    super().__init__(f"complex numbers become pairs of real ones, which these ops lack: {listed}")
    self.ops = dict(ops)


def outer_spec(spec: tf.TensorSpec) -> tf.TensorSpec:
  """The spec of an input in a file: c64[b] is f32[b,2]."""
  if spec.dtype not in REAL:
    return spec
  return tf.TensorSpec(spec.shape.concatenate([2]), REAL[spec.dtype], spec.name)


def entering(tensor: tf.Tensor, spec: Any) -> Any:
  """The value of an input of the function with this spec, for the tensor of `outer_spec`."""
  return of_stacked(tensor) if spec.dtype in REAL else tensor


def leaving(result: Any) -> tf.Tensor:
  """The tensor of an output in a file."""
  return stacked(result) if isinstance(result, Pair) else result


def complex_names(record: SignatureRecord) -> list[str]:
  """The names of the complex inputs and outputs of a signature."""
  specs = {**record.inputs, **record.outputs}
  return [name for name, text in specs.items() if Spec.parse(text).dtype.kind == "c"]


def whole_specs(specs: Mapping[str, str], names: Collection[str]) -> dict[str, str]:
  """{name: dtype and shape in a file}, with c64[b] in place of f32[b,2] for these names."""
  return {name: _whole(text) if name in names else text for name, text in specs.items()}


def _whole(text: str) -> str:
  spec = Spec.parse(text)
  dtype = np.result_type(spec.dtype, np.complex64)
  return str(Spec(dtype, None if spec.dims is None else spec.dims[:-1]))


def in_parts(array: np.ndarray) -> np.ndarray:
  """The array that a file takes: f32[b,2] for c64[b]."""
  if array.dtype.kind != "c":
    return array
  return np.stack([array.real, array.imag], -1)


def of_parts(array: np.ndarray) -> np.ndarray:
  """c64[b] for f32[b,2]; unchanged if it is none."""
  if array.dtype not in (np.float32, np.float64) or array.shape[-1:] != (2,):
    return array
  whole = np.empty(array.shape[:-1], np.result_type(array.dtype, np.complex64))
  whole.real, whole.imag = array[..., 0], array[..., 1]
  return whole
