"""A JAX function as a layer, new or loaded from a file. This module imports JAX only to make a new
layer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.saving import serialization_lib  # no public name; _tf_compat imports JAX

from . import program as programs
from .program import Program, Weight, computed


@keras.saving.register_keras_serializable("jax2tf")
class Layer(keras.layers.Layer):  # type: ignore[misc]
  """A JAX function as a layer of Keras on TensorFlow.

  The parameters are the layer's weights. The layer takes its inputs as a tensor, as a list in the
  order of `inputs`, or as a dict by their names. An input that is a pytree is passed as the list or
  dict of its leaves.

  If the function has an argument `training`, the layer passes a Python bool that says whether Keras
  trains. If it has an argument `key`, the layer passes a new random key for every call, from a seed
  generator among the weights. If it has both, the key is None outside of training.

  A `.keras` file holds the TensorFlow graphs, with first and second derivatives, in the layer's
  config. To load it, import `jax2tf.keras` and call `keras.models.load_model(path,
  safe_mode=False)`; this needs no JAX.

  Under a mixed precision policy the function gets its float32 parameters and inputs in the policy's
  compute dtype. Its state keeps its dtypes.

  Args:
    fun: `fun(params, *inputs) -> outputs`, or with a state `fun(params, state, *inputs) -> (state,
      outputs)`, as for stateful signatures of a SavedModel.
    params: a pytree of arrays of any dtype and shape. Each is a weight, named by its path:
      "encoder/0/kernel".
    inputs: {name: dtype and shape} as for `saved_model.Model.add`, such as {"x": "f32[b,784]"}.
    state: a pytree of arrays and typed keys: non-trainable weights below "state/". Only calls with
      `training=True` write them.
    trainable: a bool, a function from a path to a bool, or a pytree prefix of `params` with bools.
      By default all parameters are trainable except statistics of normalisations, which are
      recognised by their paths.
    polymorphic_constraints: conditions on dimension variables, such as "b <= 512".
    seed: the seed of the seed generator.
    **options: of keras.layers.Layer, such as `name` and `dtype`.

  Raises:
    TypeError: a leaf of `params` or `state` is not an array; at a call, the kind of an input's
      dtype does not fit.
    ValueError: the parameters, the state, the inputs, the flags and the function do not fit each
      other; at a call, an input has another name or shape.
    NotImplementedError: a `LoweringError` that lists all equations without a lowering.

  Examples:
    >>> import keras, numpy as np, jax2tf.keras
    >>> layer = jax2tf.keras.Layer(
    ...   lambda w, x: x @ w, np.eye(2, dtype=np.float32), inputs={"x": "f32[b,2]"}
    ... )
    >>> model = keras.Sequential([keras.Input((2,)), layer])
    >>> model(np.ones((3, 2), np.float32)).shape
    TensorShape([3, 2])
  """

  def __init__(
    self,
    fun: Callable[..., Any],
    params: Any = (),
    *,
    inputs: Mapping[str, Any],
    state: Any = None,
    trainable: Any = None,
    polymorphic_constraints: Sequence[str] = (),
    seed: int | None = None,
    **options: Any,
  ):
    from . import conversion  # noqa: PLC0415  (JAX)

    self._set_up(
      conversion.program(fun, params, state, inputs, trainable, polymorphic_constraints),
      seed,
      options,
    )

  def _set_up(self, program: Program, seed: int | None, options: dict[str, Any]) -> None:
    super().__init__(**options)
    self._program = program.without_values()
    with keras.name_scope(self.name, caller=self):
      self.parameter_weights = [
        self._variable(w, autocast=w.dtype == "float32") for w in program.params
      ]
      self.state_weights = [self._variable(w, autocast=False) for w in program.state]
    self.seed_generator = keras.random.SeedGenerator(seed) if any(program.draws) else None
    self.built = True

  def _variable(self, weight: Weight, autocast: bool) -> keras.Variable:
    *scopes, name = weight.path.split("/")
    inexact = tf.as_dtype(weight.dtype).is_floating or tf.as_dtype(weight.dtype).is_complex
    with contextlib.ExitStack() as stack:
      for scope in scopes:
        stack.enter_context(keras.name_scope(scope))
      return keras.Variable(
        weight.initial(),
        dtype=computed(weight.dtype, self.variable_dtype) if autocast else weight.dtype,
        trainable=weight.trainable,
        autocast=autocast,
        aggregation="none" if weight.trainable else "mean" if inexact else "only_first_replica",
        name=name,
      )

  def values(self) -> dict[str, np.ndarray]:
    """The current weights, for instance to return them to JAX after training.

    Returns:
      {path: array}, with paths such as "encoder/0/kernel"; the state is below "state/".
    """
    described = [*self._program.params, *self._program.state]
    variables = [*self.parameter_weights, *self.state_weights]
    return {
      weight.path: keras.ops.convert_to_numpy(variable)
      for weight, variable in zip(described, variables, strict=True)
    }

  def call(self, inputs: Any, training: bool | None = False) -> Any:
    """Computes the outputs of the function.

    Args:
      inputs: a tensor, a list, or a dict, of the dtypes and shapes in the layer's `inputs`.
      training: whether Keras trains; None is False.

    Returns:
      the pytree of output tensors.

    Raises:
      TypeError: an input has another kind of dtype.
      ValueError: an input has another name or shape.
    """
    training = bool(training)
    seed = (
      [tf.cast(self.seed_generator.next(), tf.uint32)]
      if self.seed_generator and self._program.draws[training]
      else []
    )
    params, state = (
      [tf.convert_to_tensor(v.value) for v in weights]
      for weights in (self.parameter_weights, self.state_weights)
    )
    after, outputs = self._program.calls[training](params, state, seed, self._tensors(inputs))
    if training:
      for variable, value in zip(self.state_weights, after, strict=True):
        variable.assign(value)
    return outputs

  def _tensors(self, inputs: Any) -> list[tf.Tensor]:
    """The inputs in order, cast to the width of the function's dtypes."""
    specs = self._program.inputs
    if isinstance(inputs, dict):
      by_name = inputs
    else:
      listed = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
      by_name = dict(zip(specs, listed, strict=len(listed) == len(specs)))
    if by_name.keys() != specs.keys():
      raise ValueError(
        f"layer {self.name!r} takes {', '.join(specs)}, and is given "
        f"{', '.join(by_name) or 'nothing'}"
      )
    return [
      self._tensor(name, by_name[name], computed(spec.dtype.name, self.compute_dtype), spec.shape)
      for name, spec in specs.items()
    ]

  def _tensor(self, name: str, value: Any, dtype: str, shape: tf.TensorShape) -> tf.Tensor:
    tensor, target = tf.convert_to_tensor(value), tf.as_dtype(dtype)
    if not (
      (tensor.dtype.is_floating and target.is_floating)
      or (tensor.dtype.is_integer and target.is_integer)
      or tensor.dtype == target
    ):
      raise TypeError(
        f"layer {self.name!r}: input {name!r} is {tensor.dtype.name}, and the function takes "
        f"{dtype}; cast it before the layer"
      )
    if not shape.is_compatible_with(tensor.shape):
      raise ValueError(
        f"layer {self.name!r}: input {name!r} has shape {tensor.shape}, and the function takes "
        f"{shape}"
      )
    # In Keras' fit the size of a batch is unknown, though the function may fix it.
    return (
      tf.ensure_shape(tf.cast(tensor, target), shape)
      if shape.is_fully_defined()
      else tf.cast(tensor, target)
    )

  def get_config(self) -> dict[str, Any]:
    """Returns the config of the layer.

    Returns:
      a dict that JSON can hold, with the graphs as text.
    """
    seed = self.seed_generator.get_config()["seed"] if self.seed_generator else None
    return {
      **super().get_config(),
      "seed": seed,
      "program": self._program.config(self.compute_dtype),
    }

  @classmethod
  def from_config(cls, config: dict[str, Any]) -> Layer:
    """Creates the layer from a config. Its weights are NaN until they are loaded.

    Args:
      config: the result of `get_config`.

    Returns:
      the layer.

    Raises:
      ValueError: Keras is in safe mode, and the graphs in a config may run any op.
    """
    if serialization_lib.in_safe_mode() is not False:
      raise ValueError(
        "a jax2tf.keras.Layer is made of TensorFlow graphs stored in the file, and Keras' safe "
        "mode refuses such a file. If you trust "
        "its origin, load it with safe_mode=False, or call "
        "keras.config.enable_unsafe_deserialization()"
      )
    config = dict(config)  # it is the caller's, who may use it again
    program, seed = programs.loaded(config.pop("program")), config.pop("seed")
    layer = cls.__new__(cls)
    layer._set_up(program, seed, config)
    return layer
