"""JAX's own test harnesses, run through the converter.

`jax._src.internal_test_util.test_harnesses` ships in the JAX wheel: about 5,500 cases for 130
primitives, and 7,400 when it is imported with 64-bit types enabled. Here a harness is run with them
(its name then ends in `@x64`), and once more without unless it speaks of 64-bit types.
"""

from __future__ import annotations

import dataclasses
import functools
import random
import re
import sys
import warnings
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf

import jax2tf
from tests.support.case import as_numpy, xla_ops
from tests.support.conformance.tolerances import (
  CUSTOM_CHECKS,
  DERIVATIVES,
  LIMITATIONS,
  OF_THE_LARGEST,
  WELL_DEFINED,
  coarsest_epsilon,
  tolerance,
)
from tests.support.derivatives import inexact, jax_pullback, random_like, restricted, tf_pullback

X64 = "@x64"
_SPEAKS_OF_64_BITS = re.compile("int64|float64|complex128")


@dataclasses.dataclass(frozen=True)
class Outcome:
  """What one harness showed in one way.

  Attributes:
    harness, group, dtype, way: which; `harness` ends in @x64 if 64-bit types were enabled.
    status: pass, limit (a listed limitation), skip (JAX itself refuses, or nothing to
      differentiate) or fail.
    error: the largest error, in units of the dtype's machine epsilon relative to the value.
    allowed: the tolerance, in the same units.
    detail: the exception, or the reason of a limit or skip.
  """

  harness: str
  group: str
  dtype: str
  way: str
  status: str
  error: float = 0.0
  allowed: float = 0.0
  detail: str = ""


@functools.cache
def load() -> dict[str, Any]:
  """{name: harness} of those that JAX supports on CPU."""
  argv, sys.argv = sys.argv, sys.argv[:1]  # the module parses absl flags at import
  try:
    with warnings.catch_warnings(), jax.enable_x64(True):
      warnings.simplefilter("ignore")
      from jax._src.internal_test_util import test_harnesses  # noqa: PLC0415  (slow, and not part of JAX's API)
  finally:
    sys.argv = argv
  harnesses = {h.fullname: h for h in test_harnesses.all_harnesses if h.filter("cpu")}
  narrow = {
    name: h
    for name, h in harnesses.items()
    if not (_SPEAKS_OF_64_BITS.search(name) or h.params.get("enable_xla64"))
  }
  return narrow | {name + X64: h for name, h in harnesses.items()}


def sample(size: int, seed: int) -> list[str]:
  """A seeded sample of harness names with at least one of every group."""
  harnesses = load()
  groups: dict[str, list[str]] = {}
  for name in sorted(harnesses):
    groups.setdefault(harnesses[name].group_name, []).append(name)
  rng = random.Random(seed)
  chosen = {rng.choice(names) for names in groups.values()}
  rest = sorted(set(harnesses) - chosen)
  return sorted(chosen | set(rng.sample(rest, min(max(0, size - len(chosen)), len(rest)))))


def outcome_of(name: str, way: str) -> Callable[..., Outcome]:
  """Makes the outcome of a harness, of its status and what follows it."""
  harness = load()[name]
  dtype = np.dtype(harness.dtype).name if harness.dtype is not None else ""
  return functools.partial(Outcome, name, harness.group_name, dtype, way)


def in_groups(cases: Sequence[tuple[str, str]], groups: Sequence[str]) -> list[tuple[str, str]]:
  """The cases (harness, way) of these groups; all for no groups."""
  return [case for case in cases if not groups or load()[case[0]].group_name in groups]


@functools.cache
def run(name: str, way: str) -> Outcome:
  """One harness in one way, once in a process; never raises."""
  harness, outcome = load()[name], outcome_of(name, way)
  with jax.enable_x64(name.endswith(X64)), warnings.catch_warnings():
    warnings.simplefilter("ignore")
    try:
      rng = np.random.RandomState(zlib.crc32(name.encode()))
      args = list(harness.dyn_args_maker(rng))
      expected = _by_jax(harness.dyn_fun, *args)
    except Exception as error:  # JAX itself cannot run it here
      return outcome("skip", detail=f"JAX: {type(error).__name__}: {error}"[:200])
    if reason := next((r for matches, r in LIMITATIONS if matches(harness, way)), None):
      return outcome("limit", detail=reason)
    try:
      return _CHECKS[way](harness, args, expected, outcome)
    except Exception as error:
      return outcome("fail", detail=f"{type(error).__name__}: {error}"[:2000])


def lost(error: Exception, name: str, way: str) -> Outcome:
  """The outcome of a harness that took its process down."""
  return Outcome(name, load()[name].group_name, "", way, "fail", detail=str(error))


