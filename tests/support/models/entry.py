"""What an entry of the zoo is: a model, its inputs, and how closely a target must agree with
JAX."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

# (rng, shape, dtype) -> an array
Draw = Callable[[np.random.Generator, tuple[int, ...], Any], np.ndarray]


@dataclass(frozen=True)
class Entry:
  """A model of the zoo, small but of a real architecture.

  Attributes:
    name: of its module here.
    library: what it is written in.
    build: () -> (fun(params, *inputs), params).
    inputs: names and types in jaxpr notation, with symbolic dimensions.
    outputs: the names of the results; their paths in the tree of the result if None.
    sizes: two of each dimension variable.
    draws: how to draw the inputs for which normally distributed numbers will not do: all that are
      not floats.
    constraints: on the dimension variables.
    rtol, atol: in place of those of `jax2tf.converters.verify`; `why` says what rounds more than
      usual.
  """

  name: str
  library: str
  build: Callable[[], tuple[Callable[..., Any], Any]]
  inputs: Mapping[str, str]
  outputs: Sequence[str] | None
  sizes: Mapping[str, Sequence[int]]
  draws: Mapping[str, Draw] = field(default_factory=dict)
  constraints: Sequence[str] = ()
  rtol: float | None = None
  atol: float | None = None
  why: str = ""

  def __post_init__(self) -> None:
    if undrawn := [
      name
      for name, spec in self.inputs.items()
      if not spec.startswith("f") and name not in self.draws
    ]:
      raise ValueError(
        f"{self.name}: draws says nothing of {undrawn[0]!r}, {self.inputs[undrawn[0]]}; say which "
        "values make sense"
      )
    if (self.rtol, self.atol) != (None, None) and not self.why:
      raise ValueError(f"{self.name}: why are its tolerances not the usual ones?")

  @property
  def examples(self) -> dict[str, Draw]:
    """How to draw each input, as the exporters take it."""
    return {name: self.draws.get(name, normal) for name in self.inputs}


def normal(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
  """Normally distributed."""
  return rng.standard_normal(shape).astype(dtype)


def below(limit: int) -> Draw:
  """Integers from 0 on, such as tokens of a vocabulary."""
  return lambda rng, shape, dtype: rng.integers(0, limit, shape, dtype)


def random_key(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
  """The words of a PRNG key."""
  return rng.integers(0, 2**32, shape, dtype)
