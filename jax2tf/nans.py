"""Checks results for jax_debug_nans and jax_debug_infs, eagerly and in graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import tensorflow as tf

from jax2tf import _tf_compat
from jax2tf.errors import warn_user


def checked(
  results: Sequence[tf.Tensor], what: str, again: Callable[[], Any] = lambda: None
) -> list[tf.Tensor]:
  """The results of `what`, a function or its derivative; in a graph they wait for an assertion.

  Raises:
    FloatingPointError: an eager result is NaN or infinite. If `again`, the JAX function on the same
      arguments, finds it too, it is JAX's error, which names the primitive.
  """
  forbidden = list(_forbidden(results))
  if not forbidden:
    return list(results)
  if _tf_compat.current_graph() is not None:
    return _asserted(results, what, forbidden)
  if not any(map(bool, (is_present for _, is_present in forbidden))):
    return list(results)
  again()
  raise FloatingPointError(_words(what, next(kind for kind, is_present in forbidden if is_present)))


def _forbidden(results: Sequence[tf.Tensor]) -> Iterator[tuple[str, tf.Tensor]]:
  """("nan" or "inf", whether the results have it), for what is forbidden now in this thread."""
  for kind, on, has in (
    ("nan", jax.config.jax_debug_nans, tf.math.is_nan),
    ("inf", jax.config.jax_debug_infs, tf.math.is_inf),
  ):
    inexact = [y for y in results if y.dtype.is_floating or y.dtype.is_complex] if on else []
    if inexact:
      yield (
        kind,
        tf.reduce_any(tf.stack([tf.reduce_any(has(part)) for y in inexact for part in _parts(y)])),
      )


def _parts(y: tf.Tensor) -> list[tf.Tensor]:
  if y.dtype.is_complex:
    return [tf.math.real(y), tf.math.imag(y)]
  return [y if y.dtype.size >= 2 else tf.cast(y, tf.float32)]  # TF 2.21 has no kernels for 8 bits


def _asserted(
  results: Sequence[tf.Tensor], what: str, forbidden: Sequence[tuple[str, tf.Tensor]]
) -> list[tf.Tensor]:
  if _tf_compat.is_compiled_by_xla():
    warn_user(
      f"jit_compile=True omits the assertions of jax_debug_nans and jax_debug_infs on {what}"
    )
    return list(results)
  with tf.control_dependencies(
    [
      tf.debugging.Assert(~is_present, [f"FloatingPointError: {_words(what, kind)}"])
      for kind, is_present in forbidden
    ]
  ):
    return [tf.identity(y) for y in results]


def _words(what: str, kind: str) -> str:
  return f"invalid value ({kind}) encountered in {what}"
