"""A random program converted, against JAX: each step on the very operands that TensorFlow gave it.

The whole program is converted once, with every intermediate value as a result. Then JAX computes
each step from TensorFlow's own operands, so that a rounding difference of one step is never
amplified by a later one, and a later step cannot hide a wrong one: by induction the program is
right if every step is. A step may differ by its row's tolerance only (`program_rows.ROWS`), and
that is nothing for integers, selections and single IEEE operations. Values that depend on no
rounding at all are also compared with JAX's run of the whole program, from end to end; those behind
an integer division by zero are not, for XLA makes 1 of x / x there.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf

import jax2tf
from tests.support.case import as_numpy, xla_ops
from tests.support.conformance.program_rows import EXACT, Row, kind_of
from tests.support.conformance.program_rows_arrays import ROWS
from tests.support.conformance.programs import Program, Step, operands_of
from tests.support.derivatives import jax_pullback, random_like, tf_pullback


@dataclasses.dataclass(frozen=True)
class Mismatch:
  """What went wrong: `kind` is value, aval, chain, gradient, xla or error; `name` the function,
  `program` the step alone."""

  kind: str
  name: str
  detail: str
  program: Program


def check(program: Program) -> list[Mismatch]:
  """All mismatches of a program."""
  with jax.enable_x64(program.x64), np.errstate(all="ignore"):
    arrays = program.arrays()
    try:
      concrete = _concrete(program, arrays, with_gradient=False)
      values = [as_numpy(y) for y in jax.tree.leaves(concrete(*map(tf.constant, arrays)))]
    except Exception as error:
      mismatch = Mismatch(
        "error", program.steps[-1].name, f"{type(error).__name__}: {error}"[:1500], program
      )
      return _errors_alone(program, arrays) or [mismatch]
    operands = [operands_of(step, arrays, values) for step in program.steps]
    expected, whole = jax.tree.map(
      np.asarray, jax.jit(functools.partial(_by_jax, program))(arrays, operands)
    )
    found = (
      [Mismatch("xla", "program", str(xla), program)] if (xla := xla_ops(concrete.graph)) else []
    )
    if len(values) != len(jax.tree.leaves(expected)):
      return [*found, Mismatch("aval", "program", f"{len(values)} results", program)]
    solid: list[bool] = []
    start = 0
    for k, step in enumerate(program.steps):
      row, ours = ROWS[step.name], values[start : start + len(expected[k])]
      settled = all(solid[i] for i in step.operands if i >= 0) and not np.any(
        _skipped(row, step.params, operands[k])
      )
      settled &= not (
        step.name in ("div", "rem")
        and kind_of(operands[k][1].dtype) in "iu"
        and (operands[k][1] == 0).any()
      )
      for y, theirs, from_start in zip(ours, expected[k], whole[k], strict=True):
        solid.append(settled and (row.moves or kind_of(theirs.dtype) in "biu"))
        if detail := difference(row, step.params, operands[k], y, theirs):
          found.append(
            Mismatch(
              "aval" if detail.startswith("aval") else "value",
              step.name,
              detail,
              program.alone(operands[k], k),
            )
          )
        elif solid[-1] and not _same(y, from_start, signs=True).all():
          found.append(Mismatch("chain", step.name, _few(y, from_start), program))
      start += len(ours)
    return found + (_check_gradients(program, operands, expected) if program.tame else [])


def _errors_alone(program: Program, arrays: Sequence[np.ndarray]) -> list[Mismatch]:
  """The mismatches of each step alone, on JAX's values, for a program that cannot be converted or
  run."""
  if len(program.steps) == 1:
    return []
  values = jax.tree.map(np.asarray, jax.tree.leaves(jax.jit(program)(*arrays)))
  alone = [
    program.alone(operands_of(step, arrays, values), k) for k, step in enumerate(program.steps)
  ]
  return [m for p in alone for m in check(p) if m.kind == "error"]


def _by_jax(
  program: Program, arrays: Sequence[Any], operands: Sequence[Sequence[Any]]
) -> tuple[Any, Any]:
  """(every step on its own operands, the whole program)."""
  return [step(*xs) for step, xs in zip(program.steps, operands, strict=True)], program(*arrays)


def _concrete(fun: Any, arrays: Sequence[np.ndarray], **options: Any) -> Any:
  specs = [tf.TensorSpec(x.shape, x.dtype) for x in arrays]
  return tf.function(jax2tf.convert(fun, **options), autograph=False).get_concrete_function(*specs)


def difference(
  row: Row, params: Any, operands: Sequence[np.ndarray], ours: np.ndarray, theirs: np.ndarray
) -> str:
  """Where a result is further from JAX's than its row allows, or nothing."""
  if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
    return f"aval {ours.dtype}{list(ours.shape)}, JAX has {theirs.dtype}{list(theirs.shape)}"
  if not ours.size:
    return ""
  if row.units <= 0 or not jnp.issubdtype(theirs.dtype, np.inexact):
    good = _same(ours, theirs, signs=row.units == EXACT)
  else:
    scale = _scale(row, operands, theirs)
    # Halves are computed in f32 and rounded once, by all but the sums, which round at each term.
    units = min(row.units, 4.0) if theirs.dtype.itemsize == 2 and not row.largest else row.units
    good = near(ours, theirs, units, scale)
  good = good | np.broadcast_to(_skipped(row, params, operands), good.shape)
  return "" if good.all() else _few(ours[~good], theirs[~good])


