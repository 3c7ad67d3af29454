"""Python flags of a function, such as `deterministic`, as inputs of a model."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from . import kinds


def with_flags(fun: Callable[..., Any], flags: Sequence[str]) -> Callable[..., Any]:
  """Returns `fun` with arrays bool[] in place of Python's True and False: it is traced once per
  value, and the array chooses. A model can then have an input such as `deterministic`, and a file
  has an If.

  Args:
    fun: a function whose parameters `flags` are Python's booleans. Its results must have the same
      structure, shapes and dtypes for both values.
    flags: the names of these parameters. n names make 2**n branches.

  Returns:
    a function with the same parameters. A flag that is a Python boolean, or is omitted, stays as it
    is.

  Raises:
    ValueError: `fun` has no such parameter, or `flags` is a string.

  Examples:
    >>> import jax.numpy as jnp
    >>> from jax2tf.converters import saved_model
    >>> def scaled(params, x, double):
    ...   return x * 2 if double else x
    >>> fun = saved_model.with_flags(scaled, ["double"])
    >>> inputs = {"x": "f32[b]", "double": "bool[]"}
    >>> model = saved_model.Model(None).add(fun, inputs=inputs, outputs=["y"])
    >>> model.records["serving_default"].inputs
    {'x': 'f32[b]', 'double': 'bool[]'}
  """
  signature = inspect.signature(fun)
  named = [
    name
    for name, p in signature.parameters.items()
    if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
  ]
  kinds.check_names("flags", flags)
  kinds.check_known("flags", flags, named, "the function has no parameter")

  @functools.wraps(fun)
  def flagged(*args: Any, **kwargs: Any) -> Any:
    bound = signature.bind(*args, **kwargs)
    given = {name: bound.arguments[name] for name in flags if name in bound.arguments}
    arrays = {name: value for name, value in given.items() if not isinstance(value, bool)}

    def called(chosen: Mapping[str, bool]) -> Any:
      remaining = [name for name in arrays if name not in chosen]
      if not remaining:
        bound.arguments.update(chosen)
        return fun(*bound.args, **bound.kwargs)
      name = remaining[0]
      return jax.lax.cond(
        arrays[name],
        lambda: called({**chosen, name: True}),
        lambda: called({**chosen, name: False}),
      )

    return called({})

  return flagged
