"""Normalises a jaxpr for matching: as `jax2tf.normalise`, and folds constants and unifies inserted
dimensions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.extend.core.primitives as P
import numpy as np
from jax.extend.core import Literal

from jax2tf import normalise
from jax2tf.idioms._dataflow import provably_equal
from jax2tf.jaxprs import ClosedJaxpr, Eqn, replaced, variables
from jax2tf.lowering._movement import is_one

# Equations that are folded if all operands are literals, such as the n - 0 of a variance.
_OF_NUMBERS: Mapping[Any, Callable[..., Any]] = {
  P.sub_p: np.subtract,
  P.add_p: np.add,
  P.mul_p: np.multiply,
  P.gt_p: np.greater,
  P.sqrt_p: np.sqrt,
}


def inlined(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
  """The same function with plain `jit` calls inlined; functions with custom derivative rules stay
  calls."""
  eqns, results = normalise.flattened(_Flat(), jaxpr.eqns, jaxpr.outvars)
  return replaced(jaxpr, eqns=eqns, outvars=results)


def substituted(jaxpr: ClosedJaxpr, operands: Sequence[Any]) -> tuple[list[Any], list[Any]]:
  """(the equations of a function on these operands, its results)."""
  flat = _Flat(dict(zip(jaxpr.invars, operands, strict=True)), inside=True)
  flat.add(jaxpr.eqns)
  return flat.eqns, [flat.read(v) for v in jaxpr.outvars]


class _Flat(normalise.Flat):
  """Equations in the form in which the idioms are written."""

  def __init__(self, atoms: dict[Any, Any] | None = None, *, inside: bool = False):
    super().__init__(atoms, inside=inside)
    self._producers: dict[Any, Any] = {}

  def results(self, eqn: Eqn) -> list[Any]:
    """The results of an equation. It is added only if it cannot be folded and no equal one is
    there."""
    if (number := _number(eqn)) is not None:
      return [number]
    if eqn.primitive is P.select_n_p and isinstance(eqn.invars[0], Literal):
      which, *cases = eqn.invars
      return [cases[min(max(int(which.val), 0), len(cases) - 1)]]  # as XLA, which clips it
    eqn = self._inserting(eqn)
    if (source := self._before(eqn)) is not None:
      return [source]
    results = super().results(eqn)
    self._producers.update((v, eqn) for v in variables(results))
    return results

  def _inserting(self, eqn: Eqn) -> Eqn:
    """A reshape that only inserts dimensions as broadcast_in_dim, and two of these as one."""
    if eqn.primitive is P.reshape_p and eqn.params["dimensions"] is None and len(eqn.invars) == 1:
      shape, sizes = eqn.invars[0].aval.shape, eqn.params["new_sizes"]
      wide = tuple(d for d, size in enumerate(sizes) if not is_one(size))
      if len(shape) < len(sizes) and provably_equal(shape, [sizes[d] for d in wide]):
        eqn = eqn.replace(
          primitive=P.broadcast_in_dim_p,
          params={"shape": sizes, "broadcast_dimensions": wide, "sharding": None},
        )
    if eqn.primitive is not P.broadcast_in_dim_p or isinstance(eqn.invars[0], Literal):
      return eqn
    before = self._producers.get(eqn.invars[0])
    if (
      before is None
      or before.primitive is not P.broadcast_in_dim_p
      or len(before.invars) > 1
      or len(eqn.invars) > 1
    ):
      return eqn
    dims = tuple(
      int(eqn.params["broadcast_dimensions"][int(d)]) for d in before.params["broadcast_dimensions"]
    )
    return eqn.replace(invars=before.invars, params=eqn.params | {"broadcast_dimensions": dims})

  def _before(self, eqn: Eqn) -> Any:
    """The value before a dimension was inserted that this squeeze removes, as `jax.vmap` of a
    convolution does; else None."""
    inserted = (
      self._producers.get(eqn.invars[0])
      if eqn.primitive is P.squeeze_p and not isinstance(eqn.invars[0], Literal)
      else None
    )
    if (
      inserted is None or inserted.primitive is not P.broadcast_in_dim_p or len(inserted.invars) > 1
    ):
      return None
    (source,) = inserted.invars
    rank, squeezed = len(inserted.outvars[0].aval.shape), eqn.params["dimensions"]
    remaining = [d for d in range(rank) if d not in squeezed]
    alike = not isinstance(source, Literal) and provably_equal(
      source.aval.shape, eqn.outvars[0].aval.shape
    )
    is_undone = alike and [int(d) for d in inserted.params["broadcast_dimensions"]] == remaining
    return source if is_undone else None


def _number(eqn: Eqn) -> Literal | None:
  """The result of an equation whose operands are literals; else None."""
  if eqn.primitive not in _OF_NUMBERS or not all(
    isinstance(v, Literal) and not np.shape(v.val) for v in eqn.invars
  ):
    return None
  aval = eqn.outvars[0].aval
  if not isinstance(aval.dtype, np.dtype):
    return None
  values = [np.asarray(v.val, v.aval.dtype) for v in eqn.invars]
  return Literal(np.asarray(_OF_NUMBERS[eqn.primitive](*values)).astype(aval.dtype)[()], aval)
