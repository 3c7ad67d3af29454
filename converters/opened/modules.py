"""The StableHLO module of an XlaCallModule op as a JAX function."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from jax2tf.errors import ArtifactError
from jax2tf.messages import Message
from jax2tf.stablehlo import (
  artifacts,
  loading,  # noqa: F401  (registers the rules)
  parsing,
)
from jax2tf.stablehlo.functions import Function
from jax2tf.stablehlo.graph import Module, Value, walk

# What JAX writes into the checks of a module with symbolic sizes.
_SPECIFICATIONS = re.compile(
  r"polymorphic shapes specifications: (.*?)(?:\. Obtained|\. Please| Please|$)", re.DOTALL
)
_SHAPE = re.compile(r"\.shape = \(([^()]*(?:\([^()]*\)[^()]*)*)\)")
_CONSTRAINT = re.compile(r"symbolic shape constraint (.*?)\. Expected", re.DOTALL)
_WIDE = frozenset(map(np.dtype, (np.int64, np.uint64, np.float64, np.complex128)))


@dataclass(frozen=True)
class Program:
  """A module, as JAX can call it.

  Attributes:
    function: takes the inputs of the op, and returns a tuple of its outputs.
    shapes: of each input, the symbolic shape as JAX writes it, "b, 4"; None if it is fixed.
    constraints: conditions on the dimension variables.
    is_wide: whether inputs or outputs have 64 bits, which JAX keeps with x64 alone.
  """

  function: Function
  shapes: tuple[str | None, ...]
  constraints: tuple[str, ...]
  is_wide: bool


def of_node(node: Any) -> Program:
  """The program of an XlaCallModule.

  Raises:
    ArtifactError: jaxlib cannot read the module.
    LoweringError: the module has operations that JAX lacks; it lists all of them.
    NotImplementedError: the module calls functions of TensorFlow.
  """
  if node.attr["function_list"].list.func:
    raise NotImplementedError(
      Message(
        problem=f"the module of {node.name!r} calls functions of TensorFlow (call_tf), which are "
        "no part of it",
        advice="write the model without call_tf around them",
      )
    )
  blob = node.attr["module"].s
  platforms = [platform.decode().lower() for platform in node.attr["platforms"].list.s]
  try:
    module = parsing.parse(blob)
  except parsing.UnreadableError as error:
    raise ArtifactError(f"the module of {node.name!r} cannot be read: {error}") from error
  convention, shapes, constraints = _convention(module, platforms)
  function = Function(artifacts.Artifact(_name(node), blob, convention))
  ends = (*convention.in_avals, *convention.out_avals)
  return Program(function, shapes, constraints, any(np.dtype(a.dtype) in _WIDE for a in ends))


def _name(node: Any) -> str:
  """A name for the function, which becomes a name scope."""
  scopes = [part for part in node.name.split("/") if not part.startswith("XlaCallModule")]
  return re.sub(r"\W", "_", scopes[-1].strip("_")) if scopes else "module"


def _convention(
  module: Module, platforms: Sequence[str]
) -> tuple[artifacts.Convention, tuple[str | None, ...], tuple[str, ...]]:
  """How the op calls its module, with the symbolic shapes and constraints that its own checks
  name."""
  arguments = [
    argument
    for argument, attributes in zip(
      module.main.block.arguments, module.main.argument_attributes, strict=True
    )
    if argument.type is not None and attributes.get("jax.global_constant") != "_platform_index"
  ]
  # the index of the platform, which JAX 0.4.26 and older do not mark
  marked = any(a.get("jax.global_constant") for a in module.main.argument_attributes)
  if len(platforms) > 1 and not marked:
    arguments = arguments[1:]
  messages = _messages(module)
  shapes = tuple(_symbolic(arguments, _named_shapes(messages)))
  constraints = tuple(dict.fromkeys(text for m in messages for text in _CONSTRAINT.findall(m)))
  scope = export.SymbolicScope(constraints)
  in_avals = tuple(
    _aval(argument, text, scope) for argument, text in zip(arguments, shapes, strict=True)
  )
  results = [value for value in module.main.block.results if value.type is not None]
  fresh = (f"result{number}" for number in itertools.count())
  out_avals = tuple(_aval(value, _fresh(value, fresh), scope) for value in results)
  in_tree = jax.tree.structure((tuple(range(len(in_avals))), {}))
  out_tree = jax.tree.structure(tuple(range(len(out_avals))))
  kept = tuple(range(len(in_avals)))
  return (
    artifacts.Convention(in_tree, in_avals, out_tree, out_avals, tuple(platforms), kept, 1),
    shapes,
    constraints,
  )


def _messages(module: Module) -> list[str]:
  """Those of the checks of sizes."""
  return [
    str(op.get("error_message"))
    for function in module.functions.values()
    for op in walk(function.block)
    if op.get("call_target_name") == "shape_assertion" and op.get("error_message")
  ]


def _named_shapes(messages: Sequence[str]) -> list[str]:
  """The shapes of the arguments with symbolic sizes, in their order."""
  for message in messages:
    if found := _SPECIFICATIONS.search(message):
      return _SHAPE.findall(found[1])
  return []


def _symbolic(arguments: Sequence[Value], named: list[str]) -> Iterator[str | None]:
  """The symbolic shape of each argument; a variable of its own for each size that has no name."""
  unknown = [argument for argument in arguments if None in argument.shape]
  texts = iter(named if len(named) == len(unknown) else [])
  fresh = (f"size{number}" for number in itertools.count())
  for argument in arguments:
    if None not in argument.shape:
      yield None
      continue
    text = next(texts, None)
    yield _fresh(argument, fresh) if text is None else text.strip().rstrip(",")


def _fresh(value: Value, names: Iterator[str]) -> str:
  return ", ".join(next(names) if size is None else str(size) for size in value.shape)


def _aval(value: Value, text: str | None, scope: Any) -> artifacts.Aval:
  shape = value.shape if not text else export.symbolic_shape(f"({text},)", scope=scope)
  return artifacts.Aval(tuple(shape), jnp.dtype(value.dtype))
