"""A `Row` is one function under one polymorphic spec: converted once, run at several sizes,
compared with JAX at each of them."""

from __future__ import annotations

import contextlib
import functools
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
import pytest
import tensorflow as tf
from jax import export

import jax2tf
from jax2tf._jax_compat.shape_poly import dimension_variables
from tests.support.case import close, xla_ops
from tests.support.derivatives import inexact, jax_pullback, random_like, restricted, tf_pullback

# Sizes of the first, second ... dimension variable in the order of their names: all 1, then odd and
# even ones that differ.
_SIZES = [(1, 1, 1, 1), (3, 4, 2, 5), (6, 5, 3, 4)]


@dataclass(frozen=True)
class Arg:
  """A random argument.

  Attributes:
    shape: a full polymorphic shape, as "b, 2*d".
    make: (generator, sizes) -> array.
  """

  shape: str
  make: Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


def floats(shape: str, dtype: Any = np.float32) -> Arg:
  """Standard normal numbers, which have no ties."""
  return Arg(shape, lambda rng, sizes: rng.standard_normal(sizes).astype(dtype))


def positive(shape: str, dtype: Any = np.float32) -> Arg:
  """Numbers between 0.5 and 2."""
  return Arg(shape, lambda rng, sizes: rng.uniform(0.5, 2, sizes).astype(dtype))


def ints(shape: str, low: int = -4, high: int = 10, dtype: Any = np.int32) -> Arg:
  """Integers from `low` to `high - 1`, with ties."""
  return Arg(shape, lambda rng, sizes: rng.integers(low, high, sizes).astype(dtype))


def bools(shape: str) -> Arg:
  """Random truth values."""
  return Arg(shape, lambda rng, sizes: rng.random(sizes) < 0.5)


def spd(shape: str) -> Arg:
  """Symmetric matrices with eigenvalues of at least 1."""

  def make(rng: np.random.Generator, sizes: tuple[int, ...]) -> np.ndarray:
    x = rng.standard_normal(sizes)
    return (x @ np.swapaxes(x, -1, -2) + np.eye(sizes[-1]) * range(1, sizes[-1] + 1)).astype(
      np.float32
    )

  return Arg(shape, make)


@dataclass(frozen=True, eq=False)
class Row:
  """One function and one spec.

  Attributes:
    name: unique in the table.
    fun: the JAX function.
    args: a pytree of `Arg`s for each argument; a string stands for `floats` of that shape, and a
      single one for the only argument.
    sizes: "b=1 3 5; d=2 4 6", the dimension variables at each run; by default every variable is 1,
      then 3 to 6.
    poly: `polymorphic_shapes`, where these are not the shapes of `args`.
    constraints: `polymorphic_constraints`.
    partitionable: the value of jax_threefry_partitionable, or None for JAX's own.
    no_gradient: JAX's own words where JAX has no derivative for symbolic sizes; the converted
      function has to say the same.
    rtol: relative to the largest value of each array; say why in a comment on the row.
    second: also compare the VJP of the VJP, at one size.
    eager: also run without a tf.function.
    xla: also run under jit_compile=True.
    xfail: {way: reason}; strict.
  """

  name: str
  fun: Callable[..., Any]
  args: Any
  sizes: str = ""
  poly: Any = None
  constraints: Sequence[str] = ()
  partitionable: bool | None = None
  no_gradient: str = ""
  rtol: float = 4e-6
  second: bool = False
  eager: bool = False
  xla: bool = False
  xfail: dict[str, str] = field(default_factory=dict)

  @property
  def ways(self) -> list[str]:
    """The ways in which the row is run."""
    return ["sizes", *(way for way in ("second", "eager", "xla") if getattr(self, way))]

  @functools.cached_property
  def arguments(self) -> tuple[Any, ...]:
    """The pytrees of `Arg`s."""
    args = self.args if isinstance(self.args, tuple) else (self.args,)
    return jax.tree.map(lambda a: floats(a) if isinstance(a, str) else a, args, is_leaf=_is_arg)

  @functools.cached_property
  def specs(self) -> Any:
    """The arguments as jax.ShapeDtypeStruct with symbolic dimensions."""
    scope = export.SymbolicScope(self.constraints)
    avals = [
      jax.ShapeDtypeStruct(
        export.symbolic_shape(a.shape, scope=scope),
        a.make(np.random.default_rng(0), (1, 1, 1, 1)).dtype,
      )
      for a in jax.tree.leaves(self.arguments, is_leaf=_is_arg)
    ]
    return jax.tree.unflatten(jax.tree.structure(self.arguments, is_leaf=_is_arg), avals)

  @functools.cached_property
  def runs(self) -> list[dict[str, int]]:
    """The dimension variables at each run."""
    if self.sizes:
      columns = [column.split("=") for column in self.sizes.split(";")]
      return [
        dict(zip((c[0].strip() for c in columns), map(int, n), strict=True))
        for n in zip(*(c[1].split() for c in columns), strict=True)
      ]
    variables = sorted(
      {
        v
        for x in jax.tree.leaves(self.specs)
        for d in x.shape
        if not isinstance(d, int)
        for v in dimension_variables(d)
      }
    )
    return [dict(zip(variables, n, strict=False)) for n in _SIZES]

  def operands(self, run: dict[str, int]) -> tuple[Any, ...]:
    """The arguments at one run."""
    rng = np.random.default_rng(zlib.crc32(f"{self.name} {run}".encode()))
    return jax.tree.map(
      lambda a: a.make(rng, _evaluated(a.shape, run)), self.arguments, is_leaf=_is_arg
    )

  def converted(self) -> Callable[..., Any]:
    """The function, converted with the row's specs."""
    poly = (
      jax.tree.map(lambda a: a.shape, list(self.arguments), is_leaf=_is_arg)
      if self.poly is None
      else self.poly
    )
    return jax2tf.convert(
      self.fun, polymorphic_shapes=poly, polymorphic_constraints=self.constraints
    )

  def config(self) -> contextlib.AbstractContextManager[Any]:
    """The JAX configuration of the row."""
    return (
      contextlib.nullcontext()
      if self.partitionable is None
      else jax.threefry_partitionable(self.partitionable)
    )


