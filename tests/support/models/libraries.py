"""Networks of each library as (fun(params, *inputs), params), with the parameters as a pytree of
arrays."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import flax.linen as nn
import haiku as hk
import jax
import numpy as np
from flax import nnx

KEY = jax.random.key(0)

Function = Callable[..., Any]


def of_linen(module: nn.Module, *inputs: Any, **kwargs: Any) -> tuple[Function, Any]:
  """(apply, variables) of a Flax linen module; `inputs` are of the shapes that it is made for."""
  return functools.partial(module.apply, **kwargs), _initial(
    functools.partial(module.init, **kwargs), KEY, *inputs
  )


def of_nnx(module: nnx.Module) -> tuple[Function, Any]:
  """(apply, parameters and statistics) of a Flax nnx module; its random keys stay what they are."""
  graph, state, keys = nnx.split(module, (nnx.Param, nnx.BatchStat), ...)
  pure = nnx.to_pure_dict(state)

  def apply(params: Any, *inputs: Any) -> Any:
    nnx.replace_by_pure_dict(state, params)
    return nnx.merge(graph, state, keys)(*inputs)

  return apply, pure


def of_haiku(fun: Function, *inputs: Any) -> tuple[Function, Any]:
  """(apply, params) of a Haiku function."""
  transformed = hk.without_apply_rng(hk.transform(fun))
  return transformed.apply, _initial(transformed.init, jax.random.PRNGKey(0), *inputs)


def of_equinox(module: Any) -> tuple[Function, Any]:
  """(apply over a batch, arrays) of an Equinox module, which takes one example."""
  arrays, static = eqx.partition(module, eqx.is_array)
  return lambda arrays, *inputs: jax.vmap(eqx.combine(arrays, static))(*inputs), arrays


def _initial(init: Function, *args: Any) -> Any:
  """What `init` returns. It runs once, so its compilation is what takes time: op by op, or
  optimised, five times as long."""
  return jax.jit(init, compiler_options={"xla_backend_optimization_level": 0})(*args)


def weights(key: Any, *shape: int) -> np.ndarray:
  """f32[shape] that keeps the scale of what it is multiplied with."""
  return np.asarray(jax.random.normal(key, shape) / shape[0] ** 0.5)