def _skipped(row: Row, params: Any, operands: Sequence[np.ndarray]) -> Any:
  # TensorFlow's CPU kernels flush subnormals to zero; a bitcast of integers may make some.
  if not row.moves and any(is_subnormal(x).any() for x in operands):
    return True
  return row.skip(params, *operands) if row.skip else False


def is_subnormal(x: np.ndarray) -> np.ndarray:
  """Where a number, or a part of it, is subnormal."""
  if not jnp.issubdtype(x.dtype, np.inexact):
    return np.zeros(x.shape, bool)
  if np.iscomplexobj(x):
    return is_subnormal(x.real) | is_subnormal(x.imag)
  return (x != 0) & (np.abs(x) < jnp.finfo(x.dtype).tiny)


def _same(ours: np.ndarray, theirs: np.ndarray, signs: bool) -> np.ndarray:
  """Equal, or both NaN; `signs`: of zeros too. A subnormal may be a zero."""
  if np.iscomplexobj(theirs):
    return _same(ours.real, theirs.real, signs) & _same(ours.imag, theirs.imag, signs)
  if not jnp.issubdtype(theirs.dtype, np.inexact):
    return ours == theirs
  equal = (ours == theirs) & ((np.signbit(ours) == np.signbit(theirs)) | (not signs))
  return equal | (np.isnan(ours) & np.isnan(theirs)) | ((ours == 0) & is_subnormal(theirs))


def _scale(row: Row, operands: Sequence[np.ndarray], theirs: np.ndarray) -> float:
  """What the error is relative to, beside the value itself: a term of a sum, and a product of
  terms."""
  if not row.largest:
    return 0.0
  sizes = [_largest(x) for x in operands if jnp.issubdtype(x.dtype, np.inexact)]
  return max([row.least, _largest(theirs), *sizes, float(np.prod(sizes))])


def _largest(x: np.ndarray) -> float:
  size = np.abs(x.astype(np.complex128 if np.iscomplexobj(x) else np.float64))
  return float(size[np.isfinite(size)].max(initial=0.0))


def near(ours: np.ndarray, theirs: np.ndarray, units: float, scale: float) -> np.ndarray:
  """Where |ours - theirs| is at most `units` machine epsilons of |theirs| or of `scale`; NaN and
  infinities in the same places."""
  # each part, relative to the number: a complex product rounds like that
  if np.iscomplexobj(theirs):
    size = np.abs(theirs)
    return _near(ours.real, theirs.real, units, scale, size) & _near(
      ours.imag, theirs.imag, units, scale, size
    )
  return _near(ours, theirs, units, scale, np.abs(theirs))


