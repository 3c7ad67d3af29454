"""Makes one signature of a `Model`: tf.functions and a record, whole before the model gets any of
them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from jax import export, tree_util

import jax2tf
from jax2tf import _tf_compat, dims
from jax2tf.messages import ArgumentError

from .. import collector, stages
from ..bundle import manifest
from ..bundle.notation import Spec
from . import optional, parameters, serialized
from .arguments import (
  Added,
  Arguments,
  Given,
  check_order,
  checked_results,
  input_specs,
  name_of,
  output_names,
  tensor_specs,
)
from .batching import Batching, check_rows
from .optional import Tensors
from .state import State


@dataclass(frozen=True)
class Owner:
  """What the functions of a model share.

  Attributes:
    layout, variables: the parameters.
    state: the state, for a function that takes it.
    constraints: conditions on the dimension variables.
    options: of `jax2tf.convert`.
    is_saved: whether a SavedModel may have the functions, which share one graph then. An exporter
      inlines calls, and its targets check no sizes.
  """

  layout: parameters.Layout
  variables: Sequence[tf.Variable]
  state: State | None
  constraints: tuple[str, ...]
  options: Mapping[str, Any]
  is_saved: bool = True


@dataclass(frozen=True)
class Around:
  """What TensorFlow does around a JAX function: the arguments of `Model.add` of these names."""

  raw_inputs: Mapping[str, Given] | None = None
  preprocess: Callable[[Tensors], Tensors] | None = None
  postprocess: Callable[[Tensors], Tensors] | None = None
  pass_through: Mapping[str, Given] | None = None
  defaults: Mapping[str, Any] | None = None
  batching: Batching | None = None
  examples: bool = False


@dataclass(frozen=True)
class Made:
  """A signature, and what the model keeps of it.

  Attributes:
    signature: tf.function of named tensors that returns a dict of named tensors.
    traced: its ConcreteFunction; the TracedGraph if no SavedModel may have it.
    call: TensorFlow function of the inputs of the JAX function.
    record: the signature in the manifest.
    added: the JAX function.
  """

  signature: Any
  traced: Any
  call: Any
  record: manifest.SignatureRecord
  added: Added


def made(
  owner: Owner,
  fun: Callable[..., Any],
  inputs: Mapping[str, Any],
  outputs: Sequence[str] | Mapping[str, str] | None,
  input_names: Mapping[str, str],
  around: Around,
  name: str,
) -> Made:
  """Converts and traces `fun(params, *inputs)`, or with a state `fun(params, state, *inputs)`.

  Args:
    owner: what it shares with the model's other functions.
    fun, inputs, outputs, input_names, around: as for `Model.add`.
    name: the name of the signature.

  Raises:
    ValueError, NotImplementedError: as for `Model.add`.
  """
  arguments = Arguments.of(inputs, input_names, export.SymbolicScope(owner.constraints))
  check_order(fun, list(inputs), ["params", *["state"] * (owner.state is not None)])
  others = [*(around.pass_through or ()), *(around.defaults or ())]
  raw, preprocess = serialized.processed(
    around.raw_inputs, around.preprocess, arguments, around.examples, others
  )
  pure = owner.layout.of_stored(owner.state.layout.of_stored(fun) if owner.state else fun)
  converted = _converted(owner, pure, arguments)
  call = _call(owner, checked_results(name_of(fun), converted), arguments)
  specs = tensor_specs(raw, "raw_inputs") if raw is not None else arguments.specs()
  passed = tensor_specs(around.pass_through or {}, "pass_through")
  if twice := specs.keys() & passed.keys():
    raise ArgumentError(
      "pass_through",
      problem=f"{', '.join(sorted(twice))} is already an input",
      advice="choose another name",
    )
  # moves these specs to the end
  defaults = optional.defaults(around.defaults or {}, specs, arguments)
  run = _run(
    _named_results(call, arguments, outputs),
    arguments,
    fun,
    preprocess,
    around,
    [*specs],
    [*passed],
    name,
  )

  def serve(*tensors: tf.Tensor) -> Tensors:
    by_name = dict(zip([*specs, *passed], tensors, strict=True))
    by_name.update({name: optional.repeated(name, by_name, arguments) for name in defaults})
    return run(by_name)

  types = [*specs.values(), *passed.values()]
  signature = tf.function(
    optional.named(serve, [*specs, *passed], defaults), autograph=False, input_signature=types
  )
  traced = _traced(owner, converted, arguments)
  checks = contextlib.nullcontext() if owner.is_saved else dims.without_checks()
  trace = _tf_compat.traced_for_saving if owner.is_saved else _tf_compat.TracedGraph
  with stages.stage("lower"), collector.paused(), checks:
    graph_of_signature = trace(signature)
  if around.batching:
    results = zip(
      output_names(traced.results, outputs), tree_util.tree_leaves(traced.results), strict=True
    )
    check_rows(arguments.notation(), {output: str(Spec.of(y)) for output, y in results}, name)
  record = _record(
    owner, graph_of_signature, traced, arguments, around, raw, [*passed], [*defaults]
  )
  added = Added(fun, arguments, owner.state is not None)
  return Made(signature, graph_of_signature, call, record, added)


def _converted(owner: Owner, pure: Callable[..., Any], arguments: Arguments) -> Any:
  """The JAX function of the stored parameters, of the state if there is one, and of the inputs, as
  a function of tensors."""
  shapes = [None, *[None] * (owner.state is not None), *arguments.polymorphic_shapes()]
  constraints = arguments.concerned_by(owner.constraints)
  return jax2tf.convert(
    pure, polymorphic_shapes=shapes, polymorphic_constraints=constraints, **owner.options
  )


def _call(owner: Owner, checked: Callable[..., Any], arguments: Arguments) -> Any:
  """The inputs of the JAX function -> its results. In a SavedModel it is a tf.function, which
  signatures and methods share, because each function holds its gradients."""
  layout, state = owner.layout, owner.state

  def of_parameters(*args: Any) -> Any:
    leaves = [
      v if v.dtype == dtype else tf.cast(v, dtype)
      for v, dtype in zip(owner.variables, layout.dtypes, strict=True)
    ]
    params = layout.argument(leaves)
    return (
      state.updated(lambda stored: checked(params, stored, *args))
      if state
      else checked(params, *args)
    )

  if not owner.is_saved:
    return of_parameters
  return tf.function(
    of_parameters,
    autograph=False,
    input_signature=arguments.unflatten(list(arguments.specs().values())),
  )


def _named_results(
  call: Any, arguments: Arguments, outputs: Sequence[str] | Mapping[str, str] | None
) -> Callable[..., Tensors]:
  """`call` of the leaves of its inputs, with a name for each leaf of its result."""

  def named(*leaves: tf.Tensor) -> Tensors:
    result = call(*arguments.unflatten(leaves))
    return dict(zip(output_names(result, outputs), tree_util.tree_leaves(result), strict=True))

  return named


def _run(
  compute: Callable[..., Tensors],
  arguments: Arguments,
  fun: Callable[..., Any],
  preprocess: Callable[[Tensors], Tensors] | None,
  around: Around,
  specs: Sequence[str],
  passed: Sequence[str],
  name: str,
) -> Callable[[Tensors], Tensors]:
  """{input: tensor} -> {output: tensor}, with the processors.

  Each request runs the processors alone, so that one that they refuse fails no other. Only the JAX
  function takes batches of requests.
  """
  postprocess = around.postprocess
  if around.batching:
    types = list(arguments.specs().values())
    compute = around.batching.batched(
      tf.function(compute, autograph=False, input_signature=types), name
    )
    # a function checks the dtypes and shapes of what that gives; BatchFunction does not
    if preprocess:
      compute = tf.function(compute, autograph=False, input_signature=types)

  def run(inputs: Tensors) -> Tensors:
    through = {each: tf.identity(inputs.pop(each)) for each in passed}
    preprocessed = dict(preprocess(inputs)) if preprocess else inputs
    if missing := [each for each in arguments.names if each not in preprocessed]:
      raise ArgumentError(
        "preprocess",
        problem=f"it gives {', '.join(preprocessed) or 'nothing'}, and not {', '.join(missing)}, "
        f"which '{name_of(fun)}' takes",
      )
    shapes = {spec.name: spec.shape for spec in arguments.specs().values()}
    leaves = [
      tf.ensure_shape(preprocessed[each], shapes[each]) if preprocess else preprocessed[each]
      for each in arguments.names
    ]
    outputs = dict(compute(*leaves))
    outputs = dict(postprocess(outputs)) if postprocess else outputs
    if twice := outputs.keys() & through.keys():
      raise ArgumentError(
        "pass_through",
        problem=f"{', '.join(sorted(twice))} is already an output",
        advice="choose another name",
      )
    return outputs | through

  return run


def _traced(owner: Owner, converted: Any, arguments: Arguments) -> Any:
  """The traced JAX function. Tracing it here reports its errors early."""
  params = [
    tf.TensorSpec(v.shape, dtype)
    for v, dtype in zip(owner.variables, owner.layout.dtypes, strict=True)
  ]
  state = [[tf.TensorSpec(v.shape, v.dtype) for v in owner.state.variables]] if owner.state else []
  inputs = arguments.unflatten([*arguments.specs().values()])
  with stages.stage("trace"), collector.paused():
    return converted.trace(owner.layout.argument(params), *state, *inputs)


def _record(
  owner: Owner,
  concrete: Any,
  traced: Any,
  arguments: Arguments,
  around: Around,
  raw: Mapping[str, Given] | None,
  passed: list[str],
  defaults: list[str],
) -> manifest.SignatureRecord:
  stateful = owner.state is not None
  inputs = {name: str(Spec.of(spec)) for name, spec in input_specs(concrete).items()}
  results = concrete.structured_outputs
  if not around.postprocess:
    avals = tree_util.tree_leaves(traced.results[1] if stateful else traced.results)
    results = dict(zip([name for name in results if name not in passed], avals, strict=True)) | {
      name: results[name] for name in passed
    }
  return manifest.SignatureRecord(
    inputs=inputs if raw is not None else inputs | arguments.notation(),
    outputs={name: str(Spec.of(y)) for name, y in results.items()},
    defaults=defaults,
    passed_through=passed,
    jaxpr=manifest.hash_of_jaxpr(traced.jaxpr) if owner.is_saved else "",
    preprocessed=raw is not None,
    postprocessed=around.postprocess is not None,
    stateful=stateful,
    declared={
      each: str(Spec.parse(text)) for each, text in (raw or {}).items() if isinstance(text, str)
    },
  )
