"""Quantised .tflite models: the schemes of LiteRT's converter, and those that are made of its float
model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from jax2tf.messages import Argument, ArgumentError, Text

from ..export import quantization
from . import runtime

_INTEGERS = {"int8": tf.int8, "uint8": tf.uint8}


@dataclass(frozen=True)
class Quantization(quantization.Quantization):
  """How a .tflite model is quantised and compared; see `exporter.save_model`."""

  schemes = ("float16", "dynamic_int8", "int8", "int4")

  inference_input_type: str | None = None
  inference_output_type: str | None = None

  def _check_options(self) -> None:
    super()._check_options()
    types = {name: vars(self)[name] for name in ("inference_input_type", "inference_output_type")}
    for name, dtype in types.items():
      if dtype is not None and (dtype not in _INTEGERS or self.scheme != "int8"):
        raise ArgumentError(
          name,
          dtype,
          problem=f"the scheme is {self.scheme!r}",
          advice=Text(
            "give 'int8' or 'uint8' with ", Argument("quantization", "int8"), ", or leave it out"
          ),
        )

  def configure(self, converter: Any) -> None:
    """Sets the converter's options, for None or a scheme that is not in `FROM_FLOAT`."""
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
    if self.scheme is not None:
      converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if self.scheme == "int8":
      assert self.dataset
      # Ops without an int8 kernel stay float32.
      converter.target_spec.supported_ops = [
        tf.lite.OpsSet.TFLITE_BUILTINS_INT8,
        tf.lite.OpsSet.TFLITE_BUILTINS,
      ]
      converter.representative_dataset = self.dataset.calibrating
    if self.inference_input_type:
      converter.inference_input_type = _INTEGERS[self.inference_input_type]
    if self.inference_output_type:
      converter.inference_output_type = _INTEGERS[self.inference_output_type]


def four_bits(model: bytes) -> bytes:
  """The float model with 4-bit weights, and 8-bit activations in ops that LiteRT computes in
  int8."""
  recipe, quantizer = (
    runtime.extra("ai_edge_quantizer.recipe"),
    runtime.extra("ai_edge_quantizer.quantizer"),
  )
  with runtime.quiet():
    return bytes(quantizer.Quantizer(model, recipe.dynamic_wi4_afp32()).quantize().quantized_model)


# The schemes whose model is made of the converted float model.
FROM_FLOAT = ("float16", "int4")