def _is_arg(x: Any) -> bool:
  return isinstance(x, Arg | str)


def _evaluated(shape: str, run: dict[str, int]) -> tuple[int, ...]:
  functions = {"floordiv": lambda a, b: a // b, "mod": lambda a, b: a % b, "max": max, "min": min}
  return eval(f"({shape.replace('^', '**')},)" if shape.strip() else "()", functions, dict(run))


@dataclass(frozen=True)
class Derivative:
  """What a row is differentiated in: floating point arguments and results, from `orders` lists of
  random cotangents."""

  wrt: tuple[int, ...]
  results: tuple[int, ...]
  orders: int

  @classmethod
  def of(cls, row: Row, orders: int = 1) -> Derivative | None:
    """None where there is nothing to differentiate."""
    wrt, results = inexact(jax.tree.leaves(row.specs)), inexact(jax.tree.leaves(_out_avals(row)))
    return cls(tuple(wrt), tuple(results), orders) if wrt and results else None

  def avals(self, row: Row) -> list[list[Any]]:
    """The avals of the cotangents."""
    leaves, outs = jax.tree.leaves(row.specs), jax.tree.leaves(_out_avals(row))
    return [[outs[i] for i in self.results], *[[leaves[i] for i in self.wrt]] * (self.orders - 1)]

  def seeds(self, args: Any, outs: Any) -> list[list[np.ndarray]]:
    """Cotangents of the results, then of the cotangents of the arguments."""
    rng, leaves, ys = np.random.default_rng(0), jax.tree.leaves(args), jax.tree.leaves(outs)
    return [
      [random_like(rng, ys[i]) for i in self.results],
      *[[random_like(rng, leaves[i]) for i in self.wrt]] * (self.orders - 1),
    ]

  def pullback(self, tape: Callable[..., Any], fun: Callable[..., Any]) -> Callable[..., Any]:
    """(args, seeds) -> cotangents."""

    def pull(args: Any, seeds: Any) -> list[Any]:
      leaves = jax.tree.leaves(args)
      return list(
        tape(restricted(fun, args, self.wrt, self.results), seeds, *[leaves[i] for i in self.wrt])
      )

    return pull


@functools.lru_cache(maxsize=2)
def _out_avals(row_: Row) -> Any:
  return jax.eval_shape(row_.fun, *row_.specs)


def _tensor_specs(avals: Any) -> Any:
  """TensorSpecs in which every symbolic size is unknown."""
  return jax.tree.map(
    lambda a: tf.TensorSpec([d if isinstance(d, int) else None for d in a.shape], a.dtype), avals
  )


def _concrete(fun: Callable[..., Any], *avals: Any, **options: Any) -> Any:
  concrete = tf.function(fun, autograph=False, **options).get_concrete_function(
    *_tensor_specs(avals)
  )
  assert not xla_ops(concrete.graph)
  return concrete


@functools.lru_cache(maxsize=2)
def _reference(row: Row, derivative: Derivative | None) -> Callable[..., Any]:
  """(args, seeds) -> JAX's results and cotangents: one compilation for each run, which serves all
  ways."""

  def reference(args: Any, seeds: Any) -> Any:
    return row.fun(*args), derivative.pullback(jax_pullback, row.fun)(
      args, seeds
    ) if derivative else None

  return jax.jit(reference)


def _compare(
  row: Row,
  runs: Any,
  values: Callable[..., Any] | None,
  gradient: Callable[..., Any] | None = None,
  orders: int = 1,
) -> None:
  """The functions against JAX's at each run."""
  derivative = None if row.no_gradient else Derivative.of(row, orders)
  for run in runs:
    args = row.operands(run)
    seeds = derivative.seeds(args, jax.eval_shape(row.fun, *args)) if derivative else []
    expected, cotangents = _reference(row, derivative)(args, seeds)
    tensors = jax.tree.map(tf.constant, args)
    try:
      if values:
        close(values(*tensors), expected, rtol=row.rtol, of_the_largest=True)
      if gradient:
        close(
          gradient(tensors, jax.tree.map(tf.constant, seeds)),
          cotangents,
          rtol=row.rtol,
          of_the_largest=True,
        )
    except Exception as error:
      error.add_note(f"at {run}")
      raise


def check_sizes(row: Row) -> None:
  """One conversion, one graph for the values and one for the gradient, both without a known size,
  at all sizes."""
  converted, derivative = row.converted(), Derivative.of(row)
  values = _concrete(converted, *row.specs)
  _check_static_shapes(values, _out_avals(row))
  gradient = None
  if derivative:
    avals = row.specs, derivative.avals(row)
    if row.no_gradient:
      with pytest.raises(Exception, match=row.no_gradient):
        jax.eval_shape(derivative.pullback(jax_pullback, row.fun), *avals)
      with pytest.raises(Exception, match=row.no_gradient):
        _concrete(derivative.pullback(tf_pullback, converted), *avals)
    else:
      gradient = _concrete(derivative.pullback(tf_pullback, converted), *avals)
      _check_static_shapes(gradient, [jax.tree.leaves(row.specs)[i] for i in derivative.wrt])
  _compare(row, row.runs, values, gradient)


def _check_static_shapes(concrete: Any, avals: Any) -> None:
  """What is constant for JAX is static for TensorFlow."""
  for aval, y in zip(
    jax.tree.leaves(avals), jax.tree.leaves(concrete.structured_outputs), strict=True
  ):
    assert all(n == m for n, m in zip(aval.shape, y.shape, strict=True) if isinstance(n, int)), (
      f"static shape {y.shape}, JAX has {aval}"
    )


def check_second(row: Row) -> None:
  """The VJP of the VJP, in a graph without a known size, at an odd size."""
  derivative = Derivative.of(row, orders=2)
  assert derivative, "nothing to differentiate"
  gradient = _concrete(
    derivative.pullback(tf_pullback, row.converted()), row.specs, derivative.avals(row)
  )
  _compare(row, row.runs[1:2], None, gradient, orders=2)


def check_eager(row: Row) -> None:
  """The same conversion, eagerly, at two sizes."""
  converted, derivative = row.converted(), None if row.no_gradient else Derivative.of(row)
  _compare(row, row.runs[:2], converted, derivative and derivative.pullback(tf_pullback, converted))


def check_xla(row: Row) -> None:
  """The graph without a known size, compiled by XLA at an odd size."""
  _compare(row, row.runs[1:2], _concrete(row.converted(), *row.specs, jit_compile=True))


CHECKS = {"sizes": check_sizes, "second": check_second, "eager": check_eager, "xla": check_xla}
