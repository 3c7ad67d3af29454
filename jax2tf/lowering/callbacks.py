"""Calls of Python functions, made when the graph runs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import tensorflow as tf

from jax2tf import _jax_compat, _tf_compat
from jax2tf.context import RuleContext
from jax2tf.dtypes import physical
from jax2tf.registry import lowers

_ADVICE = "leave out jit_compile=True, or this line; Equinox' error_if makes no callbacks with EQX_ON_ERROR=nan in the environment"


@lowers(_jax_compat.pure_callback_p, on_keys=True)
def _pure_callback(ctx: RuleContext, *operands: tf.Tensor, callback: Any, result_avals: Any, vmap_method: Any) -> Sequence[tf.Tensor]:
  """operands -> what a Python function gives for them; typed keys reach it as their words, as in JAX."""
  del result_avals, vmap_method  # the former are in the context, the latter has done its work
  name = getattr(callback.callback_func, "__qualname__", repr(callback.callback_func))
  if _tf_compat.is_compiled_by_xla():
    ctx.refuse(f"it calls back into Python ({name}), which TensorFlow's XLA cannot compile", _ADVICE)
  if not ctx.avals_out:
    return []
  shapes, dtypes = zip(*map(physical, ctx.avals_out), strict=True)
  sizes = tf.concat([tf.convert_to_tensor(ctx.shape(shape), tf.int32) for shape in shapes], 0)
  function = _on_host(_jax_compat.pure_callback(callback), [len(shape) for shape in shapes], [d.as_numpy_dtype for d in dtypes])
  return _tf_compat.call_python(function, [sizes, *operands], dtypes, f"{ctx.primitive} ({name}) at {ctx.where()}")


@lowers(_jax_compat.debug_print_p, _jax_compat.debug_callback_p, on_keys=True)
def _debug(ctx: RuleContext, *operands: tf.Tensor, **params: Any) -> list[tf.Tensor]:
  """operands -> nothing; TensorFlow's automatic control dependencies keep the op, and its order."""
  if _tf_compat.is_compiled_by_xla():
    ctx.refuse("it calls back into Python, which TensorFlow's XLA cannot compile", _ADVICE)
  if not _tf_compat.keeps_effects():
    ctx.refuse(
      "this graph would never run it: it is one of TensorFlow 1, or of a gradient that a tape outside of a tf.function asks for",
      "call the function eagerly, or in a tf.function that has the tape inside",
    )
  function = functools.partial(_print, _jax_compat.debug(ctx.primitive, params), jax.config.jax_enable_x64)
  _tf_compat.call_python(function, operands, [], f"{ctx.primitive} at {ctx.where()}")
  return []


def _print(callback: Callable[..., Any], x64: bool, *operands: np.ndarray) -> list[np.ndarray]:
  with jax.enable_x64(x64):
    callback(*operands)
  return []


def _on_host(callback: Callable[..., Sequence[Any]], ranks: Sequence[int], dtypes: Sequence[Any]) -> Callable[..., list[np.ndarray]]:
  """(sizes of the results in a row, operands) -> results, of these shapes and dtypes or a RuntimeError in JAX's words."""
  x64 = jax.config.jax_enable_x64  # of this thread; TensorFlow calls back in another one

  def call(sizes: np.ndarray, *operands: np.ndarray) -> list[np.ndarray]:
    with jax.enable_x64(x64):
      results = [_jax_compat.canonical(x) for x in callback(*operands)]
    if len(results) != len(ranks):
      raise RuntimeError(f"Mismatched number of outputs from callback. Expected: {len(ranks)}, Actual: {len(results)}")
    shapes = [tuple(part.tolist()) for part in np.split(sizes, np.cumsum(ranks)[:-1])]
    for i, (result, shape, dtype) in enumerate(zip(results, shapes, dtypes, strict=True)):
      for what, expected, actual in (("shape", shape, result.shape), ("dtype", np.dtype(dtype), result.dtype)):
        if actual != expected:
          raise RuntimeError(f"Incorrect output {what} for return value #{i}: Expected: {expected}, Actual: {actual}")
    return results

  return call
