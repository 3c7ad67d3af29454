"""Replaces `jax.experimental.jax2tf` for code that imports it: `jax2tf.install()`."""

from __future__ import annotations

import contextlib
import importlib
import sys
import types
from typing import Any

import jax.experimental
import tensorflow as tf

from jax2tf import api
from jax2tf.tf_calls import call_tf

_PACKAGE = "jax.experimental.jax2tf"
_PUBLIC = (
  "DisabledSafetyCheck",
  "PolyShape",
  "convert",
  "dtype_of_val",
  "eval_polymorphic_shape",
  "split_to_logical_devices",
)


def install() -> contextlib.ExitStack:
  """Makes later imports of `jax.experimental.jax2tf` return this package.

  Returns:
    a context manager that restores JAX's own package on exit. Without `with`, the change is
    permanent.

  Examples:
    >>> import jax2tf
    >>> with jax2tf.install():
    ...   from jax.experimental import jax2tf as old
    >>> old.convert is jax2tf.convert
    True
  """
  jaxs = importlib.import_module(_PACKAGE)
  package, module = types.ModuleType(_PACKAGE), types.ModuleType(f"{_PACKAGE}.jax2tf")
  public = {name: getattr(api, name) for name in _PUBLIC}
  vars(package).update(public, call_tf=call_tf, jax2tf=module, __path__=[])
  vars(module).update(public, TfVal=tf.Tensor)
  saved = _take_away()
  sys.modules.update({_PACKAGE: package, module.__name__: module})
  vars(jax.experimental)["jax2tf"] = package
  leaving = contextlib.ExitStack()
  leaving.callback(_put_back, saved, jaxs)
  return leaving


def _take_away() -> dict[str, Any]:
  """Removes all modules of the package from sys.modules, and returns them."""
  return {
    name: sys.modules.pop(name)
    for name in list(sys.modules)
    if f"{name}.".startswith(f"{_PACKAGE}.")
  }


def _put_back(modules: dict[str, Any], package: Any) -> None:
  _take_away()
  sys.modules.update(modules)
  vars(jax.experimental)["jax2tf"] = package
