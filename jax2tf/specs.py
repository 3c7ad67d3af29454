"""Polymorphic shapes: from the user's specifications to avals with symbolic dimensions."""

from __future__ import annotations

import inspect
import itertools
import tokenize
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import tensorflow as tf
from jax import export, tree_util
from jax.export import is_symbolic_dim

from jax2tf import _jax_compat, pytrees
from jax2tf._jax_compat import shape_poly
from jax2tf.constraints import refuse_contradictions
from jax2tf.messages import ArgumentError

# (shape, dtype, weak type) of a leaf, as `dtypes.describe` gives them; an unknown size is None.
Described = tuple[tuple[int | None, ...], Any, bool]


def scope_of(polymorphic_shapes: Any, constraints: Sequence[str]) -> export.SymbolicScope:
  """The scope of all symbolic dimensions of a function: that of `jax.export.symbolic_shape`
  dimensions, else a new one.

  Raises:
    ValueError: bad grammar, in JAX's words; constraints that no sizes can meet; constraints next to
      dimensions with a scope.
  """
  leaves = jax.tree.leaves(polymorphic_shapes, is_leaf=_is_shape)
  shapes = filter(_is_shape, leaves)
  scopes = [d.scope for shape in shapes for d in shape if is_symbolic_dim(d)]
  if scopes and constraints:
    raise ArgumentError(
      "polymorphic_constraints",
      tuple(constraints),
      problem="the dimensions of jax.export.symbolic_shape have a scope already",
      advice="give the constraints to symbolic_shape or to its SymbolicScope",
    )
  try:
    scope = scopes[0] if scopes else export.SymbolicScope(constraints)
  except (ValueError, tokenize.TokenError) as error:
    if "onstraint" in str(error) or "syntax error" in str(error):
      raise
    # JAX's traceback adds nothing
    raise ArgumentError(
      "polymorphic_constraints", constraints, problem=f"syntax error: {error}"
    ) from None
  refuse_contradictions(scope)
  return scope


def _is_shape(x: Any) -> bool:
  """Whether `x` is a shape: of `jax.export.symbolic_shape`, or a PolyShape, and not a tuple of the
  specifications of several arguments."""
  return isinstance(x, shape_poly.PolyShape) or (
    isinstance(x, tuple) and any(map(is_symbolic_dim, x))
  )


def _is_spec(x: Any) -> bool:
  return x is None or _is_shape(x)


