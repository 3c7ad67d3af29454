"""A TensorFlow model as a module of Flax or Equinox. The model's trainable variables are the
module's parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from jax2tf.tf_calls import functional

_LIBRARIES = ("nnx", "equinox")


def tf_module(fun_tf: Callable[..., Any], *specs: Any, library: str) -> Any:
  """Returns a `flax.nnx.Module` or an `equinox.Module` that computes what a TensorFlow model
  computes.

  The list `variables` of the module holds its parameters. The method `assigned()` assigns them to
  the tf.Variables and returns the TensorFlow model, which `tf.saved_model.save` and Keras can save.

  Args:
    fun_tf: a Keras model or layer, a loaded SavedModel, or any other function that `call_tf` takes.
    specs: the arguments of `fun_tf`, as for `functional`.
    library: "nnx" or "equinox".

  Returns:
    the module; calling it takes the arguments of `fun_tf`.

  Raises:
    ImportError: the library is not installed.
    TypeError: as for `functional`.
    ValueError: as for `functional`; an unknown library.

  Examples:
    >>> import jax2tf, numpy as np, tensorflow as tf
    >>> layer = tf.keras.Sequential([tf.keras.Input((3,)), tf.keras.layers.Dense(2)])
    >>> module = jax2tf.tf_module(layer, tf.TensorSpec([4, 3]), library="nnx")
    >>> module(np.ones((4, 3), np.float32)).shape, [v[...].shape for v in module.variables]
    ((4, 2), [(3, 2), (2,)])
  """
  if library not in _LIBRARIES:
    raise ValueError(f"library = {library!r} is not one of {_LIBRARIES}")
  apply, values = functional(fun_tf, *specs)

  def assign(values: Sequence[jax.Array]) -> Any:
    for variable, value in zip(apply.variables, values, strict=True):  # type: ignore[attr-defined]
      variable.assign(value)
    return fun_tf

  return (_nnx_module if library == "nnx" else _equinox_module)(apply, assign, values)


def _nnx_module(
  apply: Callable[..., Any], assign: Callable[..., Any], values: list[jax.Array]
) -> Any:
  from flax import nnx  # noqa: PLC0415  (for those who have it)

  class TfModule(nnx.Module):
    """A TensorFlow model."""

    def __init__(self) -> None:
      self.variables = nnx.List([nnx.Param(value) for value in values])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
      return apply([v[...] for v in self.variables], *args, **kwargs)

    def assigned(self) -> Any:
      """The TensorFlow model, with these values."""
      return assign([v[...] for v in self.variables])

  return TfModule()


def _equinox_module(
  apply: Callable[..., Any], assign: Callable[..., Any], values: list[jax.Array]
) -> Any:
  import equinox  # noqa: PLC0415  (for those who have it)

  class TfModule(equinox.Module):
    """A TensorFlow model."""

    variables: list[jax.Array]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
      return apply(self.variables, *args, **kwargs)

    def assigned(self) -> Any:
      """The TensorFlow model, with these values."""
      return assign(self.variables)

  return TfModule(values)
