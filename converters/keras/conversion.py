"""Converts a JAX function and its parameters to the program of a layer."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import export, tree_util

import jax2tf

from ..saved_model import parameters
from ..saved_model.arguments import Arguments, check_order, name_of
from ..saved_model.state import Layout
from .program import Call, Program, Weight

# Keras' seed generators give two words, which are a key of this generator.
_KEYS = "threefry2x32"
# A gradient penalty in a loaded layer needs second derivatives.
_SAVED_ORDERS = 2


def program(
  fun: Callable[..., Any],
  params: Any,
  state: Any,
  inputs: Mapping[str, Any],
  trainable: parameters.Trainable,
  constraints: Sequence[str],
) -> Program:
  """Converts `fun(params, *inputs) -> outputs`, or with a state `fun(params, state, *inputs) ->
  (state, outputs)`.

  Raises:
    TypeError, ValueError: the parameters, the state, the inputs and the function do not fit each
      other.
  """
  arguments = Arguments.of(inputs, {}, export.SymbolicScope(constraints))
  constraints = arguments.concerned_by(constraints)
  own = parameters.Layout.of(params)
  layout = None if state is None else Layout.of(state)
  options = _options(fun) - {*inputs}
  _check_order(fun, list(inputs), ["params", *["state"] * (layout is not None)], options)

  def of(training: bool, draws: bool) -> Call:
    options_of_call = {"training": training} if "training" in options else {}

    def call(
      leaves: list[Any], stored: list[Any], seed: list[Any], tensors: list[Any]
    ) -> tuple[Sequence[Any], Any]:
      key = (
        {"key": jax.random.wrap_key_data(seed[0], impl=_KEYS) if draws else None}
        if "key" in options
        else {}
      )
      bound = functools.wraps(fun)(functools.partial(fun, **options_of_call, **key))
      args = arguments.unflatten(tensors)
      params = own.restored(leaves)
      return (
        layout.of_stored(bound)(params, stored, *args) if layout else ([], bound(params, *args))
      )

    call.__name__ = name_of(fun)
    shapes = [None, None, None, [", ".join(map(str, aval.shape)) for aval in arguments.avals]]
    return jax2tf.convert(
      call,
      polymorphic_shapes=shapes,
      polymorphic_constraints=constraints,
      gradient_orders=_SAVED_ORDERS,
    )

  # As in Keras' JaxLayer: a function with an argument `training` gets a key in training only, any
  # other one always.
  draws = ("key" in options and "training" not in options, "key" in options)
  inference = of(training=False, draws=draws[0])
  training = of(training=True, draws=draws[1]) if "training" in options else inference
  flags = parameters.flags(params, own.paths, trainable)
  weights = tuple(
    _weight(*leaf)
    for leaf in zip(
      own.paths, map(parameters.words, tree_util.tree_leaves(params)), flags, strict=True
    )
  )
  weights_and_state = (
    tuple(
      _weight(f"state/{path}", x, False)
      for path, x in zip(layout.paths, layout.stored(state), strict=True)
    )
    if layout
    else ()
  )
  return Program(arguments.specs(), weights, weights_and_state, draws, (inference, training))


def _weight(path: str, leaf: Any, trainable: bool) -> Weight:
  value = np.asarray(leaf)
  value = value.astype(jax.dtypes.canonicalize_dtype(value.dtype), copy=False)
  return Weight(
    "/".join(map(parameters.scope, path.split("/"))),
    value.shape,
    value.dtype.name,
    trainable,
    value,
  )


def _options(fun: Callable[..., Any]) -> set[str]:
  """The optional keyword arguments (`training`, `key`) that the function takes."""
  try:
    return {"training", "key"} & inspect.signature(fun).parameters.keys()
  except (ValueError, TypeError):  # a callable that is written in C
    return set()


def _check_order(
  fun: Callable[..., Any], names: list[str], leading: list[str], options: set[str]
) -> None:
  bound = functools.partial(fun, **dict.fromkeys(options)) if options else fun
  if options:
    bound.__name__ = name_of(fun)
  check_order(bound, names, leading)
