"""Programs for a mesh of devices, on one device.

`shard_map` becomes reshapes and one `jax.vmap` for each axis of the mesh, and collectives operate
on the values of all devices.

`pmap` traces to `shard_map`, too. It comes after differentiation: JAX's derivatives of collectives
and a user's custom rules inside are those for many devices.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Jaxpr, Primitive
from jax.sharding import PartitionSpec

from jax2tf import _jax_compat, jaxprs
from jax2tf._jax_compat import batching
from jax2tf.expansions import collectives, kernels
from jax2tf.expansions.collectives import Axes, Scope
from jax2tf.expansions.retracing import CALLED, Retracing, Rule, as_call, first_line, identity
from jax2tf.jaxprs import Eqn
from jax2tf.lines import user_line
from jax2tf.registry import is_of_jax

_PROGRAMS = frozenset({"shard_map", "custom_partitioning"})
_RANDOM = frozenset({"random_bits", "random_fold_in", "random_split", "rng_bit_generator"})


@jaxprs.transformation
def on_one_device(jaxpr: Jaxpr) -> Jaxpr:
  """The same function, in which nothing maps over meshes; a program that cannot be traced stays."""
  return jaxprs.with_equations(jaxpr, [_on_one_device(eqn) for eqn in jaxpr.eqns])


def one_device(fun: Callable[..., Any]) -> Callable[..., Any]:
  """Returns a JAX function that computes on one device what `fun` computes on several.

  `convert` does this by itself. Use this function in JAX: to run a model for many devices on a
  laptop, or as the reference of a comparison. The result can be jitted. Differentiate `fun` before
  this call, because the result loses the rules of `jax.custom_vjp`.

  Args:
    fun: a function of pytrees of arrays. It may contain `jax.shard_map`, `jax.pmap`, collectives,
      shardings, and Pallas kernels. The devices need not exist on this machine (`pretend_devices`).

  Returns:
    a function of the same arguments, with the same results.

  Raises:
    ValueError: at a call, an equation cannot be computed on one device; the message has its line.

  Examples:
    >>> import jax, jax.numpy as jnp, jax2tf
    >>> from jax.sharding import AbstractMesh, AxisType, PartitionSpec
    >>> mesh = AbstractMesh((8,), ("i",), axis_types=(AxisType.Auto,))
    >>> total = jax.shard_map(
    ...   lambda x: jax.lax.psum(x, "i"),
    ...   mesh=mesh,
    ...   in_specs=PartitionSpec("i"),
    ...   out_specs=PartitionSpec(),
    ... )
    >>> jax2tf.one_device(total)(jnp.arange(8.0)).tolist()
    [28.0]
  """

  @functools.wraps(fun)
  def alone(*args: Any, **kwargs: Any) -> Any:
    traced = jax.jit(fun).trace(*args, **kwargs)
    leaves = jax.tree.leaves((args, kwargs))
    results = OneDevice().evaluate(traced.jaxpr, *leaves)
    return jax.tree.unflatten(traced.out_tree, results)

  return alone


def why_not(eqn: Eqn) -> str:
  """Why a program for several devices stays, as a clause after "and"; "" for all other
  equations."""
  if not _is_program(eqn.primitive):
    return ""
  try:
    _call(eqn)
  except Exception as error:
    return first_line(error) or type(error).__name__
  return ""


def has_programs(jaxpr: Any) -> bool:
  """Whether a jaxpr maps over devices."""
  return any(map(_is_program, jaxprs.primitives_of(jaxpr)))


def _is_program(primitive: Primitive) -> bool:
  return primitive.name in _PROGRAMS and is_of_jax(primitive)


def _on_one_device(eqn: Eqn) -> Any:
  if eqn.primitive.name in kernels.NAMES:  # whose jaxprs are of refs
    return eqn
  if not _is_program(eqn.primitive):
    is_inside = any(map(has_programs, jaxprs.inner_jaxprs(eqn)))
    return jaxprs.map_inner(eqn, on_one_device) if is_inside else eqn
  # any exception of JAX's rules; preflight reports it by `why_not`
  with contextlib.suppress(Exception):
    return _call(eqn)
  return eqn


def _call(eqn: Eqn) -> Eqn:
  """The equation as a call of the program on one device."""

  def on_arrays(*operands: Any) -> Sequence[Any]:
    return OneDevice().results(eqn, operands)

  return as_call(eqn, eqn.primitive.name, on_arrays)


class RetracingError(ValueError):
  """An equation cannot be traced again; the message names it and its line."""


@contextlib.contextmanager
def _named(eqn: Eqn) -> Iterator[None]:
  """Makes an exception of JAX's rules one that names the equation."""
  try:
    yield
  except RetracingError:
    raise
  except Exception as error:
    reason = first_line(error) or type(error).__name__
    at = f"'{eqn.primitive.name}' at {user_line(eqn)}"
    raise RetracingError(f"{at} cannot be traced: {reason}") from error


