"""Runs a TensorFlow function under jit: inlined as XLA code if that is equivalent, otherwise by a
callback."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import tensorflow as tf
from jax.export import is_symbolic_dim
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import func
from jax.interpreters import mlir

from jax2tf import _jax_compat, _tf_compat
from jax2tf.dtypes import tf_dtype
from jax2tf.tf_calls.function import TfFunction

EFFECT, ORDERED = (
  _jax_compat.call_effect("CallTf", ordered=False),
  _jax_compat.call_effect("OrderedCallTf", ordered=True),
)

# What the ops do whose variables are arguments of XLA's code.
_READS = {"ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape"}
_PLATFORMS = {"cpu": "CPU", "cuda": "GPU", "rocm": "GPU", "tpu": "TPU"}


def effects(function: TfFunction) -> set[Any]:
  """The effects that prevent removal or reordering of a call."""
  if function.options.ordered:
    return {ORDERED}
  return {EFFECT} if function.has_effects else set()


def lower(ctx: Any, function: TfFunction, operands: Sequence[Any]) -> Sequence[Any]:
  """The results of the call in a module of JAX's.

  Raises:
    ValueError: the function cannot be inlined, and must be; or only `convert` may lower it.
  """
  options = function.options
  if options.call_tf_graph:
    raise ValueError(
      f"call_tf_graph=True only support exporting by jax2tf.convert currently: '{function.name}' "
      "is under jax.jit. Leave it out"
    )
  if any(is_symbolic_dim(d) for aval in (*ctx.avals_in, *ctx.avals_out) for d in aval.shape):
    raise ValueError(
      f"jax.export has no symbolic shapes for the TensorFlow function '{function.name}': use "
      "jax2tf.convert, or fixed shapes"
    )
  if options.under_jit != "callback":
    reason = _why_not_inlined(function)
    platform = _PLATFORMS[ctx.module_context.platforms[0]]
    code = (
      function.memoised(("hlo", platform), lambda: _hlo(function, platform))
      if reason is None
      else reason
    )
    if isinstance(code, bytes):
      module = ir.Module.parse(_jax_compat.hlo_to_stablehlo(code))
      main: Any = ir.SymbolTable(module.operation)["main"]
      result_types = ir.FunctionType(main.type).results
      if [tuple(ir.RankedTensorType(y).shape) for y in result_types] == [
        aval.shape for aval in ctx.avals_out
      ]:
        return _inlined(ctx, function, module, main, operands)
      # XLA bounds a size that depends on values, and knows better than a shape function that is
      # wrong.
      in_xla, in_tensorflow = (
        ", ".join(map(str, result_types)),
        ", ".join(str(a.shape) for a in ctx.avals_out),
      )
      code = f"its results in XLA are {in_xla}, and TensorFlow's shapes are {in_tensorflow}"
    if options.under_jit == "inline":
      raise ValueError(
        f"Error compiling TensorFlow function '{function.name}' with under_jit='inline': {code}. "
        "Leave under_jit out"
      )
  return _called_back(ctx, function, operands)


def _why_not_inlined(function: TfFunction) -> str | None:
  """Why inlining would change the meaning: variables would become constants, writes and asserts
  would be dropped."""
  if (
    function.has_effects and function.options.has_side_effects is None
  ) or function.options.ordered:
    return "it has side effects"
  bound = _bound(function)
  if any(
    x.dtype in (tf.resource, tf.variant) and id(x) not in bound
    for x in function.concrete.captured_inputs
  ):
    return "it has variables or tables, which are read at each call"
  if not all(x.shape.is_fully_defined() for x in function.concrete.outputs):
    return "the shapes of its results depend on values"
  if any(v.dtype != tf_dtype(function.avals_in[i].dtype) for i, v in function.substituted.items()):
    return "JAX has its variables in other dtypes without jax_enable_x64"
  if kinds := function.stateful - (_READS if bound else set()):
    return f"its ops {', '.join(sorted(kinds))} have state"
  return None


def _bound(function: TfFunction) -> dict[int, int]:
  """{id of the handle of a variable: position of the argument that is its value}."""
  return {id(v.handle): i for i, v in function.substituted.items()}


def _hlo(function: TfFunction, platform: str) -> bytes | str:
  """XLA's code, or TensorFlow's reason why there is none."""
  if not function.avals_out:
    return "it has no results"
  try:
    with _tf_compat.outside_graphs(), jax.core.eval_context(), _tf_compat.recording_again():
      compiler_ir = function.compiled(True).experimental_get_compiler_ir(*function.specs)
      return compiler_ir(stage="hlo_serialized", platform_name=platform)
  except Exception as error:
    return str(error)


def _inlined(
  ctx: Any, function: TfFunction, module: Any, main: Any, operands: Sequence[Any]
) -> Sequence[Any]:
  kind = ir.FunctionType(main.type)
  name = mlir.merge_mlir_modules(
    ctx.module_context.module, "call_tf", module, dst_symtab=ctx.module_context.symbol_table
  )
  bound = _bound(function)
  captured = [
    operands[bound[id(x)]] if id(x) in bound else mlir.ir_constant(np.asarray(x))
    for x in function.concrete.captured_inputs
  ]
  return func.CallOp(kind.results, ir.FlatSymbolRefAttr.get(name), [*operands, *captured]).results


def _called_back(ctx: Any, function: TfFunction, operands: Sequence[Any]) -> Sequence[Any]:
  def callback(*arrays: Any) -> tuple[np.ndarray, ...]:
    results = tuple(function.called_back(arrays))
    for result, aval in zip(results, ctx.avals_out, strict=True):
      # TF 2.21: so does SelfAdjointEigV2 with compute_v=False.
      if np.shape(result) != aval.shape:
        raise ValueError(
          f"TensorFlow infers another shape for a result of '{function.name}', {aval.shape}, than "
          f"the result has, {np.shape(result)}: leave the result out, or call a public function "
          "of TensorFlow that does, such as tf.linalg.eigvalsh"
        )
    return results

  ordered = function.options.ordered
  token = ctx.tokens_in.get(ORDERED) if ordered else None
  results, token, _ = mlir.emit_python_callback(
    ctx,
    callback,
    token,
    list(operands),
    ctx.avals_in,
    ctx.avals_out,
    # XLA would merge equal calls, and move them out of loops: what they read may change in between.
    has_side_effect=function.has_effects or bool(function.stateful),
    returns_token=ordered,
    sharding=_jax_compat.callback_sharding(ctx),
  )
  if ordered:
    ctx.set_tokens_out(mlir.TokenSet({ORDERED: token}))
  return results
