"""Pytrees by their leaves. A node of a user is built from arrays, tensors and tracers only, as by
JAX itself.

A node may look at its children when it is built: at `.ndim`, `.dtype`, the length, or whether they
are arrays. Specs, names, numbers and None have none of these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax import tree_util


class Leaves:
  """One pytree by its leaves, which may be anything. Where JAX puts tracers in their place, it
  rebuilds the pytree itself.

  Args:
    leaves: in order.
    tree: the treedef of the pytree.
    paths: the name of each leaf in the pytree, such as `['w'][0]`.
  """

  def __init__(self, leaves: Sequence[Any], tree: Any, paths: Sequence[str]):
    self.leaves = tuple(leaves)
    self.tree = tree
    self.paths = tuple(paths)

  @classmethod
  def of(cls, pytree: Any, leaves: Sequence[Any]) -> Any:
    """These leaves in the structure of `pytree`; a single leaf without structure is that leaf."""
    flat, tree = tree_util.tree_flatten_with_path(pytree)
    return cls.with_paths(leaves, tree, [tree_util.keystr(path) for path, _ in flat])

  @classmethod
  def with_paths(cls, leaves: Sequence[Any], tree: Any, paths: Sequence[str]) -> Any:
    """As `of`, from the treedef and the name of each leaf."""
    # None without leaves is a "leaf" too
    is_leaf = len(leaves) == 1 and tree_util.treedef_is_leaf(tree)
    return leaves[0] if is_leaf else cls(leaves, tree, paths)


def _flatten(node: Leaves) -> tuple[Sequence[Any], Any]:
  return node.leaves, (node.tree, node.paths)


def _flatten_with_keys(node: Leaves) -> tuple[Sequence[tuple[Any, Any]], Any]:
  # A path is a key of its own: JAX names a leaf by the str() of its keys.
  return tuple(zip(node.paths, node.leaves, strict=True)), (node.tree, node.paths)


def _unflatten(structure: Any, leaves: Any) -> Any:
  tree, paths = structure
  leaves = tuple(leaves)
  if all(isinstance(leaf, jax.Array) for leaf in leaves):
    return tree_util.tree_unflatten(tree, leaves)
  return Leaves(leaves, tree, paths)


tree_util.register_pytree_with_keys(Leaves, _flatten_with_keys, _unflatten, _flatten)


def unknown_class(tree: Any) -> type | None:
  """The first class of a node in a treedef that TensorFlow does not take as a structure; None
  without one."""
  data = tree.node_data()
  if data is None:  # a leaf
    return None
  kind = data[0]
  if not (
    kind is type(None)
    or issubclass(kind, Mapping | list | tuple)
    or hasattr(kind, "__tf_flatten__")
  ):
    return kind
  return next(filter(None, map(unknown_class, tree.children())), None)


def argument_paths(arguments: Any) -> list[str]:
  """Names of the leaves of (args, kwargs), as `args[0]['w']`."""
  paths = tree_util.tree_flatten_with_path(arguments)[0]
  return [("args", "kwargs")[path[0].idx] + tree_util.keystr(path[1:]) for path, _ in paths]


def spread(prefix: Any, pytree: Any, is_leaf: Callable[[Any], bool] | None = None) -> list[Any]:
  """The leaf of `prefix` for each leaf of `pytree`, in order.

  Raises:
    ValueError: `prefix` is not a prefix of `pytree`, in JAX's words.
  """
  tree: Any
  leaves, tree = tree_util.tree_flatten(prefix, is_leaf=is_leaf)
  parts: Any = map(tree_util.tree_structure, tree.flatten_up_to(pytree))
  counts = [part.num_leaves for part in parts]
  return [leaf for leaf, count in zip(leaves, counts, strict=True) for _ in range(count)]
