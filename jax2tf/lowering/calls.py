"""Calls of inner jaxprs, and primitives that are the identity outside JAX's own transformations.

Calls are inlined: TensorFlow does not need JAX's function boundaries, and exporters
inline them anyway. JAX applied the rules of custom_jvp and custom_vjp when it traced the
gradient; only the function itself is lowered here.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.extend.core.primitives as P
import tensorflow as tf
from jax import custom_derivatives, lax

from jax2tf import _jax_compat, _tf_compat
from jax2tf.context import RuleContext, scope_name
from jax2tf.jaxprs import closed
from jax2tf.registry import lower_directly, lowers

Tensors = list[tf.Tensor]


@lowers(P.jit_p, on_keys=True)
def _jit(
  ctx: RuleContext,
  *operands: tf.Tensor,
  jaxpr: Any,
  name: str,
  in_shardings: Any,
  out_shardings: Any,
  in_layouts: Any,
  out_layouts: Any,
  donated_invars: Any,
  ctx_mesh: Any,
  keep_unused: bool,
  inline: Any,
  compiler_options_kvs: Any,
) -> Tensors:
  """The inner function, under its name; the other params say how XLA compiles and places it."""
  placed = [ctx.sharded(x, sharding) for x, sharding in zip(operands, in_shardings, strict=True)]
  results = _call(ctx, *placed, jaxpr=jaxpr, name=name)
  return [ctx.sharded(y, sharding) for y, sharding in zip(results, out_shardings, strict=True)]


@lowers(P.closed_call_p, _jax_compat.core_call_p, on_keys=True)
def _call(
  ctx: RuleContext, *operands: tf.Tensor, jaxpr: Any = None, call_jaxpr: Any = None, name: str = ""
) -> Tensors:
  """The inner function."""
  inner = closed(call_jaxpr if jaxpr is None else jaxpr)
  if not name:
    return ctx.lower(inner, *operands)
  with tf.name_scope(scope_name(name)):
    return ctx.lower(inner, *operands)


@lowers(P.remat_p, on_keys=True)
def _remat(
  ctx: RuleContext,
  *operands: tf.Tensor,
  jaxpr: Any,
  prevent_cse: Any,
  differentiated: bool,
  policy: Any,
) -> Tensors:
  """The inner function; in a backward pass behind a barrier, so that it is computed once more, and
  not before it is needed."""
  # The policy has decided what is among the operands.
  # In the body of a scan prevent_cse is False, because neither XLA nor Grappler merges ops across
  # loop boundaries.
  fenced = _barrier(*operands) if differentiated and prevent_cse else operands
  return ctx.lower(closed(jaxpr), *fenced)


# primitive -> (the param that holds the function, the params that concern JAX's transformations
# only). These were applied when the gradient was traced; only the function itself remains to be
# lowered.
_FUNCTIONS = {
  P.custom_jvp_call_p: ("call_jaxpr", {"jvp_jaxpr_fun", "num_consts", "symbolic_zeros"}),
  P.custom_vjp_call_p: (
    "call_jaxpr",
    {"fwd_jaxpr_thunk", "num_consts", "bwd", "out_trees", "symbolic_zeros"},
  ),
  _jax_compat.custom_vmap_p: ("call", {"rule", "in_tree", "out_tree"}),
  _jax_compat.linear_call_p: ("callee", {"transpose_thunk", "num_callee_consts", "num_res"}),
  custom_derivatives.remat_opt_p: ("fwd_jaxpr", {"num_consts", "num_res", "fun_jaxpr_thunk"}),
  _jax_compat.xla_metadata_call_p: ("jaxpr", {"xla_metadata", "ad_metadata"}),
  # The interpreter has placed it already.
  _jax_compat.compute_on_p: (
    "jaxpr",
    {"compute_type", "out_memory_spaces", "compiler_options_json"},
  ),
}


def _function(
  function: str, ignored: set[str], ctx: RuleContext, *operands: tf.Tensor, **params: Any
) -> Tensors:
  if unknown := params.keys() - ignored - {function}:
    raise TypeError(f"unknown params {sorted(unknown)} of '{ctx.primitive}'")
  return ctx.lower(closed(params[function]), *operands)


for _primitive, _params in _FUNCTIONS.items():
  lowers(_primitive, on_keys=True)(functools.partial(_function, *_params))


# Qwix 0.1.8 names so what quantizes and dequantizes.
_FAKE_QUANT = "quant.fake_quant"


@lowers(_jax_compat.composite_p, on_keys=True)
def _composite(
  ctx: RuleContext,
  *operands: tf.Tensor,
  name: str,
  version: int,
  attributes: Any,
  jaxpr: Any = None,
  call_jaxpr: Any = None,
) -> Tensors:
  """The decomposition of a StableHLO composite, `call_jaxpr` in JAX >= 0.12."""
  results = _call(ctx, *operands, jaxpr=jaxpr, call_jaxpr=call_jaxpr, name=name)
  known = _jax_compat.composite_attributes(attributes) if name == _FAKE_QUANT else {}
  if not known.keys() >= {"scale", "dtype", "narrow_range"}:
    return results
  # What it closes over comes before its operand.
  return [_tf_compat.mark_fake_quant(results[0], operands[-1], known)]


@lowers(_jax_compat.call_hi_primitive_p)
def _call_hi_primitive(ctx: RuleContext, *operands: tf.Tensor, _prim: Any) -> Tensors:
  """A primitive that defines itself by other primitives (JAX >= 0.12)."""
  specs = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in ctx.avals_in]
  return ctx.lower(jax.make_jaxpr(functools.partial(_expand, _prim))(*specs), *operands)


def _expand(primitive: Any, *operands: Any) -> list[Any]:
  return jax.tree.leaves(primitive.expand(*jax.tree.unflatten(primitive.in_tree, operands)))


def _barrier(*operands: tf.Tensor) -> Tensors:
  """The operands behind a barrier that waits for all of them, so Grappler cannot merge the
  recomputation with the original."""
  with tf.control_dependencies(operands):
    return [tf.identity(x) for x in operands]


@lowers(P.name_p)
def _name(ctx: RuleContext, operand: tf.Tensor, *, name: str) -> tf.Tensor:
  """A label for checkpoint policies, which JAX applied when it traced the gradient."""
  return operand


lower_directly(
  {P.stop_gradient_p: lambda x: x, P.copy_p: lambda x: x, lax.optimization_barrier_p: _barrier}
)
