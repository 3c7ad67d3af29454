"""A signature as one graph without variables or calls, for an exporter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from jax2tf import _tf_compat

from ..saved_model.arguments import input_specs
from .ends import entering, leaving, outer_spec
from .replay import Replacement, op_name, replayed


def frozen(
  signature: Any,
  replacements: Mapping[str, Replacement],
  held: Mapping[tf.DType, tf.DType] | None = None,
  state: Mapping[str, tf.Variable] | None = None,
  weights: Mapping[str, tf.Variable] | None = None,
) -> Any:
  """The same function as a tf.types.experimental.ConcreteFunction without variables or calls, and
  without complex numbers: an input or output c64[b] is f32[b,2].

  Args:
    signature: a ConcreteFunction of a signature: named tensors in, a dict of named tensors out.
    replacements: {type of op: replacement}.
    held: {dtype: the target's dtype that holds it}, for inputs and parameters. Replacements handle
      all other tensors.
    state: {name: variable}. Each becomes an input and an output of this name: its values before and
      after the call.
    weights: {name: variable}. Each becomes an input of this name in place of a constant.

  Raises:
    ValueError: it writes a variable outside of `state`, or in a loop or a branch.
    UnpairedOpsError: ops of complex numbers have no form in pairs.
  """
  inputs = _specs(signature, held, state, weights)

  def function(**tensors: tf.Tensor) -> dict[str, tf.Tensor]:
    return _results(signature, tensors, replacements, held, state, weights)

  return tf.function(function, autograph=False).get_concrete_function(**inputs)


@dataclass(frozen=True)
class FrozenGraph:
  """What `frozen` makes, as a graph alone.

  Attributes:
    graph: the tf.Graph.
    inputs, outputs: {name: its tensor in the graph}.
  """

  graph: Any
  inputs: Mapping[str, tf.Tensor]
  outputs: Mapping[str, tf.Tensor]


def frozen_graph(
  signature: Any,
  replacements: Mapping[str, Replacement],
  held: Mapping[tf.DType, tf.DType] | None = None,
) -> FrozenGraph:
  """As `frozen`, in half the time: TensorFlow cannot call the result.

  Raises:
    ValueError, UnpairedOpsError: as `frozen`.
  """
  graph = _tf_compat.FuncGraph("frozen")
  with graph.as_default():
    inputs = {
      name: tf.compat.v1.placeholder(spec.dtype, spec.shape, op_name(name))
      for name, spec in _specs(signature, held).items()
    }
    outputs = _results(signature, inputs, replacements, held)
  return FrozenGraph(graph, inputs, outputs)


def _specs(
  signature: Any,
  held: Mapping[tf.DType, tf.DType] | None,
  state: Mapping[str, tf.Variable] | None = None,
  weights: Mapping[str, tf.Variable] | None = None,
) -> dict[str, tf.TensorSpec]:
  """{name of an input of `frozen` with these arguments: its spec}."""
  held, variables = held or {}, {**(state or {}), **(weights or {})}
  return {
    name: outer_spec(tf.TensorSpec(spec.shape, held.get(spec.dtype, spec.dtype), name))
    for name, spec in input_specs(signature).items()
  } | {
    name: tf.TensorSpec(variable.shape, held.get(variable.dtype, variable.dtype), name)
    for name, variable in variables.items()
  }


def _results(
  signature: Any,
  tensors: Mapping[str, tf.Tensor],
  replacements: Mapping[str, Replacement],
  held: Mapping[tf.DType, tf.DType] | None,
  state: Mapping[str, tf.Variable] | None = None,
  weights: Mapping[str, tf.Variable] | None = None,
) -> dict[str, tf.Tensor]:
  """{name: output of `frozen`} for the tensors of its inputs."""
  state, specs = state or {}, input_specs(signature)
  before = {id(variable): tensors[name] for name, variable in state.items()}
  values = {id(variable): tensors[name] for name, variable in (weights or {}).items()}
  arguments = [entering(tensors[name], spec) for name, spec in specs.items()]
  results, after = replayed(signature, arguments, replacements, held or {}, before, values)
  outputs = sorted(signature.structured_outputs)  # TensorFlow sorts a dict by its keys
  return {
    name: tf.identity(leaving(result), op_name(name))
    for name, result in zip(outputs, results, strict=True)
  } | {name: tf.identity(after[id(variable)]) for name, variable in state.items()}
