"""Inputs as serialized tf.train.Example protos, the format of TFX: one string for each row."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import tensorflow as tf

from jax2tf.messages import Argument, ArgumentError, Text

from .arguments import Arguments, Given, tensor_specs
from .optional import Tensors

EXAMPLES = "examples"
# {input dtype: the dtype of an Example that holds its values exactly}.
_CARRIERS = {
  "float16": tf.float32,
  "bfloat16": tf.float32,
  "float32": tf.float32,
  "string": tf.string,
}
_CARRIERS |= dict.fromkeys(
  ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"), tf.int64
)

Preprocess = Callable[[Tensors], Tensors]


def processed(
  raw_inputs: Mapping[str, Given] | None,
  preprocess: Preprocess | None,
  arguments: Arguments,
  examples: bool,
  others: Collection[str],
) -> tuple[Mapping[str, Given] | None, Preprocess | None]:
  """(raw inputs, preprocess) of a signature. With `examples` it takes serialized examples, and
  parses its inputs from them.

  Args:
    raw_inputs, preprocess: as for `Model.add`.
    arguments: of the JAX function.
    examples: whether the signature takes serialized examples.
    others: names of the inputs with defaults and of those passed through.

  Raises:
    ValueError: only one of `raw_inputs` and `preprocess` is given; an Example cannot hold an input
      as a row of known shape.
  """
  if (preprocess is None) != (raw_inputs is None):
    names = ("preprocess", "raw_inputs")
    missing, there = names if preprocess is None else reversed(names)
    raise ArgumentError(
      missing,
      None,
      problem="preprocess and raw_inputs go together: the function, and its inputs",
      advice=Text("give both, or leave out ", Argument(there)),
    )
  if not examples:
    return raw_inputs, preprocess
  if others:
    raise ArgumentError(
      "examples",
      True,
      problem=f"the signature then has one input, {EXAMPLES!r}, so it excludes {', '.join(others)}",
    )
  specs = arguments.specs() if raw_inputs is None else tensor_specs(raw_inputs, "raw_inputs")
  features = {name: _feature(spec) for name, spec in specs.items()}

  def parse(serialized: Tensors) -> Tensors:
    parsed = tf.io.parse_example(serialized[EXAMPLES], features)
    rows = {name: _narrowed(name, parsed[name], spec.dtype) for name, spec in specs.items()}
    return preprocess(rows) if preprocess else rows

  return {EXAMPLES: "string[b]"}, parse


def _narrowed(name: str, values: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
  """Casts a feature to the dtype of the input. An integer that it does not have and a float beyond
  its range are errors of the request."""
  if dtype == values.dtype:
    return values
  narrow = tf.cast(values, dtype)
  pair = (tf.cast(narrow, values.dtype), values)
  # floats may be rounded
  same = pair if values.dtype == tf.int64 else tuple(map(tf.math.is_finite, pair))
  with tf.control_dependencies(
    [tf.debugging.assert_equal(*same, f"feature {name} is not {dtype.name}")]
  ):
    return tf.identity(narrow)


def _feature(spec: tf.TensorSpec) -> tf.io.FixedLenFeature:
  """The feature that holds one row of the input."""
  if spec.shape.rank is None or spec.shape[:1] != [None] or not spec.shape[1:].is_fully_defined():
    raise ArgumentError(
      "examples",
      True,
      problem=f"input {spec.name!r} is {spec.dtype.name}{spec.shape}, and an Example holds one row "
      "of known shape, as of f32[b,4]",
      advice=Text(
        "parse rows of several lengths in a preprocess of your own, with ",
        Argument("raw_inputs", {EXAMPLES: "string[b]"}),
      ),
    )
  if (carrier := _CARRIERS.get(spec.dtype.name)) is None:
    raise ArgumentError(
      "examples",
      True,
      problem=f"input {spec.name!r} is {spec.dtype.name}, but an Example holds only float32, int64 "
      "and bytes",
    )
  return tf.io.FixedLenFeature(spec.shape[1:], carrier)
