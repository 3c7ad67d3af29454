"""A pytree of arrays as tf.Variables named by their paths, without copies."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import tensorflow as tf
from jax import tree_util

from jax2tf import pytrees
from jax2tf.messages import ArgumentError, ArgumentTypeError

from ..bundle import progress
from ..bundle.notation import Spec
from .arguments import leaf_names

Trainable = bool | Callable[[str], bool] | Any | None

# In bytes. Smaller models take too little time for a progress bar.
_LARGE = 200 * 2**20


@dataclass(frozen=True)
class Layout:
  """The structure of a pytree of parameters, and how its leaves are stored: typed keys as their
  words, others unchanged.

  Attributes:
    tree: the treedef.
    paths: the path of each leaf, "encoder/0/kernel".
    dtypes: the dtype in which the functions take each leaf; a typed key counts as its words.
    keys: the implementation of each leaf that is a typed key, None for others.
  """

  tree: Any
  paths: tuple[str, ...]
  dtypes: tuple[Any, ...]
  keys: tuple[Any, ...]

  @classmethod
  def of(cls, params: Any) -> Layout:
    """The layout of a pytree of arrays.

    Raises:
      TypeError: a leaf is not an array of numbers. The message has its path.
      ValueError: two leaves have one path.
    """
    leaves, tree = tree_util.tree_flatten(params)
    dtypes = tuple(_dtype(*item) for item in zip(leaf_names(params, "/"), leaves, strict=True))
    return cls(tree, tuple(paths(params)), dtypes, tuple(map(key_of, leaves)))

  def restored(self, stored: Sequence[Any]) -> Any:
    """Rebuilds the pytree from stored leaves."""
    return tree_util.tree_unflatten(
      self.tree, [wrapped(*item) for item in zip(stored, self.keys, strict=True)]
    )

  def argument(self, stored: Sequence[Any]) -> Any:
    """The argument for `of_stored`, from anything in place of the stored leaves: JAX rebuilds the
    pytree from its tracers."""
    if any(self.keys):
      return list(stored)
    return pytrees.Leaves.with_paths(stored, self.tree, [f"[{path!r}]" for path in self.paths])

  def of_stored(self, fun: Callable[..., Any]) -> Callable[..., Any]:
    """`fun(params, ...)` as a function of the stored parameters."""
    if not any(self.keys):
      return fun
    return functools.wraps(fun)(
      lambda params, *rest: fun(self.restored(tree_util.tree_leaves(params)), *rest)
    )


def is_key(leaf: Any) -> bool:
  """Whether the leaf is an array of typed keys."""
  return hasattr(leaf, "dtype") and jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def words(leaf: Any) -> Any:
  """The leaf as an array of numbers: typed keys become their words, Python numbers arrays of JAX's
  default dtype."""
  if type(leaf) in (bool, int, float, complex):
    return np.asarray(jax.numpy.asarray(leaf))
  return jax.random.key_data(leaf) if is_key(leaf) else leaf


def key_of(leaf: Any) -> Any:
  """The implementation of an array of typed keys; None for other arrays."""
  return jax.random.key_impl(leaf) if is_key(leaf) else None


def wrapped(stored: Any, key: Any) -> Any:
  """The inverse of `words`. `key` is the result of `key_of`."""
  return stored if key is None else jax.random.wrap_key_data(stored, impl=key)


def _dtype(path: str, leaf: Any) -> np.dtype[Any]:
  try:
    dtype = np.asarray(words(leaf)).dtype
  except OverflowError:
    raise ArgumentError(
      "params",
      problem=f"the leaf {path or 'itself'!r} = {leaf} does not fit JAX's int32",
      advice="set jax_enable_x64, or pass an array",
    ) from None
  if dtype.kind in "OSUMm":
    raise ArgumentTypeError(
      "params",
      problem=f"the leaf {path or 'itself'!r} is {type(leaf).__name__}, {str(leaf)[:40]!r}, and a "
      "tf.Variable holds arrays of numbers",
      advice="leave it out, or close the function over it",
    )
  return dtype


def paths(params: Any, whole: str = "parameters") -> list[str]:
  """The path of each leaf, "encoder/0/kernel". A pytree that is a single leaf has the path `whole`.

  Raises:
    ValueError: two leaves have one path, as in {"a": {"b": x}, "a/b": y}.
  """
  names = [name or whole for name in leaf_names(params, "/")]
  if len(set(names)) != len(names):
    twice = sorted({name for name in names if names.count(name) > 1})
    raise ValueError(
      f"two leaves of the {whole} would have one path: {', '.join(twice)}; rename one of them, "
      "because the path is the name of the variable"
    )
  return names


def scope(path: str) -> str:
  """The path as a valid name of an op in a saved graph: Haiku's `mlp/~/linear/w` becomes
  `mlp/_/linear/w`."""
  name = re.sub(r"[^A-Za-z0-9_.\\/>-]", "_", path)
  return name if re.match(r"[A-Za-z0-9.]", name) else f".{name}"


def variables(params: Any, trainable: Trainable, stored_dtype: Any = None) -> list[tf.Variable]:
  """One tf.Variable for each leaf, in order.

  Args:
    params: a pytree of arrays, of dtypes that TensorFlow has.
    trainable: a bool, a function of the path "encoder/0/kernel", or a pytree prefix of `params`
      with bools. None trains all but the statistics of normalisations. Only floating point and
      complex leaves are trainable.
    stored_dtype: the dtype that stores wider floating point leaves.
  """
  if stored_dtype is not None and not jax.numpy.issubdtype(stored_dtype, np.floating):
    raise ArgumentError(
      "stored_dtype",
      stored_dtype,
      problem="it is not a floating point dtype",
      advice="give jnp.bfloat16 or jnp.float16",
    )
  names = paths(params)
  leaves = [*map(words, tree_util.tree_leaves(params))]
  trainables = flags(params, names, trainable)
  return [
    variable(name, _narrowed(leaf, stored_dtype), trainable=flag)
    for name, leaf, flag in zip(names, with_progress(leaves, "parameters"), trainables, strict=True)
  ]


def variable(path: str, array: Any, *, trainable: bool) -> tf.Variable:
  """A variable that shares the array's memory."""
  return tf.Variable(_shared(array), name=scope(path), trainable=trainable)


