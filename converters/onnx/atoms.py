"""Axes of a tensor as sequences of atoms, which reshapes cut and join."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field


@dataclass(eq=False)
class Atom:
  """Adjacent elements of an axis, of which an axis may have several.

  Attributes:
    size: None if it is unknown.
    parts: the atoms into which a reshape has cut it.
  """

  size: int | None
  parts: list[Atom] = field(default_factory=list)

  def leaves(self) -> Iterator[Atom]:
    """The atoms that it consists of, uncut."""
    if not self.parts:
      yield self
    for part in self.parts:
      yield from part.leaves()


Axis = list[Atom]


def leaves_of(axis: Sequence[Atom]) -> list[Atom]:
  """The uncut atoms of an axis."""
  return [leaf for atom in axis for leaf in atom.leaves()]


def axis_of(size: int | None) -> Axis:
  """A new axis; one of size 1 has no atoms."""
  return [] if size == 1 else [Atom(size)]


def size_of(leaves: Sequence[Atom]) -> int | None:
  """The number of elements, or None."""
  known = [leaf.size for leaf in leaves]
  return None if None in known else math.prod(n for n in known if n)


def regrouped(axes: Sequence[Axis], sizes: Sequence[int | None]) -> list[Axis] | None:
  """The atoms by the axes of a tensor of these sizes, in the same order; None if they do not fit
  it. Of an axis of unknown size the last atom is of unknown size."""
  waiting = leaves_of([atom for axis in axes for atom in axis])[::-1]
  result: list[Axis] = []
  for size in sizes:
    last = result[-1][-1] if result and result[-1] else None
    is_next = bool(waiting) and waiting[-1].size is not None
    if size is None:
      axis: Axis = []
      while waiting and waiting[-1].size is not None:
        axis.append(waiting.pop())
      if not waiting:
        return None
      axis.append(waiting.pop())
    elif size > 1 and not is_next and last is not None and last.size is None:
      first, second = last.parts = [Atom(None), Atom(size)]
      result[-1][-1], axis = first, [second]
    elif (cut := _cut(waiting, size)) is not None:
      axis = cut
    else:
      return None
    result.append(axis)
  return None if waiting else result


def _cut(waiting: list[Atom], size: int) -> Axis | None:
  """The last atoms that wait, which have this size in all; the last of them may be cut in two."""
  axis: Axis = []
  while size > 1:
    atom = waiting.pop() if waiting else None
    if atom is None or atom.size is None:
      return None
    if atom.size > size and atom.size % size == 0:
      first, second = atom.parts = [Atom(size), Atom(atom.size // size)]
      waiting.append(second)
      return [*axis, first]
    if size % atom.size:
      return None
    size //= atom.size
    axis.append(atom)
  return axis
