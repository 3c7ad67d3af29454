"""Inputs and outputs of an ONNX file that have the channels first, and last in the function."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf

from jax2tf.messages import ArgumentError

from ..bundle.notation import Spec
from ..export.source import Signature
from ..saved_model import kinds
from ..saved_model.arguments import input_specs

# key in the model's metadata: the inputs and outputs, separated by spaces, that are NCHW in the
# file and NHWC in the function
NCHW = "jax2tf.nchw"
_RANK = 4
_FIRST, _LAST = (0, 3, 1, 2), (0, 2, 3, 1)  # permutations: NHWC -> NCHW, NCHW -> NHWC


def channels_first(
  signature: Signature, inputs: Sequence[str], outputs: Sequence[str]
) -> Signature:
  """The signature with these inputs and outputs in NCHW, in its function and in its record.

  Raises:
    ArgumentError: there is no such input or output, or its rank is not 4; or a string is given for
      a list of names.
  """
  record = signature.record
  _check("inputs_as_nchw", inputs, record.inputs)
  _check("outputs_as_nchw", outputs, record.outputs)
  if not (inputs or outputs):
    return signature
  function = signature.function

  def moved(**tensors: tf.Tensor) -> dict[str, tf.Tensor]:
    operands = {
      name: tf.transpose(x, _LAST) if name in inputs else x for name, x in tensors.items()
    }
    results = function(**operands)
    return {name: tf.transpose(y, _FIRST) if name in outputs else y for name, y in results.items()}

  specs = {
    name: tf.TensorSpec(_moved(spec.shape.as_list(), _FIRST), spec.dtype, name)
    if name in inputs
    else spec
    for name, spec in input_specs(function).items()
  }
  return replace(
    signature,
    function=tf.function(moved, autograph=False).get_concrete_function(**specs),
    record=replace(
      record,
      inputs=_specs(record.inputs, inputs, _FIRST),
      outputs=_specs(record.outputs, outputs, _FIRST),
    ),
  )


def _check(argument: str, names: Sequence[str], specs: Mapping[str, str]) -> None:
  kinds.check_names(argument, names)
  images = [name for name, text in specs.items() if len(Spec.parse(text).dims or ()) == _RANK]
  for name in names:
    if name not in images:
      known = f"choose from {', '.join(images)}" if images else "leave it out"
      raise ArgumentError(
        argument, list(names), problem=f"there is no {name!r} of four axes", advice=known
      )


def _specs(
  specs: Mapping[str, str], names: Collection[str], order: Sequence[int]
) -> dict[str, str]:
  return {name: _spec(text, order) if name in names else text for name, text in specs.items()}


def _spec(text: str, order: Sequence[int]) -> str:
  spec = Spec.parse(text)
  return str(Spec(spec.dtype, tuple(_moved(spec.dims or (), order))))


def _moved(sizes: Sequence[Any], order: Sequence[int]) -> list[Any]:
  return [sizes[axis] for axis in order]


def as_in_function(specs: Mapping[str, str], names: Collection[str]) -> dict[str, str]:
  """{name: dtype and shape} of the function, for those of the file."""
  return _specs(specs, names, _LAST)


def to_file(arrays: Mapping[str, np.ndarray], names: Collection[str]) -> dict[str, np.ndarray]:
  """The arrays as the file has them."""
  return {
    name: np.ascontiguousarray(x.transpose(_FIRST)) if name in names else x
    for name, x in arrays.items()
  }


def from_file(arrays: Mapping[str, np.ndarray], names: Collection[str]) -> dict[str, np.ndarray]:
  """The arrays as the function has them."""
  return {name: x.transpose(_LAST) if name in names else x for name, x in arrays.items()}
