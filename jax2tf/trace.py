"""Traces a Python function with argument specs to a jaxpr, once for each (function, specs)."""

from __future__ import annotations

import functools
import inspect
import itertools
import os
import pickle
import types
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import tensorflow as tf
from jax import tree_util
from jax.extend import source_info_util

from jax2tf import _jax_compat, _tf_compat, errors, pytrees, refs, shadows
from jax2tf._jax_compat import jit_info
from jax2tf.caches import BoundedCache
from jax2tf.dims import Dimensions
from jax2tf.dtypes import describe
from jax2tf.jaxprs import ClosedJaxpr
from jax2tf.placement import default_device
from jax2tf.placement.devices import place_of
from jax2tf.registry import IN_TENSORFLOW
from jax2tf.signature import Signature
from jax2tf.specs import Call, scope_of

# A user's line is outside of this package and of TensorFlow, whose frames are on the stack while it
# traces a tf.function.
for _file in (__file__, tf.__file__):
  for _exclude in (source_info_util.register_exclusion, _jax_compat.leave_out_frames):
    _exclude(os.path.join(os.path.dirname(_file), ""))

# A protobuf, and so a graph, is limited to 2 GB.
_LARGE_CONSTANTS = 100 * 2**20


@dataclass(frozen=True, eq=False)
class TracedFunction:
  """A traced function: its jaxpr, and the metadata to call it. Compared by identity.

  Attributes:
    name: of the user's function, for errors and scopes.
    jaxpr: its closed jaxpr.
    signature: what the operands and results of the jaxpr stand for.
  """

  name: str
  jaxpr: ClosedJaxpr
  signature: Signature

  @property
  def arguments(self) -> Sequence[Any]:
    """The avals of the leaves of the dynamic arguments."""
    return self.signature.split_operands(self.jaxpr.in_avals)[0]

  @property
  def results(self) -> Any:
    """The pytree of the avals of the results."""
    results, _ = self.signature.split_results(self.jaxpr.out_avals)
    return tree_util.tree_unflatten(self.signature.out_tree, results)

  @functools.cached_property
  def dimensions(self) -> Dimensions:
    """How the dimension variables follow from the argument shapes.

    Raises:
      ValueError: JAX's own, for a dimension variable that cannot be solved.
    """
    return Dimensions.of(self.arguments, self.signature.in_tree)