class OneDevice(Retracing):
  """Evaluates programs for several devices.

  Args:
    scope: the axes that the program maps over. No `jax.vmap` stands for those of one device.
  """

  def __init__(self, scope: Scope = Scope({})):  # noqa: B008  (frozen)
    self._scope = scope
    collective = {name: self._collective(rule) for name, rule in collectives.RULES.items()}
    random = dict.fromkeys(_RANDOM, self._random)
    programs = {
      "device_put": identity,
      "pure_callback": self._callback,
      "shard_map": self._shard_map,
      **dict.fromkeys(kernels.NAMES, self._kernel),
    }
    super().__init__({**collective, **random, **programs})

  def _collective(self, rule: collectives.CollectiveRule) -> Rule:
    def results(eqn: Eqn, *operands: Any) -> Sequence[Any]:
      return rule(self._scope, *operands, **eqn.params)

    return results

  def results(self, eqn: Eqn, operands: Sequence[Any]) -> Sequence[Any]:
    """The results of an equation.

    Raises:
      RetracingError: it cannot be computed on one device.
    """
    with _named(eqn):
      if self._is_told_by_each(eqn):
        return self._results_of_each(eqn, operands)
      return super().results(eqn, operands)

  def _is_told_by_each(self, eqn: Eqn) -> bool:
    """Whether an equation prints or calls back, which one device does after another. A scan and a
    call go on to the equations inside."""
    name = eqn.primitive.name
    goes_on = name == "scan" or name in _PROGRAMS or name in CALLED
    has_effects = any(not _jax_compat.is_of_axes(effect) for effect in eqn.effects)
    return has_effects and not goes_on and self._scope.device is None and bool(self._scope.split)

  def _results_of_each(self, eqn: Eqn, operands: Sequence[Any]) -> Sequence[Any]:
    axes = self._scope.split
    of_all = [collectives.stacked(x, axes) for x in operands]
    each = [
      OneDevice(scope).results(eqn, [x[i] for x in of_all])
      for i, scope in enumerate(self._scope.devices())
    ]
    mine = collectives.axis_index(axes)
    return [jnp.stack(list(ys))[mine] for ys in zip(*each, strict=True)]

  def _kernel(self, eqn: Eqn, *operands: Any) -> Sequence[Any]:
    if kernels.is_kernel(eqn):
      return kernels.results(eqn, *operands)
    return self.bind(eqn, *operands, **eqn.params)  # for the user's lowering rule

  def _shard_map(self, eqn: Eqn, *operands: Any) -> Sequence[Any]:
    params = eqn.params
    sizes, manual = params["mesh"].shape, params["newly_manual_axes"]
    in_scope = self._scope.sizes.keys() | manual
    inner = OneDevice(Scope({axis: size for axis, size in sizes.items() if axis in in_scope}))
    several = {axis: size for axis, size in sizes.items() if axis in manual and size > 1}
    ins = _layouts(params["in_specs"], eqn.invars, several)
    outs = _layouts(params["out_specs"], eqn.outvars, several)

    def on_a_device(*blocks: Any) -> list[Any]:
      return inner.evaluate(params["jaxpr"], *blocks)

    fun: Callable[..., list[Any]] = on_a_device
    for axis, size in reversed(several.items()):
      fun = _over_axis(
        fun, axis, size, [axis in of.axes for of in ins], [axis in of.axes for of in outs]
      )
    blocks = [of.blocks(x) for of, x in zip(ins, operands, strict=True)]
    return [of.whole(y) for of, y in zip(outs, fun(*blocks), strict=True)]

  def _random(self, eqn: Eqn, *operands: Any) -> Sequence[Any]:
    """Draws. The bits of an "rbg" generator depend on how many are drawn, so there each device
    draws alone."""

    def draw(*operands: Any) -> Sequence[Any]:
      return self.bind(eqn, *operands, **eqn.params)

    is_rbg = eqn.primitive.name == "rng_bit_generator" or _is_rbg(eqn.invars[0])
    return jax.custom_batching.sequential_vmap(draw)(*operands) if is_rbg else draw(*operands)

  def _callback(self, eqn: Eqn, *operands: Any) -> Sequence[Any]:
    """Each device calls back with its own block."""
    return self.bind(eqn, *operands, **{**eqn.params, "vmap_method": "sequential"})