def with_progress(arrays: Sequence[Any], what: str) -> Iterator[Any]:
  """Iterates over the arrays, with a progress bar if they are large."""
  # NumPy views the memory of JAX and TensorFlow without a copy
  sizes = [np.asarray(a).nbytes for a in arrays]
  if sum(sizes) < _LARGE:
    yield from arrays
    return
  with progress.bar(what, sum(sizes), told=True) as shown:
    for array, size in zip(arrays, sizes, strict=True):
      yield array
      shown.advance(size)


def _shared(leaf: Any) -> Any:
  """The array as a tensor that shares its memory. TensorFlow does not own the memory, so it copies
  before it writes."""
  if (
    isinstance(leaf, jax.Array)
    and leaf.is_fully_addressable
    and len(leaf.devices()) == 1
    and not jax.numpy.issubdtype(leaf.dtype, jax.dtypes.extended)
  ):
    try:
      return tf.experimental.dlpack.from_dlpack(leaf.__dlpack__())
    except (BufferError, RuntimeError, ValueError, TypeError, tf.errors.OpError):
      pass  # DLPack lacks some dtypes, such as float8
  return np.asarray(leaf)


def as_jax(variable: tf.Variable, dtype: Any) -> jax.Array:
  """The value of a variable as a JAX array of this dtype, which shares its memory if it can."""
  is_kept = variable.dtype.as_numpy_dtype == dtype == jax.dtypes.canonicalize_dtype(dtype)
  # An array that shares memory is committed to its device, and would not join others on a mesh.
  if is_kept and jax.default_backend() == "cpu" and jax.device_count() == 1:
    try:
      return jax.dlpack.from_dlpack(variable.value())
    except (BufferError, RuntimeError, ValueError, TypeError, tf.errors.OpError):
      pass  # DLPack lacks some dtypes, such as float8
  return jax.numpy.asarray(variable.numpy().astype(dtype, copy=False))


