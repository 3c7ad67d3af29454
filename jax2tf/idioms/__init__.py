"""Rewrites equations of a jaxpr into forms that map to fewer or faster TensorFlow ops.

An idiom matches dataflow, not names. It is tried at each equation of its root primitive, and may
absorb equations whose results only the root uses. It returns equations of JAX's primitives, or of
its own primitives with rules, so the interpreter, its checks and the user's lines work unchanged.
Values are preserved, including NaN and infinities.

Rejected, because TensorFlow 2.21 returns other values than JAX (tests/idioms/test_idioms.py):
  Relu: behind a MatMul or Conv2D, Grappler makes one oneDNN kernel of it, for which max(NaN, 0)
    is 0.
  ReluGrad: an infinite or NaN gradient gives NaN where the feature is not positive, JAX has 0
    there.
  Softmax: oneDNN's gives finite numbers for a row with NaN or +inf, JAX's is NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jax.extend.core import Primitive

from jax2tf.idioms import (
  bias_add,
  broadcasts,
  conv_gradient,
  loop_counters,
  loop_hoist,
  loop_sink,
  moves,
  products,
  reductions,
)
from jax2tf.idioms._dataflow import Dataflow, Equations
from jax2tf.jaxprs import Eqn

Idiom = Callable[[Dataflow, Any], Equations | None]

_MODULES = (
  moves,
  reductions,
  products,
  conv_gradient,
  bias_add,
  broadcasts,
  loop_hoist,
  loop_sink,
  loop_counters,
)
_TABLES: Sequence[Mapping[Any, Idiom]] = [module.IDIOMS for module in _MODULES]
_IDIOMS: dict[Primitive, list[Idiom]] = {
  primitive: [table[primitive] for table in _TABLES if primitive in table]
  for table in _TABLES
  for primitive in table
}


def rewritten(eqns: Sequence[Eqn], results: Sequence[Any]) -> Sequence[Eqn]:
  """Equations that give `results`, with all idioms applied; linear in their number."""
  if not any(eqn.primitive in _IDIOMS for eqn in eqns):
    return eqns
  flow = Dataflow(eqns, results)
  for position, eqn in enumerate(eqns):
    for idiom in _IDIOMS.get(eqn.primitive, ()):
      if (replacement := idiom(flow, eqn)) is not None:
        flow.replace(position, replacement)
        break
  return flow.equations()