@dataclass(frozen=True)
class Call:
  """A call of a function, whose leaves get symbolic dimensions.

  Attributes:
    fun: the user's function.
    name: its name.
    args, kwargs: the arguments that are not static.
    positions: the place of each of `args` among all positional arguments.
    count: the number of all positional arguments.
  """

  fun: Callable[..., Any]
  name: str
  args: Sequence[Any]
  kwargs: Mapping[str, Any]
  positions: Sequence[int]
  count: int

  def specs(
    self, described: Sequence[Described], polymorphic_shapes: Any, scope: export.SymbolicScope
  ) -> list[jax.ShapeDtypeStruct]:
    """The specs of the leaves of (args, kwargs), with symbolic dimensions.

    Raises:
      ValueError: JAX's own, for bad grammar, a rank that does not fit or dimensions of several
        scopes; specifications that fit no argument; an unknown size without a variable.
    """
    shapes = self._of_leaves(polymorphic_shapes)
    specs = []
    for leaf, ((like, dtype, weak_type), shape) in enumerate(zip(described, shapes, strict=True)):
      try:
        dims = self._symbolic_shape(shape, like, scope, leaf)
      except ValueError as error:
        error.add_note(f"polymorphic_shapes has {shape!r} for {self._path(leaf)}")
        raise
      specs.append(jax.ShapeDtypeStruct(dims, dtype, weak_type=weak_type))
    return specs

  def _path(self, leaf: int) -> str:
    return pytrees.argument_paths((tuple(self.args), dict(self.kwargs)))[leaf]

  def _of_leaves(self, polymorphic_shapes: Any) -> list[Any]:
    """The specification of each leaf of (args, kwargs)."""
    parts_of = self._by_name if isinstance(polymorphic_shapes, dict) else self._by_position
    parts = parts_of(polymorphic_shapes)
    shapes_of_leaves: list[Any] = []
    arguments = {f"args[{i}]": argument for i, argument in enumerate(self.args)}
    # JAX orders the keyword arguments by their names.
    arguments |= {f"kwargs[{name!r}]": self.kwargs[name] for name in sorted(self.kwargs)}
    for (title, shapes), (path, argument) in zip(parts, arguments.items(), strict=True):
      _check_spelling(shapes)
      try:
        shapes_of_leaves += pytrees.spread(shapes, argument, _is_spec)
      except ValueError:
        words = _jax_compat.prefix_error(shapes, argument, _is_spec, title)
        raise ValueError(
          f"{title} = {shapes!r} does not fit {path} of '{self.name}', which is a "
          f"{type(argument).__name__}; give one string "
          "for all of it, or its structure with a string or None at each leaf "
          f"({words.partition(' so the diff')[0]})"
        ) from None
    return shapes_of_leaves

  def _by_position(self, shapes: Any) -> Iterator[tuple[str, Any]]:
    """(its name in messages, specification) for each argument, from one specification for all of
    them, or one for each."""
    by_name = [(f"polymorphic_shapes for {name!r}", None) for name in sorted(self.kwargs)]
    if _is_spec(shapes) or not isinstance(shapes, list | tuple):
      return iter([*(("polymorphic_shapes", shapes) for _ in self.args), *by_name])
    if len(shapes) == self.count != len(self.args):  # static arguments have no shape
      static = set(range(self.count)) - set(self.positions)
      if with_shape := [i for i in sorted(static) if shapes[i] is not None]:
        raise ValueError(
          f"polymorphic_shapes[{with_shape[0]}] = {shapes[with_shape[0]]!r} is for a static "
          f"argument of '{self.name}', which is no "
          "array; give None"
        )
      return iter([*((f"polymorphic_shapes[{i}]", shapes[i]) for i in self.positions), *by_name])
    if len(shapes) != len(self.args):
      _check_spelling(shapes)
      raise ValueError(
        f"polymorphic_shapes = {shapes!r} has {_count(shapes, 'specification')}, and "
        f"'{self.name}' is called with "
        f"{_count(self.args, 'positional argument')} (pytree structure error: different lengths "
        "of tuple at polymorphic_shapes); "
        "give one for each, one string for all, or a dict by the names of arguments, such as "
        '{"x": "b, _"}'
      )
    return iter([*((f"polymorphic_shapes[{i}]", part) for i, part in enumerate(shapes)), *by_name])

  def _by_name(self, shapes: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """As `_by_position`, from the specifications of arguments by the names of their parameters."""
    named, rest, takes_any = _parameters(self.fun)
    known = {*named, *([rest] if rest else ()), *self.kwargs}
    if (unknown := [name for name in shapes if name not in known]) and not takes_any:
      raise ValueError(
        f"polymorphic_shapes names {unknown[0]!r}, and '{self.name}' has no such argument, only "
        f"{', '.join(sorted(known)) or 'none'}; a dict by itself is for arguments by name: put "
        "that of the leaves of an argument in a list, as in "
        f"polymorphic_shapes=[{{{unknown[0]!r}: ...}}]"
      )
    several = shapes.get(rest) if rest else None  # of *args
    if isinstance(several, list | tuple) and not _is_spec(several):
      if len(several) != (count := max(0, self.count - len(named))):
        raise ValueError(
          f"polymorphic_shapes[{rest!r}] = {several!r} has {_count(several, 'specification')}, "
          f"and '{self.name}' is called with "
          f"{_count(range(count), 'argument')} for *{rest}; give one for each, or one string for "
          "all"
        )
    else:
      several = [several] * max(0, self.count - len(named))
    for i in self.positions:
      if i < len(named):
        yield f"polymorphic_shapes[{named[i]!r}]", shapes.get(named[i])
      else:  # without `rest`, the function is written in C and its parameters have no names
        yield f"polymorphic_shapes[{rest!r}]", several[i - len(named)] if rest else None
    for name in sorted(self.kwargs):
      yield f"polymorphic_shapes[{name!r}]", shapes.get(name)

  def _symbolic_shape(
    self, shape: Any, like: Sequence[int | None], scope: export.SymbolicScope, leaf: int
  ) -> tuple[Any, ...]:
    if _is_shape(shape) and not isinstance(shape, shape_poly.PolyShape):
      for d in filter(is_symbolic_dim, shape):
        shape_poly.check_same_scope(scope, d, f"in polymorphic_shapes = {shape}")
      shape = ", ".join(map(str, shape))  # so that the parser checks the known sizes
    sizes: Any = tuple(_UNKNOWN if size is None else size for size in like)
    try:
      dims: tuple[Any, ...] | None = tuple(export.symbolic_shape(shape, like=sizes, scope=scope))
    except tokenize.TokenError as error:  # Python 3.11, for a parenthesis that is not closed
      raise ValueError(
        f"syntax error in symbolic shape {shape!r} for {self._path(leaf)}: {error.args[0]}"
      ) from None
    except IndexError:  # JAX's own, for a number behind the last dimension
      dims = None
    if dims is not None and any(d is _UNKNOWN for d in dims):
      raise ValueError(self._unnamed(shape, like, scope, leaf))
    if dims is None or len(dims) != len(like):
      mismatch = ValueError(
        f"Rank mismatch for {self._path(leaf)}: expected {shape if dims is None else dims} and "
        f"called with {tuple(like)}"
      )
      mismatch.add_note(f"Give a size for {_count(like, 'dimension')}, such as {_example(like)!r}")
      raise mismatch
    return dims

  def _unnamed(
    self, shape: Any, like: Sequence[int | None], scope: export.SymbolicScope, leaf: int
  ) -> str:
    """The error for an unknown size without a variable."""
    words = ""
    try:
      export.symbolic_shape(shape, like=tuple(like), scope=scope)
    except ValueError as error:
      words = str(error)
    path, example = self._path(leaf), _example(like)
    name = path.removeprefix("kwargs['").partition("'")[0]
    advice = (
      f'polymorphic_shapes={{"{name}": "{example}"}}'
      if path.startswith("kwargs")
      else f'"{example}"'
    )
    return (
      f"{path} of '{self.name}' has shape {tuple(like)}, and polymorphic_shapes has {shape!r} for "
      "it, which names no "
      f"dimension variable for its unknown size; give it {advice} ({words})"
    )


def _parameters(fun: Callable[..., Any]) -> tuple[list[str], str, bool]:
  """(names of the positional parameters, that of *args or "", whether any keyword is taken)."""
  try:
    parameters = inspect.signature(fun).parameters.values()
  except (ValueError, TypeError):  # a callable that is written in C
    return [], "", False
  named = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
  rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "")
  return named, rest, any(p.kind is p.VAR_KEYWORD for p in parameters)


