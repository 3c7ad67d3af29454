"""The functions that random programs are made of, and how close their results must be: one table,
`ROWS`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st
from jax import lax

Aval = Any
Draw = Callable[..., Any]

# Units are those of `harnesses.error_in_ulp`: machine epsilons relative to the value. EXACT: one
# IEEE operation, or a selection: the same bits but for the payload of NaN. UNSIGNED_ZERO: the same
# value; the sign of a zero is open (docs/limitations.md: sign, max, min and what is made of them).
EXACT, UNSIGNED_ZERO = -1.0, 0.0

# Of arrays, and what they are cast to.
DTYPES = [
  "float32",
  "int32",
  "bool",
  "int8",
  "int16",
  "uint8",
  "uint16",
  "uint32",
  "bfloat16",
  "float16",
  "complex64",
]
DTYPES_X64 = [*DTYPES, "float64", "int64", "uint64", "complex128"]


@dataclasses.dataclass(frozen=True)
class Row:
  """One function.

  Attributes:
    name: the key.
    kinds: kinds of dtype that the first operand may have: b, i, u, f (bfloat16 too), c.
    fun: (params, *operands) -> result(s).
    ranks: smallest and largest rank of the first operand.
    params: (draw, first aval) -> static params, or None if none fit.
    more: (first aval, params) -> (dtype, shape) of the further operands.
    units: allowed error of a float result; see above.
    largest: the error is relative to the largest operand, product of operands or result: terms in
      another order.
    least: and to this number, if the others are smaller; for gradients in any case.
    skip: (params, *operands) -> True where the value is not compared, of the shape of the result or
      one for all.
    moves: copies bits and looks at none, so subnormals are compared too.
    gradient: JAX has a derivative, and TAME values keep it away from kinks.
  """

  name: str
  kinds: str
  fun: Callable[..., Any]
  ranks: tuple[int, int] = (0, 3)
  params: Callable[[Draw, Aval], tuple[Any, ...] | None] = lambda draw, x: ()
  more: Callable[[Aval, tuple[Any, ...]], Sequence[tuple[Any, tuple[int, ...]]]] = lambda x, p: ()
  units: float = EXACT
  largest: bool = False
  least: float = 0.0
  skip: Callable[..., Any] | None = None
  moves: bool = False
  gradient: bool = True

  def takes(self, dtype: Any) -> bool:
    """Whether the first operand may have this dtype."""
    return kind_of(dtype) in self.kinds


def kind_of(dtype: Any) -> str:
  """b, i, u, f or c; NumPy calls bfloat16 V."""
  return "f" if dtype == jnp.bfloat16 else np.dtype(dtype).kind


# What further operands are like the first.
def same(n: int) -> Callable[..., Any]:
  """n operands like the first."""
  return lambda x, p: [(x.dtype, x.shape)] * n


def axis(draw: Draw, x: Aval) -> tuple[Any, ...]:
  """(axis,)"""
  return (draw(st.integers(0, len(x.shape) - 1)),)


def axes(draw: Draw, x: Aval) -> tuple[Any, ...]:
  """(axes,)"""
  return (tuple(i for i in range(len(x.shape)) if draw(st.booleans())),)


def full_axis(draw: Draw, x: Aval) -> tuple[Any, ...] | None:
  """(axis,) of an axis that is not empty."""
  (i,) = axis(draw, x)
  return (i,) if x.shape[i] else None


def one_of(*strategies: Any) -> Callable[..., Any]:
  """Params drawn without a look at the operand."""
  return lambda draw, x: tuple(
    draw(s if isinstance(s, st.SearchStrategy) else st.sampled_from(s)) for s in strategies
  )


def both(*drawers: Callable[..., Any]) -> Callable[..., Any]:
  """The params of several drawers, one after another."""

  def params(draw: Draw, x: Aval) -> tuple[Any, ...] | None:
    parts = [d(draw, x) for d in drawers]
    return None if None in parts else tuple(v for part in parts if part is not None for v in part)

  return params


def lowest(dtype: Any) -> Any:
  """The identity of max."""
  return np.array(-np.inf if jnp.issubdtype(dtype, np.floating) else jnp.iinfo(dtype).min, dtype)


# What is not compared.
def wild(p: Any, *operands: Any) -> Any:
  """Complex functions at infinities, on the axes (zeros, branch cuts) and where a square overflows:
  two libraries' arithmetic."""
  skip = False
  for x in operands:
    if np.iscomplexobj(x):
      for part in (x.real, x.imag):
        skip = skip | ~((np.abs(part) > 1e-2) & (np.abs(part) < 20.0))
  return skip