@dataclass(frozen=True, eq=False)
class Traceable:
  """A Python function, and which of its arguments are static.

  Attributes:
    fun: the user's callable.
    jitted: the same without its bound arguments, traceable with `jitted.trace`.
    static_argnums, static_argnames: those given to `convert`, and those of a `jax.jit`-ed `fun`.
    bound: static values for the first arguments of `jitted`, such as the `self` of a method.
    bound_by_name: static values for keyword arguments of `jitted`.
    returns_refs: whether `jitted` takes values in place of refs, and returns (the user's result,
      the final values of the refs).
  """

  fun: Callable[..., Any]
  jitted: Any
  static_argnums: tuple[int, ...]
  static_argnames: tuple[str, ...]
  bound: tuple[Any, ...] = ()
  bound_by_name: Mapping[str, Any] = field(default_factory=dict)
  returns_refs: bool = False

  @classmethod
  def of(
    cls, fun: Callable[..., Any], static_argnums: Any = None, static_argnames: Any = None
  ) -> Traceable:
    inner, bound, bound_by_name = unbound(fun)
    if static_argnums is None and static_argnames is None and jit_info.is_jitted(inner):
      nums, names = jit_info.static_arguments(inner)
      only_static = set(range(len(bound))) <= set(nums) and bound_by_name.keys() <= set(names)
      # With shardings it stays a call, because the equation of the call holds them.
      if only_static and not jit_info.shardings(inner):
        return cls(fun, inner, *_static_arguments(fun), bound, bound_by_name)
    return cls.of_calls(fun, static_argnums, static_argnames)

  @classmethod
  def of_calls(
    cls, fun: Callable[..., Any], static_argnums: Any = None, static_argnames: Any = None
  ) -> Traceable:
    """As `of`, where a `jax.jit`-ed function becomes a call in the jaxpr."""

    # A wrapper, because `fun` may be an object that jax.jit cannot hash.
    @functools.wraps(fun, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
      return fun(*args, **kwargs)

    nums, names = _static_arguments(fun)
    jitted = jax.jit(call, static_argnums=static_argnums, static_argnames=static_argnames)
    given_nums, given_names = jit_info.static_arguments(jitted)
    nums, names = tuple({*nums, *given_nums}), tuple({*names, *given_names})
    return cls(fun, jax.jit(call, static_argnums=nums, static_argnames=names), nums, names)

  def on_values(self) -> Traceable:
    """The function of values in place of refs."""
    pure = refs.as_values(self.fun)
    of_values = Traceable.of(pure, self.static_argnums or None, self.static_argnames or None)
    return replace(of_values, returns_refs=True)

  def __reduce__(self) -> Any:
    """Pickled as the function without jax.jit, and its static arguments: JAX 0.12 can call a jitted
    copy, but not trace it."""
    if jit_info.shardings(self.fun):
      raise pickle.PicklingError(
        f"'{self.name}' is jitted with shardings, which name devices of this process; convert it "
        "in the process that runs it"
      )
    fun: Any = self.fun
    plain = fun.__wrapped__ if jit_info.is_jitted(fun) else fun
    return Traceable.of_calls, (plain, self.static_argnums or None, self.static_argnames or None)

  @property
  def name(self) -> str:
    """The name of the user's function."""
    return getattr(self.fun, "__name__", type(self.fun).__name__)

  def split(
    self, args: Sequence[Any], kwargs: dict[str, Any]
  ) -> tuple[tuple[Any, ...], dict[str, Any], dict[Any, Any]]:
    """(dynamic args, dynamic kwargs, {position or name: static value}).

    Raises:
      ValueError: a static argument is not hashable.
    """
    for key, value in (*enumerate(self.bound), *self.bound_by_name.items()):
      self._check_hashable(key, value)
    if not (self.static_argnums or self.static_argnames):
      return tuple(args), kwargs, {}
    nums = {n % len(args) if -len(args) <= n < len(args) else n for n in self.static_argnums}
    static: dict[Any, Any] = {i: value for i, value in enumerate(args) if i in nums}
    static.update({name: value for name, value in kwargs.items() if name in self.static_argnames})
    for key, value in static.items():
      self._check_hashable(key, value)
    return (
      tuple(a for i, a in enumerate(args) if i not in nums),
      {k: v for k, v in kwargs.items() if k not in static},
      static,
    )

  def _check_hashable(self, key: object, value: Any) -> None:
    if not isinstance(value, Hashable) or not _hashes(value):
      raise ValueError(
        f"Non-hashable static arguments are used in '{self.name}': argument {key!r} = {value!r} "
        f"of type {type(value).__name__}; pass a hashable value, for instance a tuple for a list"
      )

  def join(
    self, args: Sequence[Any], kwargs: dict[str, Any], static: dict[Any, Any]
  ) -> tuple[list[Any], dict[str, Any]]:
    """The inverse of `split`, with the bound arguments: those of `jitted`."""
    dynamic = iter(args)
    count = len(args) + sum(isinstance(key, int) for key in static)
    positional = [static[i] if i in static else next(dynamic) for i in range(count)]
    by_name = {key: value for key, value in static.items() if isinstance(key, str)}
    return [*self.bound, *positional], {**self.bound_by_name, **kwargs, **by_name}

  def trace(
    self, args: Sequence[Any], kwargs: dict[str, Any], static: dict[Any, Any]
  ) -> TracedFunction:
    """The jaxpr for these trees of jax.ShapeDtypeStruct, or `pytrees.Leaves` of them. The user's
    Python runs here and only here.

    Raises:
      what the user's function raises under a JAX trace; where a constraint would help, a note says
      which.
    """
    in_tree = tree_util.tree_structure((tuple(args), kwargs))
    joined, named = self.join(args, kwargs, static)
    variables: Sequence[tf.Variable] = ()
    with errors.hints(), default_device.recorded(place_of), shadows.substituting({}):
      traced = self.jitted.trace(*joined, **named)
      if not is_tensorflows(traced.jaxpr) and (variables := shadows.captured(traced.jaxpr)):
        values = [
          jax.ShapeDtypeStruct(v.shape, jax.dtypes.canonicalize_dtype(v.dtype.as_numpy_dtype))
          for v in variables
        ]
        traced = self._with_shadows(variables, static).trace(tuple(args), kwargs, values)
      jaxpr, refs_closed_over = traced.jaxpr, refs.closed_over(traced.jaxpr)
      if refs_closed_over:
        values = [jax.ShapeDtypeStruct(ref.shape, ref.dtype) for ref in refs_closed_over]
        jaxpr = (
          jax.jit(refs.of_closed_over(jaxpr)).trace([*map(_spec, jaxpr.in_avals)], values).jaxpr
        )
    _jax_compat.check_leaked_tracers(traced)
    _warn_of_large_constants(self.name, jaxpr)
    out_tree = traced.out_tree.children()[0] if self.returns_refs else traced.out_tree
    closed_over = tuple(map(refs.variable_of, refs_closed_over))
    signature = Signature(in_tree, out_tree, tuple(variables), closed_over)
    return TracedFunction(self.name, jaxpr, signature)

  def _with_shadows(self, variables: Sequence[tf.Variable], static: dict[Any, Any]) -> Any:
    """The function of (args, kwargs, shadows of the variables), jitted."""

    def call(args: Sequence[Any], kwargs: dict[str, Any], values: Sequence[Any]) -> Any:
      args, kwargs = self.join(args, kwargs, static)
      with shadows.substituting({v.ref(): x for v, x in zip(variables, values, strict=True)}):
        return self.jitted.__wrapped__(*args, **kwargs)

    call.__name__ = self.name
    return jax.jit(call)


def unbound(fun: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
  """(function, arguments, keyword arguments) that a method, functools.partial or an object with a
  jitted `__call__` binds."""
  if isinstance(fun, types.MethodType):
    inner, args, kwargs = unbound(fun.__func__)
    return inner, (*args, fun.__self__), kwargs
  if isinstance(fun, functools.partial):
    inner, args, kwargs = unbound(fun.func)
    return inner, (*args, *fun.args), {**kwargs, **fun.keywords}
  if jit_info.is_jitted(call := inspect.getattr_static(type(fun), "__call__", None)):
    return call, (fun,), {}
  return fun, (), {}


def _static_arguments(fun: Any) -> tuple[tuple[int, ...], tuple[str, ...]]:
  """Those of the `jax.jit` inside, counted without the bound arguments."""
  inner, bound, _ = unbound(fun)
  nums, names = jit_info.static_arguments(inner)
  if inner is fun or not (nums or names):
    return nums, names
  nums = tuple(n - len(bound) if n >= 0 else n for n in nums if n < 0 or n >= len(bound))
  try:
    parameters = inspect.signature(fun).parameters.values()
    positional = [p.name for p in inspect.signature(inner).parameters.values()]
  except ValueError:
    return nums, names
  if not any(p.kind is p.VAR_POSITIONAL for p in parameters):
    count = sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)
    nums = tuple(n for n in nums if -count <= n < count)
  return nums, tuple(name for name in names if name not in positional[: len(bound)])


def _spec(aval: Any) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)


