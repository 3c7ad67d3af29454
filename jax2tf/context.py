"""The rule context: what a lowering rule knows about its equation."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import jax
import tensorflow as tf

from jax2tf import _jax_compat, _tf_compat
from jax2tf.dims import DimensionValues
from jax2tf.dtypes import tf_dtype
from jax2tf.errors import UnsupportedEquation, lowering_error
from jax2tf.graph_context import GraphContext
from jax2tf.jaxprs import ClosedJaxpr
from jax2tf.placement import dtensors
from jax2tf.placement.devices import Destination
from jax2tf.placement.shardings import is_sharded


@dataclass(frozen=True, slots=True)
class RuleContext:
  """The context of a lowering rule: the avals of the equation, and the services that rules need. It
  corresponds to `LoweringRuleContext` in JAX's lowering.

  Attributes:
    graph: what all equations of the graph share.
    avals_in: the avals of the operands, such as f32[b,4].
    avals_out: the avals of the results; the interpreter checks the tensors against them.
    lower: `lower(closed_jaxpr, *tensors) -> list of tensors`, for rules with an inner jaxpr.
    primitive: the name of the primitive, for errors.
    where: a function that returns the user's `file:line:col (function)`.
    inside: `inside(compiled, sizes)` returns the context for a branch that XLA runs, or, if not
      `compiled`, TensorFlow's kernels. `sizes` has the rule's own dimension variables. None where
      inner jaxprs are lowered natively.
  """

  graph: GraphContext
  avals_in: Sequence[Any]
  avals_out: Sequence[Any]
  lower: Callable[..., list[tf.Tensor]]
  primitive: str
  where: Callable[[], str]
  inside: Callable[[bool, dict[str, Any]], RuleContext] | None = None

  @property
  def dimensions(self) -> DimensionValues:
    """The values of symbolic dimensions; rules use `dim` and `shape`."""
    return self.graph.dimensions

  @property
  def destination(self) -> Destination:
    """Where the graph will run."""
    return self.graph.destination

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
    """The value of a dimension.

    Args:
      size: an int, or a symbolic dimension such as `2*b + 1`.

    Returns:
      an int if it is known, else a tensor i32[] of the graph, computed once.
    """
    return self.dimensions(size)

  def shape(self, sizes: Sequence[Any]) -> list[int] | tf.Tensor:
    """The value of a shape, for TensorFlow.

    Args:
      sizes: ints and symbolic dimensions, such as `aval.shape`.

    Returns:
      a list of ints if all are known, else a tensor i32[rank] of the graph, computed once.
    """
    return self.dimensions.shape(sizes)

  def reshape(self, operand: tf.Tensor, sizes: Sequence[Any]) -> tf.Tensor:
    """Reshapes a tensor. One symbolic size among known ones becomes -1 and costs no shape
    arithmetic.

    Args:
      operand: a tensor of any dtype and shape.
      sizes: the new shape, of ints and symbolic dimensions.

    Returns:
      the tensor in the new shape.
    """
    static = self.dimensions.static_shape(sizes)
    if operand.shape.is_fully_defined() and operand.shape.as_list() == static:
      return operand
    unknown = static.count(None)
    if unknown > 1 or (unknown and 0 in static):
      return tf.reshape(operand, self.shape(sizes))
    return tf.reshape(
      operand, self.dimensions.constant_shape([-1 if size is None else size for size in static])
    )

  def lower_fun(
    self, fun: Callable[..., Any], *operands: Any, avals: Sequence[Any] | None = None
  ) -> Any:
    """Lowers `fun(*operands)`, a JAX function on arrays, with the rules of its primitives.

    Args:
      fun: a function defined at module level, or a `functools.partial` of one with jaxprs and
        hashable values. Equal functions share a trace.
      operands: tensors of the dtypes and shapes in `avals`.
      avals: the avals of the operands; by default `avals_in`.

    Returns:
      the pytree that `fun` returns, with tensors as leaves.

    Raises:
      LoweringError: `fun` has an equation without a lowering.
    """
    specs = tuple(
      jax.ShapeDtypeStruct(a.shape, a.dtype) for a in (self.avals_in if avals is None else avals)
    )
    bound = (
      (fun.func, fun.args, fun.keywords) if isinstance(fun, functools.partial) else (fun, (), {})
    )
    jaxpr, out_tree = _trace(*bound, specs)
    return jax.tree.unflatten(out_tree, self.lower(jaxpr, *operands))

  def sharded(self, operand: tf.Tensor, sharding: Any, free: Sequence[int] = ()) -> tf.Tensor:
    """Annotates a tensor with a sharding, if `convert` was called with `keep_shardings` or
    `dtensor_mesh`.

    Args:
      operand: a tensor of any dtype and shape.
      sharding: a jax.sharding.Sharding.
      free: dimensions that XLA or DTensor may shard as it chooses.

    Returns:
      the tensor, of the same dtype and shape.

    Raises:
      LoweringError: DTensor has no layout for the sharding.
    """
    if not (self.destination.annotates_shardings and is_sharded(sharding)):
      return operand
    if (mesh := self.destination.dtensor_mesh) is not None:
      try:
        return dtensors.relayout(operand, sharding, mesh, free)
      except ValueError as error:
        self.refuse(str(error), "use another sharding, or pass another dtensor_mesh to convert")
    return _tf_compat.xla_sharding(
      operand, _jax_compat.hlo_sharding(sharding, operand.shape.rank), free
    )

  def refuse_under_dtensor(self, reason: str, advice: str) -> None:
    """Refuses what DTensor cannot run in any layout, if `convert` was called with `dtensor_mesh`.

    Args:
      reason, advice: as for `refuse`.

    Raises:
      LoweringError: there is a DTensor mesh.
    """
    if self.destination.dtensor_mesh is not None:
      self.refuse(reason, advice)

  def refuse(self, reason: str, advice: str) -> NoReturn:
    """Raises the error for a form of the primitive that has no lowering. The error says what has no
    lowering, where it is, and what to do.

    Args:
      reason: what cannot be lowered, and why.
      advice: what the user can do instead.

    Raises:
      LoweringError: always.
    """
    raise lowering_error(
      self.primitive, [UnsupportedEquation(self.primitive, reason, advice, self.where())]
    )


def scope_name(path: str) -> str:
  """The name of a function, or a path of names, as a TensorFlow scope name: `<lambda>` ->
  `lambda`."""
  return "/".join(
    re.sub(r"[^A-Za-z0-9]+", "_", part).strip("_") or "fun" for part in path.split("/")
  )


# Config flags such as x64 and threefry_partitionable affect the trace of `fun`, so they are part of
# the key.
@_jax_compat.weakly_cached_by_all
def _trace(
  fun: Callable[..., Any], args: tuple[Any, ...], keywords: dict[str, Any], specs: tuple[Any, ...]
) -> tuple[ClosedJaxpr, Any]:
  # `fun` is ours or JAX's. The user's strictness about promotion concerns the user's code, and has
  # been applied to it.
  with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
    jaxpr, out = jax.make_jaxpr(functools.partial(fun, *args, **keywords), return_shape=True)(
      *specs
    )
  return jaxpr, jax.tree.structure(out)
