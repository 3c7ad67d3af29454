"""Loops whose elements are independent, for any number of elements.

vmap makes of a while_loop one whose predicate is an array: each lane, a row of all that is carried,
stops on its own. The loop can be run on some of its lanes if each equation of it computes lane by
lane. Its primitives tell, and each equation is traced again for another number of lanes. Sums of
floats and products of matrices do not count: their rounding may depend on the number of rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.extend.core.primitives as P
import jax.numpy as jnp
from jax import export, lax
from jax.export import is_symbolic_dim
from jax.extend.core import Literal, Primitive

from jax2tf import _jax_compat
from jax2tf._jax_compat import batching
from jax2tf.jaxprs import ClosedJaxpr, Eqn, closed, opened, walk
from jax2tf.traits import HASHES, is_elementwise

# The dimension variable for the number of lanes.
LANES = "jax2tf_lanes"


@dataclass(frozen=True)
class LaneLoop:
  """A loop over some of its lanes.

  Attributes:
    test: consts, carry -> bool[lanes,...].
    body: consts, carry -> carry.
    test_consts: which consts of the test have a row for each lane.
    body_consts: the same of the body.
    whole_test: the test as it is, for all lanes.
  """

  test: ClosedJaxpr
  body: ClosedJaxpr
  test_consts: tuple[bool, ...]
  body_consts: tuple[bool, ...]
  whole_test: ClosedJaxpr


@dataclass(frozen=True)
class _Value:
  """A value while a jaxpr is traced again, and whether its first axis is that of the lanes."""

  array: Any
  by_lane: bool


class _NotByLaneError(Exception):
  """An equation may not compute lane by lane."""


@_jax_compat.weakly_cached
def lane_loop(body: Any, test: Any, n_test: int, n_body: int) -> LaneLoop | None:
  """The loop with these params of a `while` over any number of lanes.

  None if its predicate is a scalar, if lanes may depend on others, or if a step is so little work
  that picking lanes would take longer.

  Args:
    body: its jaxpr.
    test: that of the predicate.
    n_test: the number of the test's consts.
    n_body: the number of the body's.
  """
  body, test = closed(body), closed(test)
  if body.effects or test.effects or not test.out_avals[0].shape or _work(body) < _LEAST_WORK:
    return None
  lanes = _Lanes(test.out_avals[0].shape[0], _new_size(test, body))
  new_test, test_consts = _by_lane(lanes, test, n_test)
  new_body, body_consts = _by_lane(lanes, body, n_body)
  if new_test is None or new_body is None:
    return None
  return LaneLoop(new_test, new_body, test_consts, body_consts, test)


# How many consts may be as long as there are lanes, with or without a row for each.
_MOST_UNSURE = 4


def _by_lane(
  lanes: _Lanes, jaxpr: ClosedJaxpr, n_consts: int
) -> tuple[ClosedJaxpr | None, tuple[bool, ...]]:
  """The jaxpr for any number of lanes, and which of its consts have rows; all that is carried
  has."""
  rows = [lanes.are_rows(aval) for aval in jaxpr.in_avals]
  sure = sum(rows[:n_consts]) > _MOST_UNSURE
  choices = [(True, False) if row and not sure else (row,) for row in rows[:n_consts]]
  for consts in itertools.product(*choices):
    try:
      resized, by_lane = lanes.resized(jaxpr, [*consts, *rows[n_consts:]])
    except Exception:  # of a library's primitive for a symbolic size, too
      continue
    if all(by_lane):
      return resized, consts
  return None, ()


# The least work of a step for which lanes are picked, in additions for each; what takes several.
_LEAST_WORK = 50
_FUNCTIONS = [P.exp_p, P.log_p, P.log1p_p, P.expm1_p, P.sin_p, P.cos_p, P.tan_p, P.tanh_p, P.pow_p]
_FUNCTIONS += [P.erf_p, P.erf_inv_p, P.logistic_p]
_SPECIAL = [P.lgamma_p, P.digamma_p, P.igamma_p, P.igammac_p, P.regularized_incomplete_beta_p]
_WORK = {
  **dict.fromkeys(_FUNCTIONS, 8),
  **dict.fromkeys(_SPECIAL, 30),
  **dict.fromkeys(HASHES, 100),
}


def _work(body: ClosedJaxpr) -> int:
  return sum(_WORK.get(eqn.primitive, 1) for eqn in walk(body))


def _new_size(*jaxprs: ClosedJaxpr) -> Any:
  """The dimension variable, in the scope of those in the jaxprs."""
  values = [v for jaxpr in jaxprs for v in jaxpr.invars]
  values += [v for jaxpr in jaxprs for eqn in walk(jaxpr) for v in eqn.outvars]
  sizes = (size for v in values for size in getattr(v.aval, "shape", ()))
  dim = next(filter(is_symbolic_dim, sizes), None)
  (size,) = export.symbolic_shape(LANES, scope=None if dim is None else dim.scope)
  return size


@dataclass(frozen=True)
class _Lanes:
  """Traces jaxprs for another number of lanes.

  Attributes:
    old: the number of lanes in the jaxprs, which may be symbolic.
    new: that in the results.
  """

  old: Any
  new: Any

  def are_rows(self, aval: Any) -> bool:
    """Whether a value may have a row for each lane."""
    return bool(getattr(aval, "shape", ())) and self.same(aval.shape[0])

  def same(self, size: Any) -> bool:
    """Whether a dimension is known to be the number of lanes."""
    return size is self.old or bool(size == self.old)

  def resized(self, jaxpr: ClosedJaxpr, by_lane: Sequence[bool]) -> tuple[ClosedJaxpr, list[bool]]:
    """The jaxpr for the new number, and which results are by lane.

    Args:
      jaxpr: the jaxpr.
      by_lane: which operands are.

    Raises:
      _NotByLaneError: an equation may not compute lane by lane.
    """
    results_by_lane: list[bool] = []

    def run(*operands: Any) -> list[Any]:
      values = [_Value(x, rows) for x, rows in zip(operands, by_lane, strict=True)]
      results = self._run(jaxpr, values)
      results_by_lane[:] = [y.by_lane for y in results]
      return [y.array for y in results]

    specs = []
    for aval, rows in zip(jaxpr.in_avals, by_lane, strict=True):
      shape = (self.new, *aval.shape[1:]) if rows else aval.shape
      specs.append(jax.ShapeDtypeStruct(shape, aval.dtype, weak_type=aval.weak_type))
    return jax.make_jaxpr(run)(*specs), results_by_lane

  def _run(self, jaxpr: ClosedJaxpr, operands: Sequence[_Value]) -> list[_Value]:
    consts = [_Value(c, False) for c in jaxpr.consts]
    env: dict[Any, _Value] = dict(
      zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *operands], strict=True)
    )

    def read(atom: Any) -> _Value:
      return _Value(atom.val, False) if isinstance(atom, Literal) else env[atom]

    for eqn in opened(jaxpr).eqns:
      with batching.traced_as(eqn):
        results = self._equation(eqn, [read(v) for v in eqn.invars])
      env.update(zip(eqn.outvars, results, strict=True))
    return [read(v) for v in jaxpr.outvars]

  def _equation(self, eqn: Eqn, operands: list[_Value]) -> list[_Value]:
    if eqn.primitive in _CALLS:
      return self._run(closed(eqn.params[_CALLS[eqn.primitive]]), operands)
    if eqn.primitive is P.while_p and any(x.by_lane for x in operands):
      return self._while(eqn, operands)
    if eqn.primitive is P.cond_p and any(x.by_lane for x in operands):
      return self._cond(eqn, operands)
    if eqn.primitive is P.broadcast_in_dim_p and self._repeats(eqn, operands):
      shape, axes = eqn.params["shape"][1:], eqn.params["broadcast_dimensions"]
      row = lax.broadcast_in_dim(operands[0].array, shape, [axis - 1 for axis in axes])
      return [_Value(jnp.broadcast_to(row, (self.new, *shape)), True)]
    by_lane = any(x.by_lane for x in operands)
    params = eqn.params | (self._params(eqn, operands) if by_lane else {})
    results = eqn.primitive.bind(*(x.array for x in operands), **params)
    return [_Value(y, by_lane) for y in (results if eqn.primitive.multiple_results else [results])]

  def _repeats(self, eqn: Eqn, operands: Sequence[_Value]) -> bool:
    """Whether a broadcast gives the same row to each lane."""
    if len(operands) != 1 or operands[0].by_lane:
      return False
    return self.are_rows(eqn.outvars[0].aval) and 0 not in eqn.params["broadcast_dimensions"]

  def _params(self, eqn: Eqn, operands: Sequence[_Value]) -> dict[str, Any]:
    """The params that differ for another number of lanes."""
    primitive = eqn.primitive
    if is_elementwise(primitive) or primitive is _jax_compat.random_wrap_p:
      # A value for all lanes is a scalar, or of size 1 where the others have lanes.
      shapes = (v.aval.shape for x, v in zip(operands, eqn.invars, strict=True) if not x.by_lane)
      _require(all(shape == () or shape[0] == 1 for shape in shapes))
      return {}
    _require(primitive in _BY_ROWS and all(x.by_lane for x in operands))
    return _BY_ROWS[primitive](self, eqn.params, eqn.invars[0].aval)

  def _while(self, eqn: Eqn, operands: Sequence[_Value]) -> list[_Value]:
    params = eqn.params
    n_test, n_body = params["cond_nconsts"], params["body_nconsts"]
    rows = [x.by_lane for x in operands]
    carried = rows[n_test + n_body :]
    test, of_test = self.resized(closed(params["cond_jaxpr"]), [*rows[:n_test], *carried])
    body, of_body = self.resized(closed(params["body_jaxpr"]), rows[n_test:])
    _require(of_body == carried and of_test == [bool(test.out_avals[0].shape)])
    _require(all(carried) or not of_test[0])
    new = params | {"cond_jaxpr": test, "body_jaxpr": body}
    results = P.while_p.bind(*(x.array for x in operands), **new)
    return [_Value(y, row) for y, row in zip(results, carried, strict=True)]

  def _cond(self, eqn: Eqn, operands: Sequence[_Value]) -> list[_Value]:
    index, *rest = operands
    _require(not index.by_lane)
    operands_by_lane = [x.by_lane for x in rest]
    branches = [self.resized(closed(branch), operands_by_lane) for branch in eqn.params["branches"]]
    rows = branches[0][1]
    _require(all(other == rows for _, other in branches))
    new = eqn.params | {"branches": tuple(branch for branch, _ in branches)}
    results = P.cond_p.bind(*(x.array for x in operands), **new)
    return [_Value(y, row) for y, row in zip(results, rows, strict=True)]


def _require(condition: bool) -> None:
  if not condition:
    raise _NotByLaneError


# Primitives that call a jaxpr with their operands -> the param that holds it.
_CALLS = {
  P.jit_p: "jaxpr",
  **dict.fromkeys((P.closed_call_p, P.custom_jvp_call_p, P.custom_vjp_call_p), "call_jaxpr"),
}

_Params = dict[str, Any]


def _other_axes(name: str) -> Callable[[_Lanes, _Params, Any], _Params]:
  """Params of a primitive that works along the axes in one of them."""

  def params(lanes: _Lanes, params: _Params, aval: Any) -> _Params:
    axes = params[name]
    _require(0 not in (axes if isinstance(axes, tuple | list) else [axes]))
    return {}

  return params


def _of_integers(lanes: _Lanes, params: _Params, aval: Any) -> _Params:
  _require(jnp.issubdtype(aval.dtype, jnp.integer))
  return _other_axes("axes")(lanes, params, aval)


def _broadcast(lanes: _Lanes, params: _Params, aval: Any) -> _Params:
  shape = params["shape"]
  _require(params["broadcast_dimensions"][0] == 0 and lanes.same(shape[0]))
  return {"shape": (lanes.new, *shape[1:])}


def _reshape(lanes: _Lanes, params: _Params, aval: Any) -> _Params:
  sizes = params["new_sizes"]
  _require(params["dimensions"] is None and bool(sizes) and lanes.same(sizes[0]))
  return {"new_sizes": (lanes.new, *sizes[1:])}


def _slice(lanes: _Lanes, params: _Params, aval: Any) -> _Params:
  limits, strides = params["limit_indices"], params["strides"]
  _require(params["start_indices"][0] == 0 and lanes.same(limits[0]))
  _require(strides is None or strides[0] == 1)
  return {"limit_indices": (lanes.new, *limits[1:])}


def _transpose(lanes: _Lanes, params: _Params, aval: Any) -> _Params:
  _require(params["permutation"][0] == 0)
  return {}


_EXACT = (P.reduce_max_p, P.reduce_min_p, P.reduce_and_p, P.reduce_or_p, P.reduce_xor_p)
# Primitives that compute row by row, if not along the axis of the lanes -> the params for another
# number.
_BY_ROWS: dict[Primitive | None, Callable[[_Lanes, _Params, Any], _Params]] = {
  P.broadcast_in_dim_p: _broadcast,
  P.reshape_p: _reshape,
  P.slice_p: _slice,
  P.transpose_p: _transpose,
  P.squeeze_p: _other_axes("dimensions"),
  P.rev_p: _other_axes("dimensions"),
  P.concatenate_p: _other_axes("dimension"),
  _jax_compat.optional_primitive("split_p", lax): _other_axes("axis"),
  _jax_compat.optional_primitive("stack_p", lax): _other_axes("axis"),
  _jax_compat.optional_primitive("unstack_p", lax): _other_axes("axis"),
  **dict.fromkeys(_EXACT, _other_axes("axes")),
  **dict.fromkeys((P.reduce_sum_p, P.reduce_prod_p), _of_integers),
}
