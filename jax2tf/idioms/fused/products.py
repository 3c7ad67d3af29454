"""An activation behind a dense layer, right behind its BiasAdd: Grappler does not look behind the
reshape to more than two dimensions."""

from __future__ import annotations

import math

import jax.extend.core.primitives as P

from jax2tf.idioms._dataflow import Dataflow, Equations, new_var, reshape
from jax2tf.idioms.bias_add import vector
from jax2tf.idioms.fused._template import Templates
from jax2tf.jaxprs import Eqn


def flatten_rows(flow: Dataflow, root: Eqn, templates: Templates) -> Equations | None:
  """gelu(f32[a,b,k] @ f32[k,n] + f32[n]) -> the same of f32[a*b,k], reshaped; before JAX
  differentiates, so the gradient is of this."""
  (out,), shape = root.outvars, root.outvars[0].aval.shape
  if (total := flow.single_use(root.invars[0], P.add_p)) is None or len(shape) < 3:
    return None
  for value, other in (total.invars, total.invars[::-1]):
    if (dot := flow.single_use(value, P.dot_general_p)) is None or (
      bias := vector(flow, other, shape[-1])
    ) is None:
      continue
    (lhs, rhs), numbers = dot.invars, dot.params["dimension_numbers"]
    (lhs_contract, rhs_contract), (lhs_batch, _) = numbers
    if lhs_batch or len(rhs.aval.shape) != 2 or tuple(lhs_contract) != (len(lhs.aval.shape) - 1,):
      continue
    rows = math.prod(lhs.aval.shape[:-1])
    flat = new_var(lhs, [rows, lhs.aval.shape[-1]])
    product, repeated, summed, active = (new_var(out, [rows, shape[-1]]) for _ in range(4))
    params = {"shape": product.aval.shape, "broadcast_dimensions": (1,), "sharding": None}
    return [
      reshape(dot, lhs, flat),
      dot.replace(
        invars=[flat, rhs],
        outvars=[product],
        params=dot.params | {"dimension_numbers": (((1,), rhs_contract), ((), ()))},
      ),
      total.replace(
        primitive=P.broadcast_in_dim_p, invars=[bias], outvars=[repeated], params=params
      ),
      total.replace(invars=[product, repeated], outvars=[summed]),
      root.replace(invars=[summed], outvars=[active]),
      reshape(root, active, out),
    ]
  return None
