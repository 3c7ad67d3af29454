"""Numbers with constant differences as a primitive, and a scan that computes such xs from its own
counter.

TensorFlow's While has a counter anyway. So these numbers are neither carried nor read from a list.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.extend.core.primitives as P
import tensorflow as tf
from jax.core import ShapedArray
from jax.extend.core import Primitive

from jax2tf import _jax_compat
from jax2tf.context import RuleContext
from jax2tf.idioms._dataflow import Dataflow, Equations
from jax2tf.jaxprs import Eqn, closed
from jax2tf.lowering._counters import Counter
from jax2tf.registry import lowers, rule_for

counter_p = Primitive("counter")
counter_p.def_abstract_eval(lambda *, first, step, length, dtype: ShapedArray((length,), dtype))


@lowers(counter_p)
def _counter(ctx: RuleContext, *, first: int, step: int, length: int, dtype: Any) -> tf.Tensor:
  """-> i32[length]: first, first + step, and so on."""
  return Counter(first, step, ctx.dtype_out).numbers(length)


# As `lax.scan_p`, with a param `counters`: for each of the xs (first, step), or None. Those with
# numbers are no operands.
counted_scan_p = Primitive("scan")
counted_scan_p.multiple_results = True


@counted_scan_p.def_effectful_abstract_eval  # type: ignore[untyped-decorator]
def _avals(*_: Any, jaxpr: Any, length: Any, **params: Any) -> Any:
  n_carry = _split(params)[1]
  avals: Sequence[Any] = closed(jaxpr).out_avals
  stacked = [aval.update(shape=(length, *aval.shape)) for aval in avals[n_carry:]]
  return [*avals[:n_carry], *stacked], jaxpr.effects


@lowers(counted_scan_p, on_keys=True)
def _counted_scan(ctx: RuleContext, *operands: tf.Tensor, **params: Any) -> Any:
  """(consts, carry, xs f32[n,...] without the counters) -> (carry, ys f32[n,...])."""
  scan = rule_for(P.scan_p)
  assert scan is not None
  return scan(ctx, *operands, **params)


def counted(flow: Dataflow, eqn: Eqn) -> Equations | None:
  """scan over numbers that `counter_p` makes -> `counted_scan_p`."""
  n_outer = sum(_split(eqn.params))
  outer, xs = eqn.invars[:n_outer], eqn.invars[n_outer:]
  producers = [flow.producer(v, counter_p) for v in xs]
  if not any(producers):
    return None
  counters = tuple(
    None if producer is None else (producer.params["first"], producer.params["step"])
    for producer in producers
  )
  arrays = [v for v, producer in zip(xs, producers, strict=True) if producer is None]
  params = eqn.params | {"counters": counters}
  return [eqn.replace(primitive=counted_scan_p, invars=[*outer, *arrays], params=params)]


def _split(params: Any) -> tuple[int, int]:
  """(how many consts, how many values that are carried)."""
  return _jax_compat.scan_split(*map(params.get, ("num_consts", "num_carry", "ft_in")))


IDIOMS = {P.scan_p: counted}
