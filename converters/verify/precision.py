"""The precision of each result: that of its dtype, or of a coarser dtype that the computation
rounds to.

`(x.astype(bfloat16) * y).astype(float32)` has eight reliable bits: XLA may omit roundings within a
fusion (its option xla_allow_excess_precision), and a float32 that differs in its last bit may round
to the next bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Jaxpr, Literal, jaxprs_in_params

Dtype = np.dtype[Any]


def of_results(fun: Callable[..., Any], *args: Any) -> Any:
  """The results of `fun(*args)` as zeros of the coarsest floating point dtype that each depends on,
  or of its own dtype.

  Raises:
    JAXTypeError: JAX cannot trace `fun`.
  """
  tree: Any = None

  def flat(*args: Any) -> list[Any]:
    nonlocal tree
    leaves, tree = jax.tree.flatten(fun(*args))
    return leaves

  closed = jax.make_jaxpr(flat)(*args)
  coarsest = _coarsest_of_each(closed.jaxpr, [None] * len(closed.jaxpr.invars))
  # Arrays of the same shapes without memory, because a class in the result may look at them.
  arrays = [
    np.broadcast_to(np.zeros((), aval.dtype if dtype is None else dtype), aval.shape)
    for aval, dtype in zip(closed.out_avals, coarsest, strict=True)
  ]
  return jax.tree.unflatten(tree, arrays)


def _coarsest_of_each(jaxpr: Jaxpr, operands: Sequence[Dtype | None]) -> list[Dtype | None]:
  """The coarsest dtype of each result, given that of each operand."""
  known: dict[Any, Dtype | None] = dict(zip(jaxpr.invars, operands, strict=True))

  def of(atom: Any) -> Dtype | None:
    return None if isinstance(atom, Literal) else known.get(atom)

  for eqn in jaxpr.eqns:
    inner = list(jaxprs_in_params(eqn.params))
    if eqn.primitive.name in ("jit", "pjit"):
      results = _coarsest_of_each(inner[0], [of(x) for x in eqn.invars])
    else:  # every result may depend on every operand and on every inner equation
      reached = _coarsest(
        [*(of(x) for x in eqn.invars), *(dtype for one in inner for dtype in _made(one))]
      )
      results = [reached] * len(eqn.outvars)
    known.update(
      (x, _coarsest([_float(x.aval), result]))
      for x, result in zip(eqn.outvars, results, strict=True)
    )
  return [of(x) for x in jaxpr.outvars]


def _made(jaxpr: Jaxpr) -> Iterator[Dtype | None]:
  for eqn in jaxpr.eqns:
    yield from (_float(x.aval) for x in eqn.outvars)
    for inner in jaxprs_in_params(eqn.params):
      yield from _made(inner)


def _float(aval: Any) -> Dtype | None:
  dtype = getattr(aval, "dtype", None)
  return dtype if dtype is not None and jnp.issubdtype(dtype, np.inexact) else None


def _coarsest(dtypes: Iterable[Dtype | None]) -> Dtype | None:
  return max(
    (dtype for dtype in dtypes if dtype is not None),
    key=lambda dtype: float(jnp.finfo(dtype).eps),
    default=None,
  )
