"""Optional inputs of a signature: their defaults, and the sizes of these."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from jax2tf.messages import Argument, ArgumentError

from ..bundle.notation import Spec
from .arguments import Arguments

Tensors = dict[str, tf.Tensor]


def named(
  serve: Callable[..., Tensors], names: Sequence[str], defaults: Mapping[str, tf.Tensor]
) -> Callable[..., Tensors]:
  """`serve` with named arguments. TensorFlow takes the signature's defaults from the function's,
  whose arguments come last."""
  kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
  parameters = [
    inspect.Parameter(name, kind, default=defaults.get(name, inspect.Parameter.empty))
    for name in names
  ]

  def signature(*args: tf.Tensor, **kwargs: tf.Tensor) -> Tensors:
    return serve(*args, *kwargs.values())

  signature.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
  return signature


def defaults(
  values: Mapping[str, Any], specs: dict[str, tf.TensorSpec], arguments: Arguments
) -> dict[str, tf.Tensor]:
  """The defaults as tensors of their specs. Moves these specs to the end, because Python's optional
  arguments come last."""
  default_tensors = {}
  for name, value in values.items():
    if name not in specs:
      raise ArgumentError(
        Argument("defaults", value, key=name), problem=f"the inputs are {', '.join(specs)}"
      )
    tensor = tf.constant(value, specs[name].dtype)
    if tensor.shape.rank == 0 and specs[name].shape.rank:
      tensor = tf.reshape(tensor, [1] * specs[name].shape.rank)
    aval = dict(zip(arguments.names, arguments.avals, strict=True)).get(name)
    sizes = [1 if d is None else d for d in specs[name].shape]
    if tensor.shape != sizes and aval is not None:
      raise ArgumentError(
        Argument("defaults", key=name),
        problem=f"it has the shape {tuple(tensor.shape)}, and {Spec.of(aval)} needs {tuple(sizes)}",
      )
    default_tensors[name] = tensor
    specs[name] = specs.pop(name)
  return default_tensors


def repeated(name: str, inputs: Tensors, arguments: Arguments) -> tf.Tensor:
  """Repeats an optional input along each symbolic dimension, to the size of the other inputs."""
  avals = dict(zip(arguments.names, arguments.avals, strict=True))
  if name not in avals:
    return inputs[name]
  sizes = list(tf.unstack(tf.shape(inputs[name]), num=len(avals[name].shape)))
  for axis, d in enumerate(avals[name].shape):
    if isinstance(d, int):
      continue
    other = next(
      (
        (n, a.shape.index(d))
        for n, a in avals.items()
        if n != name and n in inputs and d in a.shape
      ),
      None,
    )
    if other is None:
      raise ArgumentError(
        Argument("defaults", key=name),
        problem=f"no other input has the dimension {d}, so its size is not known without this one",
      )
    sizes[axis] = tf.shape(inputs[other[0]])[other[1]]
  return tf.broadcast_to(inputs[name], sizes)
