"""The nodes of a GraphDef. Imports only the standard library, as `calls` does."""

from __future__ import annotations

from typing import Any

# Prefixes of ops that write a variable. Rng ops are those of tf.random.Generator.
_WRITERS = (
  "Assign",
  "ResourceApply",
  "ResourceScatter",
  "ResourceSparseApply",
  "ResourceStridedSliceAssign",
  "Rng",
)


def nodes(definition: Any) -> list[Any]:
  """The nodes of a GraphDef, those of its functions included."""
  return [
    *definition.node,
    *(node for function in definition.library.function for node in function.node_def),
  ]


def writers(definition: Any) -> list[str]:
  """The types of ops in a GraphDef that write a variable."""
  return sorted({node.op for node in nodes(definition) if node.op.startswith(_WRITERS)})
