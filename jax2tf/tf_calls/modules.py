"""A TensorFlow model as a module of Flax or Equinox, whose parameters are its trainable variables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from jax2tf.tf_calls import functional

_LIBRARIES = ("nnx", "equinox")


def tf_module(fun_tf: Callable[..., Any], *specs: Any, library: str) -> Any:
  """Returns a `flax.nnx.Module` or an `equinox.Module` that computes what a TensorFlow model does, by `functional`.

  Its parameters are the list `variables`. Its method `assigned()` gives their values to the tf.Variables and returns the model, which
  `tf.saved_model.save` and Keras save.

  Args:
    fun_tf: a Keras model or layer, a loaded SavedModel, or any other function as for `call_tf`.
    specs: its arguments, as for `functional`.
    library: "nnx" or "equinox".

  Raises:
    ImportError: the library is not installed.
    TypeError, ValueError: as `functional`; an unknown library.
  """
  if library not in _LIBRARIES:
    raise ValueError(f"library = {library!r} is none of {_LIBRARIES}")
  apply, values = functional(fun_tf, *specs)

  def assign(values: Sequence[jax.Array]) -> Any:
    for variable, value in zip(apply.variables, values, strict=True):  # type: ignore[attr-defined]
      variable.assign(value)
    return fun_tf

  return (_nnx_module if library == "nnx" else _equinox_module)(apply, assign, values)


def _nnx_module(apply: Callable[..., Any], assign: Callable[..., Any], values: list[jax.Array]) -> Any:
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


def _equinox_module(apply: Callable[..., Any], assign: Callable[..., Any], values: list[jax.Array]) -> Any:
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
