"""Calls for scripts that use tf2onnx themselves: `prepared` for its function, and
`custom_op_handlers` for its handlers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from ..export import prepared as export
from . import bfloat16
from .handlers import HANDLERS, Handler, as_it_is
from .replacements import TABLE

# An op without a translation by tf2onnx marks each result, so that ONNX Runtime refuses a model
# made without our handlers.
_PASSING = ("Cast", "Identity", "StopGradient", "PreventGradient")
_MARK, _SAYS = "PreventGradient", "needs_custom_op_handlers_of_jax2tf_converters_onnx"


def custom_op_handlers() -> dict[str, tuple[Handler, list[str]]]:
  """Returns the handlers of ops that tf2onnx mistranslates, for `custom_op_handlers` of
  `tf2onnx.convert`. They need `prepared`.

  Returns:
    {type of op: (handler, [type of the ONNX node])}, a new dict.

  Examples:
    >>> from jax2tf.converters import onnx
    >>> onnx.custom_op_handlers()["SelectV2"][1]
    ['Where']
  """
  return {**HANDLERS, _MARK: (as_it_is, ["Identity"])}


@dataclass(frozen=True)
class Prepared:
  """A function for `tf2onnx.convert.from_function`; see `prepared`.

  Attributes:
    function: the tf.function or ConcreteFunction from which it is made.
  """

  function: Any

  def get_concrete_function(self, *args: Any, **kwargs: Any) -> Any:
    """Returns the prepared ConcreteFunction; tf2onnx calls this method.

    Args:
      args, kwargs: tf.TensorSpecs of the arguments. For a ConcreteFunction they are not used,
        because it has its own.

    Returns:
      a ConcreteFunction with the same names and structure of arguments and results.

    Raises:
      ValueError: the function writes variables, or takes or returns bfloat16.
    """
    of_specs = getattr(self.function, "get_concrete_function", None)
    concrete = of_specs(*args, **kwargs) if of_specs else self.function
    _refuse_bfloat16(concrete)
    passes = [(bfloat16.TABLE, bfloat16.HELD)] if bfloat16.is_in(concrete) else []
    return export.prepared(concrete, [*passes, (TABLE | {"Cast": _cast}, bfloat16.HELD)], _marked)


def prepared(function: Any) -> Prepared:
  """Returns the same function in ops that tf2onnx translates, and ONNX Runtime computes, as JAX
  does.

  tf2onnx changes the values of some ops of converted functions, such as Select, and lacks others.
  Call both functions: `tf2onnx.convert.from_function(onnx.prepared(f), input_signature, opset=18,
  custom_op_handlers=onnx.custom_op_handlers())`. Without the handlers ONNX Runtime refuses the
  model. Parameters become constants.

  Args:
    function: a tf.function, or a ConcreteFunction such as a signature of a SavedModel; or a Python
      function of tensors, which becomes a tf.function.

  Returns:
    a function with `get_concrete_function`, as tf2onnx takes it.

  Examples:
    >>> import jax.numpy as jnp, jax2tf, tensorflow as tf, tf2onnx
    >>> from jax2tf.converters import onnx
    >>> specs = [tf.TensorSpec([None, 2], tf.float32, "x")]
    >>> f = onnx.prepared(jax2tf.convert(lambda x: jnp.log1p(x), polymorphic_shapes=["b, _"]))
    >>> model, _ = tf2onnx.convert.from_function(
    ...   f, specs, opset=18, custom_op_handlers=onnx.custom_op_handlers()
    ... )
    >>> [tensor.name for tensor in model.graph.input]
    ['x']
  """
  is_tensorflow = hasattr(function, "get_concrete_function") or hasattr(
    function, "structured_input_signature"
  )
  return Prepared(function if is_tensorflow else tf.function(function, autograph=False))


def _cast(op: Any, x: tf.Tensor) -> Sequence[tf.Tensor]:
  """Keeps a rounding: of two successive Casts tf2onnx, which the exporter lets run in part, removes
  the first."""
  (y,) = TABLE["Cast"](op, x)
  if np.can_cast(x.dtype.as_numpy_dtype, y.dtype.as_numpy_dtype) or not any(
    use.type in _PASSING for use in op.outputs[0].consumers()
  ):
    return [y]
  return [tf.squeeze(tf.expand_dims(y, 0), 0)]


def _marked(x: tf.Tensor) -> tf.Tensor:
  return tf.raw_ops.PreventGradient(input=x, message=_SAYS, name=_SAYS)


def _refuse_bfloat16(concrete: Any) -> None:
  for kind, tensors in (("input", concrete.inputs), ("output", concrete.outputs)):
    if names := [tensor.op.name for tensor in tensors if tensor.dtype == tf.bfloat16]:
      raise ValueError(
        f"{kind} {names[0]!r} is bfloat16, which ONNX Runtime does not take; convert to float32 "
        "in the function"
      )
