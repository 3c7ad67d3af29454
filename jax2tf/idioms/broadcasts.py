"""TensorFlow's elementwise ops broadcast by themselves, so what feeds them need not be repeated first."""

from __future__ import annotations

from typing import Any

import jax.extend.core.primitives as P
from jax.extend.core import Literal

from jax2tf.idioms._dataflow import Dataflow, Equations, is_array, new_var, reshape, same

_ELEMENTWISE = (
  *(P.add_p, P.add_jaxvals_p, P.sub_p, P.mul_p, P.div_p, P.max_p, P.min_p),
  *(P.eq_p, P.ne_p, P.lt_p, P.le_p, P.gt_p, P.ge_p, P.select_n_p),
)
_FLOATS_ONLY = (P.div_p, P.max_p, P.min_p)


def unrepeated(flow: Dataflow, eqn: Any) -> Equations | None:
  """add(x, broadcast_in_dim(y)) -> add(x, y), or add(x, reshape(y)) where y's dimensions are not the last ones of x."""
  shape = eqn.outvars[0].aval.shape
  if not 0 < len(shape) <= 5:  # TF 2.21: the binary ops broadcast in 5 dimensions
    return None
  if eqn.primitive in _FLOATS_ONLY and eqn.outvars[0].aval.dtype.kind != "f":
    return None
  makers = [flow.maker(v, P.broadcast_in_dim_p) for v in eqn.invars]
  found = [i for i, maker in enumerate(makers) if maker is not None and len(maker.invars) == 1 and is_array(maker.invars[0])]
  if eqn.primitive is P.select_n_p:  # the predicate stays, it is a scalar or of the shape of the cases
    found = [i for i in found if i]
  # One operand at least has the shape of the result, and keeps it.
  if not found or not any(i not in found and same(v.aval.shape, shape) for i, v in enumerate(eqn.invars) if not isinstance(v, Literal)):
    return None
  operands, eqns = list(eqn.invars), []
  for i in found:
    source, aligned = _aligned(makers[i])
    if aligned is None:
      operands[i] = source
    else:
      operands[i] = new_var(source, aligned)
      eqns.append(reshape(makers[i], source, operands[i]))
  return [*eqns, eqn.replace(invars=operands)]


def _aligned(broadcast: Any) -> tuple[Any, list[Any] | None]:
  """(what is repeated, the shape with sizes 1 in which TensorFlow repeats it, or None where that is its own)."""
  source, shape = broadcast.invars[0], broadcast.outvars[0].aval.shape
  dims = [int(d) for d in broadcast.params["broadcast_dimensions"]]
  if dims == list(range(len(shape) - len(dims), len(shape))):
    return source, None
  aligned: list[Any] = [1] * len(shape)
  for size, axis in zip(source.aval.shape, dims, strict=True):
    aligned[axis] = size
  return source, aligned[dims[0] :]


IDIOMS = dict.fromkeys(_ELEMENTWISE, unrepeated)