def _near(
  ours: np.ndarray, theirs: np.ndarray, units: float, scale: float, size: np.ndarray
) -> np.ndarray:
  info = jnp.finfo(theirs.dtype)
  ours, theirs, size = (
    ours.astype(np.float64),
    theirs.astype(np.float64),
    np.asarray(size).astype(np.float64),
  )
  with np.errstate(invalid="ignore", over="ignore"):
    close = np.abs(ours - theirs) <= units * float(info.eps) * np.maximum(
      np.where(np.isfinite(size), size, 0.0), scale
    ) + float(info.tiny)
  return np.where(
    np.isfinite(theirs), close, (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
  )


def _few(ours: np.ndarray, theirs: np.ndarray) -> str:
  return f"{ours.ravel()[:5].tolist()}, JAX has {theirs.ravel()[:5].tolist()} ({theirs.dtype})"


# A VJP is a few products and sums of the function's own kind.
_GRADIENT_UNITS = 64.0


def _check_gradients(
  program: Program,
  operands: Sequence[Sequence[np.ndarray]],
  results: Sequence[Sequence[np.ndarray]],
) -> list[Mismatch]:
  """The VJP of each step on its own operands, all in one conversion; where everything is finite and
  no operand is large."""
  chosen = [
    k
    for k, step in enumerate(program.steps)
    if ROWS[step.name].gradient
    and not np.any(_skipped(ROWS[step.name], step.params, operands[k]))
    and all(_is_mild(x) for x in [*operands[k], *results[k]])
    and any(_is_inexact(x) for x in operands[k])
    and any(_is_inexact(y) for y in results[k])
    and _has_derivative(step, operands[k])
  ]
  if not chosen:
    return []
  rng = np.random.default_rng(0)
  xs = [[x for x in operands[k] if _is_inexact(x)] for k in chosen]
  seeds = [[random_like(rng, y) for k in chosen for y in results[k] if _is_inexact(y)]]

  def fun(*flat: Any) -> list[Any]:
    """Each chosen step; every operand of every step is an argument of its own."""
    rest, ys = list(flat), []
    for k in chosen:
      full = [rest.pop(0) if _is_inexact(x) else x for x in operands[k]]
      ys += [y for y in program.steps[k](*full) if _is_inexact(y)]
    return ys

  flat = [x for group in xs for x in group]
  expected = jax.jit(functools.partial(jax_pullback, fun))(seeds, *flat)
  gradient = tf.function(functools.partial(tf_pullback, jax2tf.convert(fun)), autograph=False)
  tensors = jax.tree.map(tf.constant, seeds), *map(tf.constant, flat)
  try:
    concrete = gradient.get_concrete_function(*tensors)
    actual = [as_numpy(x) for x in gradient(*tensors)]
  except Exception as error:
    return [Mismatch("error", "gradient", f"{type(error).__name__}: {error}"[:1500], program)]
  found = (
    [Mismatch("xla", "gradient", str(ops), program)] if (ops := xla_ops(concrete.graph)) else []
  )
  ours, theirs = list(actual), [np.asarray(x) for x in expected]
  for k, group in zip(chosen, xs, strict=True):
    row, name = ROWS[program.steps[k].name], program.steps[k].name
    for x in group:
      a, e = ours.pop(0), theirs.pop(0)
      # Halves: XLA computes the VJP in f32 and rounds in the end, TensorFlow rounds 1 - y and its
      # like.
      scale = max(_largest(e), row.least, 1.0 if row.largest or a.dtype.itemsize == 2 else 0.0)
      if a.dtype != e.dtype or a.shape != e.shape:
        found.append(
          Mismatch(
            "gradient",
            name,
            f"aval {a.dtype}{a.shape} for {x.dtype}{x.shape}",
            program.alone(operands[k], k),
          )
        )
      elif not (
        good := near(a, e, max(row.units, _GRADIENT_UNITS) if a.dtype.itemsize > 2 else 8.0, scale)
      ).all():
        found.append(
          Mismatch("gradient", name, _few(a[~good], e[~good]), program.alone(operands[k], k))
        )
  return found


def _has_derivative(step: Step, operands: Sequence[np.ndarray]) -> bool:
  """Whether JAX can transpose it: not with empty operands, window dilation ... everywhere."""

  def pull(*xs: Any) -> Any:
    ys, pullback = jax.vjp(lambda *xs: [y for y in step(*xs) if _is_inexact(y)], *xs)
    return pullback([jnp.zeros_like(y) for y in ys])

  try:
    jax.eval_shape(pull, *operands)
  except (TypeError, ValueError, NotImplementedError):
    return False
  return True


def _is_inexact(x: Any) -> bool:
  return jnp.issubdtype(x.dtype, np.inexact)


def _is_mild(x: np.ndarray) -> bool:
  return not _is_inexact(x) or bool(
    np.isfinite(x).all() and _largest(x) < 1e3 and not is_subnormal(x).any()
  )
