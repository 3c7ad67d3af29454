"""Checks outside of `checkify.checkify`, lowered to assertions."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import tensorflow as tf

from jax2tf import _tf_compat
from jax2tf._jax_compat import checkify
from jax2tf._tf_compat.callbacks import Callback, Text, call_python
from jax2tf.context import RuleContext
from jax2tf.lowering._texts import text_of
from jax2tf.registry import lowers


@lowers(checkify.check_p, on_keys=True)
def _check(ctx: RuleContext, *operands: tf.Tensor, err_tree: Any, debug: bool) -> list[tf.Tensor]:
  """leaves of an error value -> nothing; raises JAX's error if it is one. A `debug_check` is for
  checkify alone, as in JAX."""
  if debug:
    return []
  where = ctx.where()
  function = functools.partial(
    _run, err_tree, jax.config.jax_enable_x64, [aval.dtype for aval in ctx.avals_in]
  )
  # JAX's text in this process; a file has TensorFlow's.
  text = text_of(
    functools.partial(checkify.words, err_tree), operands, f"\n  at {where}", Text.ASSERTION
  )
  what = Callback(ctx.primitive, where, text)
  if _tf_compat.is_compiled_by_xla():
    ctx.graph.omitted_effects.append(str(what))
    return []

  def fail() -> tuple[()]:
    call_python(function, operands, [], what)
    return ()

  tf.cond(tf.reduce_any(checkify.predicates(err_tree, operands)), fail, lambda: ())
  return []


def _run(
  err_tree: Any, x64: bool, dtypes: Sequence[Any], *operands: np.ndarray
) -> Sequence[np.ndarray]:
  with jax.enable_x64(x64):
    checkify.raise_error(err_tree, map(checkify.array, operands, dtypes))
  return []
