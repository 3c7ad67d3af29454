"""TensorFlow functions of JAX functions, as a SavedModel's library holds them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import jax
import tensorflow as tf
from jax.export import is_symbolic_dim

import jax2tf
from jax2tf import dims

from .programs import Program


class Library:
  """The functions of a GraphDef, to which others are added under free names."""

  def __init__(self, graph: Any):
    self._library = graph.library
    self._taken = {function.signature.name for function in graph.library.function}

  def add(self, concrete: Any, name: str, *, differentiable: bool) -> str:
    """Copies a ConcreteFunction and the functions that it calls; returns its name.

    Args:
      concrete: without captured values.
      name: for the first, from which the names of all follow.
      differentiable: whether a saved gradient function stands for it, so that nobody
        differentiates its ops. Otherwise they refuse to be differentiated, as the closed op does.
    """
    assert not concrete.captured_inputs, name
    own = concrete.function_def
    definitions = [*concrete.graph.as_graph_def().library.function, own]
    first = self._free(name)
    names = {
      each.signature.name: first if each is own else self._free(f"{first}_{number}")
      for number, each in enumerate(definitions)
    }
    for each in definitions:
      added = self._library.function.add()
      added.CopyFrom(each)
      added.signature.name = names[each.signature.name]
      for node in added.node_def:
        _rename(node, names)
        if differentiable and node.op == "PreventGradient":
          node.op = "Identity"
          del node.attr["message"]
    return first

  def _free(self, name: str) -> str:
    number, free = 0, name
    while free in self._taken:
      number += 1
      free = f"{name}_{number}"
    self._taken.add(free)
    return free


def _rename(node: Any, names: dict[str, str]) -> None:
  for attribute in node.attr.values():
    called = [attribute.func] if attribute.HasField("func") else attribute.list.func
    for function in called:
      function.name = names.get(function.name, function.name)


def of_program(program: Program) -> Any:
  """The ConcreteFunction of a program, of ordinary ops, with a tensor for each input that it takes
  and each output of the op.

  Raises:
    LoweringError: TensorFlow has no ops for it.
  """
  function = program.function

  def whole(*inputs: Any) -> tuple[Any, ...]:
    return tuple(jax.tree.leaves(function(*inputs)))

  whole.__name__ = whole.__qualname__ = function.name
  checks = contextlib.nullcontext() if program.checks_sizes else dims.without_checks()
  with function.precision(), checks:
    converted = jax2tf.convert(
      whole,
      polymorphic_shapes=[_symbolic(aval.shape) for aval in function.in_avals],
      polymorphic_constraints=function.constraints,
      with_gradient=False,
    )

    def called(*inputs: Any) -> Any:
      return converted(*(_argument(inputs[at], entry) for at, entry in program.arguments))

    of_inputs = tf.function(called, input_signature=program.specs, autograph=False)
    return of_inputs.get_concrete_function()


def _argument(tensor: Any, entry: int | None) -> Any:
  """An input; or an array without elements that is one longer than an entry of the input says."""
  if entry is None:
    return tensor
  length = tf.reshape(tensor, [-1])[entry] + 1
  return tf.zeros(tf.stack([length, tf.zeros_like(length)]), tf.int8)


def _symbolic(shape: Sequence[Any]) -> str | None:
  """A shape as `polymorphic_shapes` has it; None if it is fixed."""
  return f"({','.join(map(str, shape))},)" if any(map(is_symbolic_dim, shape)) else None
