"""Convolutions with features first, such as Equinox', as those with features last and a transpose,
which goes behind what follows.

So the other idioms, which know features last, match there too, and so does Grappler. TensorFlow's
convolutions on a CPU have features last anyway; the transpose is the one that the rule of
convolutions emits otherwise.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.extend.core.primitives as P
import jax.numpy as jnp

from jax2tf.idioms._dataflow import Dataflow, Equations, new_var, provably_equal
from jax2tf.idioms.fused._inline import substituted
from jax2tf.idioms.fused._template import Templates
from jax2tf.jaxprs import Eqn
from jax2tf.lowering._movement import is_one
from jax2tf.traits import ARITHMETIC, COMMUTATIVE

_FIRST = (0, 3, 1, 2)  # the permutation from features last


def conv_with_features_last(flow: Dataflow, root: Eqn, templates: Templates) -> Equations | None:
  """conv -> f32[b,c,h,w] as conv -> f32[b,h,w,c] and a transpose."""
  (out,), numbers = root.outvars, root.params["dimension_numbers"]
  if len(out.aval.shape) != 4 or tuple(numbers.out_spec) != (0, 1, 2, 3):
    return None
  b, c, h, w = out.aval.shape
  last = new_var(out, (b, h, w, c))
  conv = root.replace(
    outvars=[last],
    params=root.params | {"dimension_numbers": numbers._replace(out_spec=(0, 3, 1, 2))},
  )
  return [conv, _transposed(root, last)]


def move_transpose_behind_vector(
  flow: Dataflow, root: Eqn, templates: Templates
) -> Equations | None:
  """transpose(x f32[b,h,w,c]) * f32[1,c,1,1] -> transpose(x * f32[1,1,1,c])."""
  (out,), orders = (root.outvars, [(0, 1), (1, 0)] if root.primitive in COMMUTATIVE else [(0, 1)])
  for i, other in orders:
    value, row = root.invars[i], root.invars[other]
    if (transpose := _transpose_to_first(flow, value)) is None or not provably_equal(
      value.aval.shape, out.aval.shape
    ):
      continue
    if (vector := _features(flow, row, out.aval.shape[1])) is None:
      continue
    (source,) = transpose.invars
    spec = jax.ShapeDtypeStruct(vector.aval.shape, vector.aval.dtype)
    eqns, rows = substituted(
      jax.make_jaxpr(lambda v: jnp.reshape(v, (1, 1, 1, -1)))(spec), [vector]
    )
    last, operands = new_var(out, source.aval.shape), [source, *rows]
    operands = operands if i == 0 else operands[::-1]
    return [
      *(e.replace(source_info=root.source_info) for e in eqns),
      root.replace(invars=operands, outvars=[last]),
      _transposed(root, last),
    ]
  return None


def move_transpose_behind_activation(
  flow: Dataflow, root: Eqn, templates: Templates
) -> Equations | None:
  """relu(transpose(x)) -> transpose(relu(x)), of such a transpose."""
  if (transpose := _transpose_to_first(flow, root.invars[0])) is None:
    return None
  last = new_var(root.outvars[0], transpose.invars[0].aval.shape)
  return [root.replace(invars=transpose.invars, outvars=[last]), _transposed(root, last)]


def _transposed(root: Eqn, last: Any) -> Eqn:
  return root.replace(primitive=P.transpose_p, invars=[last], params={"permutation": _FIRST})


def _transpose_to_first(flow: Dataflow, atom: Any) -> Any:
  """The transpose that gives features first, if nothing else uses its result, or None."""
  transpose = flow.single_use(atom, P.transpose_p)
  return (
    transpose
    if transpose is not None and tuple(transpose.params["permutation"]) == _FIRST
    else None
  )


def _features(flow: Dataflow, atom: Any, size: Any) -> Any:
  """The vector with one number per feature, f32[c] up to sizes of 1, behind f32[1,c,1,1] or a
  broadcast to it; or None."""
  dims = list(range(len(atom.aval.shape)))
  while (eqn := flow.producer(atom, P.broadcast_in_dim_p)) is not None and len(eqn.invars) == 1:
    atom, dims = eqn.invars[0], [dims[int(d)] for d in eqn.params["broadcast_dimensions"]]
  wide = [(d, n) for d, n in zip(dims, atom.aval.shape, strict=True) if not is_one(n)]
  return atom if [d for d, _ in wide] == [1] and provably_equal([wide[0][1]], [size]) else None


IDIOMS = [
  ("batch_norm", P.conv_general_dilated_p, conv_with_features_last),
  *(("batch_norm", primitive, move_transpose_behind_vector) for primitive in ARITHMETIC),
]
