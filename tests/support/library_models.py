"""A dense layer, BatchNorm and Dropout of each model library, with the library's own results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import equinox as eqx
import flax.linen as nn
import haiku as hk
import jax
import numpy as np
from flax import nnx

X = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
KEY = jax.random.key(3)
LIBRARIES = ("from_flax_nnx", "from_flax_linen", "from_haiku", "from_equinox")
# Sums in another order than under jax.jit.
CLOSE: dict[str, float] = {"rtol": 1e-5, "atol": 1e-6}


@dataclass(frozen=True)
class Case:
  """A model of a library.

  Attributes:
    model: the arguments that name it.
    expected: in training or not -> its result for X.
    trainable: the paths of its trainable parameters.
    rngs: the argument for the keys that training needs.
    options: other arguments.
  """

  model: tuple[Any, ...]
  expected: Callable[[bool], Any]
  trainable: set[str]
  rngs: dict[str, Any] = field(default_factory=dict)
  options: dict[str, Any] = field(default_factory=dict)


class Vision(nnx.Module):
  def __init__(self, rngs: nnx.Rngs):
    self.linear, self.norm = nnx.Linear(4, 3, rngs=rngs), nnx.BatchNorm(3, rngs=rngs)
    self.dropout = nnx.Dropout(0.5, rngs=rngs)

  def __call__(self, x: Any) -> Any:
    return self.dropout(self.norm(self.linear(x)))

  def features(self, x: Any) -> Any:
    return self.linear(x)


class Linen(nn.Module):
  @nn.compact
  def __call__(self, x: Any, train: bool) -> Any:
    x = nn.BatchNorm(use_running_average=not train)(nn.Dense(3)(x))
    return nn.Dropout(0.5, deterministic=not train)(x)


class Equinox(eqx.Module):
  linear: eqx.nn.Linear
  norm: eqx.nn.BatchNorm
  dropout: eqx.nn.Dropout

  def __call__(self, x: Any, state: Any, key: Any = None) -> Any:
    x, state = self.norm(self.linear(x), state)
    return self.dropout(x, key=key), state


def haiku_net(x: Any, is_training: bool) -> Any:
  x = hk.BatchNorm(create_scale=True, create_offset=True, decay_rate=0.9)(
    hk.Linear(3)(x), is_training
  )
  return hk.dropout(hk.next_rng_key(), 0.5, x) if is_training else x


def second(key: Any) -> Any:
  return jax.random.split(key)[1]


def of(library: str) -> Case:
  """The case of one of LIBRARIES."""
  return {
    "from_flax_nnx": _nnx,
    "from_flax_linen": _linen,
    "from_haiku": _haiku,
    "from_equinox": _equinox,
  }[library]()


def _nnx() -> Case:
  net = Vision(nnx.Rngs(0))

  def expected(training: bool) -> Any:
    own = nnx.clone(net)
    (own.train if training else own.eval)()
    return nnx.jit(lambda net: net(X))(own)

  return Case((net,), expected, {"linear/bias", "linear/kernel", "norm/bias", "norm/scale"})


def _linen() -> Case:
  net = Linen()
  variables = net.init(jax.random.key(0), X, False)
  layers = {
    "params/Dense_0/bias",
    "params/Dense_0/kernel",
    "params/BatchNorm_0/bias",
    "params/BatchNorm_0/scale",
  }

  def expected(training: bool) -> Any:
    return net.apply(
      variables,
      X,
      training,
      rngs={"dropout": second(KEY)} if training else None,
      mutable=["batch_stats"],
    )[0]

  return Case((net, variables), expected, layers, {"rngs": {"dropout": KEY}})


def _haiku() -> Case:
  net = hk.transform_with_state(haiku_net)
  params, state = net.init(jax.random.key(0), X, True)
  layers = {
    "params/batch_norm/offset",
    "params/batch_norm/scale",
    "params/linear/b",
    "params/linear/w",
  }
  return Case(
    (net, params, state),
    lambda training: net.apply(params, state, second(KEY), X, training)[0],
    layers,
    {"rng": KEY},
  )


def _equinox() -> Case:
  make = eqx.nn.make_with_state(
    lambda key: Equinox(
      eqx.nn.Linear(4, 3, key=key), eqx.nn.BatchNorm(3, "batch", mode="batch"), eqx.nn.Dropout(0.5)
    )
  )
  net, state = make(jax.random.key(0))

  def expected(training: bool) -> Any:
    over: dict[str, Any] = {"in_axes": (0, None, 0), "out_axes": (0, None), "axis_name": "batch"}
    keys = jax.random.split(second(KEY), 3)
    return jax.vmap(eqx.nn.inference_mode(net, value=not training), **over)(X, state, keys)[0]

  layers = {"model/linear/bias", "model/linear/weight", "model/norm/bias", "model/norm/weight"}
  return Case((net, state), expected, layers, {"rng": KEY}, {"batched": True})
