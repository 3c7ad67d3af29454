"""Symbolic dimensions: their values in the graph.

`Dimensions` computes the dimension variables from the sizes of the arguments, and their
constraints; the formulas are jaxprs, lowered by the same rules as the user's equations.
`DimensionValues` computes each symbolic dimension and each shape at most once per graph.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import jax
import jax.extend.core.primitives as P
import numpy as np
import tensorflow as tf
from jax import lax
from jax.export import is_symbolic_dim
from jax.extend.core import Literal, Primitive

from jax2tf import _jax_compat, _tf_compat
from jax2tf._jax_compat import shape_poly
from jax2tf._tf_compat import scopes
from jax2tf.dimension_solver import solve_dimension_variables
from jax2tf.errors import SizeError
from jax2tf.jaxprs import ClosedJaxpr, Eqn, contains, inner_jaxprs

Size: TypeAlias = Any  # int | tf.Tensor; TensorFlow has no usable annotations
# (a jaxpr, sizes of any integer type) -> its results
Lower = Callable[..., list[tf.Tensor]]

_checks_sizes: contextvars.ContextVar[bool] = contextvars.ContextVar("checks_sizes", default=True)


@contextlib.contextmanager
def without_checks() -> Iterator[None]:
  """For graphs that are made inside, whose reader drops the assertions on sizes that are known only
  when the graph runs."""
  token = _checks_sizes.set(False)
  try:
    yield
  finally:
    _checks_sizes.reset(token)


@dataclass(frozen=True, eq=False)
class Dimensions:
  """How dimension variables follow from argument shapes.

  Attributes:
    solution: variable -> expression over the named argument sizes.
    constraints: JAX's conditions on these sizes; None without checks.
    sizes: (name, argument index, axis) of each size that an expression may use.
  """

  solution: dict[str, Any]
  constraints: Any
  sizes: tuple[tuple[str, int, int], ...]

  @classmethod
  def of(cls, avals: Sequence[Any], in_tree: Any) -> Dimensions:
    """Raises ValueError, JAX's own, for a variable that cannot be solved."""
    if not any(is_symbolic_dim(d) for aval in avals for d in aval.shape):
      return cls({}, None, ())
    solution, constraints, sizes = solve_dimension_variables(avals, in_tree)
    return cls(solution, constraints, tuple(sizes))

  def check(self, shapes: Sequence[Sequence[int | None]]) -> None:
    """Raises SizeError, in JAX's words, for the first condition that the known sizes break."""
    if self.sizes:
      _formula(self, self._known(shapes))

  def values(self, operands: Sequence[tf.Tensor], lower: Lower) -> DimensionValues:
    """The dimension variables for these arguments: ints where the shapes are static, else graph
    scalars.

    Asserts the constraints: with SizeError for what is static, with InvalidArgumentError when the
    graph runs for the rest, unless `without_checks` leaves that out.
    """
    known = self._known([x.shape for x in operands])
    if self.constraints is not None and not _checks_sizes.get() and not any(known):
      return self._without_checks().values(operands, lower)
    shape_of = functools.cache(lambda argument: tf.shape(operands[argument]))
    vector = functools.cache(lambda n: tf.constant([n]))

    # shape_of(argument)[axis], whose constants serve all sizes
    def size_of(argument: int, axis: int) -> tf.Tensor:
      return tf.strided_slice(
        shape_of(argument), vector(axis), vector(axis + 1), vector(1), shrink_axis_mask=1
      )

    sizes = zip(known, self.sizes, strict=True)
    if self.constraints is None and (direct := self._direct()) is not None:
      scope = scopes.scope_here()
      return DimensionValues(
        {v: _Later(scope, functools.partial(size_of, *where)) for v, where in direct.items()}, lower
      )
    return self.values_of(
      [size_of(argument, axis) if size is None else size for size, (_, argument, axis) in sizes],
      lower,
    )

  def values_of(self, sizes: Sequence[Size], lower: Lower) -> DimensionValues:
    """As `values`, from the argument sizes themselves, in the order of `self.sizes`."""
    if not self.sizes:
      return DimensionValues({}, lower)
    jaxpr, variables = _formula(self, tuple(s if isinstance(s, int) else None for s in sizes))
    unknown = [s for s in sizes if not isinstance(s, int)]
    results = iter(lower(jaxpr, *unknown))
    return DimensionValues(
      {v: _narrow(next(results)) if size is None else size for v, size in variables.items()}, lower
    )

  def _without_checks(self) -> Dimensions:
    """The same from the sizes that the solution needs."""
    needed = frozenset[str]().union(*map(shape_poly.dimension_variables, self.solution.values()))
    sizes = tuple(size for size in self.sizes if size[0] in needed)
    return replace(self, constraints=None, sizes=sizes)

  def _direct(self) -> dict[str, tuple[int, int]] | None:
    """{variable: the argument and the axis whose size it is}; None if some are not just sizes."""
    places = {name: (argument, axis) for name, argument, axis in self.sizes}
    found = {v: places.get(str(expression)) for v, expression in self.solution.items()}
    direct = {v: where for v, where in found.items() if where is not None}
    return direct if len(direct) == len(found) else None

  def _known(self, shapes: Sequence[Any]) -> tuple[int | None, ...]:
    # TensorFlow 1 has an object for each size.
    return tuple(
      tf.compat.dimension_value(shapes[argument][axis]) for _, argument, axis in self.sizes
    )


