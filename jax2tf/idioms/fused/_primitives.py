"""Primitives that replace the equations of a JAX function, and are lowered to TensorFlow's op for
it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad

from jax2tf.idioms._dataflow import Dataflow, Equations
from jax2tf.idioms.fused._template import Templates, matched
from jax2tf.jaxprs import Eqn, variables
from jax2tf.registry import lowers

# TensorFlow's composite ops of halves round once less than JAX's equations.
DTYPES = (np.dtype(np.float32), np.dtype(np.float64))

# Those of elementwise ops, which commute with a reshape.
ELEMENTWISE_OPS: list[Primitive] = []

# What JAX computes, and which primitive stands for it: (flow, equation that gives the result,
# templates) -> equations, or None.
Idiom = Callable[[Dataflow, Any, Templates], Equations | None]
# (name, as `idioms=` takes it; the primitive of the last equation; the idiom)
Entry = tuple[str, Primitive, Idiom]


def fused(
  name: str,
  *templates: Callable[..., Any],
  op: Callable[..., Any],
  tangent: Callable[..., Any] | None = None,
  vectors: int = 0,
  holes: Sequence[str] = (),
  takes: Callable[..., bool] = lambda dtype, *numbers: True,
  elementwise: bool = True,
) -> Sequence[Entry]:
  """One entry for each template.

  Args:
    name: of the idiom, and of the new primitive.
    templates: the equivalent JAX functions, of an array like the result, of vectors along the last
      axis, and of numbers.
    op: TensorFlow's, of the same operands.
    tangent: (result, operands, their tangents) -> tangent of the result, in JAX; by default that of
      the template.
    vectors: how many there are.
    holes: names of the numbers, which the template uses in this order.
    takes: (dtype, numbers) -> whether the op takes these numbers as they are.
    elementwise: whether a reshape may come after it as well.
  """
  return [
    (
      name,
      *_one(
        composite(name, template, op, tangent, elementwise=elementwise),
        template,
        vectors,
        tuple(holes),
        takes,
      ),
    )
    for template in templates
  ]


def _one(
  primitive: Primitive,
  template: Any,
  vectors: int,
  holes: tuple[str, ...],
  takes: Callable[..., bool],
) -> tuple[Primitive, Idiom]:
  last, find = finding(template, vectors=vectors, holes=len(holes))

  def idiom(flow: Dataflow, root: Eqn, templates: Templates) -> Equations | None:
    match = find(flow, root, templates)
    if match is None or not takes(root.outvars[0].aval.dtype, *match[1]):
      return None
    return [
      root.replace(
        primitive=primitive, invars=match[0], params=dict(zip(holes, match[1], strict=True))
      )
    ]

  return last, idiom


def finding(
  template: Callable[..., Any], *, vectors: int = 0, holes: int = 0
) -> tuple[Primitive, Callable[..., Any]]:
  """(the primitive of the last equation, what finds a template: the same arguments as an idiom ->
  (operands, numbers), or None)."""
  rough = Templates()(template, (2, 3), np.dtype(np.float32), vectors, holes)

  def find(flow: Dataflow, root: Eqn, templates: Templates) -> tuple[list[Any], list[float]] | None:
    aval = root.outvars[0].aval
    if (
      not aval.shape
      or aval.dtype not in DTYPES
      or matched(rough, root, flow.producer, roughly=True) is None
    ):
      return None
    specialised = templates(template, aval.shape, aval.dtype, vectors, holes)
    match = matched(specialised, root, flow.producer)
    if match is None or not _alone(flow, root, match.eqns.values()):
      return None
    return [match.atoms[v] for v in specialised.invars], match.holes

  return rough.eqns[-1].primitive, find


def composite(
  name: str,
  definition: Callable[..., Any],
  op: Callable[..., Any],
  tangent: Callable[..., Any] | None = None,
  *,
  elementwise: bool = False,
) -> Primitive:
  """A primitive, whose result is like its first operand: JAX's definition, TensorFlow's op, and the
  tangent as `fused` has it."""
  primitive = Primitive(name)
  primitive.def_abstract_eval(lambda operand, *others, **params: operand.update(weak_type=False))
  lowers(primitive)(lambda ctx, *operands, **params: op(*operands, **params))

  def jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: float) -> tuple[Any, Any]:
    result = primitive.bind(*primals, **params)
    moves = tuple(map(ad.instantiate_zeros, tangents))
    if tangent:
      return result, tangent(result, primals, moves, **params)
    return result, jax.jvp(
      lambda *operands: definition(*operands, *params.values()), tuple(primals), moves
    )[1]

  ad.primitive_jvps[primitive] = jvp
  if elementwise:
    ELEMENTWISE_OPS.append(primitive)
  return primitive


def _alone(flow: Dataflow, root: Eqn, eqns: Collection[Eqn]) -> bool:
  """Whether only these equations use their intermediate values."""
  uses = [v for eqn in eqns for v in variables(eqn.invars)]
  return all(flow.uses(v) == uses.count(v) for eqn in eqns if eqn is not root for v in eqn.outvars)


def self_adjoint(
  name: str, definition: Callable[..., Any], op: Callable[..., Any]
) -> Callable[..., Any]:
  """(cotangent, value) -> cotangent as TensorFlow's gradient op computes it: linear in the first,
  and its own transpose.

  Args:
    name: of the primitive.
    definition: the same in JAX, for higher derivatives.
    op: TensorFlow's.
  """
  primitive = Primitive(name)
  primitive.def_abstract_eval(lambda cotangent, value, **params: cotangent.update(weak_type=False))
  lowers(primitive)(lambda ctx, cotangent, value, **params: op(cotangent, value, **params))

  def jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: float) -> tuple[Any, Any]:
    cotangent, value = primals
    moved, moved_value = tangents
    total = (
      ad.Zero(jax.typeof(cotangent).to_tangent_aval())
      if isinstance(moved, ad.Zero)
      else primitive.bind(moved, value, **params)
    )
    if not isinstance(moved_value, ad.Zero):
      total = ad.add_tangents(
        total, jax.jvp(lambda v: definition(cotangent, v, **params), (value,), (moved_value,))[1]
      )
    return primitive.bind(cotangent, value, **params), total

  def transpose(ct: Any, _: Any, value: Any, **params: float) -> list[Any]:
    return [ct if isinstance(ct, ad.Zero) else primitive.bind(ct, value, **params), None]

  ad.primitive_jvps[primitive] = jvp
  ad.primitive_transposes[primitive] = transpose
  return primitive.bind
