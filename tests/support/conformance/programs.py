"""Random programs: a printable value, how it is drawn by hypothesis, and how it runs.

A `Program` is made of inputs and steps. Its values are numbered: `~i` (that is -1, -2 ...) is input
i, and k >= 0 is the k-th array that the steps returned, in their order. Pasted into a test with the
names of this module it is the same program again:

    p = Program((Input("float32", (3,), (nan, 1.0)),), (Step("exp", (-1,)),))
    Case("fuzz exp", p, p.arrays(), x64=p.x64)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from tests.support.conformance.program_rows import DTYPES, DTYPES_X64, Row, kind_of
from tests.support.conformance.program_rows_arrays import ROWS

nan, inf = float("nan"), float("inf")  # the names that a pasted repr needs

SIZES = [2, 1, 3, 0, 5]

# Hostile values by kind. Left out: subnormals, which TensorFlow's CPU kernels flush to zero
# (docs/limitations.md).
HOSTILE: dict[str, list[Any]] = {
  "b": [False, True],
  "i": ["min", "max", 0, 1, -1, 2, -2, 3, 5, -7, 31, 32, 100],
  "u": ["max", 0, 1, 2, 3, 5, 7, 31, 32, 100],
  "f": [
    0.0,
    1.0,
    -1.0,
    -0.0,
    0.5,
    -2.0,
    3.0,
    7.25,
    -0.1,
    1e-3,
    1e3,
    nan,
    inf,
    -inf,
    "max",
    "min",
    "tiny",
  ],
}
# For gradients: distinct, moderate, away from kinks and poles.
TAME: dict[str, list[Any]] = {
  "b": [False, True],
  "i": [0, 1, -1, 2, 3, 5],
  "u": [0, 1, 2, 3, 5],
  "f": [0.5, 0.25, -0.75, 1.25, -1.5, 0.375, 2.25, -0.3125, 3.0],
}


@dataclasses.dataclass(frozen=True)
class Input:
  """dtype[shape], filled with `values` over and over; complex values are (real, imaginary), for
  their repr is no Python at NaN."""

  dtype: str
  shape: tuple[int, ...]
  values: tuple[Any, ...]

  def array(self) -> np.ndarray:
    """As NumPy."""
    dtype = jnp.dtype(self.dtype)
    if dtype.kind == "c":
      parts = np.array(self.values, np.finfo(dtype).dtype).reshape(-1, 2)
      return np.resize(
        parts[:, 0] + np.zeros((), dtype) if not len(parts) else parts.reshape(-1).view(dtype),
        self.shape,
      )
    return np.resize(np.array(self.values, dtype), self.shape)


@dataclasses.dataclass(frozen=True)
class Step:
  """`ROWS[name]` with static `params` of the values numbered `operands`."""

  name: str
  operands: tuple[int, ...]
  params: tuple[Any, ...] = ()

  def __call__(self, *operands: Any) -> list[Any]:
    """The arrays that this step returns."""
    return jax.tree.leaves(ROWS[self.name].fun(self.params, *operands))


@dataclasses.dataclass(frozen=True)
class Program:
  """A straight line of steps; called with arrays it returns what every step returned, step by
  step."""

  inputs: tuple[Input, ...]
  steps: tuple[Step, ...]
  x64: bool = False
  tame: bool = False

  def arrays(self) -> list[np.ndarray]:
    """The inputs as NumPy."""
    return [x.array() for x in self.inputs]

  def __call__(self, *arrays: Any) -> list[list[Any]]:
    values: list[Any] = []
    results = []
    for step in self.steps:
      results.append(step(*operands_of(step, arrays, values)))
      values += results[-1]
    return results

  def alone(self, operands: Sequence[np.ndarray], k: int) -> Program:
    """Step k as a program of its own, on these operands."""
    step = self.steps[k]
    step = Step(step.name, tuple(~i for i in range(len(operands))), step.params)
    return Program(tuple(map(as_input, operands)), (step,), self.x64, self.tame)


def operands_of(step: Step, arrays: Sequence[Any], values: Sequence[Any]) -> list[Any]:
  """What the operand numbers of a step stand for."""
  return [values[i] if i >= 0 else arrays[~i] for i in step.operands]


def as_input(x: np.ndarray) -> Input:
  """The inverse of `Input.array`."""
  flat = x.ravel()
  if x.dtype.kind == "c":
    return Input(x.dtype.name, x.shape, tuple((float(z.real), float(z.imag)) for z in flat))
  if kind_of(x.dtype) == "f":
    return Input(x.dtype.name, x.shape, tuple(map(float, flat)))
  return Input(x.dtype.name, x.shape, tuple(flat.tolist()))


@st.composite
def inputs(draw: Any, dtype: str, shape: tuple[int, ...], tame: bool) -> Input:
  """An input of this aval."""
  count = min(int(np.prod(shape)), 12)
  kind = kind_of(jnp.dtype(dtype))
  table = (TAME if tame else HOSTILE)["f" if kind == "c" else kind]
  info = None if kind == "b" else jnp.finfo(dtype) if kind in "fc" else jnp.iinfo(dtype)
  limits = {
    name: (float if kind in "fc" else int)(getattr(info, name))
    for name in ("min", "max", "tiny")
    if hasattr(info, name)
  }
  value = st.sampled_from(table).map(lambda v: limits[v] if isinstance(v, str) else v)
  value = st.tuples(value, value) if kind == "c" else value
  return Input(dtype, shape, tuple(draw(value) for _ in range(count)))


class _Pool:
  """The program under construction: every operand is an earlier value of the right aval, or a new
  input."""

  def __init__(self, draw: Callable[..., Any], x64: bool, tame: bool):
    self.draw, self.x64, self.tame = draw, x64, tame
    self.inputs: list[Input] = []
    self.values: list[jax.ShapeDtypeStruct] = []
    self.steps: list[Step] = []

  def aval(self, i: int) -> jax.ShapeDtypeStruct:
    """The aval of value i."""
    return (
      self.values[i]
      if i >= 0
      else jax.ShapeDtypeStruct(self.inputs[~i].shape, jnp.dtype(self.inputs[~i].dtype))
    )

  def operand(
    self, suits: Callable[[Any], bool], new: Callable[[], tuple[str, tuple[int, ...]]], reuse: int
  ) -> int:
    """The number of an operand that suits: with `reuse` of 8 chances an earlier value, of these
    half the newest."""
    numbers = [
      i
      for i in [*reversed(range(len(self.values))), *(~i for i in range(len(self.inputs)))]
      if suits(self.aval(i))
    ]
    choice = self.draw(st.integers(0, 7))
    if numbers and choice < reuse:
      return numbers[0] if choice < reuse // 2 else self.draw(st.sampled_from(numbers))
    self.inputs.append(self.draw(inputs(*new(), self.tame)))
    return -len(self.inputs)

  def add(self, row: Row) -> None:
    """One more step; none if JAX refuses it."""
    dtypes = [d for d in (DTYPES_X64 if self.x64 else DTYPES) if row.takes(jnp.dtype(d))]
    if self.tame and (floats := [d for d in dtypes if kind_of(jnp.dtype(d)) == "f"]):
      dtypes = floats
    ranks = range(row.ranks[0], row.ranks[1] + 1)

    def new() -> tuple[str, tuple[int, ...]]:
      rank = self.draw(st.sampled_from(ranks))
      return self.draw(st.sampled_from(dtypes)), tuple(
        self.draw(st.sampled_from(SIZES)) for _ in range(rank)
      )

    before = len(self.inputs)
    first = self.operand(lambda a: row.takes(a.dtype) and len(a.shape) in ranks, new, 6)
    x = self.aval(first)
    params = row.params(self.draw, x)
    if params is None:
      del self.inputs[before:]
      return
    operands = [first]
    for like in [(jnp.dtype(dtype).name, tuple(shape)) for dtype, shape in row.more(x, params)]:
      # seldom the same twice
      operands.append(
        self.operand(
          lambda a, like=like: (a.dtype.name, a.shape) == like, lambda like=like: like, 3
        )
      )
    step = Step(row.name, tuple(operands), params)
    try:
      results = jax.eval_shape(step, *map(self.aval, operands))
    # not of this dtype, or not in this JAX
    except (TypeError, ValueError, IndexError, NotImplementedError):
      del self.inputs[before:]
      return
    if sum(int(np.prod(r.shape)) for r in results) <= 400 and all(
      len(r.shape) <= 4 for r in results
    ):
      self.steps.append(step)
      self.values += [jax.ShapeDtypeStruct(r.shape, r.dtype) for r in results]
    else:
      del self.inputs[before:]


@st.composite
def programs(draw: Any, names: Sequence[str] = tuple(ROWS), max_steps: int = 8) -> Program:
  """Programs of 1 to `max_steps` of these functions; a third has tame values, for gradients."""
  x64, tame = draw(st.booleans()), draw(st.integers(0, 2)) == 1
  pool = _Pool(draw, x64, tame)
  with jax.enable_x64(x64):
    for _ in range(draw(st.integers(1, max_steps))):
      pool.add(ROWS[draw(st.sampled_from(names))])
  assume(pool.steps)
  return Program(tuple(pool.inputs), tuple(pool.steps), x64, tame)
