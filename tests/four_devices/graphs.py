"""The graph of a converted function, of its values or of its values and gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

import jax2tf


def graph_of(fun: Callable[..., Any], *args: Any, gradient: bool = False, **options: Any) -> Any:
  """Without a gradient there are no ops for its residuals."""
  converted = jax2tf.convert(fun, with_gradient=gradient, **options)

  def value_and_gradient(*args: tf.Tensor) -> Any:
    with tf.GradientTape() as tape:
      tape.watch(args)
      y = converted(*args)
    return y, tape.gradient(y, args)

  specs = [tf.TensorSpec.from_tensor(tf.constant(a)) for a in args]
  return (
    tf.function(value_and_gradient if gradient else converted, autograph=False)
    .get_concrete_function(*specs)
    .graph
  )