def overflows(p: Any, *operands: Any) -> bool:
  """Sums of products in another order may overflow, or underflow to zero, elsewhere."""
  return any(_exponents(x).max(initial=0.0) > _room(x) / 4 for x in operands)


def product_overflows(p: Any, *operands: Any) -> bool:
  """A product in another order may overflow, or underflow to zero, elsewhere; complex infinities
  are open anyway."""
  return any(
    _exponents(x).sum() > _room(x) - 2 or (np.iscomplexobj(x) and not np.isfinite(x).all())
    for x in operands
  )


def _exponents(x: Any) -> np.ndarray:
  if not jnp.issubdtype(x.dtype, np.inexact):
    return np.zeros(0)
  size = np.abs(x.astype(np.complex128 if np.iscomplexobj(x) else np.float64)).ravel()
  return np.abs(np.log2(size[np.isfinite(size) & (size != 0)]))


def _room(x: Any) -> int:
  return int(jnp.finfo(x.dtype).maxexp) if jnp.issubdtype(x.dtype, np.inexact) else 1


def any_nan(p: Any, *operands: Any) -> bool:
  """Where is the NaN?"""
  return any(jnp.issubdtype(x.dtype, np.inexact) and np.isnan(x).any() for x in operands)


def _unary(names: str, kinds: str, units: float, module: Any = lax, **options: Any) -> list[Row]:
  return [
    Row(n, kinds, lambda p, x, n=n: getattr(module, n)(x), units=units, **options)
    for n in names.split()
    if hasattr(module, n)
  ]


def _binary(
  names: str, kinds: str, units: float = EXACT, module: Any = lax, **options: Any
) -> list[Row]:
  return [
    Row(
      n, kinds, lambda p, x, y, n=n: getattr(module, n)(x, y), more=same(1), units=units, **options
    )
    for n in names.split()
  ]


ELEMENTWISE = [
  *_unary("neg square", "iuf", EXACT),
  *_unary("bitwise_not", "biu", EXACT),
  *_unary("population_count clz", "iu", EXACT),
  *_unary("abs", "if", EXACT),
  *_unary("floor ceil is_finite", "f", EXACT, gradient=False),
  *_unary("isnan signbit", "f", EXACT, jnp),
  *_unary("sqrt", "f", EXACT),
  *_unary("sign", "iuf", UNSIGNED_ZERO),
  *_unary("real imag conj", "c", EXACT),
  # Faithful, but rounded by other polynomials.
  *_unary(
    "exp expm1 log log1p sin cos tan asin acos atan tanh asinh acosh atanh logistic rsqrt cbrt "
    "reciprocal",
    "f",
    8.0,
  ),
  # exp(x log 2): the error of the product grows with x
  *_unary("exp2 sinh cosh erf erfc", "f", 256.0),
  *_unary("erf_inv bessel_i0e bessel_i1e", "f", 64.0, least=1.0),  # JAX's derivative of i1e cancels
  # another series; relative to 1 near their zeros
  *_unary("lgamma digamma", "f", 2048.0, largest=True, least=1.0),
  *[
    dataclasses.replace(r, name=r.name + "_c")
    for r in _unary("exp log sin cos tanh sqrt log1p expm1 abs square", "c", 256.0, skip=wild)
  ],
  Row(
    "round",
    "f",
    lambda p, x: lax.round(x, lax.RoundingMethod(p[0])),
    params=one_of([0, 1]),
    gradient=False,
  ),
  Row(
    "integer_pow",
    "iuf",
    lambda p, x: lax.integer_pow(x, p[0]),
    params=one_of([2, 0, 1, 3, 5]),
    units=8.0,
    skip=product_overflows,
  ),
  Row(
    "reduce_precision",
    "f",
    lambda p, x: lax.reduce_precision(x, *p),
    params=one_of([5, 8], [7, 3, 10]),
  ),
  *_binary("add sub mul", "iuf"),
  *[dataclasses.replace(r, name=r.name + "_c") for r in _binary("add sub", "c")],
  *[
    dataclasses.replace(r, name=r.name + "_c")
    for r in _binary("mul div pow", "c", 256.0, skip=wild)
  ],
  *_binary("div", "iuf"),
  *_binary("rem", "iuf", gradient=False),
  *_binary("max min", "biuf", UNSIGNED_ZERO),
  *[
    dataclasses.replace(r, name=r.name + "_c")
    for r in _binary("max min", "c", UNSIGNED_ZERO, skip=any_nan, gradient=False)
  ],
  *_binary("bitwise_and bitwise_or bitwise_xor", "biu"),
  *_binary("shift_left shift_right_logical shift_right_arithmetic", "iu"),
  *_binary("eq ne", "biufc"),
  *_binary("lt le gt ge", "biuf"),
  *_binary("nextafter", "f", gradient=False),
  *_binary("pow", "f", 256.0),  # exp(y log x) in one of the two
  *_binary("atan2", "f", 8.0),
  Row(
    "pow_int",
    "f",
    lambda p, x, y: lax.pow(x, y),
    more=lambda x, p: [("int32", x.shape)],
    units=256.0,
    gradient=False,
  ),
  Row("complex", "f", lambda p, x, y: lax.complex(x, y), more=same(1), moves=True),
  *_binary("hypot", "f", 64.0, jnp),
  # max(x, y) + log(...) cancels near zero
  *_binary("logaddexp logaddexp2", "f", 64.0, jnp, largest=True),
  *_binary("floor_divide mod fmod", "iuf", UNSIGNED_ZERO, jnp, gradient=False),
  *_binary("copysign", "f", EXACT, jnp, gradient=False),
  # JAX's own loop does not end for the smallest signed integer
  *_binary("gcd lcm", "u", EXACT, jnp, ranks=(0, 1)),
  *_unary("nan_to_num trunc", "f", EXACT, jnp, gradient=False),
  *_unary("sinc", "f", 64.0, jnp, gradient=False),
  Row(
    "clamp",
    "biuf",
    lambda p, x, low, high: lax.clamp(low, x, high),
    more=same(2),
    units=UNSIGNED_ZERO,
  ),
  Row(
    "clamp_scalar",
    "biuf",
    lambda p, x, low, high: lax.clamp(low, x, high),
    more=lambda x, p: [(x.dtype, ())] * 2,
    units=UNSIGNED_ZERO,
  ),
  Row(
    "select",
    "biufc",
    lambda p, x, y, w: lax.select(w, x, y),
    more=lambda x, p: [(x.dtype, x.shape), (bool, x.shape)],
    moves=True,
  ),
  Row(
    "where_scalar",
    "biufc",
    lambda p, x, y, w: jnp.where(w, x, y),
    more=lambda x, p: [(x.dtype, ()), (bool, x.shape[-1:])],
    moves=True,
  ),
  Row(
    "select_n",
    "biufc",
    lambda p, x, y, z, w: lax.select_n(w, x, y, z),
    moves=True,
    more=lambda x, p: [(x.dtype, x.shape)] * 2 + [("int32", x.shape)],
  ),
]

