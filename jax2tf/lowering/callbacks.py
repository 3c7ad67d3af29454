"""Calls of Python functions, made when the graph runs."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import tensorflow as tf

from jax2tf import _jax_compat, _tf_compat
from jax2tf._tf_effects import Callback, Text, call_python
from jax2tf.context import RuleContext
from jax2tf.dtypes import physical
from jax2tf.registry import lowers

_ADVICE = "leave out jit_compile=True, or this line; Equinox' error_if makes no callbacks with EQX_ON_ERROR=nan in the environment"


@lowers(_jax_compat.pure_callback_p, on_keys=True)
def _pure_callback(ctx: RuleContext, *operands: tf.Tensor, callback: Any, result_avals: Any, vmap_method: Any) -> Sequence[tf.Tensor]:
  """operands -> what a Python function gives for them; typed keys reach it as their words, as in JAX."""
  del result_avals, vmap_method  # the former are in the context, the latter has done its work
  name = _name({"callback": callback})
  if _tf_compat.is_compiled_by_xla():
    ctx.refuse(f"it calls back into Python ({name}), which TensorFlow's XLA cannot compile", _ADVICE)
  if not ctx.avals_out:
    return []
  shapes, dtypes = zip(*map(physical, ctx.avals_out), strict=True)
  sizes = tf.concat([tf.convert_to_tensor(ctx.shape(shape), tf.int32) for shape in shapes], 0)
  function = _on_host(_jax_compat.pure_callback(callback), [len(shape) for shape in shapes], [d.as_numpy_dtype for d in dtypes])
  return call_python(function, [sizes, *operands], dtypes, Callback(f"{ctx.primitive} ({name})", ctx.where()))


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
  is_print = "fmt" in params
  what = ctx.primitive if is_print else f"{ctx.primitive} ({_name(params)})"
  call_python(function, operands, [], Callback(what, ctx.where(), _text(operands, params) if is_print else None))
  return []


class _Hole:
  """What is printed in the place of an operand, and notes that it was."""

  def __init__(self, number: int, used: list[int]):
    self._number, self._used = number, used

  def __repr__(self) -> str:
    self._used.append(self._number)
    return Text.HOLE

  def __format__(self, spec: str) -> str:
    return repr(self)


def _text(operands: Sequence[tf.Tensor], params: dict[str, Any]) -> Text | None:
  """What TensorFlow can say in the place of a `jax.debug.print`; None for one that looks into its operands, as "{x.shape}" does."""
  used: list[int] = []
  try:
    template = _jax_compat.printed_text([_Hole(i, used) for i in range(len(operands))], params)
  except (AttributeError, TypeError):
    return None
  sizes = [math.prod(operands[i].shape) if operands[i].shape.is_fully_defined() else math.inf for i in used]
  few = sum(sizes) <= np.get_printoptions()["threshold"]
  return Text(template, tuple(used), -1 if few else 3, "log(info)" if params["logging_record"] else "stdout")


def _name(params: dict[str, Any]) -> str:
  """The name of the user's function, such as errors show it."""
  function = _jax_compat.called(params)
  while isinstance(function, functools.partial):
    function = function.func
  return getattr(function, "__qualname__", type(function).__qualname__)


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