@_jax_compat.weakly_cached
def _formula(
  dimensions: Dimensions, known: tuple[int | None, ...]
) -> tuple[ClosedJaxpr, dict[str, int | None]]:
  """(jaxpr: unknown sizes -> unknown variables, with the assertions; variable -> int or None)."""
  variables: dict[str, int | None] = {}

  def solve(*unknown: Any) -> list[Any]:
    traced = iter(unknown)
    sizes = {
      name: next(traced) if size is None else size
      for size, (name, _, _) in zip(known, dimensions.sizes, strict=True)
    }
    try:
      if dimensions.constraints is not None:
        shape_poly.check_constraints(dimensions.constraints, sizes)
    except ValueError as error:
      raise SizeError(str(error)) from None
    values = {v: shape_poly.evaluate_dimension(e, sizes) for v, e in dimensions.solution.items()}
    variables.update(
      {v: None if isinstance(value, jax.Array) else int(value) for v, value in values.items()}
    )
    return [value for v, value in values.items() if variables[v] is None]

  jaxpr = _jaxpr_of_sizes(solve, known.count(None))
  if _by_products(jaxpr):  # of a constraint such as a*b <= 1000
    jaxpr = _jaxpr_of_sizes(solve, known.count(None), np.int64)
  return jaxpr, variables


@dataclass(frozen=True)
class _Later:
  """A size that is computed in a scope, if it is needed."""

  scope: scopes.Scope | None
  compute: Callable[[], Size]

  def __call__(self) -> Size:
    with _inside(self.scope):
      return self.compute()


def _inside(scope: scopes.Scope | None) -> contextlib.AbstractContextManager[Any]:
  """Makes ops in the scope."""
  is_here = scope in (None, scopes.scope_here())
  return contextlib.nullcontext() if scope is None or is_here else scope.entered()


