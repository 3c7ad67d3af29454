"""TensorFlow's composite ops, by choice: other values than JAX's for NaN and infinity, other rounding elsewhere; docs/fused.md.

They are taken before JAX differentiates, so that the derivatives are those of these ops: TensorFlow's gradient op where it has one, else
the derivative of the JAX function that the op stands for.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax.extend.core.primitives as P
from jax.extend.core import Jaxpr, Primitive

from jax2tf.idioms._dataflow import Dataflow
from jax2tf.idioms.fused._inline import inlined
from jax2tf.idioms.fused._primitives import ELEMENTWISE, Idiom
from jax2tf.idioms.fused._template import Templates
from jax2tf.jaxprs import ClosedJaxpr, closed, opened, replaced

# Whose derivatives JAX takes of the inner jaxprs themselves.
_BODIES = (P.scan_p, P.while_p, P.cond_p, P.remat_p, P.jit_p)


@functools.cache
def _tables() -> Sequence[Mapping[Primitive, Sequence[Idiom]]]:
  """The idioms by the primitive of the last equation: those that hold others first. Made when asked for, because templates are traced."""
  from jax2tf.idioms.fused import activations, batch_norm, gelu, hard_swish, layer_norm, pooling, products, softmax  # noqa: PLC0415  (slow to import)

  passes: Sequence[Sequence[tuple[Primitive, Idiom]]] = (
    (*gelu.IDIOMS, *hard_swish.IDIOMS, *softmax.IDIOMS, *layer_norm.IDIOMS, *batch_norm.IDIOMS, *pooling.IDIOMS),
    activations.IDIOMS,
    [(primitive, products.flattened) for primitive in ELEMENTWISE],
  )
  return [{root: [idiom for of, idiom in idioms if of is root] for root, _ in idioms} for idioms in passes]


def with_composite_ops(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
  """The same function, of primitives that are TensorFlow's composite ops where the dataflow says them; also in loops and branches."""
  jaxpr = inlined(jaxpr)
  eqns = [
    eqn.replace(params={key: _inside(value) for key, value in eqn.params.items()}) if eqn.primitive in _BODIES else eqn
    for eqn in jaxpr.eqns
  ]
  templates = Templates()
  for table in _tables():
    if any(eqn.primitive in table for eqn in eqns):
      flow = Dataflow(eqns, jaxpr.outvars)
      for place, eqn in enumerate(eqns):
        for idiom in table.get(eqn.primitive, ()):
          if (found := idiom(flow, eqn, templates)) is not None:
            flow.put(place, found)
            break
      eqns = list(flow.equations())
  return replaced(jaxpr, eqns=eqns)


def _inside(value: Any) -> Any:
  if isinstance(value, tuple):
    return tuple(map(_inside, value))
  if isinstance(value, ClosedJaxpr):
    return with_composite_ops(value)
  if isinstance(value, Jaxpr):  # JAX 0.10: of jax.checkpoint
    return opened(with_composite_ops(closed(value)))
  return value
