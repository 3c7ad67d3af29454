"""Saves a function and its parameters as a SavedModel directory, in one call."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..bundle import paths, publish
from . import parameters, warmup
from .builder import Model


def save(
  fun: Callable[..., Any],
  params: Any,
  path: str | os.PathLike[str],
  *,
  inputs: Mapping[str, Any],
  outputs: Sequence[str] | Mapping[str, str] | None = None,
  trainable: parameters.Trainable = None,
  polymorphic_constraints: Sequence[str] = (),
  with_gradient: bool = False,
  gradient_orders: int = 1,
  idioms: str = "exact",
  version: int | None = None,
  overwrite: bool = False,
  warmup_requests: warmup.Requests = (),
) -> Path:
  """Converts `fun(params, *inputs)` and saves it as `path/<version>/`.

  Args:
    fun: a JAX function of the parameters and the inputs.
    params: a pytree of arrays, which become tf.Variables named by their paths.
    path: the model's directory, which holds its versions; or its address, as for `Model.save`.
    inputs: {name: dtype and shape in jaxpr notation}, such as {"x": "f32[b,784]"}, as for
      `Model.add`.
    outputs: names for the leaves of the result, as for `Model.add`.
    trainable, polymorphic_constraints, with_gradient, gradient_orders, idioms: as for `Model`.
    version, overwrite, warmup_requests: as for `Model.save`.

  Returns:
    the directory of the new version.

  Raises:
    FileExistsError: the version exists and `overwrite` is False.
    TypeError, ValueError, OSError, ModuleNotFoundError: as `Model`, `Model.add` and `Model.save`.
    NotImplementedError: a `jax2tf.LoweringError` that lists all primitives without a lowering.

  Examples:
    >>> import jax.numpy as jnp, numpy as np, tensorflow as tf
    >>> from jax2tf.converters import saved_model
    >>> params = {"w": np.eye(2, dtype=np.float32)}
    >>> path = saved_model.save(
    ...   lambda params, x: jnp.tanh(x @ params["w"]),
    ...   params,
    ...   "model",
    ...   inputs={"x": "f32[b,2]"},
    ...   outputs=["y"],
    ... )
    >>> path.as_posix()
    'model/1'
    >>> serve = tf.saved_model.load("model/1").signatures["serving_default"]
    >>> serve(x=tf.zeros([3, 2]))["y"].shape
    TensorShape([3, 2])
  """
  publish.check_version(paths.of(path), version, overwrite)
  options: dict[str, Any] = {
    "with_gradient": with_gradient,
    "gradient_orders": gradient_orders,
    "idioms": idioms,
  }
  model = Model(
    params, trainable=trainable, polymorphic_constraints=polymorphic_constraints, **options
  )
  model.add(fun, inputs=inputs, outputs=outputs)
  return model.save(path, version=version, overwrite=overwrite, warmup_requests=warmup_requests)
