"""Rewrites equations of a jaxpr, before it is lowered, into forms that TensorFlow ops compute better.

An idiom looks at dataflow, never at names: it is tried at each equation of its root primitive, and may take in equations whose results
nothing but the root uses. What it gives are equations again, of JAX's primitives or of one that the idiom defines with its rule, so
the interpreter, its checks and the user's lines stay as they are. Values are those of the equations taken in, NaN and infinities too.

Not here, because TensorFlow 2.21 gives other values than JAX (tests/test_idioms.py has the proofs):
  Relu: behind a MatMul or Conv2D, Grappler makes one oneDNN kernel of it, for which max(NaN, 0) is 0.
  ReluGrad: an infinite or NaN gradient gives NaN where the feature is not positive, JAX has 0 there.
  Softmax: oneDNN's gives finite numbers for a row with NaN or +inf, JAX's is NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jax.extend.core import Primitive

from jax2tf.idioms import bias_add, broadcasts, conv_gradient, loop_hoist, loop_rows, moves, products
from jax2tf.idioms._dataflow import Dataflow, Equations

Idiom = Callable[[Dataflow, Any], Equations | None]

_MODULES = (moves, products, conv_gradient, bias_add, broadcasts, loop_rows, loop_hoist)
_TABLES: Sequence[Mapping[Any, Idiom]] = [module.IDIOMS for module in _MODULES]
_IDIOMS: dict[Primitive, list[Idiom]] = {
  primitive: [table[primitive] for table in _TABLES if primitive in table] for table in _TABLES for primitive in table
}


def rewritten(eqns: Sequence[Any], results: Sequence[Any]) -> Sequence[Any]:
  """Equations that give `results`, with all idioms applied; linear in their number."""
  if not any(eqn.primitive in _IDIOMS for eqn in eqns):
    return eqns
  flow = Dataflow(eqns, results)
  for place, eqn in enumerate(eqns):
    for idiom in _IDIOMS.get(eqn.primitive, ()):
      if (found := idiom(flow, eqn)) is not None:
        flow.put(place, found)
        break
  return flow.equations()