def _narrowed(leaf: Any, stored: Any) -> Any:
  if (
    stored is None
    or not jax.numpy.issubdtype(leaf.dtype, np.floating)
    or leaf.dtype.itemsize <= np.dtype(stored).itemsize
  ):
    return leaf
  return np.asarray(leaf).astype(stored)


def flags(params: Any, names: Sequence[str], trainable: Trainable) -> list[bool]:
  """Whether each leaf is trainable: `trainable` says so, and the dtype has derivatives.

  Raises:
    ValueError: `trainable` is not a pytree prefix of the parameters.
  """
  inexact = [
    bool(jax.numpy.issubdtype(np.asarray(words(leaf)).dtype, np.inexact))
    for leaf in tree_util.tree_leaves(params)
  ]
  return [
    bool(flag) and is_inexact
    for flag, is_inexact in zip(_spread(params, names, trainable), inexact, strict=True)
  ]


def _spread(params: Any, names: Sequence[str], trainable: Trainable) -> list[Any]:
  if trainable is None:
    known = {*names}
    return [not is_statistic(name, known) for name in names]
  if isinstance(trainable, bool):
    return [trainable] * len(names)
  if callable(trainable):
    return [trainable(name) for name in names]
  try:
    return pytrees.spread(trainable, params)
  except (ValueError, TypeError) as error:
    raise ArgumentError(
      "trainable",
      trainable,
      problem="it is not a bool, a function of a path, or a pytree prefix of the parameters: "
      f"{error}",
    ) from error


# Names of the two statistics of a BatchNorm in Flax, Haiku and Keras.
_MEANS = {
  "mean": ("var",),
  "running_mean": ("running_var",),
  "moving_mean": ("moving_variance", "moving_var"),
}
_VARIANCES = {variance: (mean,) for mean, variances in _MEANS.items() for variance in variances}


def is_statistic(path: str, paths: Collection[str]) -> bool:
  """Whether the path of a leaf is that of a normalisation statistic: `batch_stats/...`, `mean`
  beside `var`, `mean_ema/average`."""
  *folders, name = path.split("/")
  others = _MEANS.get(name, ()) + _VARIANCES.get(name, ())
  return not {"batch_stats", "mean_ema", "var_ema"}.isdisjoint(folders) or any(
    "/".join([*folders, other]) in paths for other in others
  )


def assign(targets: Mapping[str, tf.Variable], params: Any, taken: Sequence[Any]) -> None:
  """Assigns new values to the variables. On an error it assigns none.

  Args:
    targets: {path: variable}, in the order of the leaves.
    params: the new pytree.
    taken: the dtypes in which the functions take the leaves; a variable may have a narrower one.

  Raises:
    ValueError: paths, shapes or dtypes differ. The message lists each difference by path.
  """
  new = dict(zip(paths(params), map(words, tree_util.tree_leaves(params)), strict=True))
  differences = [f"  {name}: not in the model" for name in new.keys() - targets.keys()]
  differences += [f"  {name}: missing" for name in targets.keys() - new.keys()]
  for (name, variable), dtype in zip(targets.items(), taken, strict=True):
    if name not in new:
      continue
    before = str(Spec.of(jax.ShapeDtypeStruct(variable.shape, dtype)))
    after = str(Spec.of(np.asarray(new[name])))
    if before != after:
      differences.append(f"  {name}: {after}, the model has {before}")
  if differences:
    raise ValueError("the parameters do not fit the model:\n" + "\n".join(sorted(differences)))
  for name, leaf in new.items():
    targets[name].assign(_shared(_narrowed(leaf, targets[name].dtype.as_numpy_dtype)))
