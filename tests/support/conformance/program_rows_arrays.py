"""More rows of the table: movement, indexing, contractions, windows and control flow."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st
from jax import lax

from tests.support.conformance.program_rows import (
  ROWS,
  UNSIGNED_ZERO,
  Aval,
  Draw,
  Row,
  axes,
  axis,
  both,
  full_axis,
  lowest,
  one_of,
  overflows,
  product_overflows,
  register,
)

ALL = "biufc"
INDICES = ["int32", "int8", "uint8", "int16", "uint32"]


def _integers(draw: Draw, low: int, high: int, count: int) -> tuple[int, ...]:
  return tuple(draw(st.integers(low, high)) for _ in range(count))


def _padding(draw: Draw, x: Aval) -> tuple[Any, ...]:
  """((low, high, interior), ...): negative ones cut."""
  return (tuple((*_integers(draw, -2, 2, 2), draw(st.integers(0, 2))) for _ in x.shape),)


def _slices(draw: Draw, x: Aval) -> tuple[Any, ...]:
  starts = tuple(draw(st.integers(0, d)) for d in x.shape)
  limits = tuple(draw(st.integers(s, d)) for s, d in zip(starts, x.shape, strict=True))
  return starts, limits, _integers(draw, 1, 3, len(x.shape))


def _sizes(draw: Draw, x: Aval) -> tuple[Any, ...]:
  """(sizes, index dtype) of a window in x."""
  return tuple(draw(st.integers(0, d)) for d in x.shape), draw(st.sampled_from(INDICES))


def _reshaped(draw: Draw, x: Aval) -> tuple[Any, ...]:
  size, rank = int(np.prod(x.shape)), len(x.shape)
  shapes = [(size,), (1, size), (size, 1, 1), x.shape[::-1], (*x.shape, 1)[: max(rank, 1) + 1]]
  return (draw(st.sampled_from([s for s in shapes if int(np.prod(s)) == size])),)


def _broadcast(draw: Draw, x: Aval) -> tuple[Any, ...]:
  """(shape, dimensions) of broadcast_in_dim."""
  rank = len(x.shape)
  extra = draw(st.integers(0, 1))
  dims = tuple(sorted(draw(st.permutations(range(rank + extra)))[:rank]))
  shape = [draw(st.sampled_from([2, 1, 0, 3])) for _ in range(rank + extra)]
  for d, n in zip(dims, x.shape, strict=True):
    if n != 1:
      shape[d] = n
  return tuple(shape), dims


MOVEMENT = [
  Row(
    "transpose",
    ALL,
    lambda p, x: lax.transpose(x, p[0]),
    params=lambda draw, x: (tuple(draw(st.permutations(range(len(x.shape))))),),
    moves=True,
  ),
  Row("reshape", ALL, lambda p, x: lax.reshape(x, p[0]), params=_reshaped, moves=True),
  Row("rev", ALL, lambda p, x: lax.rev(x, p[0]), params=axes, moves=True),
  Row(
    "broadcast_in_dim",
    ALL,
    lambda p, x: lax.broadcast_in_dim(x, *p),
    params=_broadcast,
    ranks=(0, 2),
    moves=True,
  ),
  Row(
    "expand_dims",
    ALL,
    lambda p, x: lax.expand_dims(x, [p[0]]),
    moves=True,
    params=lambda draw, x: (draw(st.integers(0, len(x.shape))),),
  ),
  Row(
    "iota",
    "iufc",
    lambda p, x: lax.broadcasted_iota(x.dtype, x.shape, p[0]),
    params=axis,
    ranks=(1, 3),
    gradient=False,
  ),
  Row(
    "concatenate",
    ALL,
    lambda p, x, y: lax.concatenate([x, y, x], p[0]),
    params=axis,
    ranks=(1, 3),
    moves=True,
    more=lambda x, p: [(x.dtype, tuple(2 if i == p[0] else d for i, d in enumerate(x.shape)))],
  ),
  Row(
    "pad",
    ALL,
    lambda p, x, y: lax.pad(x, y, p[0]),
    params=_padding,
    more=lambda x, p: [(x.dtype, ())],
    moves=True,
  ),
  Row("slice", ALL, lambda p, x: lax.slice(x, *p), params=_slices, moves=True),
  Row(
    "dynamic_slice",
    ALL,
    lambda p, x, *i: lax.dynamic_slice(x, i, p[0]),
    params=_sizes,
    moves=True,
    more=lambda x, p: [(p[1], ())] * len(x.shape),
  ),
  Row(
    "dynamic_update_slice",
    ALL,
    lambda p, x, y, *i: lax.dynamic_update_slice(x, y, i),
    params=_sizes,
    moves=True,
    more=lambda x, p: [(x.dtype, p[0])] + [(p[1], ())] * len(x.shape),
  ),
  Row(
    "tile",
    ALL,
    lambda p, x: jnp.tile(x, p[0]),
    params=one_of([(2,), (1, 2), (0,), (2, 1, 2)]),
    ranks=(0, 2),
    moves=True,
  ),
  Row(
    "roll",
    ALL,
    lambda p, x: jnp.roll(x, *p),
    ranks=(1, 3),
    moves=True,
    params=lambda draw, x: (draw(st.integers(-7, 7)), *axis(draw, x)),
  ),
  Row(
    "roll_dynamic",
    ALL,
    lambda p, x, i: jnp.roll(x, i, p[0]),
    params=axis,
    more=lambda x, p: [("int32", ())],
    ranks=(1, 3),
    moves=True,
  ),
  Row(
    "repeat",
    ALL,
    lambda p, x: jnp.repeat(x, p[1], p[0]),
    params=both(axis, one_of([2, 0, 1])),
    ranks=(1, 2),
    moves=True,
  ),
  Row(
    "triu", ALL, lambda p, x: jnp.triu(x, p[0]), params=one_of([0, -1, 1]), ranks=(2, 3), moves=True
  ),
  Row(
    "diagonal",
    ALL,
    lambda p, x: jnp.diagonal(x, p[0]),
    params=one_of([0, -1, 1]),
    ranks=(2, 3),
    moves=True,
  ),
]


def _index(draw: Draw, x: Aval) -> tuple[Any, ...]:
  """(axis, mode, index dtype, index shape)."""
  mode = draw(st.sampled_from(["clip", "fill", "drop", "wrap"]))
  return (
    *axis(draw, x),
    mode,
    draw(st.sampled_from(INDICES)),
    draw(st.sampled_from([(2,), (), (1,), (0,), (3,), (2, 2)])),
  )


def _at(p: Any, x: Any, i: Any) -> Any:
  return x.at[(slice(None),) * p[0] + (i,)]


def _take(p: Any, x: Any, i: Any) -> Any:
  return _at(p, x, i).get(mode=p[1])


def _update(name: str) -> Any:
  # Of duplicate indices the last wins in `set`: JAX leaves it open, both run one after another on
  # CPU.
  return lambda p, x, i, y: getattr(_at(p, x, i), name)(y, mode="drop" if p[1] == "fill" else p[1])


def _updates(x: Aval, p: Any) -> list[Any]:
  return [(p[2], p[3]), (x.dtype, (*x.shape[: p[0]], *p[3], *x.shape[p[0] + 1 :]))]


INDEXING = [
  Row(
    "take", ALL, _take, params=_index, more=lambda x, p: [(p[2], p[3])], ranks=(1, 3), moves=True
  ),
  Row(
    "take_along_axis",
    ALL,
    lambda p, x, i: jnp.take_along_axis(x, i, p[0], mode=p[1]),
    params=both(axis, one_of(["clip", "fill"])),
    more=lambda x, p: [("int32", x.shape)],
    ranks=(1, 3),
    moves=True,
  ),
  Row(
    "take_pairs",
    ALL,
    lambda p, x, i, j: x.at[i, :, j].get(mode=p[0]),
    params=one_of(["clip", "fill"]),
    ranks=(3, 3),
    moves=True,
    more=lambda x, p: [("int32", (2,))] * 2,
  ),
  Row("at_set", ALL, _update("set"), params=_index, more=_updates, ranks=(1, 3), moves=True),
  Row(
    "at_add",
    "iuf",
    _update("add"),
    params=_index,
    more=_updates,
    ranks=(1, 3),
    units=16.0,
    largest=True,
    skip=overflows,
  ),
  Row(
    "at_mul",
    "iuf",
    _update("multiply"),
    params=_index,
    more=_updates,
    ranks=(1, 3),
    units=64.0,
    skip=product_overflows,
    gradient=False,
  ),
  Row(
    "at_min",
    "biuf",
    _update("min"),
    params=_index,
    more=_updates,
    ranks=(1, 3),
    units=UNSIGNED_ZERO,
  ),
  Row(
    "at_max",
    "biuf",
    _update("max"),
    params=_index,
    more=_updates,
    ranks=(1, 3),
    units=UNSIGNED_ZERO,
  ),
  Row(
    "at_apply",
    "iuf",
    lambda p, x, i: _at(p, x, i).apply(
      lambda v: v + v.dtype.type(1), mode="clip" if p[1] == "fill" else p[1]
    ),
    params=_index,
    more=lambda x, p: [(p[2], p[3])],
    ranks=(1, 3),
    units=16.0,
    largest=True,
    skip=overflows,
    gradient=False,
  ),
  Row(
    "segment_sum",
    "iuf",
    lambda p, x, i: jax.ops.segment_sum(x, i, 3),
    more=lambda x, p: [("int32", x.shape[:1])],
    ranks=(1, 2),
    units=16.0,
    largest=True,
    skip=overflows,
  ),
]

# (dot dimension numbers, shape of the right side by that of the left)
_DOTS: dict[str, Any] = {
  "inner": (2, ((([1]), ([0])), ([], [])), lambda s: (s[1], 3)),
  "transposed": (2, ((([0]), ([1])), ([], [])), lambda s: (2, s[0])),
  "outer": (2, (([], []), ([], [])), lambda s: (2,)),
  "full": (2, (([0, 1], [1, 0]), ([], [])), lambda s: (s[1], s[0], 2)),
  "batch": (3, (([2], [1]), ([0], [0])), lambda s: (s[0], s[2], 2)),
  "batch_last": (3, (([0], [0]), ([2], [1])), lambda s: (s[0], s[2], 2)),
  "batch_two": (3, (([1], [0]), ([2, 0], [1, 2])), lambda s: (s[1], s[2], s[0])),
  "batch_only": (3, (([], []), ([0, 1], [0, 1])), lambda s: (s[0], s[1], 2)),
}


def _windows(draw: Draw, x: Aval) -> tuple[Any, ...]:
  """(dimensions, strides, padding, base dilation, window dilation)."""
  rank = len(x.shape)
  padding = tuple((0, 0) if draw(st.booleans()) else _integers(draw, 0, 2, 2) for _ in range(rank))
  return (
    _integers(draw, 1, 2, rank),
    _integers(draw, 1, 2, rank),
    padding,
    _integers(draw, 1, 2, rank),
    _integers(draw, 1, 2, rank),
  )


def _window(operator: Any, start: Any) -> Any:
  return lambda p, x: lax.reduce_window(x, start(x.dtype), operator, *p)


def _highest(dtype: Any) -> Any:
  return np.array(np.inf if jnp.issubdtype(dtype, np.floating) else jnp.iinfo(dtype).max, dtype)


def _conv_params(draw: Draw, x: Aval) -> tuple[Any, ...] | None:
  """(stride, padding, lhs dilation, rhs dilation, groups, kernel size)"""
  groups = draw(st.sampled_from([1, *([x.shape[1]] if x.shape[1] else [])]))
  stride, low, high, lhs, rhs = (
    draw(st.integers(*r)) for r in ((1, 2), (-1, 2), (0, 2), (1, 2), (1, 2))
  )
  return (stride, low, high, lhs, rhs, groups, draw(st.integers(1, 3))) if all(x.shape) else None


def _conv(p: Any, x: Any, kernel: Any) -> Any:
  stride, low, high, lhs, rhs, groups, _ = p
  return lax.conv_general_dilated(
    x,
    kernel,
    (stride,),
    [(low, high)],
    (lhs,),
    (rhs,),
    ("NCH", "OIH", "NCH"),
    feature_group_count=groups,
  )


CONTRACTIONS = [
  *[
    Row(
      f"dot_{name}",
      "biufc",
      lambda p, x, y, numbers=numbers: lax.dot_general(x, y, numbers),
      ranks=(rank, rank),
      units=32.0,
      more=lambda x, p, shape=shape: [(x.dtype, shape(x.shape))],
      largest=True,
      skip=overflows,
    )
    for name, (rank, numbers, shape) in _DOTS.items()
  ],
  Row(
    "dot_preferred",
    "iu",
    lambda p, x, y: lax.dot_general(x, y, _DOTS["inner"][1], preferred_element_type=jnp.int32),
    ranks=(2, 2),
    more=lambda x, p: [(x.dtype, (x.shape[1], 3))],
  ),
  Row(
    "conv",
    "if",
    _conv,
    ranks=(3, 3),
    params=_conv_params,
    units=32.0,
    largest=True,
    skip=overflows,
    more=lambda x, p: [(x.dtype, (2 * p[5], x.shape[1] // p[5], p[6]))],
  ),
  Row(
    "window_add",
    "iuf",
    _window(lax.add, lambda d: np.array(0, d)),
    ranks=(1, 3),
    params=_windows,
    units=16.0,
    largest=True,
    skip=overflows,
  ),
  Row(
    "window_mul",
    "iuf",
    _window(lax.mul, lambda d: np.array(1, d)),
    ranks=(1, 2),
    params=_windows,
    units=64.0,
    skip=product_overflows,
    gradient=False,
  ),
  Row(
    "window_max",
    "iuf",
    _window(lax.max, lowest),
    ranks=(1, 3),
    params=_windows,
    units=UNSIGNED_ZERO,
  ),
  Row(
    "window_min",
    "iuf",
    _window(lax.min, _highest),
    ranks=(1, 3),
    params=_windows,
    units=UNSIGNED_ZERO,
  ),
]


def _scan(p: Any, x: Any) -> Any:
  def step(carry: Any, row: Any) -> Any:
    carry = lax.max(carry, row)
    return carry, (carry, row)

  return lax.scan(step, jnp.zeros(x.shape[1:], x.dtype), x, reverse=p[0])


def _count_down(p: Any, x: Any) -> Any:
  return lax.while_loop(
    lambda s: jnp.any(s[0] > 1),
    lambda s: (lax.shift_right_logical(s[0], jnp.ones_like(s[0])), s[1] + 1),
    (x, jnp.int32(0)),
  )


# A body for `cond`, `switch` and loops, of one array of any dtype.
def _branches(x: Any) -> list[Any]:
  return [lambda v: v, lambda v: lax.rev(v, range(v.ndim)), lambda v: jnp.zeros_like(v)]


CONTROL = [
  Row(
    "cond",
    ALL,
    lambda p, x, y, w: lax.cond(w, lambda a, b: (a, b), lambda a, b: (b, a), x, y),
    more=lambda x, p: [(x.dtype, x.shape), (bool, ())],
    moves=True,
  ),
  Row(
    "switch",
    ALL,
    lambda p, x, i: lax.switch(i, _branches(x), x),
    more=lambda x, p: [("int32", ())],
    moves=True,
  ),
  Row(
    "fori",
    ALL,
    lambda p, x: lax.fori_loop(0, p[0], lambda i, v: jnp.roll(v, 1), x),
    params=one_of([2, 0, 1, 3]),
    moves=True,
  ),
  Row(
    "fori_dynamic",
    "biufc",
    lambda p, x, n: lax.fori_loop(0, lax.clamp(0, n, 5), lambda i, v: jnp.roll(v, i), x),
    more=lambda x, p: [("int32", ())],
    moves=True,
    gradient=False,
  ),
  Row("while", "u", _count_down, gradient=False),
  Row("scan", "iuf", _scan, params=one_of([False, True]), ranks=(1, 3), units=UNSIGNED_ZERO),
  Row(
    "scan_set",
    ALL,
    lambda p, x, y: lax.fori_loop(0, x.shape[0], lambda i, v: v.at[i].set(y), x),
    ranks=(1, 2),
    moves=True,
    more=lambda x, p: [(x.dtype, x.shape[1:])],
  ),
  Row(
    "map",
    "iuf",
    lambda p, x: lax.map(lambda v: lax.sort(v.ravel()), x),
    ranks=(2, 3),
    units=UNSIGNED_ZERO,
  ),
  Row(
    "vmap_dynamic_slice",
    ALL,
    lambda p, x, i: jax.vmap(lambda a, k: lax.dynamic_slice_in_dim(a, k, p[0]))(x, i),
    ranks=(2, 3),
    moves=True,
    params=lambda draw, x: (draw(st.integers(0, x.shape[1])),),
    more=lambda x, p: [("int32", x.shape[:1])],
  ),
  Row(
    "vmap_update_slice",
    ALL,
    lambda p, x, y, i: jax.vmap(lambda a, b, k: lax.dynamic_update_slice_in_dim(a, b, k, 0))(
      x, y, i
    ),
    ranks=(2, 3),
    moves=True,
    params=lambda draw, x: (draw(st.integers(0, x.shape[1])),),
    more=lambda x, p: [(x.dtype, (x.shape[0], p[0], *x.shape[2:])), ("int32", x.shape[:1])],
  ),
  Row(
    "vmap_at_set",
    ALL,
    lambda p, x, y, i: jax.vmap(lambda a, b, k: a.at[k].set(b))(x, y, i),
    ranks=(2, 3),
    moves=True,
    more=lambda x, p: [(x.dtype, (x.shape[0], *x.shape[2:])), ("int32", x.shape[:1])],
  ),
  Row(
    "vmap_cond",
    ALL,
    lambda p, x, w: jax.vmap(lambda a, k: lax.cond(k, lambda v: lax.rev(v, [0]), lambda v: v, a))(
      x, w
    ),
    ranks=(2, 3),
    moves=True,
    more=lambda x, p: [(bool, x.shape[:1])],
  ),
  Row(
    "vmap_sort",
    "biuf",
    lambda p, x: jax.vmap(lambda a: lax.sort(a, dimension=0), p[0], p[0])(x),
    ranks=(2, 3),
    params=full_axis,
    units=UNSIGNED_ZERO,
  ),
  Row(
    "vmap_dot",
    "iuf",
    lambda p, x, y: jax.vmap(jnp.dot, (p[0], 0), p[0])(x, y),
    ranks=(2, 2),
    params=one_of([0, 1]),
    units=32.0,
    largest=True,
    skip=overflows,
    more=lambda x, p: [(x.dtype, (x.shape[p[0]], x.shape[1 - p[0]]))],
  ),
  Row(
    "vmap_while",
    "u",
    lambda p, x: jax.vmap(lambda a: lax.while_loop(lambda v: v > 1, lambda v: v // 2, a))(x),
    ranks=(1, 1),
    gradient=False,
  ),
]

register(MOVEMENT, INDEXING, CONTRACTIONS, CONTROL)
__all__ = ["ROWS"]
