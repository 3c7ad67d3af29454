"""Which 8-bit inputs are levels, such as those of pixels, that a function computes with as floats.
Others may be indices or categories."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.extend.core import Jaxpr, Literal, jaxprs_in_params

from .float64 import CALLS

# Equations whose result has the values of their operand, or integers computed from them.
_KEEP = {
  "reshape",
  "transpose",
  "squeeze",
  "expand_dims",
  "broadcast_in_dim",
  "slice",
  "rev",
  "pad",
  "concatenate",
  "copy",
  "copy_p",
}
_KEEP |= {"add", "sub", "mul", "convert_element_type"}


def of(fun: Callable[..., Any], lead: Sequence[Any], inputs: Sequence[Any]) -> list[bool]:
  """For each of the `inputs`, arrays or specs that follow the arguments `lead`, whether it is
  levels. All False without a jaxpr."""
  try:
    jaxpr = jax.make_jaxpr(fun)(*lead, *inputs).jaxpr
  # a function in TensorFlow or NumPy; an error of the function is raised where it is compared
  except Exception:
    return [False] * len(inputs)
  own = jaxpr.invars[len(jaxpr.invars) - len(inputs) :]
  return [
    is_8_bit(x.dtype) and _becomes_float(jaxpr, {variable})
    for x, variable in zip(inputs, own, strict=True)
  ]


def is_8_bit(dtype: Any) -> bool:
  """Whether it is int8 or uint8."""
  return np.dtype(dtype) in (np.dtype(np.int8), np.dtype(np.uint8))


def _becomes_float(jaxpr: Jaxpr, known: set[Any]) -> bool:
  """Whether a variable of `known` is cast to floats. Adds the variables that have its values to
  `known`."""
  for eqn in jaxpr.eqns:
    name = eqn.primitive.name
    reached = [not isinstance(x, Literal) and x in known for x in eqn.invars]
    if not any(reached):
      continue
    if name in CALLS:
      inner = next(iter(jaxprs_in_params(eqn.params)))
      within = {variable for variable, has in zip(inner.invars, reached, strict=True) if has}
      if _becomes_float(inner, within):
        return True
      known.update(
        outer
        for outer, variable in zip(eqn.outvars, inner.outvars, strict=True)
        if variable in within
      )
    elif name in _KEEP:
      (aval,) = (x.aval for x in eqn.outvars)
      if isinstance(aval, ShapedArray) and jnp.issubdtype(aval.dtype, np.inexact):
        return True
      known.update(eqn.outvars)
  return False
