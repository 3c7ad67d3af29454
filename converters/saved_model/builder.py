"""JAX functions and their parameters -> a SavedModel directory."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import tensorflow as tf
from jax import export, tree_util

import jax2tf
from jax2tf import _tf_compat, errors

from .. import stages
from . import manifest, optional, parameters, publish, serialized, warmup
from .arguments import Arguments, Given, check_order, output_names, tensor_specs
from .batching import Batching, check_rows
from .notation import Spec
from .optional import Tensors
from .state import State


class Model(tf.__internal__.tracking.AutoTrackable):
  """Parameters as tf.Variables, and functions of them: the builder of a SavedModel.

  What is loaded from it is a reusable SavedModel (https://www.tensorflow.org/hub/reusable_saved_models): `__call__`, the function
  added first, `variables` and `trainable_variables`. Variables that a function captures, by `jax2tf.call_tf`, are `captured_variables`, and
  among the trainable ones if they are.

  Args:
    params: a pytree of arrays; each becomes a tf.Variable named by its path, which shares the array's memory until one is written.
    state: a pytree of arrays that the functions added with `stateful=True` share and change, typed keys too; each becomes a tf.Variable of
      `state_variables`.
    trainable: a bool, a function of the path "encoder/0/kernel", or a pytree prefix of `params` with bools; None for all but the
      statistics of normalisations (`mean` beside `var`, `batch_stats/...`). Only floating point and complex parameters ever are.
    stored_dtype: in which wider floating point parameters are kept, such as jnp.bfloat16: half the file and the memory. They are cast back
      where they are used, so the model is the function of rounded parameters, and computes in its own dtypes.
    polymorphic_constraints: conditions on dimension variables, such as "b <= 512", for the functions whose inputs have one of these.
    with_gradient: whether TensorFlow may differentiate the loaded model.
    idioms: as for `jax2tf.convert`: "exact", or "fused" to take TensorFlow's composite ops too.

  Raises:
    ValueError: two leaves of one path; a state without leaves; a `trainable` that does not fit `params`; a `stored_dtype` that is no
      floating point dtype.
  """

  def __init__(
    self,
    params: Any,
    *,
    state: Any = None,
    trainable: parameters.Trainable = None,
    stored_dtype: Any = None,
    polymorphic_constraints: Sequence[str] = (),
    with_gradient: bool = False,
    idioms: str = "exact",
  ):
    super().__init__()
    self._state = None if state is None else State(state)
    self._layout = _Untracked(parameters.Layout.of(params))
    # Attributes, not properties, so that the loaded model has them; lists, for TensorFlow tracks no other pytrees.
    self.variables = parameters.variables(params, trainable, stored_dtype)
    self.trainable_variables = [variable for variable in self.variables if variable.trainable]
    self.captured_variables: list[tf.Variable] = []
    self.state_variables = self._state.variables if self._state else []
    self.regularization_losses: list[Any] = []
    self._options = _Untracked((tuple(polymorphic_constraints), {"with_gradient": with_gradient, "idioms": idioms}))
    self._signatures = _Untracked({})
    self._records = _Untracked({})
    self._functions = _Untracked({})
    self._resources: list[Any] = []

  @property
  def parameters(self) -> dict[str, tf.Variable]:
    """{path in the tree of parameters: tf.Variable}."""
    return dict(zip(self._layout.value.paths, self.variables, strict=True))

  @property
  def signatures(self) -> dict[str, Any]:
    """{name: tf.function of named tensors that returns a dict of named tensors}."""
    return dict(self._signatures.value)

  @property
  def records(self) -> dict[str, manifest.SignatureRecord]:
    """{signature: what the manifest will say of it}."""
    return dict(self._records.value)

  @property
  def remembered(self) -> State | None:
    """The variables of the state."""
    return self._state

  @property
  def functions(self) -> dict[str, Added]:
    """{signature: the JAX function behind it}."""
    return dict(self._functions.value)

  def values(self) -> Any:
    """The tree of the parameters, as arrays of what the variables hold now, in the dtypes that the functions take."""
    layout = self._layout.value
    return layout.restored([v.numpy().astype(dtype, copy=False) for v, dtype in zip(self.variables, layout.dtypes, strict=True)])

  def state(self) -> Any:
    """The tree of the state, as JAX arrays of what the variables hold now; None for a model without one."""
    return self._state.layout.restored(self._state.stored()) if self._state else None

  @property
  def polymorphic_constraints(self) -> tuple[str, ...]:
    """The conditions on the dimension variables."""
    return self._options.value[0]

  def add(
    self,
    fun: Callable[..., Any],
    *,
    inputs: Mapping[str, Any],
    outputs: Sequence[str] | Mapping[str, str] | None = None,
    signatures: str | Iterable[str] = "serving_default",
    method: str | None = None,
    input_names: Mapping[str, str] | None = None,
    defaults: Mapping[str, Any] | None = None,
    raw_inputs: Mapping[str, Given] | None = None,
    preprocess: Callable[[Tensors], Tensors] | None = None,
    postprocess: Callable[[Tensors], Tensors] | None = None,
    pass_through: Mapping[str, Given] | None = None,
    resources: Iterable[Any] = (),
    batching: Batching | None = None,
    stateful: bool = False,
    examples: bool = False,
  ) -> Model:
    """Adds `fun(params, *inputs)`, which shares the parameters with the others.

    Args:
      fun: a JAX function of the parameters and the inputs.
      inputs: the names of the arguments after `params`, in their order, each with its dtype and shape in jaxpr notation, "f32[b,784]",
        as a jax.ShapeDtypeStruct, or as a tree of these; a leaf of a tree is named by its path, `batch_ids`. Symbolic
        dimensions become unknown sizes.
      outputs: names for the leaves of the result, or {name: other name}; their paths in the result if not given.
      signatures: the name of the signature, or several names for the same.
      method: an attribute of the loaded model that calls the function on its arguments as they are, without processors; the first
        function added is also `__call__`.
      input_names: {name: other name} for inputs.
      defaults: values of inputs that a request may leave out. In a symbolic dimension a default has size 1, and is repeated to the
        size that the other inputs have.
      raw_inputs: inputs of the signature that `preprocess` takes, such as {"text": "string[b]"}; an input of `fun` that
        `preprocess` does not make is an input of the signature under its own name and belongs here as well.
      preprocess: TensorFlow function {raw name: tensor} -> {input name: tensor}.
      postprocess: TensorFlow function {output name: tensor} -> {output name: tensor}.
      pass_through: inputs of the signature that are returned as they are, such as {"id": "string[b]"}.
      resources: lookup tables, assets and other trackables that the processors use.
      batching: lets requests that wait at the same time run as one, in any server; for functions whose rows know nothing of each other.
      stateful: whether `fun` is `fun(params, state, *inputs) -> (state, outputs)`: a call reads the state of the model, and keeps the new
        one. Calls of all stateful signatures come one after the other, each from a whole state to a whole state.
      examples: whether the signature takes serialized tf.train.Examples, "examples", with a feature for each of its inputs.

    Returns:
      the model itself.

    Raises:
      ValueError: specs, names, defaults, processors, batching or state that do not fit each other; a new state of another structure, or
        with a leaf of another shape or dtype.
    """
    state = self._checked_state(batching) if stateful else None
    constraints, options = self._options.value
    arguments = Arguments.of(inputs, input_names or {}, export.SymbolicScope(constraints))
    constraints = arguments.concerned_by(constraints)
    check_order(fun, list(inputs), ["params", *["state"] * stateful])
    names = [signatures] if isinstance(signatures, str) else list(signatures)
    if not all(names):
      raise ValueError("signatures = '': a signature needs a name")
    if taken := [name for name in names if name in self._signatures.value]:
      raise ValueError(f"signature {taken[0]!r} is there already; give this one another name in `signatures`")
    if method is not None and (hasattr(self, method) or not re.fullmatch(r"[A-Za-z]\w*", method, re.ASCII)):
      raise ValueError(f"method {method!r} is an attribute of the model already, or no name for one; choose another")
    resources = [*resources, preprocess, postprocess]  # processors may be trackables themselves
    raw_inputs, preprocess = serialized.processed(raw_inputs, preprocess, arguments, examples, [*(pass_through or ()), *(defaults or ())])
    shapes = [None, *[None] * (state is not None), *arguments.polymorphic_shapes()]
    layout = self._layout.value
    pure = layout.of_stored(state.layout.of_stored(fun) if state else fun)
    converted = jax2tf.convert(pure, polymorphic_shapes=shapes, polymorphic_constraints=constraints, **options)

    def of_parameters(*args: Any) -> Any:
      leaves = [v if v.dtype == dtype else tf.cast(v, dtype) for v, dtype in zip(self.variables, layout.dtypes, strict=True)]
      params = tree_util.tree_unflatten(layout.tree, leaves)
      return state.updated(lambda stored: converted(params, stored, *args)) if state else converted(params, *args)

    # One function for signatures and methods: each holds the gradients of both orders.
    call = tf.function(of_parameters, autograph=False, input_signature=arguments.unflatten(list(arguments.specs().values())))
    specs = tensor_specs(raw_inputs) if raw_inputs is not None else arguments.specs()
    passed = tensor_specs(pass_through or {})
    if twice := specs.keys() & passed.keys():
      raise ValueError(f"pass_through: {', '.join(sorted(twice))} is an input already; choose another name")
    defaults = optional.defaults(defaults or {}, specs, arguments)

    def run(*tensors: tf.Tensor) -> Tensors:
      given = dict(zip([*specs, *passed], tensors, strict=True))
      through = {name: tf.identity(given.pop(name)) for name in passed}
      made = dict(preprocess(given)) if preprocess else given
      if missing := [name for name in arguments.names if name not in made]:
        raise ValueError(f"preprocess gives {', '.join(made) or 'nothing'}, and not {', '.join(missing)}, which '{_name(fun)}' takes")
      result = call(*arguments.unflatten([made[name] for name in arguments.names]))
      found = dict(zip(output_names(result, outputs), tree_util.tree_leaves(result), strict=True))
      found = dict(postprocess(found)) if postprocess else found
      if twice := found.keys() & through.keys():
        raise ValueError(f"pass_through: {', '.join(sorted(twice))} is an output already; choose another name")
      return found | through

    types = [*specs.values(), *passed.values()]
    queued = batching.batched(tf.function(run, autograph=False, input_signature=types), names[0]) if batching else run

    def serve(*tensors: tf.Tensor) -> Tensors:
      given = dict(zip([*specs, *passed], tensors, strict=True))
      given.update({name: optional.repeated(name, given, arguments) for name in defaults})
      return queued(*given.values())

    signature = tf.function(optional.named(serve, [*specs, *passed], defaults), autograph=False, input_signature=types)
    self._resources += [x for x in resources if isinstance(x, tf.__internal__.tracking.Trackable)]
    self._record(pure, arguments, signature, names, list(passed), list(defaults), preprocess is not None, postprocess is not None, stateful)
    known = {v.ref() for v in (*self.variables, *self.captured_variables, *self.state_variables)}
    captured = [v for v in _tf_compat.traced_for_saving(signature).graph.variables if v.ref() not in known]
    self.captured_variables += captured
    self.trainable_variables += [v for v in captured if v.trainable]
    if batching:
      check_rows(self.records[names[0]], names[0])
    if not self._functions.value:
      self.__call__ = call
    self._signatures.value.update(dict.fromkeys(names, signature))
    self._functions.value.update(dict.fromkeys(names, Added(fun, arguments, stateful)))
    if method:
      setattr(self, method, call)
    return self

  def _checked_state(self, batching: Batching | None) -> State:
    if self._state is None:
      raise ValueError("stateful=True, and this model has no state; give it one: Model(params, state=...)")
    if batching:
      raise ValueError("batching puts requests together, and a stateful signature takes one after the other; leave out one of the two")
    return self._state

  def add_reset(self, name: str = "reset") -> Model:
    """Adds a signature without inputs that gives the state back what it is now; its output "reset" is the number of its arrays.

    Returns:
      the model itself.

    Raises:
      ValueError: the model has no state, or a signature of this name.
    """
    if self._state is None:
      raise ValueError("this model has no state that could be reset; give it one: Model(params, state=...)")
    if name in self._signatures.value:
      raise ValueError(f"signature {name!r} is there already; give this one another name")
    self._state.keep_initial()
    self._signatures.value[name] = tf.function(self._state.reset, autograph=False, input_signature=[])
    self._records.value[name] = manifest.SignatureRecord({}, {"reset": "i32[]"}, stateful=True, resets=True)
    return self

  def _record(
    self,
    fun: Callable[..., Any],
    arguments: Arguments,
    signature: Any,
    names: Sequence[str],
    passed: list[str],
    defaults: list[str],
    preprocessed: bool,
    postprocessed: bool,
    stateful: bool,
  ) -> None:
    """What the manifest will say of the signatures; traces both functions, so that what is wrong with them is said here."""
    layout = self._layout.value
    dtypes = map(jax.dtypes.canonicalize_dtype, layout.dtypes)
    params = [jax.ShapeDtypeStruct(v.shape, dtype) for v, dtype in zip(self.variables, dtypes, strict=True)]
    state = [[jax.ShapeDtypeStruct(v.shape, v.dtype.as_numpy_dtype) for v in self.state_variables]] * stateful
    with stages.stage("trace"), errors.hints():
      traced = jax.jit(fun).trace(tree_util.tree_unflatten(layout.tree, params), *state, *arguments.unflatten(arguments.avals))
    with stages.stage("lower"):
      concrete = _tf_compat.traced_for_saving(signature)
    inputs = {spec.name: str(Spec.of(spec)) for spec in tree_util.tree_leaves(concrete.structured_input_signature)}
    results = concrete.structured_outputs
    if not postprocessed:
      avals = tree_util.tree_leaves(traced.out_info[1] if stateful else traced.out_info)
      results = dict(zip([name for name in results if name not in passed], avals, strict=True)) | {name: results[name] for name in passed}
    record = manifest.SignatureRecord(
      inputs=inputs if preprocessed else inputs | arguments.notation(),
      outputs={name: str(Spec.of(y)) for name, y in results.items()},
      defaults=defaults,
      passed_through=passed,
      jaxpr=manifest.hash_of_jaxpr(traced.jaxpr),
      preprocessed=preprocessed,
      postprocessed=postprocessed,
      stateful=stateful,
    )
    self._records.value.update(dict.fromkeys(names, record))

  def update(self, params: Any) -> None:
    """Gives the parameters new values, without a new trace; all, or none. The state stays as it is.

    Raises:
      ValueError: another tree, other shapes or dtypes; each difference by its path.
    """
    parameters.assign(self.parameters, params, self._layout.value.dtypes)

  def manifest(self) -> manifest.Manifest:
    """What the SavedModel will say of itself."""
    paths = sorted(self.parameters)
    # TF 2.21: NumPy cannot look at the memory of a scalar tensor of bfloat16 or float8.
    values = [v.value() if v.shape.rank else v.numpy() for v in map(self.parameters.__getitem__, paths)]
    return manifest.Manifest(
      signatures=self.records,
      constraints=list(self.polymorphic_constraints),
      parameters={path: str(Spec.of(value)) for path, value in zip(paths, values, strict=True)},
      weights=manifest.hash_of_arrays(parameters.with_progress(values, "hash of the parameters")),
      with_gradient=self._options.value[1]["with_gradient"],
      state=self._state.specs() if self._state else {},
      state_values=manifest.hash_of_arrays(v.numpy() for v in self.state_variables) if self._state else "",
    )

  def save(
    self, path: str | os.PathLike[str], *, version: int | None = None, overwrite: bool = False, warmup_requests: warmup.Requests = ()
  ) -> Path:
    """Saves as `path/<version>/`, which TF Serving can watch: written beside its place and renamed into it, so never seen half written.

    Args:
      path: the model's directory, which holds its versions.
      version: the number of the version; the next free one if not given.
      overwrite: whether to replace a version that is there, in one step.
      warmup_requests: what TF Serving runs before it takes requests: [{input name: array}], or {signature: [...]};
        `warmup.from_specs(model)` makes some.

    Returns:
      the directory of the new version.

    Raises:
      FileExistsError: the version is there already and `overwrite` is False.
      ValueError: a version that is no whole number from 0 on; there is no signature, or none for the state; a warm-up request that does
        not fit its signature, or that would change the state.
    """
    if not self._signatures.value:
      raise ValueError("the model has no function; add one with Model.add")
    if self._state and not any(added.stateful for added in self.functions.values()):
      raise ValueError("the model has a state, and no signature takes it: add(..., stateful=True), or leave out the state")
    publish.check_version(Path(path), version, overwrite)  # before the work, and once more after it
    requests = warmup.prepared(warmup_requests, self.signatures, [name for name, record in self.records.items() if record.stateful])
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=self._options.value[1]["with_gradient"])
    with stages.stage("save"), publish.beside(Path(path)) as written:
      tf.saved_model.save(self, str(written), signatures=self.signatures, options=options)
      self.manifest().write(written)
      warmup.write(requests, written, Path(path).name)
      return publish.publish(written, Path(path), version, overwrite)


def save(
  fun: Callable[..., Any],
  params: Any,
  path: str | os.PathLike[str],
  *,
  inputs: Mapping[str, Any],
  outputs: Sequence[str] | Mapping[str, str] | None = None,
  trainable: parameters.Trainable = None,
  polymorphic_constraints: Sequence[str] = (),
  with_gradient: bool = False,
  idioms: str = "exact",
  version: int | None = None,
  overwrite: bool = False,
  warmup_requests: warmup.Requests = (),
) -> Path:
  """Converts `fun(params, *inputs)` and saves it as `path/<version>/`.

  Arguments, result and errors are those of `Model`, `Model.add` and `Model.save`.
  """
  publish.check_version(Path(path), version, overwrite)
  model = Model(params, trainable=trainable, polymorphic_constraints=polymorphic_constraints, with_gradient=with_gradient, idioms=idioms)
  model.add(fun, inputs=inputs, outputs=outputs)
  return model.save(path, version=version, overwrite=overwrite, warmup_requests=warmup_requests)


@dataclass(frozen=True)
class Added:
  """A function of a `Model`: the JAX function of the parameters, its named arguments, and whether it takes the state in front of these."""

  fun: Callable[..., Any]
  arguments: Arguments
  stateful: bool = False


class _Untracked:
  """A value that TensorFlow's tracking does not look into."""

  def __init__(self, value: Any):
    self.value = value


def _name(fun: Callable[..., Any]) -> str:
  return getattr(fun, "__name__", type(fun).__name__)
