"""All use of `jax.experimental.checkify`: error values made of tensors, and the message of a
check."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import tensorflow as tf
from jax import tree_util
from jax._src import checkify as _checkify

check_p = _checkify.check_p
_Error: Any = _checkify.Error


def predicates(err_tree: Any, operands: Sequence[Any]) -> list[Any]:
  """The operands of a check that encode whether and how it fails."""
  return list(tree_util.tree_unflatten(err_tree, operands)._pred.values())


def array(x: Any, dtype: Any) -> Any:
  """Converts a NumPy array to a JAX array, because JAX formats the two differently; typed keys have
  their own dtype."""
  return (
    jax.random.wrap_key_data(x, dtype=dtype)
    if jnp.issubdtype(dtype, jax.dtypes.prng_key)
    else jnp.asarray(x)
  )


def raise_error(err_tree: Any, operands: Iterable[Any]) -> None:
  """Raises what JAX raises for a check with these arrays."""
  check_p.impl(*operands, err_tree=err_tree, debug=False)


def words(err_tree: Any, operands: Sequence[Any]) -> str:
  """The messages of a check with these operand values, one for each way in which it may fail.

  Raises:
    AttributeError, IndexError, KeyError, TypeError, ValueError: it looks into an operand.
  """
  error = tree_util.tree_unflatten(err_tree, operands)
  if len(error._metadata) == len(error._payload) == 1:
    ((_, kind),), ((_, payload),) = error._metadata.items(), error._payload.items()
    return str(tree_util.tree_unflatten(kind, payload))
  return "\nor ".join(
    str(tree_util.tree_unflatten(kind, [_Unknown()] * kind.num_leaves))
    for kind in error._metadata.values()
  )


class _Unknown:
  def __format__(self, spec: str) -> str:
    return "?"

  def __getitem__(self, index: Any) -> _Unknown:
    return self


def thrown_by(assertion: Callable[[Any], Any]) -> None:
  """Has `err.throw()` and `checkify.check_error(err)` call `assertion` for an error value of a
  graph."""
  _replaced.append(assertion)


_replaced: list[Callable[[Any], Any]] = []
_get_exception, check_error = _Error.get_exception, _checkify._check_error


@functools.wraps(_get_exception)
def _exception_of(error: Any) -> Any:
  if any(
    not isinstance(x, tf.__internal__.EagerTensor)
    for x in tree_util.tree_leaves(error)
    if isinstance(x, tf.Tensor | tf.TypeSpec)
  ):
    raise ValueError(
      "a checkify error in a graph has no value yet: return it from the tf.function and read it "
      "there, or call err.throw(), which is an "
      "assertion in a graph. A SavedModel holds no such object: return jax.tree.leaves(err), or "
      "call err.throw()"
    )
  return _get_exception(_of_arrays(error))


@functools.wraps(check_error)
def _check_error(error: Any, **options: Any) -> Any:
  leaves = [x for x in tree_util.tree_leaves(error) if isinstance(x, tf.Tensor)]
  if all(isinstance(x, tf.__internal__.EagerTensor) for x in leaves):
    return check_error(_of_arrays(error), **options)
  return _replaced[-1](error)


def _of_arrays(error: Any) -> Any:
  of = lambda x: array(x.numpy(), getattr(x, "jax_dtype", x.dtype.as_numpy_dtype))  # noqa: E731
  return tree_util.tree_map(lambda x: of(x) if isinstance(x, tf.Tensor) else x, error)


def _flatten(error: Any) -> tuple[Any, Any]:
  leaves, tree = tree_util.tree_flatten(error)
  return (tree,), tuple(leaves)


# Patches of JAX; docs/architecture.md lists them, tests/effects/test_checks.py guards them.
_Error.get_exception, _checkify._check_error = _exception_of, _check_error
# TensorFlow's protocol for objects of other libraries in nested structures, for example as results
# of a tf.function.
_Error.__tf_flatten__ = _flatten
_Error.__tf_unflatten__ = classmethod(
  lambda cls, metadata, leaves: tree_util.tree_unflatten(metadata[0], leaves)
)
