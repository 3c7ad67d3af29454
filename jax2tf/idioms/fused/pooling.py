"""Maximum and mean of windows as MaxPool and AvgPool. MaxPool ignores NaN; for a window of -inf it
gives the least number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.extend.core.primitives as P
from jax.extend.core import Literal, Primitive
from jax.interpreters import ad

from jax2tf.idioms._dataflow import Dataflow, Equations, new_var, reshape
from jax2tf.idioms._variants import variant
from jax2tf.idioms.fused._primitives import DTYPES
from jax2tf.idioms.fused._template import Templates
from jax2tf.jaxprs import Eqn
from jax2tf.lowering._movement import is_one


def _pooling(primitive: Primitive, **fixed: Any) -> Primitive:
  """The variant of a primitive, and the derivative of the primitive times `factor`."""
  own = variant(primitive, **fixed)

  def jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    scale = math.prod(params["window_dimensions"]) if fixed.get("mean") else 1
    result, moved = own.bind(*primals, **params), ad.instantiate_zeros(tangents[0])
    return result, jax.jvp(lambda x: primitive.bind(x, **params), tuple(primals), (moved,))[
      1
    ] / scale

  ad.primitive_jvps[own] = jvp
  return own


max_pool_p = _pooling(P.reduce_window_max_p, plain=True)
mean_pool_p = _pooling(P.reduce_window_sum_p, mean=True)


def _max_pool(flow: Dataflow, root: Eqn, templates: Templates) -> Equations | None:
  """reduce_window_max(x) -> max_pool(x), of halves too: no maximum rounds."""
  return _of_images(root, max_pool_p) if root.outvars[0].aval.dtype.kind == "f" else None


def _mean_pool(flow: Dataflow, root: Eqn, templates: Templates) -> Equations | None:
  """reduce_window_sum(x) / the size of a window -> mean_pool(x), also with movements before the
  division, as `jax.vmap` has them."""
  value, size = root.invars
  if not isinstance(size, Literal) or value.aval.dtype not in DTYPES:
    return None
  moves: Equations = []
  while (move := flow.single_use(value, P.squeeze_p, P.transpose_p)) is not None:
    moves.insert(0, move)
    (value,) = move.invars
  total = flow.single_use(value, P.reduce_window_sum_p)
  if total is None or float(size.val) != math.prod(total.params["window_dimensions"]):
    return None
  values = [value, *(move.outvars[0] for move in moves)]
  results = [*(new_var(v, v.aval.shape) for v in values[:-1]), *root.outvars]
  means = _of_images(total.replace(outvars=results[:1]), mean_pool_p)
  return [
    *means,
    *(
      move.replace(invars=[a], outvars=[b])
      for move, a, b in zip(moves, results, results[1:], strict=False)
    ),
  ]


def _of_images(root: Eqn, primitive: Primitive) -> Equations:
  """A pooling of f32[b,1,h,w,c], as `jax.vmap` has it, as one of images f32[b,h,w,c], which
  TensorFlow's ops take."""
  (operand,), (out,), params = root.invars, root.outvars, root.params
  window = zip(
    operand.aval.shape,
    params["window_dimensions"],
    params["window_strides"],
    params["padding"],
    strict=True,
  )
  alone = next(
    (
      d
      for d, (*sizes, padding) in enumerate(window)
      if all(map(is_one, sizes)) and tuple(padding) == (0, 0)
    ),
    None,
  )
  if len(operand.aval.shape) != 5 or alone is None:
    return [root.replace(primitive=primitive)]
  image, pooled = (
    new_var(v, [size for d, size in enumerate(v.aval.shape) if d != alone]) for v in (operand, out)
  )
  params = {
    name: tuple(value for d, value in enumerate(values) if d != alone)
    for name, values in params.items()
  }
  pool = root.replace(primitive=primitive, invars=[image], outvars=[pooled], params=params)
  return [reshape(root, operand, image), pool, reshape(root, pooled, out)]


IDIOMS = [("max_pool", P.reduce_window_max_p, _max_pool), ("mean_pool", P.div_p, _mean_pool)]
