"""Placement primitives: identities, on a device if they name one."""

from __future__ import annotations

from typing import Any

import jax.extend.core.primitives as P
import tensorflow as tf
from jax import lax

from jax2tf import _jax_compat
from jax2tf.context import RuleContext
from jax2tf.placement.devices import place_of
from jax2tf.registry import lower_directly, lowers


@lowers(P.device_put_p, on_keys=True)
def _device_put(
  ctx: RuleContext, *operands: tf.Tensor, devices: Any, srcs: Any, copy_semantics: Any
) -> list[tf.Tensor]:
  """operands -> operands, each on its device: an Identity on that device transfers the value."""
  return [_put(ctx, x, target) for x, target in zip(operands, devices, strict=True)]


def _put(ctx: RuleContext, operand: tf.Tensor, target: Any) -> tf.Tensor:
  if (place := place_of(target)) is None:
    return ctx.sharded(operand, target)
  if (device := ctx.destination.device(place)) is None:
    return operand
  with tf.device(device):
    return tf.identity(operand)


@lowers(P.sharding_constraint_p)
def _sharding_constraint(
  ctx: RuleContext, operand: tf.Tensor, *, layout: Any, context_mesh: Any, unconstrained_dims: Any
) -> tf.Tensor:
  """operand -> operand; the interpreter shards the result."""
  return operand


@lowers(_jax_compat.reshard_p)
def _reshard(
  ctx: RuleContext, operand: tf.Tensor, *, dst_sharding: Any, concrete_mesh: Any
) -> tf.Tensor:
  """operand -> operand; the interpreter shards the result, whose aval has the sharding."""
  return operand


@lowers(_jax_compat.layout_constraint_p, _jax_compat.relayout_p)
def _layout(
  ctx: RuleContext, operand: tf.Tensor, *, layout: Any = None, dst_layout: Any = None
) -> tf.Tensor:
  """operand -> operand."""
  return operand


@lowers(_jax_compat.with_memory_space_constraint_p)
def _with_memory_space_constraint(
  ctx: RuleContext, operand: tf.Tensor, *, memory_space: Any
) -> tf.Tensor:
  """operand -> operand."""
  return operand


@lowers(_jax_compat.xla_metadata_value_p)
def _xla_metadata_value(
  ctx: RuleContext, operand: tf.Tensor, *, xla_metadata_kvs: Any
) -> tf.Tensor:
  """operand -> operand; only XLA uses the metadata."""
  return operand


@lowers(_jax_compat.dce_sink_p)
def _dce_sink(
  ctx: RuleContext, operand: tf.Tensor, *, prevent_mlir_dce: Any = None
) -> list[tf.Tensor]:
  """operand -> (); XLA keeps such an unused value, TensorFlow drops it."""
  return []


lower_directly({_jax_compat.tie_p: lambda x, y: y, lax.stage_p: lambda x: x})