def _is_rbg(key: Any) -> bool:
  """Whether a key is of "rbg" or "unsafe_rbg"."""
  return "rbg" in str(key.aval.dtype)


def _layouts(
  specs: Sequence[PartitionSpec], atoms: Sequence[Any], several: Mapping[Any, int]
) -> list[Layout]:
  pairs = zip(specs, atoms, strict=True)
  return [Layout.of(spec, len(v.aval.shape), several) for spec, v in pairs]


def _over_axis(
  fun: Callable[..., list[Any]],
  axis: Any,
  size: int,
  is_split: Sequence[bool],
  is_joined: Sequence[bool],
) -> Callable[..., list[Any]]:
  """A function for all devices along an axis.

  Args:
    fun: for one of them.
    axis, size: of the mesh.
    is_split: which operands have a block for each device, in their first dimension.
    is_joined: which results get one. The first device's stands for the others.
  """

  def on_a_device(_: Any, *blocks: Any) -> list[Any]:
    results = fun(*blocks)
    return [
      y if joined else batching.first_along(y, axis)
      for y, joined in zip(results, is_joined, strict=True)
    ]

  in_axes = [0 if split else None for split in is_split]
  out_axes = [0 if joined else None for joined in is_joined]
  # The first operand is there for programs without one.
  mapped = jax.vmap(on_a_device, (None, *in_axes), out_axes, axis_name=axis, axis_size=size)
  return functools.partial(mapped, 0)


@dataclass(frozen=True)
class Layout:
  """How an array is divided among the devices of a mesh.

  Attributes:
    sizes: axis of the mesh, in its order -> number of devices, of those that it is divided along.
    dimensions: the axes that divide each dimension of the array, the major one first.
    unreduced: the axes along which the array is the sum, or another reduction, of what the devices
      have.
    kind: which reduction: "sum", "max" or "min".
  """

  sizes: Mapping[Any, int]
  dimensions: Sequence[Axes]
  unreduced: Axes
  kind: str

  @classmethod
  def of(cls, spec: PartitionSpec, rank: int, several: Mapping[Any, int]) -> Layout:
    """The layout of a PartitionSpec of `shard_map`, along axes that have several devices."""
    dimensions = []
    partitions = getattr(spec, "partitions", spec)
    for names in (*partitions, *[None] * (rank - len(partitions))):
      listed = () if names is None else names if isinstance(names, tuple) else (names,)
      dimensions.append(tuple(axis for axis in listed if axis in several))
    unreduced = tuple(axis for axis in several if axis in getattr(spec, "unreduced", ()))
    named = {*unreduced}.union(*dimensions)
    sizes = {axis: size for axis, size in several.items() if axis in named}
    kind = getattr(getattr(spec, "unreduced_kind", None), "name", "sum")
    return cls(sizes, dimensions, unreduced, kind)

  @property
  def axes(self) -> Set[Any]:
    """The axes along which each device has a block of its own."""
    return self.sizes.keys()

  def blocks(self, x: Any) -> Any:
    """[*shape of x] -> [*number of devices along each axis, *shape of a block]."""
    if not self.sizes:
      return x
    shape: list[Any] = []
    at: dict[Any, int] = {}
    for size, axes in zip(x.shape, self.dimensions, strict=True):
      for axis in axes:
        at[axis] = len(shape)
        shape.append(self.sizes[axis])
      shape.append(size // math.prod(self.sizes[axis] for axis in axes))
    x = lax.reshape(x, shape)
    for axis in self.unreduced:  # the first device has the whole, the others have nothing to add
      rest = [jnp.zeros_like(x)] * (self.sizes[axis] - 1)
      x = jnp.stack([x, *rest])
      at = {axis: 0} | {other: d + 1 for other, d in at.items()}
    leading = [at[axis] for axis in self.sizes]
    others = [d for d in range(x.ndim) if d not in leading]
    return lax.transpose(x, [*leading, *others])

  def whole(self, y: Any) -> Any:
    """The inverse of `blocks`."""
    axes = list(self.sizes)
    for axis in self.unreduced:
      y = _REDUCTIONS[self.kind](y, [axes.index(axis)])
      axes.remove(axis)
    if not axes:
      return y
    order, shape, rank = [], [], len(axes)
    for d, names in enumerate(self.dimensions):
      order += [*map(axes.index, names), rank + d]
      shape.append(math.prod(self.sizes[axis] for axis in names) * y.shape[rank + d])
    return lax.reshape(lax.transpose(y, order), shape)


_REDUCTIONS = {"sum": lax.reduce_sum, "max": lax.reduce_max, "min": lax.reduce_min}
