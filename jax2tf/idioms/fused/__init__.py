"""Optional idioms that use TensorFlow's composite ops. NaN, infinity and rounding may differ from
JAX; docs/guide/fused.md.

They are inserted before differentiation. The derivative is TensorFlow's gradient op if there is
one, and otherwise the derivative of the replaced JAX function.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

from jax.extend.core import Primitive

from jax2tf.idioms._dataflow import Dataflow
from jax2tf.idioms.fused._inline import inlined
from jax2tf.idioms.fused._primitives import ELEMENTWISE_OPS, Entry, Idiom
from jax2tf.idioms.fused._template import Templates
from jax2tf.jaxprs import ClosedJaxpr, map_inner, replaced
from jax2tf.messages import ArgumentError
from jax2tf.traits import BODIES

# The names for `idioms=`. Listed here, because importing the modules is slow: they trace templates.
NAMES = frozenset(
  """
    attention batch_norm elu gelu hard_swish layer_norm leaky_relu log_softmax max_pool mean_pool
    relu relu6 selu silu softmax
  """.split()  # noqa: SIM905
)


def names_of(idioms: str) -> frozenset[str]:
  """The idioms of "exact" (none), "fused" (all), or names separated by commas. Raises ValueError
  for unknown names."""
  if idioms in ("exact", "fused"):
    return NAMES if idioms == "fused" else frozenset()
  names = frozenset(name.strip() for name in idioms.split(","))
  if unknown := sorted(names - NAMES):
    raise ArgumentError(
      "idioms",
      idioms,
      problem=f"there is no {unknown[0]!r}",
      advice=f"choose 'exact', 'fused', or names of {', '.join(sorted(NAMES))}",
    )
  return names


def without(*names: str) -> str:
  """The value of `idioms=` for all idioms except these."""
  return ",".join(sorted(NAMES.difference(names)))


@functools.cache
def entries() -> Sequence[Sequence[Entry]]:
  """The idioms, those that contain others first. Made when needed, because templates are traced."""
  from jax2tf.idioms.fused import (  # noqa: PLC0415  (slow to import)
    activations,
    attention,
    batch_norm,
    features_first,
    gelu,
    hard_swish,
    layer_norm,
    pooling,
    products,
    softmax,
  )

  return (
    features_first.IDIOMS,
    (
      *gelu.IDIOMS,
      *hard_swish.IDIOMS,
      *softmax.IDIOMS,
      *layer_norm.IDIOMS,
      *batch_norm.IDIOMS,
      *pooling.IDIOMS,
      *attention.IDIOMS,
      *activations.CLIPS,
    ),
    activations.IDIOMS,
    [
      (primitive.name, primitive, idiom)
      for primitive in ELEMENTWISE_OPS
      for idiom in (products.flatten_rows, features_first.move_transpose_behind_activation)
    ],
    batch_norm.LATER,
  )


@functools.cache
def _tables(names: frozenset[str]) -> Sequence[Mapping[Primitive, Sequence[Idiom]]]:
  """The chosen idioms by the primitive of the last equation."""
  chosen = [[entry for entry in table if entry[0] in names] for table in entries()]
  return [
    {root: [idiom for _, of, idiom in table if of is root] for _, root, _ in table}
    for table in chosen
  ]


def with_composite_ops(jaxpr: ClosedJaxpr, names: frozenset[str] = NAMES) -> ClosedJaxpr:
  """The same function, with primitives for TensorFlow's composite ops where the dataflow matches;
  also in loops and branches.

  `names`: of the idioms.
  """
  jaxpr = inlined(jaxpr)
  within = functools.partial(with_composite_ops, names=names)
  eqns = [map_inner(eqn, within) if eqn.primitive in BODIES else eqn for eqn in jaxpr.eqns]
  templates = Templates()
  for table in _tables(names):
    if any(eqn.primitive in table for eqn in eqns):
      flow = Dataflow(eqns, jaxpr.outvars)
      for position, eqn in enumerate(eqns):
        for idiom in table.get(eqn.primitive, ()):
          if (replacement := idiom(flow, eqn, templates)) is not None:
            flow.replace(position, replacement)
            break
      eqns = list(flow.equations())
  return replaced(jaxpr, eqns=eqns)