_BITS = [d for d in DTYPES_X64 if d not in ("bool", "complex64", "complex128")]
CASTS = [
  Row(
    "astype",
    "biufc",
    lambda p, x: lax.convert_element_type(x, p[0]),
    params=one_of(DTYPES_X64),
    gradient=False,
  ),
  # TensorFlow has no bitcast of bool (docs/limitations.md), XLA none of complex.
  Row(
    "bitcast",
    "iuf",
    lambda p, x: lax.bitcast_convert_type(x, p[0]),
    params=one_of(_BITS),
    ranks=(0, 2),
    moves=True,
    gradient=False,
  ),
]

_REDUCE = {"sum": 8.0, "prod": 64.0, "max": UNSIGNED_ZERO, "min": UNSIGNED_ZERO}
_SKIP = {"sum": overflows, "prod": product_overflows}
REDUCTIONS = [
  *[
    Row(
      f"reduce_{n}",
      "iuf" if n in _SKIP else "biuf",
      lambda p, x, n=n: getattr(lax, f"reduce_{n}")(x, p[0]),
      params=axes,
      units=u,
      largest=n == "sum",
      skip=_SKIP.get(n),
    )
    for n, u in _REDUCE.items()
  ],
  Row(
    "reduce_sum_c",
    "c",
    lambda p, x: lax.reduce_sum(x, p[0]),
    params=axes,
    units=16.0,
    largest=True,
    skip=overflows,
  ),
  Row(
    "reduce_prod_c",
    "c",
    lambda p, x: lax.reduce_prod(x, p[0]),
    params=axes,
    units=64.0,
    largest=True,
    skip=product_overflows,
  ),
  *[
    Row(f"reduce_{n}", "biu", lambda p, x, n=n: getattr(lax, f"reduce_{n}")(x, p[0]), params=axes)
    for n in ("and", "or", "xor")
  ],
  *[
    Row(
      n,
      "biuf",
      lambda p, x, n=n: getattr(lax, n)(x, *p),
      params=both(full_axis, one_of(["int32", "uint8", "int16"])),
      ranks=(1, 3),
    )
    for n in ("argmax", "argmin")
  ],
  Row(
    "mean",
    "f",
    lambda p, x: jnp.mean(x, p[0]),
    params=full_axis,
    ranks=(1, 3),
    units=16.0,
    largest=True,
    skip=overflows,
  ),
  Row(
    "logsumexp",
    "f",
    lambda p, x: jax.nn.logsumexp(x, p[0]),
    params=full_axis,
    ranks=(1, 3),
    units=64.0,
    largest=True,
    skip=overflows,
  ),
  Row(
    "softmax",
    "f",
    lambda p, x: jax.nn.softmax(x, p[0]),
    params=full_axis,
    ranks=(1, 3),
    units=256.0,
    largest=True,
    skip=overflows,
  ),
  Row(
    "ptp", "iuf", lambda p, x: jnp.ptp(x, p[0]), params=full_axis, ranks=(1, 3), units=UNSIGNED_ZERO
  ),
  Row(
    "reduce_of_two",
    "iuf",
    lambda p, x, y: lax.reduce((x, y), (lowest(x.dtype),) * 2, _larger_pair, p[0]),
    params=axes,
    more=same(1),
    units=UNSIGNED_ZERO,
    skip=any_nan,
    gradient=False,
  ),
  *[
    Row(
      n,
      k,
      lambda p, x, n=n: getattr(lax, n)(x, p[0], reverse=p[1]),
      params=both(axis, one_of([False, True])),
      ranks=(1, 3),
      units=u,
      largest=n == "cumsum",
      skip=s,
    )
    for n, k, u, s in [
      # f16 and bf16 round once, in the end (docs/limitations.md): 5 terms round to within 16 units.
      ("cumsum", "iuf", 16.0, overflows),
      ("cumprod", "iuf", 64.0, product_overflows),
      ("cummax", "iuf", UNSIGNED_ZERO, None),
      ("cummin", "iuf", UNSIGNED_ZERO, None),
    ]
  ],
  Row(
    "cumlogsumexp",
    "f",
    lambda p, x: lax.cumlogsumexp(x, p[0], reverse=p[1]),
    params=both(axis, one_of([False, True])),
    ranks=(1, 3),
    units=64.0,
    largest=True,
    skip=overflows,
  ),
]


