"""Builds a `Model` from a Flax, Haiku or Equinox model: `from_flax_nnx(model, inputs=...)` and
similar functions. `libraries` says what becomes of the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from . import libraries
from .adapted import Whole, adapted
from .builder import Model
from .scopes import with_module_scopes


def from_flax_nnx(
  model: Any,
  *,
  inputs: Mapping[str, Any],
  training: bool = False,
  call: str = "__call__",
  arguments: Mapping[str, Any] | None = None,
  **options: Any,
) -> Model:
  """Creates a `Model` from a Flax nnx module. The arrays and modes of the module itself are
  unchanged.

  Args:
    model: a flax.nnx.Module. Its `nnx.Param`s are trainable.
    inputs: {name: spec} for the arguments of the call, in order, such as {"x": "f32[b,784]"}, as
      for `Model.add`.
    training: whether the model runs in training mode. BatchNorm then updates its statistics and
      Dropout draws from its keys. The arrays that a call changes become the state of the `Model`.
    call: the method to convert.
    arguments: {name: value} for its other arguments. `training` sets `train`, `deterministic` and
      similar arguments.
    options: options of `Model` and `Model.add`.

  Returns:
    a `Model` with one signature, to which more can be added.

  Raises:
    TypeError: `model` is not a flax.nnx.Module.
    ImportError: Flax is not installed.
    ValueError: as for `Model` and `Model.add`.
    NotImplementedError: a `jax2tf.LoweringError` that lists all primitives without a lowering.

  Examples:
    >>> from flax import nnx
    >>> from jax2tf.converters import saved_model
    >>> net = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    >>> model = saved_model.from_flax_nnx(net, inputs={"x": "f32[b,2]"}, outputs=["y"])
    >>> model.records["serving_default"].outputs
    {'y': 'f32[b,3]'}
  """
  whole = libraries.nnx(model, training=training, call=call, arguments=arguments)
  whole = replace(whole, call=with_module_scopes(whole.call, model))
  return _built(whole, inputs, options)


def from_flax_linen(
  module: Any,
  variables: Any,
  *,
  inputs: Mapping[str, Any],
  training: bool = False,
  rngs: Mapping[str, Any] | None = None,
  mutable: Sequence[str] | None = None,
  call: str = "__call__",
  arguments: Mapping[str, Any] | None = None,
  **options: Any,
) -> Model:
  """Creates a `Model` from a Flax linen module and its variables.

  Args:
    module: a flax.linen.Module.
    variables: the result of `module.init`, {"params": ..., "batch_stats": ...}. The collection
      `params` is trainable.
    inputs, training, call, arguments, options: as for `from_flax_nnx`.
    rngs: {name: key}, such as {"dropout": jax.random.key(0)}. Every call splits the keys, so they
      are state.
    mutable: the collections that a call may change. By default all but `params` in training, and
      none in inference.

  Returns:
    as `from_flax_nnx`.

  Raises:
    TypeError, ImportError, ValueError, NotImplementedError: as `from_flax_nnx`.

  Examples:
    >>> import flax.linen as nn, jax, jax.numpy as jnp
    >>> from jax2tf.converters import saved_model
    >>> module = nn.Dense(3)
    >>> variables = module.init(jax.random.key(0), jnp.zeros((1, 2)))
    >>> model = saved_model.from_flax_linen(
    ...   module, variables, inputs={"x": "f32[b,2]"}, outputs=["y"]
    ... )
    >>> model.records["serving_default"].outputs
    {'y': 'f32[b,3]'}
  """
  whole = libraries.linen(
    module, variables, training=training, rngs=rngs, mutable=mutable, call=call, arguments=arguments
  )
  return _built(whole, inputs, options)


def from_haiku(
  transformed: Any,
  params: Any,
  state: Any = None,
  *,
  inputs: Mapping[str, Any],
  training: bool = False,
  rng: Any = None,
  arguments: Mapping[str, Any] | None = None,
  **options: Any,
) -> Model:
  """Creates a `Model` from a Haiku transform.

  Args:
    transformed: the result of `hk.transform` or `hk.transform_with_state`, also of
      `hk.without_apply_rng` around one.
    params, state: the result of its `init`.
    inputs, training, arguments, options: as for `from_flax_nnx`.
    rng: a key if the model draws random numbers. Every call splits it, so it is state.

  Returns:
    as `from_flax_nnx`.

  Raises:
    TypeError, ImportError, ValueError, NotImplementedError: as `from_flax_nnx`.

  Examples:
    >>> import haiku as hk, jax, jax.numpy as jnp
    >>> from jax2tf.converters import saved_model
    >>> transformed = hk.transform(lambda x: hk.Linear(3)(x))
    >>> params = transformed.init(jax.random.key(0), jnp.zeros((1, 2)))
    >>> model = saved_model.from_haiku(transformed, params, inputs={"x": "f32[b,2]"}, outputs=["y"])
    >>> model.records["serving_default"].outputs
    {'y': 'f32[b,3]'}
  """
  whole = libraries.haiku(
    transformed, params, state, training=training, rng=rng, arguments=arguments
  )
  return _built(whole, inputs, options)


def from_equinox(
  model: Any,
  state: Any = None,
  *,
  inputs: Mapping[str, Any],
  training: bool = False,
  rng: Any = None,
  batched: bool = False,
  call: str = "__call__",
  arguments: Mapping[str, Any] | None = None,
  **options: Any,
) -> Model:
  """Creates a `Model` from an Equinox module.

  Args:
    model: an equinox.Module. Its floating point arrays are trainable.
    state: the equinox.nn.State of `eqx.nn.make_with_state`. The model takes it after the inputs and
      returns (output, state).
    inputs, training, call, arguments, options: as for `from_flax_nnx`.
    rng: a key that the model takes as `key`. Every call splits it, so it is state.
    batched: whether the inputs have a batch dimension that the model does not take. `jax.vmap` then
      maps the model over dimension 0, with the axis name "batch".

  Returns:
    as `from_flax_nnx`.

  Raises:
    TypeError, ImportError, ValueError, NotImplementedError: as `from_flax_nnx`.

  Examples:
    >>> import equinox as eqx, jax
    >>> from jax2tf.converters import saved_model
    >>> net = eqx.nn.Linear(2, 3, key=jax.random.key(0))
    >>> model = saved_model.from_equinox(net, inputs={"x": "f32[b,2]"}, outputs=["y"], batched=True)
    >>> model.records["serving_default"].outputs
    {'y': 'f32[b,3]'}
  """
  whole = libraries.equinox(
    model, state, training=training, rng=rng, batched=batched, call=call, arguments=arguments
  )
  whole = replace(whole, call=with_module_scopes(whole.call, model))
  return _built(whole, inputs, options)


def _built(whole: Whole, inputs: Mapping[str, Any], options: Mapping[str, Any]) -> Model:
  of_model = {
    "trainable",
    "stored_dtype",
    "polymorphic_constraints",
    "with_gradient",
    "gradient_orders",
    "idioms",
  }
  model_parts = adapted(whole, inputs, options.get("polymorphic_constraints", ()))
  settings = {"trainable": model_parts.trainable} | {
    name: value for name, value in options.items() if name in of_model
  }
  model = Model(model_parts.params, state=model_parts.state, **settings)
  rest = {name: value for name, value in options.items() if name not in of_model}
  return model.add(model_parts.fun, inputs=inputs, stateful=model_parts.state is not None, **rest)
