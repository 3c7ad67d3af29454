"""The nodes of a GraphDef. Imports only the standard library, as `calls` does."""

from __future__ import annotations

import re
from typing import Any

# An op that holds a program compiled for XLA.
MODULE = "XlaCallModule"
_NUMBERED = re.compile(r"(?!__inference_)(.*)_(\d+)")  # the functions of loops and branches

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


def is_closed(op: str) -> bool:
  """Whether `jax2tf open` opens ops of this type. All whose name begins so have kernels for XLA
  alone."""
  return op.startswith("Xla") and op[3:4].isupper()


def number_functions(definition: Any) -> None:
  """Numbers the functions of loops and branches in a GraphDef from 0, in their order. TensorFlow
  numbers them from the start of the process: `cond_true_981`."""
  functions = definition.library.function
  names = {function.signature.name for function in functions}
  numbered = [match for name in names if (match := _NUMBERED.fullmatch(name))]
  numbered.sort(key=lambda match: int(match[2]))
  new = {match[0]: f"{match[1]}_{i}" for i, match in enumerate(numbered)}
  for function in functions:
    function.signature.name = new.get(function.signature.name, function.signature.name)
  for node in nodes(definition):
    for attribute in node.attr.values():
      called = [attribute.func] if attribute.HasField("func") else attribute.list.func
      for function in called:
        function.name = new.get(function.name, function.name)
  functions.sort(key=lambda function: str(function.signature.name))
