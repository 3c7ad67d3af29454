"""JAX functions and their parameters -> a SavedModel directory."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from jax2tf import _tf_compat
from jax2tf.messages import ArgumentError

from .. import collector, stages
from ..bundle import manifest, paths, publish
from ..bundle.notation import Spec
from . import kinds, parameters, signature, warmup
from .arguments import Added, Given
from .batching import Batching
from .optional import Tensors
from .state import State


class Model(tf.__internal__.tracking.AutoTrackable):  # type: ignore[misc]
  """The builder of a SavedModel: parameters as tf.Variables, and functions of these parameters.

  The result is a reusable SavedModel (https://www.tensorflow.org/hub/reusable_saved_models): it has
  `variables`, `trainable_variables` and `__call__`, the first function added. `captured_variables`
  are the variables that a function captures through `jax2tf.call_tf`; `trainable_variables` also
  has the trainable ones.

  Args:
    params: a pytree of arrays. Each becomes a tf.Variable named by its path, which shares the
      array's memory until it is written.
    state: a pytree of arrays, which may include typed keys. Functions added with `stateful=True`
      share and update it. Each array becomes a tf.Variable in `state_variables`.
    trainable: a bool, a function of the path "encoder/0/kernel", or a pytree prefix of `params`
      with bools. None trains all but the statistics of normalisations (`mean` beside `var`,
      `batch_stats/...`). Only floating point and complex parameters are trainable.
    stored_dtype: the dtype that stores wider floating point parameters, such as jnp.bfloat16, which
      halves the file and the memory of float32 parameters. The model casts the rounded parameters
      back before use, and computes in its own dtypes.
    polymorphic_constraints: conditions on dimension variables, such as "b <= 512". They apply to
      functions whose inputs have the variable.
    with_gradient: whether TensorFlow can differentiate the loaded model.
    gradient_orders: with a gradient, the number of derivative orders in the file. The loaded model
      raises an error for a higher order.
    idioms: as for `jax2tf.convert`: "exact", "fused" to allow TensorFlow's composite ops too, or
      the names of some of them.

  Raises:
    TypeError: a leaf of `params` is not an array of numbers.
    ValueError: two leaves have the same path; `state` has no leaves; `trainable` does not fit
      `params`; `stored_dtype` is not a floating point dtype.

  Examples:
    >>> import numpy as np
    >>> from jax2tf.converters import saved_model
    >>> model = saved_model.Model({"w": np.eye(2, dtype=np.float32)}, trainable=False)
    >>> sorted(model.parameters), len(model.trainable_variables)
    (['w'], 0)
  """

  _is_saved = True  # else only an exporter reads its functions

  def __init__(
    self,
    params: Any,
    *,
    state: Any = None,
    trainable: parameters.Trainable = None,
    stored_dtype: Any = None,
    polymorphic_constraints: Sequence[str] = (),
    with_gradient: bool = False,
    gradient_orders: int = 1,
    idioms: str = "exact",
  ):
    super().__init__()
    kinds.check_names("polymorphic_constraints", polymorphic_constraints)
    self._state = None if state is None else State(state)
    self._layout = _Untracked(parameters.Layout.of(params))
    # Attributes, because a loaded model has no properties; lists, because TensorFlow tracks no
    # other pytrees.
    self.variables = parameters.variables(params, trainable, stored_dtype)
    self.trainable_variables = [variable for variable in self.variables if variable.trainable]
    self.captured_variables: list[tf.Variable] = []
    self.state_variables = self._state.variables if self._state else []
    self.regularization_losses: list[Any] = []
    options = {"with_gradient": with_gradient, "gradient_orders": gradient_orders, "idioms": idioms}
    self._options = _Untracked((tuple(polymorphic_constraints), options))
    self._signatures = _Untracked({})
    self._records = _Untracked({})
    self._functions = _Untracked({})
    self._traced = _Untracked({})
    self._resources: list[Any] = []

  @property
  def parameters(self) -> dict[str, tf.Variable]:
    """{path of a parameter: tf.Variable}."""
    return dict(zip(self._layout.value.paths, self.variables, strict=True))

  @property
  def signatures(self) -> dict[str, Any]:
    """{name: tf.function of named tensors that returns a dict of named tensors}."""
    return dict(self._signatures.value)

  @property
  def records(self) -> dict[str, manifest.SignatureRecord]:
    """{signature: its record in the manifest}."""
    return dict(self._records.value)

  @property
  def remembered(self) -> State | None:
    """The variables of the state."""
    return self._state

  @property
  def functions(self) -> dict[str, Added]:
    """{signature: the JAX function behind it}."""
    return dict(self._functions.value)

  def traced(self, name: str) -> Any:
    """The function of a signature, of named tensors.

    Args:
      name: a key of `signatures`.

    Returns:
      The tf.types.experimental.ConcreteFunction, traced once for each signature.
    """
    kept = self._traced.value.get(name)
    return _tf_compat.traced_for_saving(self.signatures[name]) if kept is None else kept

  def values(self) -> Any:
    """The pytree of parameters as arrays: the current values of the variables, in the dtypes that
    the functions take."""
    layout = self._layout.value
    return layout.restored(
      [
        v.numpy().astype(dtype, copy=False)
        for v, dtype in zip(self.variables, layout.dtypes, strict=True)
      ]
    )

  def shared_values(self) -> Any:
    """As `values`, as JAX arrays that share the memory of the variables where they can."""
    layout = self._layout.value
    return layout.restored(list(map(parameters.as_jax, self.variables, layout.dtypes)))

  def state(self) -> Any:
    """The pytree of the state as JAX arrays: the current values of the variables. None for a model
    without state."""
    return self._state.layout.restored(self._state.stored()) if self._state else None

  @property
  def polymorphic_constraints(self) -> tuple[str, ...]:
    """The conditions on the dimension variables."""
    return self._options.value[0]

  @property
  def idioms(self) -> str:
    """The idioms of all functions, as for `jax2tf.convert`."""
    return self._options.value[1]["idioms"]

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
    """Adds `fun(params, *inputs)` as a signature. All functions share the parameters.

    Args:
      fun: a JAX function of the parameters and the inputs.
      inputs: {name: spec} for the arguments after `params`, in order. A spec is a dtype and shape
        in jaxpr notation, "f32[b,784]", a jax.ShapeDtypeStruct, or a pytree of these. A leaf of a
        pytree is named by its path, `batch_ids`. Symbolic dimensions become None in the signature.
      outputs: names for the leaves of the result, or {path: name}. By default, a leaf is named by
        its path in the result.
      signatures: the name of the signature, or several names for the same signature.
      method: the name of an attribute of the loaded model that calls the function directly, without
        preprocess and postprocess. The first function added is also `__call__`.
      input_names: {name: other name}, to rename inputs.
      defaults: {input: value} for inputs that a request may omit. A default has size 1 in every
        symbolic dimension, and is repeated to the size of the other inputs.
      raw_inputs: {name: spec} for the inputs of `preprocess`, such as {"text": "string[b]"}.
        Include every input of `fun` that `preprocess` does not compute.
      preprocess: a TensorFlow function {raw name: tensor} -> {input name: tensor}.
      postprocess: a TensorFlow function {output name: tensor} -> {output name: tensor}.
      pass_through: {name: spec} for inputs that the signature returns unchanged, such as {"id":
        "string[b]"}.
      resources: lookup tables, assets and other trackables that the processors use.
      batching: batches concurrent requests, in any server. The rows of `fun` must not depend on
        each other. `preprocess` and `postprocess` run separately for every request.
      stateful: whether `fun` is `fun(params, state, *inputs) -> (state, outputs)`. A call reads the
        model's state and stores the new one. Calls of stateful signatures run one at a time.
      examples: whether the signature takes serialized tf.train.Example protos, "examples", with one
        feature per input.

    Returns:
      the model itself.

    Raises:
      TypeError: `fun` is not callable.
      ValueError: specs, names, defaults, processors, batching or state do not fit each other; `fun`
        returns a state whose structure, shapes or dtypes differ from the model's.
      NotImplementedError: a `jax2tf.LoweringError` that lists all primitives without a lowering.
    """
    state = self._checked_state(batching) if stateful else None
    kinds.check_added(
      inputs,
      outputs,
      input_names=input_names,
      defaults=defaults,
      raw_inputs=raw_inputs,
      pass_through=pass_through,
    )
    names = self._checked_names(signatures, method)
    resources = [*resources, preprocess, postprocess]  # processors may be trackables themselves
    around = signature.Around(
      raw_inputs, preprocess, postprocess, pass_through, defaults, batching, examples
    )
    constraints, options = self._options.value
    owner = signature.Owner(
      self._layout.value, self.variables, state, constraints, options, self._is_saved
    )
    new_signature = signature.made(owner, fun, inputs, outputs, input_names or {}, around, names[0])
    # Up to here the model is unchanged, and from here on nothing fails: a function that is refused
    # leaves nothing behind.
    self._keep(new_signature, names, method, resources)
    return self

  def _checked_names(self, signatures: str | Iterable[str], method: str | None) -> list[str]:
    names = kinds.signature_names(signatures)
    if taken := [name for name in names if name in self._signatures.value]:
      raise ArgumentError(
        "signatures",
        names,
        problem=f"signature {taken[0]!r} already exists",
        advice="choose another name",
      )
    if method is not None and (
      hasattr(self, method) or not re.fullmatch(r"[A-Za-z]\w*", method, re.ASCII)
    ):
      raise ArgumentError(
        "method",
        method,
        problem="it is already an attribute of the model, or not a valid name",
        advice="choose another",
      )
    return names

  def _keep(
    self,
    new_signature: signature.Made,
    names: Sequence[str],
    method: str | None,
    resources: Sequence[Any],
  ) -> None:
    known = {v.ref() for v in (*self.variables, *self.captured_variables, *self.state_variables)}
    read = new_signature.traced.graph.variables
    captured = [v for v in read if v.ref() not in known]
    self.captured_variables += captured
    self.trainable_variables += [v for v in captured if v.trainable]
    self._resources += [x for x in resources if isinstance(x, tf.__internal__.tracking.Trackable)]
    if not self._functions.value:
      self.__call__ = new_signature.call
    if method:
      setattr(self, method, new_signature.call)
    self._records.value.update(dict.fromkeys(names, new_signature.record))
    self._signatures.value.update(dict.fromkeys(names, new_signature.signature))
    self._functions.value.update(dict.fromkeys(names, new_signature.added))
    self._traced.value.update(dict.fromkeys(names, new_signature.traced))

  def _checked_state(self, batching: Batching | None) -> State:
    if self._state is None:
      raise ArgumentError(
        "stateful",
        True,
        problem="the model has no state",
        advice="create it with Model(params, state=...)",
      )
    if batching:
      raise ValueError(
        "batching and stateful=True exclude each other, because a stateful signature runs "
        "requests one by one"
      )
    return self._state

  def add_reset(self, name: str = "reset") -> Model:
    """Adds a signature without inputs that restores the state as it is now. Its output "reset",
    i32[], is the number of arrays.

    Args:
      name: the name of the signature.

    Returns:
      the model itself.

    Raises:
      ValueError: the model has no state, or already has a signature of this name.
    """
    if self._state is None:
      raise ValueError("this model has no state to reset; create it with Model(params, state=...)")
    if name in self._signatures.value:
      raise ValueError(f"signature {name!r} already exists; choose another name")
    self._state.keep_initial()
    self._signatures.value[name] = tf.function(
      self._state.reset, autograph=False, input_signature=[]
    )
    self._records.value[name] = manifest.SignatureRecord(
      {}, {"reset": "i32[]"}, stateful=True, resets=True
    )
    return self

  def update(self, params: Any) -> None:
    """Assigns new values to all parameters, without a new trace. On an error it assigns none. The
    state is unchanged.

    Args:
      params: a pytree of arrays with the structure, shapes and dtypes of the first parameters.

    Raises:
      ValueError: the structure, a shape or a dtype differs. The message lists all differences by
        their paths.
    """
    parameters.assign(self.parameters, params, self._layout.value.dtypes)

  def manifest(self) -> manifest.Manifest:
    """The manifest that `save` writes."""
    paths = sorted(self.parameters)
    # TF 2.21: NumPy cannot view the memory of a scalar tensor of bfloat16 or float8.
    values = [
      v.value() if v.shape.rank else v.numpy() for v in map(self.parameters.__getitem__, paths)
    ]
    return manifest.Manifest(
      signatures=self.records,
      constraints=list(self.polymorphic_constraints),
      parameters={path: str(Spec.of(value)) for path, value in zip(paths, values, strict=True)},
      weights=manifest.hash_of_arrays(parameters.with_progress(values, "hash of the parameters")),
      with_gradient=self._options.value[1]["with_gradient"],
      idioms=self.idioms,
      state=self._state.specs() if self._state else {},
      state_values=manifest.hash_of_arrays(v.numpy() for v in self.state_variables)
      if self._state
      else "",
    )

  def save(
    self,
    path: str | os.PathLike[str],
    *,
    version: int | None = None,
    overwrite: bool = False,
    warmup_requests: warmup.Requests = (),
  ) -> Path:
    """Saves as `path/<version>/`. TF Serving can watch `path`: a rename publishes a version when it
    is complete and on the disk.

    Args:
      path: the model's directory, which holds its versions; or its address, `gs://bucket/model`
        (docs/guide/saved-models.md).
      version: the number of the version. By default, the next free number.
      overwrite: whether to replace an existing version, atomically. Not possible at an address.
      warmup_requests: requests that TF Serving runs before the model is ready: [{input name:
        array}], or {signature: [...]}. `warmup.from_specs(model)` generates some.

    Returns:
      the directory of the new version.

    Raises:
      FileExistsError: the version exists and `overwrite` is False.
      OSError: the folder cannot be written.
      ModuleNotFoundError: warm-up requests need tensorflow-serving-api, which is not installed.
      ValueError: `version` is not a whole number from 0 on; the model has no signature, or none
        that takes the state; a warm-up request does not fit its signature, or would change the
        state; a function calls back into Python (a CallbackError with the lines).

    Examples:
      >>> import numpy as np
      >>> from jax2tf.converters import saved_model
      >>> model = saved_model.Model({"w": np.eye(2, dtype=np.float32)})
      >>> model = model.add(
      ...   lambda params, x: x @ params["w"], inputs={"x": "f32[b,2]"}, outputs=["y"]
      ... )
      >>> model.save("built").as_posix()
      'built/1'
    """
    if not self._signatures.value:
      raise ValueError("the model has no function; add one with Model.add")
    if self._state and not any(added.stateful for added in self.functions.values()):
      raise ValueError(
        "the model has a state, and no signature takes it: add(..., stateful=True), or leave out "
        "the state"
      )
    # checked before the work; `publish` checks again after it
    publish.check_version(folder := paths.of(path), version, overwrite)
    requests = warmup.prepared(
      warmup_requests,
      self.signatures,
      [name for name, record in self.records.items() if record.stateful],
    )
    options = tf.saved_model.SaveOptions(
      experimental_custom_gradients=self._options.value[1]["with_gradient"]
    )
    with stages.stage("save"), collector.paused(), publish.beside(folder) as written:
      tf.saved_model.save(self, str(written), signatures=self.signatures, options=options)
      self.manifest().write(written)
      warmup.write(requests, written, folder.name)
      return publish.publish(written, folder, version, overwrite)


class _Untracked:
  """A value that TensorFlow does not track."""

  def __init__(self, value: Any):
    self.value = value