def _by_jax(fun: Any, *args: Any) -> Any:
  """The results of `jax.jit(fun)`; a function of its own for each run, for JAX's cache mixes up
  those that close over arrays."""
  return jax.block_until_ready(jax.jit(lambda *args: fun(*args))(*args))


def _check_graph(harness: Any, args: Any, expected: Any, outcome: Any) -> Outcome:
  function = tf.function(jax2tf.convert(harness.dyn_fun), autograph=False)
  _no_xla_ops(function.get_concrete_function(*args))
  return compare(harness, args, function(*args), expected, outcome, "graph")


def _check_eager(harness: Any, args: Any, expected: Any, outcome: Any) -> Outcome:
  return compare(harness, args, jax2tf.convert(harness.dyn_fun)(*args), expected, outcome, "eager")


def _check_xla(harness: Any, args: Any, expected: Any, outcome: Any) -> Outcome:
  function = tf.function(jax2tf.convert(harness.dyn_fun), autograph=False, jit_compile=True)
  return compare(harness, args, function(*args), expected, outcome, "xla")


def _check_gradient(harness: Any, args: Any, expected: Any, outcome: Any) -> Outcome:
  return _check_derivative(harness, args, expected, outcome, 1)


def _check_second(harness: Any, args: Any, expected: Any, outcome: Any) -> Outcome:
  return _check_derivative(harness, args, expected, outcome, 2)


def _check_derivative(harness: Any, args: Any, expected: Any, outcome: Any, order: int) -> Outcome:
  """The VJP for random cotangents; of order 2, the VJP of that as a function of the primals."""
  well_defined = WELL_DEFINED.get(harness.group_name, lambda harness, results: results)
  leaves, outs = jax.tree.leaves(args), jax.tree.leaves(well_defined(harness, expected))
  wrt, results = inexact(leaves), inexact(outs)
  if not (wrt and results):
    return outcome("skip", detail="nothing to differentiate")
  fun = restricted(lambda *args: well_defined(harness, harness.dyn_fun(*args)), args, wrt, results)
  rng = np.random.RandomState(1)
  primals = [jnp.asarray(leaves[i]) for i in wrt]
  seeds = [
    [random_like(rng, outs[i]) for i in results],
    *[[random_like(rng, x) for x in primals]] * (order - 1),
  ]
  try:
    expected = list(_by_jax(functools.partial(jax_pullback, fun), seeds, *primals))
  except Exception as error:  # JAX has no such derivative
    return outcome("skip", detail=f"JAX: {type(error).__name__}: {error}"[:200])

  gradient = tf.function(functools.partial(tf_pullback, jax2tf.convert(fun)), autograph=False)
  operands = jax.tree.map(tf.constant, seeds), *[tf.constant(np.asarray(x)) for x in primals]
  _no_xla_ops(gradient.get_concrete_function(*operands))
  # A cotangent of float64 that comes by way of a float32 result is no better than that.
  coarsest = max(float(jnp.finfo(s.dtype).eps) for s in seeds[0])
  return compare(
    harness,
    args,
    gradient(*operands),
    expected,
    outcome,
    "gradient" if order == 1 else "second",
    coarsest,
  )


def _check_empty(harness: Any, args: Any, expected: Any, outcome: Any) -> Outcome:
  """vmapped over an axis of size 0, with the gradient: a size that the graph is made for, then one
  that it learns when it runs."""
  del expected
  batch = [np.zeros((1, *x.shape), x.dtype) for x in map(np.asarray, args)]
  fun = jax.vmap(harness.dyn_fun)

  def rest(*batch: Any) -> Any:
    return fun(*(x[1:] for x in batch))

  def whole(pullback: Any, fun: Any) -> Any:
    """The results, and the cotangents if there is anything to differentiate."""
    return lambda *batch: (
      fun(*batch),
      pullback(restricted(fun, batch, wrt, results), seeds, *(batch[i] for i in wrt))
      if wrt and results
      else (),
    )

  try:
    shapes = jax.eval_shape(rest, *batch)
    wrt, results = inexact(batch), inexact(leaves := jax.tree.leaves(shapes))
    seeds = [[np.zeros(leaves[i].shape, leaves[i].dtype) for i in results]]
    reference = _by_jax(whole(jax_pullback, rest), *batch)
    specs = jax.export.symbolic_args_specs(
      [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in batch], [_BATCH] * len(batch)
    )
    jax.eval_shape(
      lambda *batch: _pulled(
        *jax.vjp(restricted(rest, batch, wrt, results), *(batch[i] for i in wrt))
      ),
      *specs,
    )
  except Exception as error:  # JAX cannot batch it, or has no such derivative
    return outcome("skip", detail=f"JAX: {type(error).__name__}: {error}"[:200])
  for poly in (None, [_BATCH] * len(batch)):
    converted = jax2tf.convert(rest, polymorphic_shapes=poly)
    function = tf.function(
      whole(tf_pullback, converted),
      autograph=False,
      input_signature=[tf.TensorSpec([None if poly else 1, *x.shape[1:]], x.dtype) for x in batch],
    )
    result = compare(
      harness, args, function(*map(tf.constant, batch)), reference, outcome, "gradient"
    )
    if result.status == "fail":
      return result
  return result


