"""A library model as a function of parameters and state: arrays that a call changes are state, all
others are parameters."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax import export, tree_util
from jax.extend.core import Literal

from jax2tf import errors

from ..bundle.notation import Spec
from . import parameters
from .arguments import Arguments, check_order


@dataclass(frozen=True)
class Adapted:
  """A model of a library as plain JAX.

  Attributes:
    fun: `fun(params, *inputs) -> outputs`, or with a state `fun(params, state, *inputs) -> (state,
      outputs)`. A model with two modes also takes `training`; `training=False` leaves the state
      unchanged.
    params: a pytree of arrays.
    state: a pytree of arrays, or None.
    trainable: maps the path of a parameter to whether the library trains it; None if no library
      defines this.
  """

  fun: Callable[..., Any]
  params: Any
  state: Any = None
  trainable: Callable[[str], bool] | None = None


@dataclass(frozen=True)
class Whole:
  """A model whose arrays are not yet split into parameters and state.

  Attributes:
    name: the model's name.
    call: (tree, *inputs) -> (new tree, outputs).
    tree: all arrays of the model.
    is_parameter: maps the path of a leaf to whether the library treats it as a parameter.
    takes: the inputs in the signature of the call.
    may_stay: maps the path of a leaf to whether its update may be dropped if no result reads it,
      such as a count of drawn keys.
  """

  name: str
  call: Callable[..., Any]
  tree: Any
  is_parameter: Callable[[str], bool]
  takes: Sequence[inspect.Parameter]
  may_stay: Callable[[str], bool] = lambda path: False


def adapted(
  whole: Whole,
  inputs: Mapping[str, Any],
  constraints: Sequence[str] = (),
  inference: Whole | None = None,
) -> Adapted:
  """The model as a function of parameters, and of a state if a call with these inputs changes an
  array.

  Args:
    inference: the model in inference mode, if `whole` is in training mode and the function should
      support both.

  Raises:
    ValueError: the model does not take these inputs.
  """
  check_order(_named(lambda *_: None, whole, "params"), list(inputs), ["params"])
  scope = export.SymbolicScope(tuple(constraints))
  arguments = Arguments.of(inputs, {}, scope)
  leaves, tree = tree_util.tree_flatten(whole.tree)
  paths = parameters.paths(whole.tree)
  with errors.hints():
    traced = (
      jax.jit(whole.call).trace(whole.tree, *arguments.unflatten(arguments.avals)).jaxpr.jaxpr
    )
  owns, afters, results = (
    traced.invars[: len(leaves)],
    traced.outvars[: len(leaves)],
    traced.outvars[len(leaves) :],
  )
  stays = [whole.may_stay(path) for path in paths]
  used = _needed_by(
    traced.eqns, [*results, *(after for after, stay in zip(afters, stays, strict=True) if not stay)]
  )
  changes = [
    not (after is own or (stay and own not in used))
    for own, after, stay in zip(owns, afters, stays, strict=True)
  ]

  def part(x: Any, of_state: bool) -> Any:
    """The tree with these leaves only. None replaces the others, because None has no leaves."""
    parts = [
      leaf if changed == of_state else None
      for leaf, changed in zip(tree_util.tree_leaves(x), changes, strict=True)
    ]
    return tree_util.tree_unflatten(tree, parts)

  def joined(*parts: Any) -> Any:
    leaves = [iter(tree_util.tree_leaves(x)) for x in parts]
    return tree_util.tree_unflatten(tree, [next(leaves[changed]) for changed in changes])

  def mode(training: bool) -> Whole:
    return whole if training or inference is None else inference

  def of_parameters(params: Any, *inputs: Any, training: bool = True) -> Any:
    return mode(training).call(joined(params, ()), *inputs)[1]

  def of_state(params: Any, state: Any, *inputs: Any, training: bool = True) -> Any:
    after, outputs = mode(training).call(joined(params, state), *inputs)
    return part(after, True) if mode(training) is whole else state, outputs

  last = (
    [] if inference is None else [inspect.Parameter("training", inspect.Parameter.KEYWORD_ONLY)]
  )
  fun = (
    _named(of_state, whole, "params", "state", last=last)
    if any(changes)
    else _named(of_parameters, whole, "params", last=last)
  )
  trainable = {
    path
    for path, changed in zip(paths, changes, strict=True)
    if whole.is_parameter(path) and not changed
  }
  return Adapted(
    fun,
    part(whole.tree, False),
    part(whole.tree, True) if any(changes) else None,
    trainable.__contains__,
  )


def _named(
  fun: Any, whole: Whole, *leading: str, last: Sequence[inspect.Parameter] = ()
) -> Callable[..., Any]:
  """Gives the function the model's name, and a signature of `leading`, the model's inputs and
  `last`."""
  fun.__name__ = whole.name
  # The prefix avoids clashes with the model's own argument names.
  first = [
    inspect.Parameter(f"jax2tf_{name}", inspect.Parameter.POSITIONAL_ONLY) for name in leading
  ]
  fun.__signature__ = inspect.Signature([*first, *whole.takes, *last])
  return fun


def with_values(whole: Whole, values: Any, what: str) -> Whole:
  """The model with new arrays, matched by path. Every parameter must be given; other arrays keep
  their values if absent.

  A path may end in `/value`, as in a checkpoint of `nnx.state(model)`, and lack the leading
  `model/` of Equinox.

  Raises:
    ValueError: a parameter is missing, an array is not in the model, or a shape differs. The
      message begins with `what` and lists paths.
  """
  by_path = dict(zip(parameters.paths(values), tree_util.tree_leaves(values), strict=True))
  layout = parameters.Layout.of(whole.tree)
  new_values, wrong = [], []
  for path, leaf in zip(layout.paths, tree_util.tree_leaves(whole.tree), strict=True):
    key = next(
      (key for key in (path, f"{path}/value", path.removeprefix("model/")) if key in by_path), path
    )
    own, new = parameters.words(leaf), by_path.pop(key, None)
    if new is None:
      wrong += [f"{path} is missing"] * whole.is_parameter(path)
    elif parameters.key_of(new) not in (None, parameters.key_of(leaf)):
      wrong.append(
        f"{path} is a key of {parameters.key_of(new)}, the model has "
        f"{parameters.key_of(leaf) or Spec.of(own)}"
      )
    elif parameters.words(new).shape != own.shape:
      wrong.append(f"{path} has shape {parameters.words(new).shape}, the model has {own.shape}")
    new_values.append(own if new is None else parameters.words(new))
  wrong += [f"{path} is not in the model" for path in by_path]
  if wrong:
    raise ValueError(
      f"{what} does not fit {whole.name}: {', '.join(wrong[:5])}{' ...' * (len(wrong) > 5)}"
    )
  return dataclasses.replace(whole, tree=layout.restored(new_values))


def _needed_by(eqns: Sequence[Any], results: Sequence[Any]) -> set[Any]:
  """The variables on which the results depend."""
  needed = {v for v in results if not isinstance(v, Literal)}
  for eqn in reversed(eqns):
    if not needed.isdisjoint(eqn.outvars):
      needed.update(v for v in eqn.invars if not isinstance(v, Literal))
  return needed