def _count(things: Sequence[Any], noun: str) -> str:
  return f"{len(things)} {noun}{'s' * (len(things) != 1)}"


def _example(like: Sequence[int | None]) -> str:
  """A specification for a shape, as "b, _" for (None, 3) and for (2, 3)."""
  letters = itertools.chain("bcdefgh", (f"n{i}" for i in itertools.count()))
  varies = [size is None or (i == 0 and None not in like) for i, size in enumerate(like)]
  return ", ".join(next(letters) if name else "_" for name in varies) or "..."


class _Unknown:
  """A size that TensorFlow does not know, for JAX's parser: it may be any number of the
  specification, and is no size itself."""

  def __eq__(self, other: object) -> bool:
    return True

  def __hash__(self) -> int:
    return 0

  def __repr__(self) -> str:
    return "None"


_UNKNOWN = _Unknown()


def _is_sizes(x: Any) -> bool:
  """Whether it is a shape in TensorFlow's style, such as (None, 4) or ["b", 4]."""
  if isinstance(x, tf.TensorSpec | tf.TensorShape):
    return True
  if not isinstance(x, tuple | list) or isinstance(x, shape_poly.PolyShape):
    return False
  return any(type(d) is int for d in x) and all(d is None or isinstance(d, int | str) for d in x)


def _check_spelling(shapes: Any) -> None:
  """Raises ValueError for a shape that is not in JAX's notation."""
  for sizes in filter(_is_sizes, tree_util.tree_leaves(shapes, is_leaf=_is_sizes)):
    text = ", ".join("_" if size is None else str(size) for size in getattr(sizes, "shape", sizes))
    raise ValueError(
      f"polymorphic_shapes has {sizes!r}; write the shape of an argument as one string, {text!r}, "
      "with a name for each size that varies "
      "and _ for one that is taken from the argument"
    )
