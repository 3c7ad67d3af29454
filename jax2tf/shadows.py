"""Makes tf.Variables that TensorFlow functions capture differentiable, by passing them as arguments
of the JAX function.

JAX has no variables. A function that captures some is traced again, with one argument (its shadow)
for each. Calls take the shadows as operands: values come from the variables, derivatives go to the
shadows.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import jax
import tensorflow as tf

from jax2tf.errors import warn_user
from jax2tf.jaxprs import ClosedJaxpr, contains, walk
from jax2tf.registry import IN_TENSORFLOW

# Part of the key of each trace cache, so that a trace with shadows is never used without them.
_current = jax.make_user_context(None)


class _Shadows:
  """{reference of a variable: its shadow}, equal only to itself."""

  def __init__(self, of_variables: Mapping[Any, Any]):
    self.of_variables = of_variables


def captured(jaxpr: ClosedJaxpr) -> list[tf.Variable]:
  """The floating point and complex variables of the TensorFlow functions inside. Warns of those of
  unknown shape, and omits them."""
  if not contains(jaxpr, IN_TENSORFLOW):
    return []
  calls = (eqn for eqn in walk(jaxpr) if eqn.primitive in IN_TENSORFLOW)
  variables = (v for eqn in calls for v in IN_TENSORFLOW[eqn.primitive](**eqn.params))
  distinct = list({v.ref(): v for v in variables}.values())
  if unknown := [v.name for v in distinct if v.trainable and not v.shape.is_fully_defined()]:
    warn_user(
      f"gradients by the variables {', '.join(unknown)} will be None: their shapes are not known. "
      "Set them, or trainable=False"
    )
  return [v for v in distinct if v.shape.is_fully_defined()]


def substituting(substituted: Mapping[Any, Any]) -> AbstractContextManager[None]:
  """Context manager: calls look up shadows in {reference of a variable: shadow}."""
  return _current(_Shadows(substituted) if substituted else None)


def current() -> Mapping[Any, Any]:
  """The current shadows."""
  return {} if _current.value is None else _current.value.of_variables
