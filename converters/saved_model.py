"""A JAX function and its parameters -> a SavedModel directory."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf
from jax import tree_util

import jax2tf
from jax2tf.converters import _signature


class Model(tf.Module):
  """`fun` with its parameters as tf.Variables; calling it runs the converted function.

  Attributes:
    parameters: {path in the tree of parameters: tf.Variable}.
    signature: the function of named inputs that returns a dict of named outputs.
  """

  def __init__(
    self,
    fun: Callable[..., Any],
    params: Any,
    *,
    inputs: Mapping[str, _signature.Input],
    outputs: Sequence[str] | None = None,
    polymorphic_constraints: Sequence[str] = (),
    with_gradient: bool = False,
  ):
    super().__init__()
    avals = _signature.parse_inputs(inputs, polymorphic_constraints)
    leaves, tree = tree_util.tree_flatten(params)
    names = _signature.leaf_names(params, "/")
    # A list, and not the tree itself: tf.Module wraps containers, and knows no other pytrees.
    self._parameters = [tf.Variable(leaf, name=name or "parameters") for leaf, name in zip(leaves, names, strict=True)]
    converted = jax2tf.convert(
      fun,
      polymorphic_shapes=[None, *map(_signature.polymorphic_shape, avals.values())],
      polymorphic_constraints=polymorphic_constraints,
      with_gradient=with_gradient,
    )

    @tf.function(autograph=False, input_signature=[_signature.tensor_spec(*item) for item in avals.items()])
    def call(*args: tf.Tensor) -> Any:
      return converted(tree_util.tree_unflatten(tree, self._parameters), *args)

    @tf.function(autograph=False, input_signature=call.input_signature)
    def signature(*args: tf.Tensor) -> dict[str, tf.Tensor]:
      result = call(*args)
      return dict(zip(_signature.output_names(result, outputs), tree_util.tree_leaves(result), strict=True))

    self.__call__ = call
    self.signature = signature

  @property
  def parameters(self) -> dict[str, tf.Variable]:
    return {variable.name.removesuffix(":0"): variable for variable in self._parameters}


def save(
  fun: Callable[..., Any],
  params: Any,
  path: str | os.PathLike[str],
  *,
  inputs: Mapping[str, _signature.Input],
  outputs: Sequence[str] | None = None,
  polymorphic_constraints: Sequence[str] = (),
  with_gradient: bool = False,
  version: int | None = None,
  overwrite: bool = False,
) -> Path:
  """Converts `fun(params, *inputs)` and saves it as `path/<version>/`, which TF Serving can watch.

  The directory is written beside its place and renamed into it, so it is never seen half written.

  Args:
    fun: a JAX function of the parameters and the inputs.
    params: a pytree of arrays; each becomes a tf.Variable named by its path.
    path: the model's directory, which holds its versions.
    inputs: the names of the arguments after `params`, in their order, each with its dtype and shape in
      jaxpr notation, "f32[b,784]", or as a jax.ShapeDtypeStruct; symbolic dimensions become unknown sizes.
    outputs: names for the leaves of the result; their paths in it if not given.
    polymorphic_constraints: conditions on the dimension variables, such as "b <= 512".
    with_gradient: whether TensorFlow may differentiate the loaded model.
    version: the number of the version; the next free one if not given.
    overwrite: whether to replace a version that is there.

  Returns:
    the directory of the new version.

  Raises:
    FileExistsError: the version is there already and `overwrite` is False.
    ValueError: an input that is not in jaxpr notation, or names that do not fit the results.
  """
  if version is not None and not overwrite:
    _refuse_existing(Path(path, str(version)))  # before the work, and once more after it
  model = Model(fun, params, inputs=inputs, outputs=outputs, polymorphic_constraints=polymorphic_constraints, with_gradient=with_gradient)
  return save_model(model, path, version=version, overwrite=overwrite)


def save_model(model: Model, path: str | os.PathLike[str], *, version: int | None = None, overwrite: bool = False) -> Path:
  """Saves a `Model` as `path/<version>/`; arguments, result and errors as for `save`."""
  # Also without gradients: what is saved then is their refusal, and TensorFlow does not warn of missing ones when it loads.
  options = tf.saved_model.SaveOptions(experimental_custom_gradients=True)
  with _beside(Path(path)) as written:
    tf.saved_model.save(model, str(written), signatures={"serving_default": model.signature}, options=options)
    return _publish(written, Path(path), version, overwrite)


@contextlib.contextmanager
def _beside(directory: Path) -> Iterator[Path]:
  """A place in `directory` under a name that no server takes for a version; gone at the end."""
  directory.mkdir(parents=True, exist_ok=True)
  place = Path(tempfile.mkdtemp(prefix=".saving-", dir=directory))
  try:
    yield place / "model"
  finally:
    shutil.rmtree(place, ignore_errors=True)


def _publish(written: Path, directory: Path, version: int | None, overwrite: bool) -> Path:
  """Renames `written` to its version. Renaming onto a version of somebody else fails, so two savers get two."""
  while True:
    target = directory / str(_next_version(directory) if version is None else version)
    if overwrite and version is not None and target.exists():
      target.rename(written.with_name("replaced"))
    try:
      written.rename(target)
      return target
    except OSError:
      if version is not None or not target.exists():
        _refuse_existing(target)
        raise


def _next_version(directory: Path) -> int:
  return 1 + max((int(entry.name) for entry in directory.iterdir() if entry.name.isdecimal()), default=0)


def _refuse_existing(target: Path) -> None:
  if target.exists():
    raise FileExistsError(f"{target} exists already; pass overwrite=True, another version, or none to take the next free one")
