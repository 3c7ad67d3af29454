"""The two primitives: `call_tf` calls a TensorFlow function, `call_tf_linear` its derivative, which
JAX transposes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import tensorflow as tf
from jax.core import ShapedArray
from jax.export import is_symbolic_dim
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir, partial_eval

from jax2tf import _jax_compat, _tf_compat
from jax2tf.dtypes import is_differentiable
from jax2tf.graph_context import asserted
from jax2tf.jaxprs import Eqn
from jax2tf.registry import lowers, stays_in_tensorflow
from jax2tf.tf_calls import under_jit
from jax2tf.tf_calls.derivations import Linear, derivative, vmapped
from jax2tf.tf_calls.function import TfFunction, VariableReads

_bind = _jax_compat.bind_over_devices
call_tf_p = Primitive("call_tf")
call_tf_p.multiple_results = True
call_tf_linear_p = Primitive("call_tf_linear")
call_tf_linear_p.multiple_results = True


@call_tf_p.def_impl  # type: ignore[untyped-decorator]
def _impl(*arrays: Any, function: TfFunction) -> list[jax.Array]:
  return function.eagerly(arrays)


@call_tf_linear_p.def_impl  # type: ignore[untyped-decorator]
def _linear_impl(*arrays: Any, linear: Linear) -> list[jax.Array]:
  return linear.forward.eagerly(arrays)


@call_tf_p.def_effectful_abstract_eval  # type: ignore[untyped-decorator]
def _avals(*operands: Any, function: TfFunction) -> tuple[list[Any], Any]:
  return _shaped(function.avals_out, operands), under_jit.effects(function)


@call_tf_linear_p.def_abstract_eval  # type: ignore[untyped-decorator]
def _linear_avals(*operands: Any, linear: Linear) -> list[Any]:
  return _shaped(linear.forward.avals_out, operands)


def _shaped(avals: Sequence[Any], operands: Sequence[Any]) -> list[Any]:
  return [_jax_compat.varying_like(ShapedArray(a.shape, a.dtype), operands) for a in avals]


def _jvp(
  primals: Sequence[Any], tangents: Sequence[Any], *, function: TfFunction
) -> tuple[Any, Any]:
  n, of = len(function.avals_out), function.inexact_results
  wrt = tuple(
    i for i, (x, t) in enumerate(zip(primals, tangents, strict=True)) if _moves(jax.typeof(x), t)
  )
  if isinstance(function, VariableReads) or not (of and wrt):
    outs = _bind(call_tf_p, *primals, function=function)
    return outs, [_zero(y) for y in outs]
  of_function = derivative(function, wrt)
  operands = [
    *primals,
    *(_bind(call_tf_p, *primals, function=of_function.reads) if of_function.reads else ()),
  ]
  results = _bind(call_tf_p, *operands, function=of_function.forward)
  outs, residuals = results[:n], results[n:] if of_function.is_recorded else operands
  pushed = dict(
    zip(
      of,
      _bind(call_tf_linear_p, *residuals, *[tangents[i] for i in wrt], linear=of_function.linear),
      strict=True,
    )
  )
  return outs, [pushed[i] if i in pushed else _zero(y) for i, y in enumerate(outs)]


def _linear_jvp(
  primals: Sequence[Any], tangents: Sequence[Any], *, linear: Linear
) -> tuple[Any, Any]:
  """At fixed primals the map is its own derivative; otherwise as for any function."""
  n = linear.n_residuals
  outs = _bind(call_tf_linear_p, *primals, linear=linear)
  total = [_zero(y) for y in outs]
  if any(not isinstance(t, ad.Zero) for t in tangents[n:]):
    moved = map(ad.instantiate_zeros, tangents[n:])
    total = _bind(call_tf_linear_p, *primals[:n], *moved, linear=linear)
  still = [*tangents[:n], *(_zero(x) for x in primals[n:])]
  if any(_moves(a, t) for a, t in zip(linear.forward.avals_in, still, strict=True)):
    _, more = _jvp(primals, still, function=linear.forward)
    total = list(map(ad.add_tangents, total, more))
  return outs, total


def _zero(primal: Any) -> ad.Zero:
  return ad.Zero(jax.typeof(primal).to_tangent_aval())


def _moves(aval: Any, tangent: Any) -> bool:
  return is_differentiable(aval.dtype) and not isinstance(tangent, ad.Zero)


def _transpose(cotangents: Sequence[Any], *operands: Any, linear: Linear) -> list[Any]:
  n = linear.n_residuals
  dense_cotangents = map(ad.instantiate_zeros, cotangents)
  cotangents_in = _bind(call_tf_p, *operands[:n], *dense_cotangents, function=linear.backward)
  return [None] * n + [
    c if ad.is_undefined_primal(x) else None
    for x, c in zip(operands[n:], cotangents_in, strict=True)
  ]


def _batch(arrays: Sequence[Any], dims: Sequence[Any], *, function: TfFunction) -> tuple[Any, Any]:
  if isinstance(function, VariableReads):
    outs = _bind(call_tf_p, *arrays, function=function)
    return outs, [None] * len(outs)
  arrays, batched, size = _in_front(arrays, dims)
  outs = _bind(call_tf_p, *arrays, function=vmapped(function, batched, size))
  return outs, [0] * len(outs)


def _linear_batch(arrays: Sequence[Any], dims: Sequence[Any], *, linear: Linear) -> tuple[Any, Any]:
  arrays, batched, size = _in_front(arrays, dims)
  n, of = linear.n_residuals, len(linear.forward.avals_out)
  arrays = [
    x if i < n or is_in else jax.numpy.broadcast_to(x, (size, *x.shape))
    for i, (x, is_in) in enumerate(zip(arrays, batched, strict=True))
  ]
  primals, tangents = batched[:n], (True,) * (len(arrays) - n)
  mapped = linear.forward.memoised(
    ("batch", primals, size),
    lambda: Linear(
      vmapped(linear.forward, (*primals, *tangents), size),
      vmapped(linear.backward, (*primals, *(True for _ in range(of))), size),
      n,
    ),
  )
  outs = _bind(call_tf_linear_p, *arrays, linear=mapped)
  return outs, [0] * len(outs)


def _in_front(
  arrays: Sequence[Any], dims: Sequence[Any]
) -> tuple[list[Any], tuple[bool, ...], int]:
  """(the arrays with the batch in front, which of them have it, its size)."""
  batched = tuple(d is not None for d in dims)
  size = next(x.shape[d] for x, d in zip(arrays, dims, strict=True) if d is not None)
  return (
    [
      jax.numpy.moveaxis(x, d, 0) if is_in else x
      for x, d, is_in in zip(arrays, dims, batched, strict=True)
    ],
    batched,
    size,
  )


def _known(saveable: Any, unknown: Sequence[bool], here: Sequence[bool], eqn: Eqn) -> Any:
  """The rematerialisation rule of a call: values that may have changed are never recomputed.

  Args:
    saveable: the policy.
    unknown: whether each operand is unknown in the forward pass.
    here: whether each operand is available when the call is computed again.
    eqn: the equation of the call.

  Returns:
    its equation in the forward pass, that in the backward pass, and for each result whether it is
    unknown and whether it is there in the backward pass; the operands to keep.
  """
  n, missing = (
    len(eqn.outvars),
    [x for x, is_here in zip(eqn.invars, here, strict=True) if not is_here],
  )
  if any(unknown):
    return None, eqn, [True] * n, [True] * n, missing
  keep = (
    bool(eqn.params["function"].stateful)
    or saveable(eqn.primitive, *[x.aval for x in eqn.invars], **eqn.params) is True
  )
  return (
    (eqn, None, [False] * n, [False] * n, [])
    if keep
    else (eqn, eqn, [False] * n, [True] * n, missing)
  )


partial_eval.partial_eval_jaxpr_custom_rules[call_tf_p] = _known
ad.primitive_jvps[call_tf_p] = _jvp
ad.primitive_jvps[call_tf_linear_p] = _linear_jvp
ad.primitive_transposes[call_tf_linear_p] = _transpose
batching.primitive_batchers[call_tf_p] = _batch
batching.primitive_batchers[call_tf_linear_p] = _linear_batch
mlir.register_lowering(call_tf_p, lambda ctx, *xs, function: under_jit.lower(ctx, function, xs))
mlir.register_lowering(
  call_tf_linear_p, lambda ctx, *xs, linear: under_jit.lower(ctx, linear.forward, xs)
)
stays_in_tensorflow(
  {call_tf_p: lambda function: function.read, call_tf_linear_p: lambda linear: linear.forward.read}
)


@lowers(call_tf_p)
def call_tf(ctx: Any, *operands: Any, function: TfFunction) -> Any:
  """The function's own ops."""
  results = _in_graph(function, operands)
  if not function.declares:
    return results
  return [_sized(ctx, function, y, aval) for y, aval in zip(results, ctx.avals_out, strict=True)]


