"""All uses of JAX's private API for `jax.export` and its modules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax._src.export import _export
from jax._src.export import shape_poly as _shape_poly
from jax._src.interpreters import mlir as _mlir


def tree_node(name: str, auxiliary: bytes, children: Sequence[Any]) -> Any:
  """A node of a class that was registered by `jax.export.register_pytree_node_serialization`.

  Raises:
    KeyError: no class is registered under the name.
  """
  _, deserialized, made = _export.deserialization_registry[name]
  return made(deserialized(auxiliary), children)


def assert_sizes(condition: Any, inputs: Sequence[Any], message: str) -> None:
  """Has the program check sizes that are symbolic while it is traced; `message` may refer to the
  inputs by {0}, {1} ..."""
  _shape_poly.shape_assertion_p.bind(condition, *inputs, error_message=message)


# A context that nobody else uses. JAX 0.12 gives a thread the same one several times, and it keeps
# the constants of all modules that were read in it.
own_ir_context = getattr(_mlir, "_create_ir_context", _mlir.make_ir_context)
