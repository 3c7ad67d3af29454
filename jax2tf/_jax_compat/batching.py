"""What JAX's vmap knows of primitives and of values."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from jax import lax
from jax._src.interpreters import batching
from jax.extend import source_info_util
from jax.extend.core import Primitive

from jax2tf._jax_compat import Eqn

_ELEMENTWISE = (batching.vectorized_batcher, batching.broadcast_batcher)


def is_elementwise(primitive: Primitive) -> bool:
  """Whether vmap only adds an axis to all operands and results, so that no element depends on
  others.

  An operand may also be a scalar. False for some primitives of this kind with a rule of their own.
  """
  rule = batching.fancy_primitive_batchers.get(primitive)
  return getattr(rule, "func", None) in _ELEMENTWISE


def first_along(value: Any, axis: Any) -> Any:
  """What the first of the functions that `jax.vmap` maps along a named axis has of a value of these
  functions.

  The value itself if it is the same in all of them.
  """
  if not isinstance(value, batching.BatchTracer) or value._trace.axis_data.name != axis:
    return value
  dimension: Any = value.batch_dim
  return lax.index_in_dim(value.val, 0, dimension, keepdims=False)


@contextlib.contextmanager
def traced_as(eqn: Eqn) -> Iterator[None]:
  """What is traced inside has the line, the name scopes and the configuration of an equation."""
  info = eqn.source_info
  scopes = source_info_util.current_name_stack() + info.name_stack
  with source_info_util.user_context(info.traceback, name_stack=scopes), eqn.ctx.manager:
    yield
