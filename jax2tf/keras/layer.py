"""A layer that is a JAX function, or what a file has kept of one. Nothing here imports JAX before it is given a JAX function."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf
from keras.src.saving import serialization_lib

from jax2tf.keras import program as programs
from jax2tf.keras.program import Program, Weight, computed


@keras.saving.register_keras_serializable("jax2tf")
class Layer(keras.layers.Layer):
  """A JAX function as a layer of Keras on TensorFlow.

      layer = jax2tf.keras.Layer(apply, params, inputs={"x": "f32[b,784]"})
      model = keras.Sequential([keras.Input((784,)), layer])

  The parameters are the layer's weights, and the outputs those of the function. The layer takes its inputs as a tensor, a list in the
  order of `inputs`, or a dict by their names; inputs that are trees as the list or dict of their leaves.

  A function that has an argument `training` is given whether Keras trains, as a Python bool. One that has an argument `key` is given a new
  random key for each call, from a seed generator among the weights; if it has both, None in place of a key outside of training.

  A `.keras` file has the TensorFlow graphs, with first and second derivatives, in the layer's config: who loads it with
  `keras.models.load_model(path, safe_mode=False)` imports `jax2tf.keras`, and no JAX.

  Under a mixed precision policy the function is given the parameters and inputs of float32 in the policy's compute dtype, and its state
  as it is.

  Args:
    fun: `fun(params, *inputs) -> outputs`, or with a state `fun(params, state, *inputs) -> (state, outputs)`, as for stateful
      signatures of a SavedModel.
    params: a pytree of arrays; each is a weight named by its path, "encoder/0/kernel".
    inputs: {name: dtype and shape} as for `saved_model.Model.add`, such as {"x": "f32[b,784]"}.
    state: a pytree of arrays and typed keys, non-trainable weights below "state/", which calls with `training=True` write and all others
      leave as they are.
    trainable: a bool, a function of the path, or a pytree prefix of `params` with bools; by default what is no statistic of a normalisation
      by its path.
    polymorphic_constraints: conditions on dimension variables, such as "b <= 512".
    seed: of the seed generator.
    **options: of keras.layers.Layer, such as `name` and `dtype`.

  Raises:
    TypeError, ValueError: parameters, state, inputs or flags that do not fit each other or the function.
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
    from jax2tf.keras import conversion  # noqa: PLC0415  (JAX)

    self._set_up(conversion.program(fun, params, state, inputs, trainable, polymorphic_constraints), seed, options)

  def _set_up(self, program: Program, seed: int | None, options: dict[str, Any]) -> None:
    super().__init__(**options)
    self._program = program.without_values()
    with keras.name_scope(self.name, caller=self):
      self.parameter_weights = [self._variable(w, autocast=w.dtype == "float32") for w in program.params]
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

  def call(self, inputs: Any, training: bool | None = False) -> Any:
    """The function's outputs."""
    training = bool(training)
    seed = [tf.cast(self.seed_generator.next(), tf.uint32)] if self.seed_generator and self._program.draws[training] else []
    params, state = ([tf.convert_to_tensor(v.value) for v in weights] for weights in (self.parameter_weights, self.state_weights))
    after, outputs = self._program.calls[training](params, state, seed, self._tensors(inputs))
    if training:
      for variable, value in zip(self.state_weights, after, strict=True):
        variable.assign(value)
    return outputs

  def _tensors(self, inputs: Any) -> list[tf.Tensor]:
    """The inputs in their order; numbers of another width become those that the function takes."""
    specs = self._program.inputs
    if isinstance(inputs, dict):
      given = inputs
    else:
      listed = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
      given = dict(zip(specs, listed, strict=len(listed) == len(specs)))
    if given.keys() != specs.keys():
      raise ValueError(f"layer {self.name!r} takes {', '.join(specs)}, and is given {', '.join(given) or 'nothing'}")
    return [self._tensor(name, given[name], computed(spec.dtype.name, self.compute_dtype)) for name, spec in specs.items()]

  def _tensor(self, name: str, given: Any, dtype: str) -> tf.Tensor:
    tensor, wanted = tf.convert_to_tensor(given), tf.as_dtype(dtype)
    if not ((tensor.dtype.is_floating and wanted.is_floating) or (tensor.dtype.is_integer and wanted.is_integer) or tensor.dtype == wanted):
      raise TypeError(
        f"layer {self.name!r}: input {name!r} is {tensor.dtype.name}, and the function takes {dtype}; cast it before the layer"
      )
    return tf.cast(tensor, wanted)

  def get_config(self) -> dict[str, Any]:
    """With the graphs, as text."""
    seed = self.seed_generator.get_config()["seed"] if self.seed_generator else None
    return {**super().get_config(), "seed": seed, "program": self._program.config(self.compute_dtype)}

  @classmethod
  def from_config(cls, config: dict[str, Any]) -> Layer:
    """The layer of a config; its weights are NaN until they are loaded.

    Raises:
      ValueError: in Keras' safe mode, for a config holds graphs, which may do what they like.
    """
    if serialization_lib.in_safe_mode() is not False:
      raise ValueError(
        "a jax2tf.keras.Layer is made of TensorFlow graphs that stand in the file, and Keras' safe mode takes no such file. If you trust "
        "its origin, load it with safe_mode=False, or call keras.config.enable_unsafe_deserialization()"
      )
    program, seed = programs.loaded(config.pop("program")), config.pop("seed")
    layer = cls.__new__(cls)
    layer._set_up(program, seed, config)
    return layer
