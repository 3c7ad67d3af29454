"""What a decoder's cache consists of, found from its shapes at several sizes.

A leaf is one of three kinds. *Rows* have an axis of the cache's length: they hold the keys and
values of the tokens so far. A *ruled* leaf is a function of the positions, such as the index of the
next free row; engines hold no such leaf, so an exported step computes it from the positions that
the engine gives. A *carried* leaf is anything else, such as a recurrent state, which only a target
that keeps the whole cache takes.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax import tree_util

from jax2tf.messages import ArgumentError

from ..bundle.notation import Spec
from ..saved_model import parameters

# (positions i32[b,s], length of the cache) -> the leaf before the step, without its batch axis if
# it has none. Or the name of one of `NAMED`, or a number, which stands everywhere in the leaf.
Rule: TypeAlias = str | int | Callable[[jax.Array, int], Any]

NAMED = {
  "start": "the position of the first token of the call",
  "slots": "0, 1, 2 ... along the last axis",
}


@dataclass(frozen=True)
class Leaf:
  """An array of the cache.

  Attributes:
    path: "layers/0/k".
    shape, dtype: with batch size 1, at the decoder's context length.
    batch_axis, length_axis: the axes whose sizes are the batch and the length; None if there is
      none.
    rule: of a ruled leaf; None for other kinds.
  """

  path: str
  shape: tuple[int, ...]
  dtype: Any
  batch_axis: int | None
  length_axis: int | None
  rule: Rule | None = None

  @property
  def kind(self) -> str:
    """ "rows", "ruled" or "carried"."""
    if self.rule is not None:
      return "ruled"
    return "carried" if self.length_axis is None else "rows"

  def sized(self, batch: Any, length: Any) -> tuple[Any, ...]:
    """The shape for a batch size and a length, which may be symbolic."""
    sizes: list[Any] = list(self.shape)
    if self.batch_axis is not None:
      sizes[self.batch_axis] = batch
    if self.length_axis is not None:
      sizes[self.length_axis] = length
    return tuple(sizes)

  def by_rule(self, positions: jax.Array, length: Any) -> jax.Array:
    """The value of a ruled leaf before a step at these positions.

    Args:
      positions: i32[b,s].
      length: of the cache.

    Raises:
      ArgumentError: the rule has another shape than the leaf.
    """
    shape = self.sized(positions.shape[0], length)
    value: Any
    if self.rule == "slots":
      value = jnp.arange(shape[-1])
    elif self.rule == "start":
      value = self._start(positions)
    else:
      value = self.rule(positions, length) if callable(self.rule) else self.rule
    value = jnp.asarray(value)
    try:
      return jnp.broadcast_to(value, shape).astype(self.dtype)
    except ValueError as error:
      raise ArgumentError(
        "rules",
        problem=f"the rule of cache leaf {self.path!r} gives shape {list(value.shape)}, and the "
        f"leaf is {Spec.of(jax.ShapeDtypeStruct(self.shape, self.dtype))}",
        advice="return an array of the leaf's shape, or one that broadcasts to it",
      ) from error

  def _start(self, positions: jax.Array) -> jax.Array:
    if self.batch_axis is None:
      return positions[0, 0]
    sizes = [1] * len(self.shape)
    sizes[self.batch_axis] = positions.shape[0]
    return positions[:, 0].reshape(sizes)


@dataclass(frozen=True)
class Layout:
  """The structure of a cache.

  Attributes:
    tree: the treedef.
    leaves: all arrays, in JAX's order.
  """

  tree: Any
  leaves: tuple[Leaf, ...]

  @classmethod
  def of(
    cls, init_cache: Callable[[int, int], Any], length: int, rules: Mapping[str, Rule]
  ) -> Layout:
    """Finds batch and length in the shapes of three caches, none of which is computed.

    Args:
      init_cache: (batch, length) -> cache.
      length: the decoder's context length.
      rules: {path of a leaf, or its end: rule}.

    Raises:
      ArgumentError: `init_cache` fails, or its structure depends on the sizes; a rule names no
        leaf; an integer leaf has neither rows nor a rule; no leaf has an axis of the length.
    """
    caches = [_shapes(init_cache, *sizes) for sizes in ((1, length), (2, length), (1, length + 1))]
    flat = [tree_util.tree_flatten(cache) for cache in caches]
    trees = {tree for _, tree in flat}
    if len(trees) > 1:
      raise ArgumentError("init_cache", problem="its structure depends on the batch or the length")
    one, two, longer = (leaves for leaves, _ in flat)
    leaves = tuple(
      Leaf(
        path,
        tuple(leaf.shape),
        leaf.dtype,
        _axis(path, "batch", leaf, at_two),
        _axis(path, "length", leaf, at_longer),
        _rule_of(path, rules),
      )
      for path, leaf, at_two, at_longer in zip(
        parameters.paths(caches[0], "cache"), one, two, longer, strict=True
      )
    )
    layout = cls(trees.pop(), leaves)
    layout._check(rules, length)
    return layout

  def of_kind(self, kind: str) -> tuple[Leaf, ...]:
    """The leaves of a kind, in order."""
    return tuple(leaf for leaf in self.leaves if leaf.kind == kind)

  @functools.cached_property
  def layers(self) -> tuple[tuple[Leaf, Leaf], ...]:
    """(keys, values) of each layer, by the ends of the paths ("k", "cached_key", "v_cache" ...), or
    else by their order.

    Raises:
      ArgumentError: the number of rows is odd.
    """
    rows = self.of_kind("rows")
    if len(rows) % 2:
      raise ArgumentError(
        "init_cache",
        problem=f"its cache has {len(rows)} arrays with rows "
        f"({', '.join(leaf.path for leaf in rows)}), and an engine expects keys and values of each "
        "layer",
        advice="store keys and values as two arrays",
      )
    keys = [leaf for leaf in rows if _part(leaf.path) == "k"]
    values = [leaf for leaf in rows if _part(leaf.path) == "v"]
    if len(keys) != len(values) or len(keys) * 2 != len(rows):
      keys, values = list(rows[::2]), list(rows[1::2])
    return tuple(zip(keys, values, strict=True))

  def joined(
    self, rows: Mapping[str, Any], positions: jax.Array, carried: Mapping[str, Any] | None = None
  ) -> Any:
    """The cache before a step.

    Args:
      rows: {path: array} of the leaves with rows, of one length.
      positions: i32[b,s] of the step's tokens, from which the ruled leaves follow.
      carried: {path: array} of the carried leaves.
    """
    length = self.length_of(rows)
    given = {**rows, **(carried or {})}
    leaves = [
      leaf.by_rule(positions, length) if leaf.kind == "ruled" else given[leaf.path]
      for leaf in self.leaves
    ]
    return tree_util.tree_unflatten(self.tree, leaves)

  def length_of(self, rows: Mapping[str, Any]) -> Any:
    """The number of rows in {path: array}."""
    first = self.of_kind("rows")[0]
    return rows[first.path].shape[first.length_axis or 0]

  def split(self, cache: Any, kind: str = "rows") -> dict[str, Any]:
    """{path: array} of the leaves of a kind."""
    leaves = zip(self.leaves, tree_util.tree_leaves(cache), strict=True)
    return {leaf.path: array for leaf, array in leaves if leaf.kind == kind}

  def _check(self, rules: Mapping[str, Rule], length: int) -> None:
    for name, rule in rules.items():
      if not any(matches(leaf.path, name) for leaf in self.leaves):
        raise ArgumentError(
          "rules",
          problem=f"the cache has no leaf {name!r}",
          advice=f"its leaves are {', '.join(leaf.path for leaf in self.leaves)}",
        )
      if isinstance(rule, str) and rule not in NAMED:
        raise ArgumentError(
          "rules",
          problem=f"there is no rule {rule!r}",
          advice=f"give {' or '.join(map(repr, NAMED))}, a number, or a function of (positions, "
          "length)",
        )
    for leaf in self.of_kind("carried"):
      if jnp.issubdtype(leaf.dtype, jnp.integer) or jnp.issubdtype(leaf.dtype, jnp.bool_):
        raise ArgumentError(
          "rules",
          problem=f"cache leaf {leaf.path!r}, {leaf.dtype}{list(leaf.shape)}, holds integers, and "
          "an engine holds only rows",
          advice=f'say how it follows from the positions, as in {{"{_end(leaf.path)}": "start"}}',
        )
    if not self.of_kind("rows"):
      raise ArgumentError(
        "init_cache",
        problem=f"no leaf of init_cache(1, {length}) has an axis that grows with the length",
        advice="make the size of the keys and values the length that it is called with",
      )
    for leaf in self.of_kind("ruled"):
      positions = jax.ShapeDtypeStruct((1, 2), jnp.int32)
      jax.eval_shape(lambda p, leaf=leaf: leaf.by_rule(p, length), positions)


def _shapes(init_cache: Callable[[int, int], Any], batch: int, length: int) -> Any:
  try:
    return jax.eval_shape(lambda: init_cache(batch, length))
  except Exception as error:
    raise ArgumentError(
      "init_cache",
      problem=f"init_cache({batch}, {length}) fails: {type(error).__name__}: {error}",
      advice="take (batch, length) and return the empty cache",
    ) from error


def _axis(path: str, what: str, before: Any, after: Any) -> int | None:
  """The only axis whose size differs."""
  sizes = zip(before.shape, after.shape, strict=False)
  axes = [axis for axis, (size, other) in enumerate(sizes) if size != other]
  if len(before.shape) != len(after.shape) or len(axes) > 1:
    raise ArgumentError(
      "init_cache",
      problem=f"cache leaf {path!r} is {list(before.shape)}, and with one more {what} "
      f"{list(after.shape)}",
      advice=f"give it one axis of the {what} at most",
    )
  return axes[0] if axes else None


def _rule_of(path: str, rules: Mapping[str, Rule]) -> Rule | None:
  """That of the longest name that fits."""
  names = [name for name in rules if matches(path, name)]
  return rules[max(names, key=len)] if names else None


def matches(path: str, name: str) -> bool:
  """Whether a path, or its end, is this."""
  return path == name or path.endswith(f"/{name}")


def _end(path: str) -> str:
  return path.rpartition("/")[2]


def _part(path: str) -> str:
  """ "k", "v" or "" by the last word of the path that says so."""
  for word in reversed(re.split(r"[/_.]", path.lower())):
    if word in ("k", "key", "keys"):
      return "k"
    if word in ("v", "value", "values") and word != path.lower():
      return "v"
  return ""


def check_kept(layout: Layout, cache: Any, after: Any, function: str) -> None:
  """Checks that a step returns a cache of the same leaves.

  Args:
    layout: that of the cache.
    cache, after: shapes before and after the step.
    function: the name of the argument, for errors.

  Raises:
    ArgumentError: structure, a shape or a dtype differs.
  """
  if tree_util.tree_structure(after) != layout.tree:
    raise ArgumentError(
      function,
      problem=f"it returns a cache of another structure: {tree_util.tree_structure(after)}, and "
      f"init_cache gives {layout.tree}",
    )
  changed = _changed(layout.leaves, tree_util.tree_leaves(cache), tree_util.tree_leaves(after))
  if changed:
    raise ArgumentError(
      function,
      problem=f"it returns a cache of other shapes or dtypes: {'; '.join(changed)}",
      advice="write into the arrays that it gets, and keep their dtypes",
    )


def _changed(leaves: Sequence[Leaf], before: Sequence[Any], after: Sequence[Any]) -> list[str]:
  return [
    f"{leaf.path} was {Spec.of(old)} and is {Spec.of(new)}"
    for leaf, old, new in zip(leaves, before, after, strict=True)
    if old.shape != new.shape or old.dtype != new.dtype
  ]
