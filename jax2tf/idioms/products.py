"""Absorbs transposes into matrix products: TensorFlow's MatMul can transpose either operand."""

from __future__ import annotations

import jax.extend.core.primitives as P

from jax2tf.idioms._dataflow import Dataflow, Equations, is_array
from jax2tf.jaxprs import Eqn


def swap_operands(flow: Dataflow, eqn: Eqn) -> Equations | None:
  """transpose(dot_general(lhs, rhs)) -> dot_general(rhs, lhs): the gradient of each dense kernel is
  such a pair."""
  if (dot := flow.single_use(eqn.invars[0], P.dot_general_p)) is None:
    return None
  (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = dot.params["dimension_numbers"]
  n_batch, rank = len(lhs_batch), len(eqn.params["permutation"])
  n_lhs = len(dot.invars[0].aval.shape) - n_batch - len(lhs_contract)
  if list(eqn.params["permutation"]) != [
    *range(n_batch),
    *range(n_batch + n_lhs, rank),
    *range(n_batch, n_batch + n_lhs),
  ]:
    return None
  numbers = (rhs_contract, lhs_contract), (rhs_batch, lhs_batch)
  params = dot.params | {"dimension_numbers": numbers}
  if not isinstance(params["precision"], tuple):
    return [dot.replace(invars=dot.invars[::-1], outvars=eqn.outvars, params=params)]
  return [
    dot.replace(
      invars=dot.invars[::-1],
      outvars=eqn.outvars,
      params=params | {"precision": params["precision"][::-1]},
    )
  ]


def absorb_transposes(flow: Dataflow, eqn: Eqn) -> Equations | None:
  """dot_general(transpose(x), y) -> dot_general(x, y), which contracts other dimensions."""
  operands, numbers, is_changed = (
    list(eqn.invars),
    list(zip(*eqn.params["dimension_numbers"], strict=True)),
    False,
  )
  for side, operand in enumerate(operands):
    if (transpose := flow.single_use(operand, P.transpose_p)) is not None and is_array(operand):
      permutation = transpose.params["permutation"]
      # The order of free dimensions is the order in the result, so they must come in it.
      taken = {d for dims in numbers[side] for d in dims}
      free = [permutation[d] for d in range(len(permutation)) if d not in taken]
      if free == sorted(free):
        numbers[side] = tuple(tuple(permutation[d] for d in dims) for dims in numbers[side])
        operands[side], is_changed = transpose.invars[0], True
  if not is_changed:
    return None
  return [
    eqn.replace(
      invars=operands, params=eqn.params | {"dimension_numbers": tuple(zip(*numbers, strict=True))}
    )
  ]


IDIOMS = {P.transpose_p: swap_operands, P.dot_general_p: absorb_transposes}