def _sized(ctx: Any, function: TfFunction, y: Any, aval: Any) -> Any:
  """A result of the declared symbolic sizes. Another one raises while the graph is built, or when
  it runs.

  Raises:
    ValueError: it is known to have another shape.
  """
  shape = ctx.dimensions.static_shape(aval.shape)
  if not y.shape.is_compatible_with(shape):
    raise function.contradicts(y.dtype, y.shape, aval, f" where that is {shape}")
  if y.shape.is_fully_defined() or not any(map(is_symbolic_dim, aval.shape)):
    return y
  actual, expected = tf.shape(y), ctx.shape(aval.shape)
  is_declared = tf.reduce_all(tf.equal(actual, expected))
  message = str(function.contradicts(y.dtype, y.shape, aval))
  in_xla = f"{message}, or the size depends on values"
  checked = asserted(is_declared, [message, actual, expected], in_xla, summarize=8)
  with tf.control_dependencies([checked]):
    return tf.identity(y)


@lowers(call_tf_linear_p)
def call_tf_linear(ctx: Any, *operands: Any, linear: Linear) -> Any:
  """Those of its derivative."""
  return _in_graph(linear.forward, operands)


def _in_graph(function: TfFunction, operands: Sequence[Any]) -> Any:
  # A function of the user may have a tape of its own, and tapes do not record inside of a converted
  # function.
  with jax.core.eval_context(), _tf_compat.recording_again():
    return function.flat_call(list(operands)) if function.substituted else function.run(*operands)
