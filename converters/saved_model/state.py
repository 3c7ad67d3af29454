"""The state of a model between calls: a pytree of arrays as tf.Variables. A call reads it and
writes the new state.

A mutex in the graph serialises the calls, so it also works in TF Serving and every other reader of
the model.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf
from jax import tree_util

from jax2tf import _tf_compat
from jax2tf.messages import ArgumentError

from ..bundle.notation import Spec
from . import parameters
from .arguments import name_of
from .parameters import is_key, key_of, words, wrapped


@dataclass(frozen=True)
class Layout:
  """The structure of a state, and how its leaves are stored: typed keys as their words, others
  unchanged.

  Attributes:
    tree: the treedef.
    paths: the path of each leaf, "cache/0/keys".
    avals: the aval of each leaf.
    keys: the implementation of each leaf that is a typed key, None for others.
  """

  tree: Any
  paths: tuple[str, ...]
  avals: tuple[jax.ShapeDtypeStruct, ...]
  keys: tuple[Any, ...]

  @classmethod
  def of(cls, state: Any) -> Layout:
    """The layout of a pytree of arrays.

    Raises:
      ValueError: two leaves have one path, or there are no leaves.
    """
    leaves, tree = tree_util.tree_flatten(state)
    if not leaves:
      raise ArgumentError("state", state, problem="it has no leaves to keep", advice="leave it out")
    return cls(
      tree,
      tuple(parameters.paths(state, "state")),
      tuple(map(_aval, leaves)),
      tuple(map(key_of, leaves)),
    )

  def stored(self, state: Any, what: str = "this state") -> list[jax.Array]:
    """The leaves in stored form.

    Raises:
      ValueError: the structure, a shape or a dtype differs from the model's. The message begins
        with `what` and lists paths.
    """
    leaves, tree = tree_util.tree_flatten(state)
    if tree != self.tree:
      paths = parameters.paths(state, "state")
      differences = [f"  {path}: not in the model" for path in paths if path not in self.paths]
      differences += [f"  {path}: missing" for path in self.paths if path not in paths]
      raise ValueError(
        "\n".join(
          [
            f"{what} has another structure than the model's:",
            *(differences or [f"  {tree}\n  {self.tree}"]),
          ]
        )
      )
    pairs = zip(self.paths, map(_text, map(_aval, leaves)), map(_text, self.avals), strict=True)
    if differences := [
      f"  {path}: {after}, the model has {before}"
      for path, after, before in pairs
      if after != before
    ]:
      raise ValueError(
        "\n".join(
          [f"{what} has other shapes or dtypes than the model's, which are fixed:", *differences]
        )
      )
    return [words(jnp.asarray(leaf)) for leaf in leaves]

  def restored(self, stored: Sequence[Any]) -> Any:
    """Rebuilds the pytree from stored leaves."""
    return tree_util.tree_unflatten(
      self.tree, [wrapped(jnp.asarray(x), key) for x, key in zip(stored, self.keys, strict=True)]
    )

  def of_stored(self, fun: Callable[..., Any], lead: int = 1) -> Callable[..., Any]:
    """`fun(params, state, *inputs) -> (state, outputs)` as a function that takes and returns the
    stored state.

    Args:
      fun: the JAX function.
      lead: the number of arguments before the state.
    """

    @functools.wraps(fun)
    def of_stored(*args: Any) -> tuple[list[jax.Array], Any]:
      result = fun(*args[:lead], self.restored(args[lead]), *args[lead + 1 :])
      name = name_of(fun)
      if not (isinstance(result, tuple) and len(result) == 2):
        raise ValueError(
          f"'{name}' is stateful, so it returns a pair: (state, outputs); it returns "
          f"{type(result).__name__}"
        )
      return self.stored(result[0], f"the state that '{name}' returns"), result[1]

    return of_stored


class State(tf.__internal__.tracking.AutoTrackable):  # type: ignore[misc]
  """The variables of a state.

  Attributes:
    layout: the structure of the state.
    variables: one for each leaf, in order, named by its path below `state`.
    initial: what `reset` restores for each leaf: a variable, or a scalar if all elements are equal.
  """

  def __init__(self, state: Any):
    super().__init__()
    self.layout = layout = Layout.of(state)
    stored = [
      (f"state/{path}", x) for path, x in zip(layout.paths, layout.stored(state), strict=True)
    ]
    self.variables = [parameters.variable(path, x, trainable=False) for path, x in stored]
    self.initial: list[Any] = []
    # TF 2.21: tf.CriticalSection makes its mutex outside the graph, so a SavedModel cannot hold it.
    # A mutex in the graph is found by its name, which must be unique to the model. Two loaded
    # copies of a model share the mutex, which only costs time.
    self._mutex = f"jax2tf_state_{uuid.uuid4().hex}"

  def stored(self) -> list[jax.Array]:
    """The current values of the variables."""
    return [jnp.asarray(variable.numpy()) for variable in self.variables]

  def first(self) -> list[jax.Array]:
    """The values that `reset` restores."""
    pairs = zip(self.initial, self.variables, strict=True)
    return [
      jnp.asarray(x.numpy())
      if isinstance(x, tf.Variable)
      else jnp.full(v.shape, x, v.dtype.as_numpy_dtype)
      for x, v in pairs
    ]

  def specs(self) -> dict[str, str]:
    """{path: dtype and shape in jaxpr notation} of the stored leaves."""
    return {
      path: str(Spec.of(variable))
      for path, variable in zip(self.layout.paths, self.variables, strict=True)
    }

  def keep_initial(self) -> None:
    """Makes `reset` restore the present values. A leaf whose elements are all equal, such as a
    cache of zeros, needs no copy."""
    values = [np.asarray(variable.numpy()) for variable in self.variables]
    self.initial = [
      x.reshape(-1)[0]
      if _is_of_one_value(x)
      else tf.Variable(x, trainable=False, name="initial_state")
      for x in values
    ]

  def updated(self, call: Callable[[list[tf.Tensor]], tuple[Sequence[tf.Tensor], Any]]) -> Any:
    """Passes the state to `call` and stores the new state, under the mutex. A call that fails
    writes nothing.

    Args:
      call: stored leaves -> (new stored leaves, outputs).

    Returns:
      the outputs.
    """
    lock = tf.raw_ops.MutexLock(mutex=tf.raw_ops.MutexV2(container="", shared_name=self._mutex))
    with tf.control_dependencies([lock]):
      before = [variable.read_value() for variable in self.variables]
    after, outputs = tf.nest.map_structure(_tf_compat.keeping_control_dependencies, call(before))
    # Write all leaves together, after everything that can fail: the other leaves and the outputs.
    with tf.control_dependencies([lock, *after, *tf.nest.flatten(outputs)]):
      written = [
        variable.assign(x, read_value=False)
        for variable, x in zip(self.variables, after, strict=True)
      ]
    with tf.control_dependencies(written):
      unlocked = tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)
    with tf.control_dependencies([unlocked]):
      return tf.nest.map_structure(tf.identity, outputs)

  def reset(self) -> dict[str, tf.Tensor]:
    """Restores the values that `keep_initial` kept."""
    unchanged = [
      x.read_value() if isinstance(x, tf.Variable) else tf.fill(variable.shape, x)
      for x, variable in zip(self.initial, self.variables, strict=True)
    ]
    return self.updated(lambda _: (unchanged, {"reset": tf.constant(len(unchanged))}))


def refs_as_state(fun: Callable[..., Any]) -> Callable[..., Any]:
  """`fun(params, refs, *inputs) -> outputs`, which writes a tree of `jax.Ref`s, as `(params, state,
  *inputs) -> (state, outputs)`.

  Args:
    fun: a JAX function that writes its refs.

  Returns:
    a function for `Model.add(..., stateful=True)`.

  Examples:
    >>> import jax.numpy as jnp
    >>> from jax2tf.converters import saved_model
    >>> def count(params, ref, x):
    ...   ref[...] += 1
    ...   return params * x
    >>> state, y = saved_model.refs_as_state(count)(2.0, jnp.int32(0), 3.0)
    >>> state.item(), y
    (1, 6.0)
  """

  @functools.wraps(fun)
  def of_state(params: Any, state: Any, *inputs: Any) -> tuple[Any, Any]:
    refs = jax.tree.map(jax.new_ref, state)
    outputs = fun(params, refs, *inputs)
    return jax.tree.map(jax.freeze, refs), outputs

  return of_state


def _is_of_one_value(array: np.ndarray) -> bool:
  """Whether all elements have the same bits."""
  if not array.size or array.dtype.name.startswith("float8"):  # TF 2.21: Fill has no float8 kernel
    return False
  words = np.ascontiguousarray(array).reshape(-1).view(np.uint8).reshape(array.size, -1)
  return bool((words == words[0]).all())


def _aval(leaf: Any) -> jax.ShapeDtypeStruct:
  leaf = leaf if hasattr(leaf, "dtype") else jnp.asarray(leaf)
  return jax.ShapeDtypeStruct(
    leaf.shape, leaf.dtype if is_key(leaf) else jax.dtypes.canonicalize_dtype(leaf.dtype)
  )


def _text(aval: jax.ShapeDtypeStruct) -> str:
  return f"{aval.dtype}[{','.join(map(str, aval.shape))}]" if is_key(aval) else str(Spec.of(aval))
