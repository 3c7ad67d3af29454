"""The inputs of a signature at sizes that its constraints allow."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from jax2tf.messages import Argument, ArgumentError, Text

from ..bundle import manifest
from ..bundle.notation import variables
from . import draws
from .arguments import Arguments
from .draws import Examples

_SIZES = (1, 3, 7, 32)  # one, primes, and a larger size
_WIDER = range(1, 65)  # used if constraints allow few of these
_LARGEST = 4_096  # the largest size taken from a constraint; the caller can ask for larger ones
_MOST_TRIED = 1_000


class Domain:
  """The inputs of a signature, and their valid sizes.

  Attributes:
    avals: {input: aval}, without passed-through inputs; strings of a `preprocess` count as bools,
      and its unknown sizes as 3.
    variables: the dimension variables of the inputs.
  """

  def __init__(self, record: manifest.SignatureRecord, constraints: Sequence[str]):
    self._texts = {
      name: record.declared.get(name, record.inputs[name]) for name in record.own_inputs
    }
    specs = (
      {name: draws.countable(text) for name, text in self._texts.items()}
      if record.preprocessed
      else self._texts
    )
    scope = export.SymbolicScope(constraints)
    self.avals = dict(zip(specs, Arguments.of(specs, {}, scope).avals, strict=True))
    shapes = [aval.shape for aval in self.avals.values()]
    dims = [str(d) for shape in shapes for d in shape]
    self.variables = variables(dims)
    self._constraints = constraints
    # Without variables that an equality defines: given b == 2*a + 1, JAX writes 2*a + 1 for b.
    named = variables([*dims, *constraints])
    self._all = variables(map(str, export.symbolic_shape(", ".join(named), scope=scope)))
    self._exported = _exported(self._all, shapes, scope) if self._all else None

  def shapes(self, sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """{input: shape}. Raises ValueError for sizes that break a constraint."""
    if self._exported is None:
      return {name: aval.shape for name, aval in self.avals.items()}
    return dict(
      zip(self.avals, _shapes_at(self._exported, [sizes[name] for name in self._all]), strict=True)
    )

  def assignments(
    self, sizes_of: Mapping[str, Sequence[int]], inputs: Examples
  ) -> list[dict[str, int]]:
    """Combinations of sizes that use each wanted size, and several sizes of the other variables."""
    sizes_of = {
      name: sizes for name, sizes in self._fixed(sizes_of, inputs).items() if name in self._all
    }
    if not self._all:
      return [{}]
    if bad := [
      name
      for name, sizes in sizes_of.items()
      if not sizes or not all(isinstance(s, int) and s >= 1 for s in sizes)
    ]:
      raise ArgumentError(
        Argument("sizes", sizes_of[bad[0]], key=bad[0]), advice="give one or more positive integers"
      )
    pools = [
      list(sizes_of.get(name) or itertools.islice(self._feasible(name), len(_SIZES)))
      for name in self._all
    ]
    pairs = {(name, size) for name, pool in zip(self._all, pools, strict=True) for size in pool}
    chosen: list[dict[str, int]] = []
    seen: set[tuple[str, int]] = set()
    reason = ""
    for sizes in itertools.islice(self._candidates(pools, chosen), _MOST_TRIED):
      if seen >= pairs:
        break
      if set(sizes.items()) <= seen:
        continue
      try:
        self.shapes(sizes)
      except ValueError as error:
        reason = reason or str(error).split("  Using")[0].split("\n")[0]
        continue
      chosen.append(sizes)
      seen |= set(sizes.items())
    conditions = ", ".join(self._constraints)
    if lost := sorted({(name, size) for name, sizes in sizes_of.items() for size in sizes} - seen):
      name, size = lost[0]
      raise ArgumentError(
        Argument("sizes", size, key=name),
        problem=f"it breaks the constraints {conditions}",
        advice=f"choose another ({reason})",
      )
    if not chosen:
      why = f" ({reason})" if reason else ""
      raise ArgumentError(
        "sizes",
        problem=f"no sizes were found that meet {conditions}",
        advice=Text("give some: ", Argument("sizes", {self._all[0]: 5}), why),
      )
    return chosen

  def few(self, sizes_of: Mapping[str, Sequence[int]], inputs: Examples) -> list[dict[str, int]]:
    """As `assignments`, but with one size of each variable that is not wanted: 3, if the
    constraints allow it."""
    fixed = {
      name: sizes for name, sizes in self._fixed(sizes_of, inputs).items() if name in self._all
    }
    try:
      return self.assignments({name: [draws.UNKNOWN] for name in self._all} | fixed, inputs)
    except ValueError:
      chosen = self.assignments(fixed, inputs)
      return chosen if fixed else chosen[:1]

  def _feasible(self, name: str) -> Iterator[int]:
    """Sizes that satisfy the constraints on this variable alone, the usual sizes first."""
    own = [text for text in self._constraints if variables([text]) == [name]]
    numbers = [
      int(n)
      for text in self._constraints
      if name in variables([text])
      for n in re.findall(r"\d+", text)
    ]
    wider = sorted(
      {*_WIDER, *(n + shift for n in numbers for shift in (0, 1) if 0 < n <= _LARGEST)}
    )
    exported = _exported([name], [], export.SymbolicScope(own))
    for size in dict.fromkeys([*_SIZES, *wider]):
      with contextlib.suppress(ValueError):
        _shapes_at(exported, [size])
        yield size

  def _candidates(
    self, pools: Sequence[Sequence[int]], chosen: Sequence[dict[str, int]]
  ) -> Iterator[dict[str, int]]:
    """First combinations of different sizes, then all combinations, and then less usual sizes while
    few are `chosen`."""
    if all(pools):
      for i in range(max(map(len, pools))):
        yield {
          name: pool[(i + j) % len(pool)]
          for j, (name, pool) in enumerate(zip(self._all, pools, strict=True))
        }
      for combination in itertools.product(*pools):
        yield dict(zip(self._all, combination, strict=True))
      wider = [
        pool if len(pool) < len(_SIZES) else [*self._feasible(name)]
        for name, pool in zip(self._all, pools, strict=True)
      ]
      rng = np.random.default_rng(0)
      while len(chosen) < len(_SIZES):
        yield {name: int(rng.choice(sizes)) for name, sizes in zip(self._all, wider, strict=True)}

  def _fixed(
    self, sizes_of: Mapping[str, Sequence[int]], inputs: Examples
  ) -> dict[str, Sequence[int]]:
    """The sizes that the caller requests, and those of the caller's arrays."""
    fixed = dict(sizes_of)
    for name, aval in self.avals.items():
      if name in inputs and not callable(inputs[name]):
        shape = np.shape(inputs[name])
        if len(shape) != len(aval.shape):
          raise ArgumentError(
            Argument("inputs", key=name),
            problem=f"it has the shape {shape}, and the signature takes {self._texts[name]}",
          )
        for dim, size in zip(map(str, aval.shape), shape, strict=True):
          if dim in self.variables and list(fixed.get(dim, [size])) != [size]:
            raise ArgumentError(
              Argument("inputs", key=name),
              problem=f"it has the shape {shape}, so {dim} = {size}, and not {fixed[dim]}",
              advice="use the same size",
            )
          if dim in self.variables:
            fixed[dim] = [size]
    return fixed


def _exported(
  names: Sequence[str], shapes: Sequence[Any], scope: export.SymbolicScope
) -> export.Exported:
  """JAX's solver of dimensions, through its public API: an exported function checks the constraints
  when it is called."""
  probe = jax.ShapeDtypeStruct(export.symbolic_shape(", ".join(names), scope=scope), np.bool_)
  return export.export(jax.jit(lambda _: [jnp.zeros(shape, np.bool_) for shape in shapes]))(probe)


def _shapes_at(exported: export.Exported, sizes: Sequence[int]) -> list[tuple[int, ...]]:
  return [
    x.shape for x in jax.eval_shape(exported.call, jax.ShapeDtypeStruct(tuple(sizes), np.bool_))
  ]