def _pulled(outs: Any, pull: Any) -> Any:
  return pull(outs)


_BATCH = "b, ..."
_CHECKS = {
  "empty": _check_empty,
  "graph": _check_graph,
  "eager": _check_eager,
  "xla": _check_xla,
  "gradient": _check_gradient,
  "second": _check_second,
}


def _no_xla_ops(concrete: Any) -> None:
  if found := xla_ops(concrete.graph):
    raise AssertionError(f"Xla ops in the graph: {found}")


def compare(
  harness: Any, args: Any, actual: Any, expected: Any, outcome: Any, way: str, coarsest: float = 0.0
) -> Outcome:
  actual, expected = jax.tree.map(as_numpy, actual), jax.tree.map(as_numpy, expected)
  if jax.tree.structure(actual) != jax.tree.structure(expected):
    return outcome(
      "fail",
      detail=f"structure {jax.tree.structure(actual)}, JAX has {jax.tree.structure(expected)}",
    )
  for ours, theirs in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
    if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
      return outcome(
        "fail", detail=f"{ours.dtype}{ours.shape}, JAX has {theirs.dtype}{theirs.shape}"
      )
  custom = CUSTOM_CHECKS.get(harness.group_name)
  derivative = way in DERIVATIVES
  if custom and not derivative:
    actual, expected = custom(harness, args, actual, expected)
  coarsest = max(coarsest, coarsest_epsilon(harness, args))
  worst, allowed = 0.0, 0.0
  for ours, theirs in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
    # a cotangent is a sum of products
    floor = 1.0 if derivative or harness.group_name in OF_THE_LARGEST else 2.0**-10
    error, limit = (
      error_in_ulp(ours, theirs, floor, coarsest),
      tolerance(harness, theirs.dtype, way),
    )
    if error - limit > worst - allowed or allowed == 0.0:
      worst, allowed = error, limit
  detail = "" if worst <= allowed else _mismatch(actual, expected)
  return outcome("pass" if worst <= allowed else "fail", worst, allowed, detail)


def _mismatch(actual: Any, expected: Any) -> str:
  return "; ".join(
    f"{a.ravel()[:6]} JAX has {e.ravel()[:6]}"
    for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True)
  )[:600]


def error_in_ulp(actual: Any, expected: Any, floor: float, coarsest: float = 0.0) -> float:
  """The largest |actual - expected| / (eps |expected|); infinite for a NaN or an infinity in
  another place.

  A value below the part `floor` of the largest in its array is measured against that part; integers
  and bools are exact, or infinitely wrong. `eps` is that of the dtype, and at least `coarsest`.
  """
  actual, expected = np.asarray(actual), np.asarray(expected)
  if actual.size == 0:
    return 0.0
  if not jnp.issubdtype(expected.dtype, np.inexact):
    return (
      0.0
      if actual.tobytes() == expected.tobytes()
      or np.array_equal(actual.astype(object), expected.astype(object))
      else np.inf
    )
  info = jnp.finfo(expected.dtype)
  size = np.abs(expected.astype(np.complex128 if np.iscomplexobj(expected) else np.float64))
  # each part, relative to the number: a complex product rounds like that
  if np.iscomplexobj(expected):
    actual, expected, size = (
      np.stack(parts)
      for parts in ((actual.real, actual.imag), (expected.real, expected.imag), (size, size))
    )
  actual, expected = actual.astype(np.float64), expected.astype(np.float64)
  finite = np.isfinite(expected)
  if not (np.isfinite(actual) == finite).all() or not np.array_equal(
    actual[~finite], expected[~finite], equal_nan=True
  ):
    return np.inf
  actual, expected, size = (
    actual[finite],
    expected[finite],
    np.where(np.isfinite(size), size, 0.0)[finite],
  )
  if not expected.size:
    return 0.0
  magnitude = np.maximum(size, floor * size.max())
  # TensorFlow's CPU kernels flush subnormals to zero.
  difference = np.maximum(np.abs(actual - expected) - float(info.tiny), 0.0)
  return float(
    np.max(difference / np.maximum(max(float(info.eps), coarsest) * magnitude, float(info.tiny)))
  )