def _larger_pair(a: Any, b: Any) -> Any:
  # In order of both, so that the initial values are an identity: XLA leaves them out where no axis
  # is reduced.
  larger = (a[0] > b[0]) | ((a[0] == b[0]) & (a[1] >= b[1]))
  return lax.select(larger, a[0], b[0]), lax.select(larger, a[1], b[1])


def _sort_params(draw: Draw, x: Aval) -> tuple[Any, ...]:
  keys = draw(st.integers(1, 2))
  return (*axis(draw, x), keys, draw(st.sampled_from(["int32", "float32", "uint8", "bool"])))


SORTS = [
  Row(
    "sort",
    "biuf",
    lambda p, x: lax.sort(x, dimension=p[0]),
    params=axis,
    ranks=(1, 3),
    units=UNSIGNED_ZERO,
  ),
  Row(
    "sort_two",
    "biuf",
    lambda p, x, y: lax.sort((x, y), dimension=p[0], num_keys=p[1]),
    params=_sort_params,
    ranks=(1, 3),
    more=lambda x, p: [(p[2], x.shape)],
    units=UNSIGNED_ZERO,
  ),
  Row(
    "argsort",
    "biuf",
    lambda p, x: jnp.argsort(x, p[0], descending=p[1]),
    params=both(axis, one_of([False, True])),
    ranks=(1, 3),
  ),
  Row(
    "top_k",
    "iuf",
    lambda p, x: lax.top_k(x, p[0]),
    ranks=(1, 3),
    units=UNSIGNED_ZERO,
    params=lambda draw, x: (draw(st.integers(0, x.shape[-1])),),
  ),
  Row(
    "searchsorted",
    "iuf",
    lambda p, x, y: jnp.searchsorted(x, y, side=p[0]),
    ranks=(1, 1),
    params=one_of(["left", "right"]),
    more=same(1),
    skip=any_nan,
  ),
]

FAMILIES: list[list[Row]] = [ELEMENTWISE, CASTS, REDUCTIONS, SORTS]
ROWS: dict[str, Row] = {}


def register(*families: Sequence[Row]) -> None:
  """Adds rows to the table; a name stands for one row."""
  for family in families:
    for row in family:
      assert row.name not in ROWS, row.name
      ROWS[row.name] = row


register(*FAMILIES)
