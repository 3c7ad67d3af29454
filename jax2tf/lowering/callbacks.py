"""Calls of Python functions, made when the graph runs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import tensorflow as tf

from jax2tf import _jax_compat, _tf_compat
from jax2tf._tf_compat.callbacks import Callback, Text, call_python
from jax2tf.context import RuleContext
from jax2tf.dtypes import physical
from jax2tf.lowering._texts import text_of
from jax2tf.registry import lowers

_ADVICE = (
  "leave out jit_compile=True, or this line; Equinox' error_if makes no callbacks with "
  "EQX_ON_ERROR=nan in the environment"
)


@lowers(_jax_compat.pure_callback_p, on_keys=True)
def _pure_callback(
  ctx: RuleContext, *operands: tf.Tensor, callback: Any, result_avals: Any, vmap_method: Any
) -> Sequence[tf.Tensor]:
  """operands -> the results of a Python function; it gets typed keys as their words, as in JAX.

  JAX applied `vmap_method` when it traced the function.
  """
  return (
    _results(ctx, operands, callback, _jax_compat.pure_callback(callback)) if ctx.avals_out else []
  )


@lowers(_jax_compat.io_callback_p, on_keys=True)
def _io_callback(
  ctx: RuleContext, *operands: tf.Tensor, callback: Any, result_avals: Any, ordered: bool
) -> Sequence[tf.Tensor]:
  """operands -> the results of a Python function that is called for its effects; all calls of a
  graph are in order."""
  return _results(ctx, operands, callback, _jax_compat.io_callback(callback))


def _results(
  ctx: RuleContext,
  operands: Sequence[tf.Tensor],
  callback: Any,
  function: Callable[..., Sequence[Any]],
) -> Sequence[tf.Tensor]:
  name = _name({"callback": callback})
  if _tf_compat.is_compiled_by_xla():
    ctx.refuse(
      f"it calls back into Python ({name}), which TensorFlow's XLA cannot compile", _ADVICE
    )
  avals = [physical(aval) for aval in ctx.avals_out]
  sizes = (
    tf.concat([tf.convert_to_tensor(ctx.shape(shape), tf.int32) for shape, _ in avals], 0)
    if avals
    else tf.zeros([0], tf.int32)
  )
  checked = _on_host(
    function, [len(shape) for shape, _ in avals], [dtype.as_numpy_dtype for _, dtype in avals]
  )
  return call_python(
    checked,
    [sizes, *operands],
    [dtype for _, dtype in avals],
    Callback(f"{ctx.primitive} ({name})", ctx.where()),
  )


@lowers(_jax_compat.debug_print_p, _jax_compat.debug_callback_p, on_keys=True)
def _debug(ctx: RuleContext, *operands: tf.Tensor, **params: Any) -> list[tf.Tensor]:
  """operands -> nothing; TensorFlow's control dependencies keep the op, and its order."""
  is_print = "fmt" in params
  what = Callback(
    ctx.primitive if is_print else f"{ctx.primitive} ({_name(params)})",
    ctx.where(),
    _text(operands, params) if is_print else None,
  )
  if _tf_compat.is_compiled_by_xla():
    ctx.graph.omitted_effects.append(str(what))
  else:
    call_python(
      functools.partial(
        _print, _jax_compat.debug(ctx.primitive, params), jax.config.jax_enable_x64
      ),
      operands,
      [],
      what,
    )
  return []


def _text(operands: Sequence[tf.Tensor], params: dict[str, Any]) -> Text | None:
  """The text that TensorFlow can print in place of a `jax.debug.print`."""
  words = functools.partial(_jax_compat.printed_text, params=params)
  return text_of(words, operands, "", "log(info)" if params["logging_record"] else "stdout")


def _name(params: dict[str, Any]) -> str:
  """The name of the user's function, such as errors show it."""
  function = _jax_compat.callback_function(params)
  while isinstance(function, functools.partial):
    function = function.func
  return getattr(function, "__qualname__", type(function).__qualname__)


def _print(callback: Callable[..., Any], x64: bool, *operands: np.ndarray) -> list[np.ndarray]:
  with jax.enable_x64(x64):
    callback(*operands)
  return []


def _on_host(
  callback: Callable[..., Sequence[Any]], ranks: Sequence[int], dtypes: Sequence[Any]
) -> Callable[..., list[np.ndarray]]:
  """(sizes of the results in a row, operands) -> results, of these shapes and dtypes or a
  RuntimeError in JAX's words."""
  x64 = jax.config.jax_enable_x64  # of this thread; TensorFlow calls back in another one

  def call(sizes: np.ndarray, *operands: np.ndarray) -> list[np.ndarray]:
    with jax.enable_x64(x64):
      results = [_jax_compat.canonical(x) for x in callback(*operands)]
    if len(results) != len(ranks):
      raise RuntimeError(
        f"Mismatched number of outputs from callback. Expected: {len(ranks)}, Actual: "
        f"{len(results)}"
      )
    ends = np.cumsum(ranks)
    shapes = [
      tuple(sizes[end - rank : end].tolist()) for rank, end in zip(ranks, ends, strict=True)
    ]
    for i, (result, shape, dtype) in enumerate(zip(results, shapes, dtypes, strict=True)):
      for what, expected, actual in (
        ("shape", shape, result.shape),
        ("dtype", np.dtype(dtype), result.dtype),
      ):
        if actual != expected:
          raise RuntimeError(
            f"Incorrect output {what} for return value #{i}: Expected: {expected}, Actual: {actual}"
          )
    return results

  return call