class DimensionValues:
  """Values of symbolic dimensions in the graph of one lowering, each computed once.

  They are computed in the outermost graph, which the bodies of loops and branches capture. Computed
  inside a body, they could not be used outside.

  Args:
    variables: name -> value.
  """

  def __init__(self, variables: Mapping[str, Size | _Later], lower: Lower):
    self._variables = dict(variables)
    self._lower = lower
    self._scope = scopes.scope_here()
    self._dims: dict[Any, Size] = {}
    self._wide: dict[Any, Size] = {}
    self._wrapping: dict[Any, tuple[tf.Tensor, tf.Tensor, tf.Tensor]] = {}
    self._shapes: dict[tuple[Any, ...], list[int] | tf.Tensor] = {}
    self._constant_shapes: dict[tuple[tf.Graph, tuple[int, ...]], tf.Tensor] = {}
    self._constant = functools.cache(tf.constant)

  @property
  def variables(self) -> dict[str, Size]:
    """{name: value}."""
    return {name: self._variable(name) for name in self._variables}

  def _variable(self, name: str) -> Size:
    size = self._variables[name]
    if isinstance(size, _Later):
      self._variables[name] = size = size()
    return size

  def __call__(self, dim: Any) -> Size:
    if not is_symbolic_dim(dim):
      return int(dim)
    if dim not in self._dims:
      # The size of an array fits in 32 bits; a product from which it follows by a division may not.
      self._dims[dim] = (
        self._narrowed(self.wide_value(dim)) if _needs_products(dim) else self._evaluate(dim)
      )
    return self._dims[dim]

  def wide_value(self, dim: Any) -> Size:
    """The value of a dimension as an int or i64[], for formulas such as `b**4` that may exceed 32
    bits."""
    if not _has_product(dim):
      return self(dim)
    if dim not in self._wide:
      self._wide[dim] = self._evaluate(dim, np.int64)
    return self._wide[dim]

  def wrapping_value(self, dim: Any) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor] | None:
    """(a dimension in 32 bits, where it may wrap; whether it is right; the value in f32), without
    the 64 bits that TF.js does not have.

    None for an int, for a formula without a product, and for one that divides a product.
    """
    if not _has_product(dim) or _needs_products(dim) or isinstance(value := self(dim), int):
      return None
    if dim not in self._wrapping:
      rounded = self._evaluate(dim, np.float32)
      with self._outermost(), tf.device(rounded.device):
        # What wraps is off by 2**32. The rounding of products that fit is far below 2**20.
        self._wrapping[dim] = value, tf.abs(tf.cast(value, tf.float32) - rounded) < 2.0**20, rounded
    return self._wrapping[dim]

  def shape(self, dims: Sequence[Any]) -> list[int] | tf.Tensor:
    """A list of ints, or an int32 vector where a dimension is known only when the graph runs."""
    dims = tuple(dims)
    if dims not in self._shapes:
      sizes = [self(d) for d in dims]
      if all(isinstance(size, int) for size in sizes):
        return sizes
      with self._outermost():
        self._shapes[dims] = tf.stack(
          [self._constant(s) if isinstance(s, int) else s for s in sizes]
        )
    return self._shapes[dims]

  def constant_shape(self, sizes: Sequence[int]) -> Sequence[int] | tf.Tensor:
    """The operand of a Reshape: one constant for all of a graph, because graphs have many Reshapes
    and few shapes."""
    graph, key = _tf_compat.current_graph(), tuple(sizes)
    if graph is None or max(sizes, default=0) > np.iinfo(np.int32).max:
      return sizes
    if (graph, key) not in self._constant_shapes:
      # Without the dependencies and the device of its first use.
      with tf.control_dependencies(None), tf.device(None):
        self._constant_shapes[graph, key] = tf.constant(key, tf.int32, [len(key)])
    return self._constant_shapes[graph, key]

  def static_shape(self, dims: Sequence[Any]) -> tuple[int | None, ...]:
    """The dimensions as ints, None for those known only when the graph runs."""
    if all(type(d) is int for d in dims):
      return tuple(dims)
    return tuple(map(self._static_size, dims))

  def _static_size(self, dim: Any) -> int | None:
    sizes = [self._variables[name] for name in shape_poly.dimension_variables(dim)]
    if any(isinstance(size, _Later) for size in sizes):
      return None
    return size if isinstance(size := self(dim), int) else None

  def also(self, sizes: dict[str, Size]) -> DimensionValues:
    """The same with more variables, whose values belong to the current graph."""
    return DimensionValues(self._variables | sizes, self._lower) if sizes else self

  def in_current_graph(self) -> DimensionValues:
    """The same variables, in the current graph, which may be that of a backward pass."""
    if self._scope == scopes.scope_here():
      return self
    # Identities, because a nested gradient function may only close over tensors of its own graph.
    return DimensionValues(
      {
        name: size if isinstance(size, int) else tf.identity(size)
        for name, size in self.variables.items()
      },
      self._lower,
    )

  def _narrowed(self, size: Size) -> Size:
    if isinstance(size, int):
      return size
    with self._outermost():
      return _narrow(size)

  def _evaluate(self, dim: Any, dtype: Any = np.int32) -> Size:
    names = sorted(shape_poly.dimension_variables(dim))
    sizes = [self._variable(name) for name in names]
    if all(isinstance(size, int) for size in sizes):
      return int(shape_poly.evaluate_dimension(dim, dict(zip(names, sizes, strict=True))))
    if str(dim) in self._variables:
      return self._variable(str(dim))
    jaxpr = _dimension_jaxpr(dim, tuple(names), dtype)
    with self._outermost():
      return self._lower(jaxpr, *map(tf.convert_to_tensor, sizes))[0]

  def _outermost(self) -> contextlib.AbstractContextManager[Any]:
    return _inside(self._scope)


@functools.lru_cache(maxsize=4096)
def _dimension_jaxpr(dim: Any, names: tuple[str, ...], dtype: Any) -> ClosedJaxpr:
  """i32[] or i64[] per variable -> the value of `dim`, in i32[], i64[], or rounded to f32[]."""

  def evaluate(*sizes: Any) -> Any:
    return shape_poly.evaluate_dimension(dim, dict(zip(names, sizes, strict=True)))

  if dtype is np.int32 or _needs_products(dim):
    return _jaxpr_of_sizes(evaluate, len(names), dtype)
  return _widened(_dimension_jaxpr(dim, names, np.int32), dtype)


