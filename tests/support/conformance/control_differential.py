"""A random program with control flow, converted and differentiated, against JAX.

The value and the derivatives may differ by some machine epsilons of the largest number among them.
Where a float32 program differs by more, JAX's own derivative in float64 decides: ours may be as far
from it as a few times JAX's in float32.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import tensorflow as tf

import jax2tf
from tests.support.case import as_numpy
from tests.support.conformance.control_programs import Program, smaller
from tests.support.conformance.differential import Mismatch
from tests.support.derivatives import jax_pullback, random_like, tf_pullback

# Some fifty roundings, each of a number of about 1.
_UNITS = 64.0
# A float32 program with cancellation has its own rounding error; another order of its operations
# has another one.
_TIMES_JAXS_ERROR = 8.0

Seeds = Sequence[Sequence[Any]]


def _by_tape(f: Any, seeds: Seeds, tangents: Sequence[Any], *xs: Any) -> list[Any]:
  return [*f(*xs), *tf_pullback(f, seeds[:1], *xs)]


def _second(f: Any, seeds: Seeds, tangents: Sequence[Any], *xs: Any) -> list[Any]:
  return tf_pullback(f, seeds, *xs)


def _forward(f: Any, seeds: Seeds, tangents: Sequence[Any], *xs: Any) -> list[Any]:
  with tf.autodiff.ForwardAccumulator([*xs], [*tangents]) as accumulator:
    ys = f(*xs)
  return [*ys, *map(accumulator.jvp, ys)]


def _hvp(f: Any, seeds: Seeds, tangents: Sequence[Any], *xs: Any) -> list[Any]:
  with tf.autodiff.ForwardAccumulator([*xs], [*tangents]) as accumulator:
    gradient = tf_pullback(f, seeds[:1], *xs)
  return [accumulator.jvp(x, tf.UnconnectedGradients.ZERO) for x in gradient]


_TF = {"second": _second, "forward": _forward, "hvp": _hvp}


def _by_jax(f: Any, way: str, seeds: Seeds, tangents: Sequence[Any], *xs: Any) -> list[Any]:
  first = functools.partial(jax_pullback, f, seeds[:1])
  if way == "second":
    return jax_pullback(f, seeds, *xs)
  if way in ("forward", "hvp"):
    ys, moved = jax.jvp(f if way == "forward" else first, xs, tuple(tangents))
    return [*ys, *moved] if way == "forward" else moved
  return [*f(*xs), *first(*xs)]


# tape: a tape in a tf.function; around: a tape around a tf.function; hvp: an accumulator around a
# tape in a tf.function.
WAYS = ("tape", "second", "around", "jit_compile", "eager", "forward", "hvp")


def _by_tensorflow(program: Program, spec: tf.TensorSpec) -> Callable[..., list[Any]]:
  """(seeds, tangents, *xs) -> what is compared."""
  converted = jax2tf.convert(program, polymorphic_shapes="b" if program.symbolic else None)
  some = [spec] * program.inputs
  if program.way == "eager":
    return functools.partial(_by_tape, converted)
  if program.way == "around":
    function = tf.function(converted, autograph=False, input_signature=some)
    return functools.partial(_by_tape, function)
  compare = functools.partial(_TF.get(program.way, _by_tape), converted)
  signature = [[[spec], some], some, *some]
  compiled = program.way == "jit_compile" or None
  return tf.function(compare, autograph=False, input_signature=signature, jit_compile=compiled)


def check(program: Program) -> list[Mismatch]:
  """What differs: nothing, or one mismatch; of the kind "jax" where JAX itself fails."""
  with jax.enable_x64(program.dtype == "float64"):
    rng = np.random.default_rng(0)
    arrays = program.arrays()
    # The second order has cotangents of the gradient.
    seeds = [[random_like(rng, arrays[0])], [random_like(rng, x) for x in arrays]]
    tangents = [random_like(rng, x) for x in arrays]
    try:
      theirs = _reference(program, seeds, tangents, arrays)
    except Exception as error:
      return [Mismatch("jax", program.way, f"{type(error).__name__}: {error}"[:1500], program)]
    spec = tf.TensorSpec([None if program.symbolic else program.size], program.dtype)
    try:
      arguments = jax.tree.map(tf.constant, (seeds, tangents, *arrays))
      ours = [as_numpy(x) for x in _by_tensorflow(program, spec)(*arguments)]
    except Exception as error:
      return [Mismatch("error", program.way, f"{type(error).__name__}: {error}"[:1500], program)]
  if len(ours) != len(theirs) or any(a.dtype != b.dtype for a, b in zip(ours, theirs, strict=True)):
    return [Mismatch("aval", program.way, f"{ours}, JAX has {theirs}", program)]
  if (off := _distance(ours, theirs)) <= _base(theirs):
    return []
  allowed = _base(theirs)
  if program.dtype == "float32":
    wide = jax.tree.map(lambda x: x.astype(np.float64), (seeds, tangents, arrays))
    with jax.enable_x64(True):
      exact = _reference(program, *wide)
    allowed += _TIMES_JAXS_ERROR * _distance(theirs, exact)
    off = _distance(ours, exact)
  detail = f"off by {off:.2g}, allowed {allowed:.2g}: {ours}, JAX has {theirs}"[:1500]
  return [Mismatch("value", program.way, detail, program)] if not off <= allowed else []


def _reference(program: Program, seeds: Seeds, tangents: Any, arrays: Any) -> list[np.ndarray]:
  of_jax = jax.jit(functools.partial(_by_jax, program, program.way))
  return [np.asarray(x) for x in of_jax(seeds, tangents, *arrays)]


def _distance(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> float:
  """The largest difference; NaN where either has one."""
  return float(
    max(np.abs(a.astype(np.float64) - b).max() for a, b in zip(ours, theirs, strict=True))
  )


def _base(theirs: Sequence[np.ndarray]) -> float:
  largest = max(1.0, *(float(np.abs(x).max()) for x in theirs))
  return _UNITS * float(np.finfo(theirs[0].dtype).eps) * largest


def shrunk(mismatch: Mismatch, most: int = 200) -> Mismatch:
  """The mismatch of the smallest program that has one of this kind, among `most` that are tried."""
  left = most
  found = True
  while found and left > 0:
    found = False
    for program in smaller(mismatch.program):
      left -= 1
      same = [m for m in check(program) if m.kind == mismatch.kind]
      if same or left <= 0:
        mismatch, found = (same or [mismatch])[0], bool(same)
        break
  return mismatch
