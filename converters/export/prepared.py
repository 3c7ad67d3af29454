"""A function for TensorFlow's own exporters, as a script calls them: replayed with a target's
replacements."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from . import replay
from .ends import entering, leaving, outer_spec
from .replay import Replacement

# (replacements, the dtypes that hold others), one after the other; see `freezing.frozen`.
Passes = Sequence[tuple[Mapping[str, Replacement], Mapping[tf.DType, tf.DType]]]


def prepared(
  concrete: Any, passes: Passes, finish: Callable[[tf.Tensor], tf.Tensor] = lambda x: x
) -> Any:
  """The same function as a ConcreteFunction without variables or calls: its arguments, their names,
  and the structure of its results. Complex ones c64[b] are f32[b,2].

  Args:
    concrete: a ConcreteFunction.
    passes: the replacements.
    finish: what makes a result of the last pass.

  Raises:
    ValueError: it writes variables.
  """
  *before, last = passes
  for replacements, held in before:
    concrete = _replayed(concrete, replacements, held, lambda x: x)
  return _replayed(concrete, *last, finish)


def _replayed(
  concrete: Any,
  replacements: Mapping[str, Replacement],
  held: Mapping[tf.DType, tf.DType],
  finish: Callable[[tf.Tensor], tf.Tensor],
) -> Any:
  names = iter([tensor.op.name for tensor in replay.own_inputs(concrete)])
  args, kwargs = tf.nest.map_structure(
    lambda spec: _named(spec, names), concrete.structured_input_signature
  )
  structure = concrete.structured_outputs

  def function(*args: Any, **kwargs: Any) -> Any:
    tensors = [x for x in tf.nest.flatten((args, kwargs)) if isinstance(x, tf.Tensor)]
    values = map(entering, tensors, replay.own_inputs(concrete))
    results, _ = replay.replayed(concrete, [*values], replacements, held, {})
    finished = iter(finish(leaving(result)) for result in results)
    return tf.nest.map_structure(lambda x: None if x is None else next(finished), structure)

  return tf.function(function, autograph=False).get_concrete_function(*args, **kwargs)


def _named(spec: Any, names: Any) -> Any:
  if not isinstance(spec, tf.TensorSpec):
    return spec
  return outer_spec(tf.TensorSpec(spec.shape, spec.dtype, next(names)))
