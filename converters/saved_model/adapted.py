"""A model of a library as functions of parameters and of a state: what a call changes is state, all else are parameters."""

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

from . import parameters
from .arguments import Arguments, check_order


@dataclass(frozen=True)
class Adapted:
  """A model of a library as plain JAX.

  Attributes:
    fun: `fun(params, *inputs) -> outputs`, or with a state `fun(params, state, *inputs) -> (state, outputs)`.
    params: a tree of arrays.
    state: a tree of arrays, or None.
    trainable: whether the library calls the parameter of a path trainable; None where no library says so.
  """

  fun: Callable[..., Any]
  params: Any
  state: Any = None
  trainable: Callable[[str], bool] | None = None


@dataclass(frozen=True)
class Whole:
  """A model before it is known what a call changes.

  Attributes:
    name: of the model.
    call: (tree, *inputs) -> (tree after it, outputs).
    tree: all its arrays.
    is_parameter: whether the library calls the leaf of a path a parameter.
    takes: the parameters of its call, without those that are no inputs.
    may_stay: leaves whose change nobody misses as long as no result depends on them, such as how many keys were drawn.
  """

  name: str
  call: Callable[..., Any]
  tree: Any
  is_parameter: Callable[[str], bool]
  takes: Sequence[inspect.Parameter]
  may_stay: Callable[[str], bool] = lambda path: False


def adapted(whole: Whole, inputs: Mapping[str, Any], constraints: Sequence[str] = ()) -> Adapted:
  """The model as a function of parameters, and of a state if a call on such inputs changes anything.

  Raises:
    ValueError: inputs that the model does not take.
  """
  check_order(_named(lambda *_: None, whole, "params"), list(inputs), ["params"])
  scope = export.SymbolicScope(tuple(constraints))
  arguments = Arguments.of(inputs, {}, scope)
  leaves, tree = tree_util.tree_flatten(whole.tree)
  paths = parameters.paths(whole.tree)
  with errors.hints():
    traced = jax.jit(whole.call).trace(whole.tree, *arguments.unflatten(arguments.avals)).jaxpr.jaxpr
  owns, afters, results = traced.invars[: len(leaves)], traced.outvars[: len(leaves)], traced.outvars[len(leaves) :]
  stays = [whole.may_stay(path) for path in paths]
  used = _needed_by(traced.eqns, [*results, *(after for after, stay in zip(afters, stays, strict=True) if not stay)])
  changes = [not (after is own or (stay and own not in used)) for own, after, stay in zip(owns, afters, stays, strict=True)]

  def part(x: Any, of_state: bool) -> Any:
    """The tree with only these leaves; None, which has no leaves, in place of the others."""
    found = [leaf if changed == of_state else None for leaf, changed in zip(tree_util.tree_leaves(x), changes, strict=True)]
    return tree_util.tree_unflatten(tree, found)

  def joined(*parts: Any) -> Any:
    found = [iter(tree_util.tree_leaves(x)) for x in parts]
    return tree_util.tree_unflatten(tree, [next(found[changed]) for changed in changes])

  def of_parameters(params: Any, *inputs: Any) -> Any:
    return whole.call(joined(params, ()), *inputs)[1]

  def of_state(params: Any, state: Any, *inputs: Any) -> Any:
    after, outputs = whole.call(joined(params, state), *inputs)
    return part(after, True), outputs

  fun = _named(of_state, whole, "params", "state") if any(changes) else _named(of_parameters, whole, "params")
  trainable = {path for path, changed in zip(paths, changes, strict=True) if whole.is_parameter(path) and not changed}
  return Adapted(fun, part(whole.tree, False), part(whole.tree, True) if any(changes) else None, trainable.__contains__)


def _named(fun: Any, whole: Whole, *leading: str) -> Callable[..., Any]:
  """The function with the name and the arguments of the model behind these."""
  fun.__name__ = whole.name
  # No argument of the model has such a name.
  first = [inspect.Parameter(f"jax2tf_{name}", inspect.Parameter.POSITIONAL_ONLY) for name in leading]
  fun.__signature__ = inspect.Signature([*first, *whole.takes])
  return fun


def with_values(whole: Whole, values: Any, what: str) -> Whole:
  """The model with other arrays, by their paths; what is not there stays, but for parameters.

  Raises:
    ValueError: a parameter is missing, or an array is not in the model or of another shape; each by its path. `what` begins the message.
  """
  given = dict(zip(parameters.paths(values), tree_util.tree_leaves(values), strict=True))
  layout = parameters.Layout.of(whole.tree)
  found, wrong = [], []
  for path, leaf in zip(layout.paths, tree_util.tree_leaves(whole.tree), strict=True):
    key = path if path in given else path.removeprefix("model/")
    new = given.pop(key, None)
    if new is None and whole.is_parameter(path):
      wrong.append(f"{path} is missing")
    elif new is not None and new.shape != parameters.words(leaf).shape:
      wrong.append(f"{path} has shape {new.shape}, the model has {leaf.shape}")
    found.append(parameters.words(leaf) if new is None else new)
  wrong += [f"{path} is not in the model" for path in given]
  if wrong:
    raise ValueError(f"{what} does not fit {whole.name}: {'; '.join(wrong[:5])}{' ...' * (len(wrong) > 5)}")
  return dataclasses.replace(whole, tree=layout.restored(found))


def _needed_by(eqns: Sequence[Any], results: Sequence[Any]) -> set[Any]:
  """The variables that results depend on."""
  found = {v for v in results if not isinstance(v, Literal)}
  for eqn in reversed(eqns):
    if not found.isdisjoint(eqn.outvars):
      found.update(v for v in eqn.invars if not isinstance(v, Literal))
  return found
