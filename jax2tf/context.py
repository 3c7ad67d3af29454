"""What a lowering rule may know about the equation that it lowers."""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import jax
import tensorflow as tf

from jax2tf import _jax_compat, _tf_compat
from jax2tf.dims import DimensionValues
from jax2tf.dtypes import tf_dtype
from jax2tf.errors import Gap, lowering_error
from jax2tf.jaxprs import ClosedJaxpr
from jax2tf.placement import dtensors
from jax2tf.placement.devices import Destination
from jax2tf.placement.shardings import is_sharded


@dataclass(frozen=True, slots=True)
class Notes:
  """What rules note in one lowering, for others to find.

  Attributes:
    assertions: ops that fail where what is asserted does not hold; what relies on it waits for them.
    stacked: op that stacks the rows of a loop -> the TensorList that has them.
    left_out: what prints or checks, with its line, and is not in the graph.
  """

  assertions: list[tf.Operation] = field(default_factory=list)
  stacked: dict[tf.Operation, tf.Tensor] = field(default_factory=dict)
  left_out: list[str] = field(default_factory=list)

  def warn_of_what_is_left_out(self) -> None:
    """One warning for all."""
    if lines := dict.fromkeys(self.left_out):
      self.left_out.clear()
      listed = "".join(f"\n  {line}" for line in lines)
      warnings.warn(
        f"TensorFlow's XLA compiles no calls of Python: jit_compile=True leaves out prints and checks:{listed}", UserWarning, stacklevel=2
      )


@dataclass(frozen=True, slots=True)
class RuleContext:
  """The equation's avals and the services that rules need; rules take nothing from globals.

  Attributes:
    avals_in: JAX's abstract values of the operands.
    avals_out: those of the results; the interpreter checks the tensors against them.
    lower: `lower(closed_jaxpr, *tensors) -> list of tensors`, for rules with an inner jaxpr.
    dimensions: values of symbolic dimensions; rules use `dim` and `shape`.
    primitive: name of the primitive, for errors.
    where: the user's `file:line:col (function)`, computed only when called.
    destination: where the graph will run.
    notes: what rules of the same lowering have noted.
  """

  avals_in: Sequence[Any]
  avals_out: Sequence[Any]
  lower: Callable[..., list[tf.Tensor]]
  dimensions: DimensionValues
  primitive: str
  where: Callable[[], str]
  destination: Destination
  notes: Notes

  @property
  def aval_out(self) -> Any:
    """The aval of the only result."""
    (aval,) = self.avals_out
    return aval

  @property
  def dtype_out(self) -> tf.DType:
    """The TensorFlow dtype of the only result."""
    return tf_dtype(self.aval_out.dtype)

  def dim(self, size: Any) -> int | tf.Tensor:
    """A dimension: an int when known, else an int32 scalar of the graph, computed once."""
    return self.dimensions(size)

  def shape(self, sizes: Sequence[Any]) -> list[int] | tf.Tensor:
    """A shape for TensorFlow: a list of ints when known, else an int32 vector, computed once."""
    return self.dimensions.shape(sizes)

  def reshape(self, operand: tf.Tensor, sizes: Sequence[Any]) -> tf.Tensor:
    """The operand in another shape; one symbolic size among known ones is -1 and costs no shape arithmetic."""
    static = self.dimensions.static_shape(sizes)
    if static.count(None) == 1 and 0 not in static:
      return tf.reshape(operand, [-1 if size is None else size for size in static])
    return tf.reshape(operand, self.shape(sizes))

  def lower_fun(self, fun: Callable[..., Any], *operands: Any, avals: Sequence[Any] | None = None) -> Any:
    """Lowers `fun(*operands)`, a JAX function on arrays, with the rules of its primitives.

    Args:
      fun: of a module, or a `functools.partial` of one and of jaxprs and hashable values: it is traced once for equal ones.
      operands: tensors.
      avals: their avals, unless these are `avals_in`.

    Returns:
      tensors in the structure of the result of `fun`.
    """
    specs = tuple(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in (self.avals_in if avals is None else avals))
    bound = (fun.func, fun.args, fun.keywords) if isinstance(fun, functools.partial) else (fun, (), {})
    jaxpr, out_tree = _trace(*bound, specs)
    return jax.tree.unflatten(out_tree, self.lower(jaxpr, *operands))

  def sharded(self, operand: tf.Tensor, sharding: Any, free: Sequence[int] = ()) -> tf.Tensor:
    """The operand, spread over devices as `sharding` says but for `free` dimensions, where the caller of `convert` asked to keep that."""
    if not (self.destination.spreads and is_sharded(sharding)):
      return operand
    if (mesh := self.destination.dtensor_mesh) is not None:
      try:
        return dtensors.relayout(operand, sharding, mesh, free)
      except ValueError as error:
        self.refuse(str(error), "annotate it otherwise, or give convert another dtensor_mesh")
    return _tf_compat.xla_sharding(operand, _jax_compat.hlo_sharding(sharding, operand.shape.rank), free)

  def refuse(self, reason: str, advice: str) -> NoReturn:
    """Raises the error of a form that has no lowering: what, where, what now."""
    raise lowering_error(self.primitive, [Gap(self.primitive, reason, advice, self.where())])


def scope_name(path: str) -> str:
  """The name of a function, or a path of names, as a TensorFlow scope name: `<lambda>` -> `lambda`."""
  return "/".join(re.sub(r"[^A-Za-z0-9]+", "_", part).strip("_") or "fun" for part in path.split("/"))


# x64, threefry_partitionable ... decide what is inside `fun`; they are part of the key.
@_jax_compat.weakly_cached_by_all
def _trace(fun: Callable[..., Any], args: tuple[Any, ...], keywords: dict[str, Any], specs: tuple[Any, ...]) -> tuple[ClosedJaxpr, Any]:
  jaxpr, out = jax.make_jaxpr(functools.partial(fun, *args, **keywords), return_shape=True)(*specs)
  return jaxpr, jax.tree.structure(out)
