"""Maximum and mean of windows as MaxPool and AvgPool. MaxPool ignores NaN; for a window of -inf it gives the least number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.extend.core.primitives as P
from jax.extend.core import Literal, Primitive
from jax.interpreters import ad

from jax2tf.idioms._dataflow import Dataflow, Equations
from jax2tf.idioms._variants import variant
from jax2tf.idioms.fused._template import Templates


def _pooling(primitive: Primitive, **fixed: Any) -> Primitive:
  """The variant of a primitive, and the derivative of the primitive times `factor`."""
  own = variant(primitive, **fixed)

  def jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    scale = math.prod(params["window_dimensions"]) if fixed.get("mean") else 1
    result, moved = own.bind(*primals, **params), ad.instantiate_zeros(tangents[0])
    return result, jax.jvp(lambda x: primitive.bind(x, **params), tuple(primals), (moved,))[1] / scale

  ad.primitive_jvps[own] = jvp
  return own


max_pool_p = _pooling(P.reduce_window_max_p, plain=True)
mean_pool_p = _pooling(P.reduce_window_sum_p, mean=True)


def _max_pool(flow: Dataflow, root: Any, templates: Templates) -> Equations | None:
  del flow, templates
  return [root.replace(primitive=max_pool_p)] if root.outvars[0].aval.dtype.kind == "f" else None


def _mean_pool(flow: Dataflow, root: Any, templates: Templates) -> Equations | None:
  """reduce_window_sum(x) / the size of a window -> mean_pool(x)."""
  del templates
  value, size = root.invars
  if not isinstance(size, Literal) or (total := flow.sole(value, P.reduce_window_sum_p)) is None or value.aval.dtype.kind != "f":
    return None
  if float(size.val) != math.prod(total.params["window_dimensions"]):
    return None
  return [root.replace(primitive=mean_pool_p, invars=total.invars, params=total.params)]


IDIOMS = [("max_pool", P.reduce_window_max_p, _max_pool), ("mean_pool", P.div_p, _mean_pool)]
