"""Models of Flax, Haiku and Equinox as layers of Keras, with both modes, their state and their
trainable parameters.

Each function imports its library when it is called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .layer import Layer


def from_flax_nnx(
  model: Any,
  *,
  inputs: Mapping[str, Any],
  call: str = "__call__",
  arguments: Mapping[str, Any] | None = None,
  **options: Any,
) -> Layer:
  """Creates a `Layer` from a Flax nnx module. The module runs in training mode when Keras trains,
  otherwise in inference mode.

  Variables that a call in training changes, such as the statistics of BatchNorm and the counts of
  Dropout's keys, are the layer's state. The module itself stays unchanged.

  Args:
    model: a flax.nnx.Module. Its `nnx.Param`s are trainable.
    inputs: as for `Layer`: a name, dtype and shape for every argument of the call, in order, such
      as {"x": "f32[b,784]"}.
    call: the name of the method to call.
    arguments: its other arguments, by name. The layer passes `train`, `deterministic` and similar
      flags itself.
    options: of `Layer`, such as `name` and `trainable`.

  Returns:
    the layer.

  Raises:
    TypeError: `model` is not a flax.nnx.Module; others as for `Layer`.
    ImportError: Flax is not installed.
    ValueError: as for `Layer`.
    NotImplementedError: as for `Layer`.

  Examples:
    >>> import os
    >>> os.environ["KERAS_BACKEND"] = "tensorflow"
    >>> from flax import nnx
    >>> import jax2tf.keras
    >>> layer = jax2tf.keras.from_flax_nnx(
    ...   nnx.Linear(4, 2, rngs=nnx.Rngs(0)), inputs={"x": "f32[b,4]"}
    ... )
    >>> [weight.path.rpartition("/")[2] for weight in layer.trainable_weights]
    ['bias', 'kernel']
  """
  return _layer("nnx", (model,), {"call": call, "arguments": arguments}, inputs, **options)


def from_flax_linen(
  module: Any,
  variables: Any,
  *,
  inputs: Mapping[str, Any],
  rngs: Mapping[str, Any] | None = None,
  mutable: Sequence[str] | None = None,
  call: str = "__call__",
  arguments: Mapping[str, Any] | None = None,
  **options: Any,
) -> Layer:
  """Creates a `Layer` from a Flax linen module and its variables.

  Args:
    module: a flax.linen.Module.
    variables: the result of `module.init`; the collection `params` is trainable.
    rngs: keys by name, such as {"dropout": jax.random.key(0)}. They are state: every call in
      training splits them.
    mutable: the collections that a call in training may change; by default all except `params`.
    inputs, call, arguments, options: as for `from_flax_nnx`.

  Returns:
    the layer.

  Raises:
    TypeError: `module` is not a flax.linen.Module, or `variables` no dict of collections; others as
      for `Layer`.
    ImportError: Flax is not installed.
    ValueError: as for `Layer`.
    NotImplementedError: as for `Layer`.

  Examples:
    >>> import os
    >>> os.environ["KERAS_BACKEND"] = "tensorflow"
    >>> import flax.linen as nn, jax, numpy as np
    >>> import jax2tf.keras
    >>> module = nn.Dense(2)
    >>> variables = module.init(jax.random.key(0), np.ones((1, 4), np.float32))
    >>> layer = jax2tf.keras.from_flax_linen(module, variables, inputs={"x": "f32[b,4]"})
    >>> layer(np.ones((3, 4), np.float32)).shape
    TensorShape([3, 2])
  """
  return _layer(
    "linen",
    (module, variables),
    {"rngs": rngs, "mutable": mutable, "call": call, "arguments": arguments},
    inputs,
    **options,
  )


def from_haiku(
  transformed: Any,
  params: Any,
  state: Any = None,
  *,
  inputs: Mapping[str, Any],
  rng: Any = None,
  arguments: Mapping[str, Any] | None = None,
  **options: Any,
) -> Layer:
  """Creates a `Layer` from a Haiku transform.

  Args:
    transformed: the result of `hk.transform` or `hk.transform_with_state`.
    params, state: the result of its `init`.
    rng: a key, u32[2] or key<fry>[], if the model draws random numbers; every call in training
      splits it.
    inputs, arguments, options: as for `from_flax_nnx`.

  Returns:
    the layer.

  Raises:
    TypeError: `transformed` is not a Haiku transform, or `state` is passed for a transform without
      state, or missing for a transform with state; others as for `Layer`.
    ImportError: Haiku is not installed.
    ValueError: as for `Layer`.
    NotImplementedError: as for `Layer`.

  Examples:
    >>> import os
    >>> os.environ["KERAS_BACKEND"] = "tensorflow"
    >>> import haiku as hk, jax, numpy as np
    >>> import jax2tf.keras
    >>> x = np.ones((3, 4), np.float32)
    >>> transformed = hk.transform(lambda x: hk.Linear(2)(x))
    >>> layer = jax2tf.keras.from_haiku(
    ...   transformed, transformed.init(jax.random.key(0), x), inputs={"x": "f32[b,4]"}
    ... )
    >>> layer(x).shape
    TensorShape([3, 2])
  """
  return _layer(
    "haiku", (transformed, params, state), {"rng": rng, "arguments": arguments}, inputs, **options
  )


def from_equinox(
  model: Any,
  state: Any = None,
  *,
  inputs: Mapping[str, Any],
  rng: Any = None,
  batched: bool = False,
  call: str = "__call__",
  arguments: Mapping[str, Any] | None = None,
  **options: Any,
) -> Layer:
  """Creates a `Layer` from an Equinox module.

  Args:
    model: an equinox.Module; its floating point arrays are trainable.
    state: the equinox.nn.State of `eqx.nn.make_with_state`.
    rng: a key, u32[2] or key<fry>[], that the model takes as `key`; every call in training splits
      it.
    batched: whether the model takes one example and the inputs are batches; the layer then maps it
      over their dimension 0.
    inputs, call, arguments, options: as for `from_flax_nnx`.

  Returns:
    the layer.

  Raises:
    TypeError: `model` is not an equinox.Module; others as for `Layer`.
    ImportError: Equinox is not installed.
    ValueError: as for `Layer`.
    NotImplementedError: as for `Layer`.

  Examples:
    >>> import os
    >>> os.environ["KERAS_BACKEND"] = "tensorflow"
    >>> import equinox as eqx, jax, numpy as np
    >>> import jax2tf.keras
    >>> model = eqx.nn.Linear(4, 2, key=jax.random.key(0))
    >>> layer = jax2tf.keras.from_equinox(model, inputs={"x": "f32[b,4]"}, batched=True)
    >>> layer(np.ones((3, 4), np.float32)).shape
    TensorShape([3, 2])
  """
  options_of_library = {"rng": rng, "batched": batched, "call": call, "arguments": arguments}
  return _layer("equinox", (model, state), options_of_library, inputs, **options)


def _layer(
  library: str,
  model: tuple[Any, ...],
  options_of_library: Mapping[str, Any],
  inputs: Mapping[str, Any],
  *,
  trainable: Any = None,
  **options: Any,
) -> Layer:
  from ..saved_model import libraries  # noqa: PLC0415  (JAX)
  from ..saved_model.adapted import adapted  # noqa: PLC0415

  whole: Callable[..., Any] = getattr(libraries, library)
  constraints = options.get("polymorphic_constraints", ())
  model_parts = adapted(
    whole(*model, training=True, **options_of_library),
    inputs,
    constraints,
    inference=whole(*model, training=False, **options_of_library),
  )
  settings = {
    "state": model_parts.state,
    "trainable": model_parts.trainable if trainable is None else trainable,
  }
  return Layer(model_parts.fun, model_parts.params, inputs=inputs, **settings, **options)