def _by_products(jaxpr: ClosedJaxpr) -> Sequence[Any]:
  """The equations whose products, also inside, may be larger than sizes, or that compute with such
  products."""
  eqns_by_products, products = [], set[Any]()
  producers = {v: eqn for eqn in jaxpr.eqns for v in eqn.outvars}
  for eqn in jaxpr.eqns:
    is_product = eqn.primitive in _PRODUCTS or any(
      contains(inner, _PRODUCTS) for inner in inner_jaxprs(eqn)
    )
    if (is_product and not _is_within_sizes(eqn, producers)) or any(
      not isinstance(v, Literal) and v in products for v in eqn.invars
    ):
      eqns_by_products.append(eqn)
      products.update(eqn.outvars)
  return eqns_by_products


def _is_within_sizes(eqn: Eqn, producers: Mapping[Any, Eqn]) -> bool:
  """Whether the product is not larger than the size that it is made of: -1 times a size, or 2 times
  the half of one."""
  if eqn.primitive is not P.mul_p or sum(isinstance(v, Literal) for v in eqn.invars) != 1:
    return False
  size, factor = sorted(eqn.invars, key=lambda v: isinstance(v, Literal))
  producer = None if isinstance(size, Literal) else producers.get(size)
  divisor = (
    producer.invars[1]
    if producer is not None
    and producer.params.get("name") == "divmod"
    and size is producer.outvars[0]
    else None
  )
  return bool(abs(factor.val) <= (abs(divisor.val) if isinstance(divisor, Literal) else 1))


@functools.lru_cache(maxsize=4096)
def _primitives_by_products(dim: Any) -> frozenset[Primitive]:
  """The primitives that multiply, or compute with products, in the formula of a symbolic
  dimension."""
  names = tuple(sorted(shape_poly.dimension_variables(dim)))
  return frozenset(eqn.primitive for eqn in _by_products(_dimension_jaxpr(dim, names, np.int32)))


def _widened(jaxpr: ClosedJaxpr, dtype: Any) -> ClosedJaxpr:
  """i32[]s -> i64[] or f32[], in this dtype from the first product on: LiteRT has no division of 64
  bits."""
  wide = {id(eqn) for eqn in _by_products(jaxpr)}

  def evaluate(*sizes: Any) -> Any:
    values: dict[Any, Any] = dict(zip(jaxpr.invars, sizes, strict=True))
    for eqn in jaxpr.eqns:
      operands = [v.val if isinstance(v, Literal) else values[v] for v in eqn.invars]
      if id(eqn) in wide:
        operands = [lax.convert_element_type(x, dtype) for x in operands]
      results = eqn.primitive.bind(*operands, **eqn.params)
      values.update(
        zip(eqn.outvars, results if eqn.primitive.multiple_results else [results], strict=True)
      )
    return lax.convert_element_type(values[jaxpr.outvars[0]], dtype)

  with jax.enable_x64(True):
    return jax.make_jaxpr(evaluate)(*jaxpr.in_avals)


def _narrow(size: tf.Tensor) -> tf.Tensor:
  """The size in 32 bits, where it is."""
  with tf.device(size.device):
    return tf.cast(size, tf.int32)


def _has_product(dim: Any) -> bool:
  return is_symbolic_dim(dim) and bool(_primitives_by_products(dim))


def _needs_products(dim: Any) -> bool:
  """Whether a product that wraps would change the value of a dimension that fits in 32 bits; sums
  and products of it would wrap back."""
  return _has_product(dim) and not _primitives_by_products(dim) <= _WRAPPING


_PRODUCTS = frozenset({P.mul_p, P.integer_pow_p, P.pow_p})
_WRAPPING = frozenset({P.add_p, P.sub_p, P.neg_p, P.mul_p, P.integer_pow_p})


def _jaxpr_of_sizes(fun: Callable[..., Any], arity: int, dtype: Any = np.int32) -> ClosedJaxpr:
  """The jaxpr of a function of sizes: by default of i32[] like TensorFlow's shapes, even if JAX
  would compute in 64 bits."""
  with jax.enable_x64(dtype is np.int64):
    return jax.make_jaxpr(fun)(*[jax.ShapeDtypeStruct((), dtype)] * arity)
