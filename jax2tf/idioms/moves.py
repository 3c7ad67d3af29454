"""Merges chains of transposes, squeezes and new axes into one transpose, and chains of reshapes
into one. Einsum creates such chains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.extend.core.primitives as P

from jax2tf.idioms._dataflow import Dataflow, Equations, is_array, new_var, provably_equal, reshape
from jax2tf.jaxprs import Eqn
from jax2tf.lowering._movement import is_one
from jax2tf.traits import MOVES, REDUCTIONS, RESHAPES

_RESHAPES = RESHAPES | REDUCTIONS

# For each dimension of a result the dimension of the operand, or None for a new one of size 1.
Dims = list[int | None]


def merge_movements(flow: Dataflow, eqn: Eqn) -> Equations | None:
  """operand -> transpose, squeeze, new axis ... -> transpose: one reshape, one transpose, one
  reshape at most."""
  dims, source, chain = _dims(eqn), eqn.invars[0], [eqn.primitive]
  if dims is None:
    return _one_reshape(flow, eqn)
  while (first := flow.single_use(source, *MOVES)) is not None and (
    inner := _dims(first)
  ) is not None:
    dims, source = [d if d is None else inner[d] for d in dims], first.invars[0]
    chain.append(first.primitive)
  return (
    _moved(eqn, source, dims)
    if len(chain) > 1 and P.transpose_p in chain
    else _one_reshape(flow, eqn)
  )


def _one_reshape(flow: Dataflow, eqn: Eqn) -> Equations | None:
  """operand -> reshape, squeeze, new axis ...: one reshape."""
  source, (out,) = eqn.invars[0], eqn.outvars
  if not _is_reshape(eqn) or _is_free(eqn):
    return None
  # A squeeze or a new axis takes several symbolic sizes from its operand; a reshape would have to
  # compute them.
  if eqn.primitive is not P.reshape_p and _has_several_symbols(out.aval.shape):
    return None
  while (first := flow.single_use(source, *_RESHAPES)) is not None and _is_reshape(first):
    source = first.invars[0]
  is_reduction = eqn.primitive in REDUCTIONS
  is_same = source is eqn.invars[0] and not is_reduction
  return None if is_same else [reshape(eqn, source, out)]


def _has_several_symbols(shape: Sequence[Any]) -> bool:
  """Whether a reshape to it has to compute sizes: a single one that is not known is -1."""
  return sum(not isinstance(size, int) for size in shape) > 1


def _is_free(eqn: Eqn) -> bool:
  """Whether it inserts leading dimensions alone, for which elementwise ops need no equation
  (broadcasts.py)."""
  if eqn.primitive is not P.broadcast_in_dim_p:
    return False
  rank, dims = len(eqn.outvars[0].aval.shape), eqn.params["broadcast_dimensions"]
  return [*map(int, dims)] == [*range(rank - len(dims), rank)]


def _is_reshape(eqn: Eqn) -> bool:
  """Whether an equation only reshapes its operand; a reduction over dimensions of size 1, or over
  none, does: gradients of broadcasts have such sums, and Equinox' adaptive pools reduce numbers."""
  if eqn.primitive not in _RESHAPES or len(eqn.invars) != 1 or not is_array(eqn.invars[0]):
    return False
  if eqn.primitive in REDUCTIONS:
    return all(is_one(eqn.invars[0].aval.shape[axis]) for axis in eqn.params["axes"])
  return (
    eqn.params["dimensions"] is None if eqn.primitive is P.reshape_p else _dims(eqn) is not None
  )


def _moved(eqn: Eqn, source: Any, dims: Dims) -> Equations | None:
  """Equations from `source` to the result of `eqn`, in place of `eqn`; None if a reshape would have
  to compute sizes."""
  shape, (out,) = source.aval.shape, eqn.outvars
  remaining = sorted(d for d in dims if d is not None)
  permutation = [remaining.index(d) for d in dims if d is not None]
  # Dimensions of size 1 may be at any position, so they are ignored.
  wide = [p for p in permutation if not is_one(shape[remaining[p]])]
  if wide == sorted(wide):
    return None if _has_several_symbols(shape) else [reshape(eqn, source, out)]
  eqns, inserts = [], None in dims
  if len(remaining) < len(shape):
    squeezed = new_var(source, [shape[d] for d in remaining])
    dropped = tuple(d for d in range(len(shape)) if d not in remaining)
    eqns.append(
      eqn.replace(
        primitive=P.squeeze_p, invars=[source], outvars=[squeezed], params={"dimensions": dropped}
      )
    )
    source = squeezed
  target = new_var(source, [source.aval.shape[p] for p in permutation]) if inserts else out
  eqns.append(
    eqn.replace(
      primitive=P.transpose_p,
      invars=[source],
      outvars=[target],
      params={"permutation": tuple(permutation)},
    )
  )
  return [*eqns, reshape(eqn, target, out)] if inserts else eqns


def _dims(eqn: Eqn) -> Dims | None:
  """How an equation moves dimensions; None if it does more than move them, insert or remove ones of
  size 1."""
  operand, params = eqn.invars[0], eqn.params
  if len(eqn.invars) != 1 or not is_array(operand):
    return None
  shape, out = operand.aval.shape, eqn.outvars[0].aval.shape
  if eqn.primitive is P.transpose_p:
    return [int(d) for d in params["permutation"]]
  if eqn.primitive is P.squeeze_p:
    return [d for d in range(len(shape)) if d not in params["dimensions"]]
  if eqn.primitive is P.broadcast_in_dim_p:
    from_dim: dict[int, int] = {
      int(axis): d for d, axis in enumerate(params["broadcast_dimensions"])
    }
    plain = all(
      provably_equal([size], [shape[from_dim[i]]]) if i in from_dim else is_one(size)
      for i, size in enumerate(out)
    )
    return [from_dim.get(i) for i in range(len(out))] if plain else None
  return _dims_of_reshape(shape, out) if params["dimensions"] is None else None


def _dims_of_reshape(shape: Sequence[Any], out: Sequence[Any]) -> Dims | None:
  wide = [d for d, size in enumerate(shape) if not is_one(size)]
  if not provably_equal([shape[d] for d in wide], [size for size in out if not is_one(size)]):
    return None
  left = iter(wide)
  return [None if is_one(size) else next(left) for size in out]


IDIOMS = dict.fromkeys(MOVES, merge_movements) | dict.fromkeys(REDUCTIONS, _one_reshape)
