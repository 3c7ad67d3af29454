"""The call for scripts that use TensorFlow's TFLite converter themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from jax2tf import _tf_compat

from ..export import prepared as export
from . import loops
from .replacements import TABLE


def converter(
  concrete_functions: Sequence[Any], trackable_obj: Any = None
) -> tf.lite.TFLiteConverter:
  """Creates a TFLiteConverter whose files compute JAX's values in LiteRT. It replaces
  `tf.lite.TFLiteConverter.from_concrete_functions`.

  TensorFlow's converter lacks some ops of converted functions, LiteRT computes others differently,
  an infinity becomes the largest finite number, and a loop that exchanges arrays loses one. This
  converter builds the functions from builtin ops that LiteRT computes correctly, with their
  parameters as constants, and keeps infinities and what loops exchange.

  Args:
    concrete_functions: ConcreteFunctions, or signatures of a SavedModel.
    trackable_obj: as for `from_concrete_functions`. With a `tf.Module()` the file has signatures,
      but its outputs are in any order. Without it, they have the order of the function, and the
      file has no signature.

  Returns:
    the converter. You may set its options, such as `optimizations`.

  Raises:
    ValueError: a function writes variables.

  Examples:
    >>> import jax.numpy as jnp, jax2tf, tensorflow as tf
    >>> from jax2tf.converters import tflite
    >>> f = tf.function(
    ...   jax2tf.convert(jnp.log1p),
    ...   autograph=False,
    ...   input_signature=[tf.TensorSpec([2], tf.float32, "x")],
    ... )
    >>> tflite.converter([f.get_concrete_function()]).convert()[4:8]
    b'TFL3'
  """
  functions = [export.prepared(concrete, [(TABLE, {})]) for concrete in concrete_functions]
  tf_converter = tf.lite.TFLiteConverter.from_concrete_functions(functions, trackable_obj)
  # Otherwise where(x > 0, inf, x) is finite, too.
  tf_converter.canonicalizing_inf_as_min_max_float = False
  _tf_compat.edit_models(tf_converter, loops.with_copies)
  return tf_converter
