"""The StableHLO module of an XlaCallModule op as a JAX function."""

from __future__ import annotations

import re
from typing import Any

import tensorflow as tf

from jax2tf.errors import ArtifactError
from jax2tf.messages import Message
from jax2tf.stablehlo import (
  children,
  loading,  # noqa: F401  (registers the rules)
  parsing,
)
from jax2tf.stablehlo.artifacts import Artifact, Source
from jax2tf.stablehlo.functions import Function

from ..bundle import graphs
from . import closed
from .programs import Program


def of_node(node: Any) -> Program:
  """The program of an XlaCallModule, which takes the inputs of the op; the leaves of its result are
  the outputs.

  Raises:
    ArtifactError: jaxlib cannot read the module.
    LoweringError: the module has operations that JAX lacks; it lists all of them.
    NotImplementedError: the module calls functions of TensorFlow.
  """
  artifact = artifact_of(node)
  try:
    function = Function(artifact)
  except parsing.UnreadableError as error:
    raise ArtifactError(f"the module of {node.name!r} cannot be read: {error}") from error
  return Program(
    function,
    tuple(range(len(function.in_avals))),
    tuple(_spec(aval) for aval in function.in_avals),
    tuple((index, None) for index in range(len(function.in_avals))),
  )


def check(graph: Any) -> None:
  """Reads each module of a GraphDef in a child process.

  Raises:
    ArtifactError: MLIR cannot read a module, or ends the child.
    NotImplementedError: a module calls functions of TensorFlow.
  """
  nodes = {
    closed.program(each.node): each.node
    for each in closed.nodes(graph)
    if each.node.op == graphs.MODULE
  }
  for node in nodes.values():
    children.checked(artifact_of(node), f"the module of {node.name!r}")


def artifact_of(node: Any) -> Artifact:
  """The module of an XlaCallModule.

  Raises:
    NotImplementedError: it calls functions of TensorFlow.
  """
  if node.attr["function_list"].list.func:
    raise NotImplementedError(
      Message(
        problem=f"the module of {node.name!r} calls functions of TensorFlow (call_tf), which are "
        "no part of it",
        advice="write the model without call_tf around them",
      )
    )
  platforms = tuple(platform.decode().lower() for platform in node.attr["platforms"].list.s)
  return Artifact(_name(node), Source(node.attr["module"].s), platforms=platforms)


def _spec(aval: Any) -> tf.TensorSpec:
  sizes = [size if isinstance(size, int) else None for size in aval.shape]
  return tf.TensorSpec(sizes, aval.dtype)


def _name(node: Any) -> str:
  """A name for the function, which becomes a name scope."""
  scopes = [part for part in node.name.split("/") if not part.startswith("XlaCallModule")]
  return re.sub(r"\W", "_", scopes[-1].strip("_")) if scopes else "module"