def is_tensorflows(jaxpr: ClosedJaxpr) -> bool:
  """Whether the function only calls a TensorFlow function with its own arguments; then TensorFlow's
  derivatives apply."""
  if len(jaxpr.eqns) != 1 or jaxpr.eqns[0].primitive not in IN_TENSORFLOW:
    return False
  (eqn,) = jaxpr.eqns
  # Where arguments have the values of its variables, the graph calls a copy, which TensorFlow
  # cannot differentiate.
  takes_values = any(getattr(param, "substituted", None) for param in eqn.params.values())
  return eqn.invars == jaxpr.invars and eqn.outvars == jaxpr.outvars and not takes_values


def _hashes(value: Any) -> bool:
  try:
    hash(value)
  except TypeError:
    return False
  return True


def _warn_of_large_constants(name: str, jaxpr: ClosedJaxpr) -> None:
  size = sum({id(c): getattr(c, "nbytes", 0) for c in jaxpr.consts}.values())
  if size > _LARGE_CONSTANTS:
    errors.warn_user(
      f"'{name}' closes over {size / 2**20:.0f} MB of arrays, which become constants of the "
      "graph; a graph "
      "ends at 2 GB: pass them as arguments, for instance as tf.Variables"
    )


class TraceCache:
  """(args, kwargs) -> (dynamic leaves, TracedFunction), with a bounded cache of traces.

  One scope serves all calls: equal polymorphic shapes give equal symbolic dimensions, and calls of
  different sizes share one trace.
  """

  def __init__(
    self, traceable: Traceable, polymorphic_shapes: Any, constraints: Sequence[str], size: int
  ):
    self._traceable = traceable
    self._polymorphic_shapes = polymorphic_shapes
    self._scope = scope_of(polymorphic_shapes, constraints)
    # What these two forget costs little, or `max_conversions` warns of it: each trace has a
    # conversion.
    self._by_actual_shapes: BoundedCache[Any, TracedFunction] = BoundedCache(16 * size)
    self._by_specs: BoundedCache[Any, TracedFunction] = BoundedCache(size)

  def __call__(
    self, args: Sequence[Any], kwargs: dict[str, Any]
  ) -> tuple[list[Any], TracedFunction]:
    count = len(args)
    args, kwargs, static = self._traceable.split(args, kwargs)
    arguments = _tf_compat.unwrapped((args, kwargs))
    leaves, tree = tree_util.tree_flatten(arguments)
    try:
      described = tuple(map(describe, leaves))
    except (TypeError, ValueError):
      described = tuple(map(describe, leaves, pytrees.argument_paths(arguments)))
    values = (*self._traceable.bound, *self._traceable.bound_by_name.values())
    statics = tuple((key, type(value), value) for key, value in static.items())
    context = (values, statics, _jax_compat.trace_context())

    def make() -> TracedFunction:
      return self._trace(arguments, count, tree, described, static, context)

    return leaves, self._by_actual_shapes.get((tree, described, context), make)

  def _trace(
    self,
    arguments: Any,
    count: int,
    tree: Any,
    described: Any,
    static: dict[Any, Any],
    context: Any,
  ) -> TracedFunction:
    args, kwargs = arguments
    positions = [i for i in range(count) if i not in static]
    call = Call(self._traceable.fun, self._traceable.name, args, kwargs, positions, count)
    specs = call.specs(described, self._polymorphic_shapes, self._scope)
    # JAX rebuilds the nodes of users from its tracers, and nothing else does from these specs.
    rest = iter(specs)

    def of(argument: Any) -> Any:
      structure: Any = tree_util.tree_structure(argument)
      return pytrees.Leaves.of(argument, list(itertools.islice(rest, structure.num_leaves)))

    by_position = [of(x) for x in args]
    by_name = {name: of(kwargs[name]) for name in sorted(kwargs)}
    avals = tuple((s.shape, s.dtype, s.weak_type) for s in specs)
    key = (tree, avals, context)  # the tree says which arguments are refs
    has_refs = bool(refs.refs_of(arguments))
    traceable = self._traceable.on_values() if has_refs else self._traceable
    return self._by_specs.get(key, lambda: traceable.trace(by_position, by_name, static))
