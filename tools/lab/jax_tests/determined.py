"""Compares functions whose results JAX leaves open, such as the signs of eigenvectors, in parts.

A function is cut at its open equations, but for those in loops and branches. The results of each
must be a right answer for the operands that JAX computes, and the rest of the function, which takes
JAX's own answers there, must have JAX's results.
"""

from __future__ import annotations

import collections
import types
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

import jax2tf
from jax2tf import jaxprs
from jax2tf.expansions import retracing
from jax2tf.tools.lab.jax_tests import comparing, leaves
from jax2tf.tools.lab.jax_tests.comparing import Difference, Tolerance
from jax2tf.tools.lab.jax_tests.subjects import Fun, jit
from tests.support.conformance.tolerances import CUSTOM_CHECKS


def _schur(of: Any, operands: Any, ours: Any, theirs: Any) -> tuple[Any, Any]:
  """(t, q), or t alone: the product, what is below the diagonal blocks of t, and q^H q."""

  def invariants(t: Any, *q: Any) -> list[Any]:
    products = [x for v in q for x in (v @ t @ _adjoint(v), _adjoint(v) @ v)]
    return [*products, np.tril(t, -2), np.trace(t, axis1=-2, axis2=-1)]

  return invariants(*ours), invariants(*theirs)


def _adjoint(a: Any) -> Any:
  return np.conj(np.swapaxes(a, -1, -2))


# Primitive -> (the params, operands, our results, JAX's) -> what of both has to be equal.
CHECKS = {name: CUSTOM_CHECKS[name] for name in ("eigh", "svd", "eig", "sort", "approx_top_k")}
CHECKS |= {"schur": _schur}


def is_open(fun: Fun, arrays: Sequence[Any]) -> bool:
  """Whether JAX leaves results of a function open."""
  return any(map(_is_open, jaxprs.walk(jax.make_jaxpr(fun)(*arrays))))


def by_parts(fun: Fun, arrays: Sequence[Any], tolerance: Tolerance) -> Difference | None:
  """The worst difference of the parts of a function; None if JAX leaves nothing open."""
  jaxpr = jax.make_jaxpr(fun)(*arrays)
  differences: list[Difference] = []
  answers: dict[int, list[Any]] = collections.defaultdict(list)

  def note(eqn: Any, *operands: Any) -> Sequence[Any]:
    results = _bound(eqn, operands)
    if _is_open(eqn) and not leaves.has_tracer(operands):
      differences.append(_of_equation(eqn, operands, results))
      answers[id(eqn)].append(results)
    return results

  retracing.Retracing(dict.fromkeys(CHECKS, note)).evaluate(jaxpr, *arrays)
  if not answers:
    return None

  def rest(arrays: Sequence[Any], answers: dict[str, Any]) -> list[Any]:
    left = {int(name): [*given] for name, given in answers.items()}

    def answer(eqn: Any, *operands: Any) -> Sequence[Any]:
      given = left.get(id(eqn))
      return given.pop(0) if given else _bound(eqn, operands)

    return retracing.Retracing(dict.fromkeys(CHECKS, answer)).evaluate(jaxpr, *arrays)

  given = {str(name): of_equation for name, of_equation in answers.items()}
  want = jit(rest)(arrays, given)
  got = jax2tf.convert(rest)(list(map(leaves.tensor, arrays)), jax.tree.map(leaves.tensor, given))
  of_rest = comparing.compare(want, got, tolerance, comparing.coarsest_epsilon(arrays))
  return comparing.worst([of_rest, *differences])


def _is_open(eqn: Any) -> bool:
  return eqn.primitive.name in CHECKS and not eqn.params.get("is_stable", False)


def _bound(eqn: Any, operands: Sequence[Any]) -> Sequence[Any]:
  """The results of an equation. No such primitive takes functions; all have several."""
  return list(eqn.primitive.bind(*operands, **eqn.params))


def _of_equation(eqn: Any, operands: Sequence[Any], results: Sequence[Any]) -> Difference:
  """Whether ours is a right answer, to some units in the last place of the largest number."""
  arrays = [np.asarray(x) for x in operands]
  ours = jax2tf.convert(lambda *operands: _bound(eqn, operands))(*arrays)
  # So that what is computed of them rounds no more.
  wide, got, want = ([_wide(leaves.as_numpy(x)) for x in of] for of in (arrays, ours, results))
  params = types.SimpleNamespace(params=eqn.params)
  got, want = CHECKS[eqn.primitive.name](params, wide, got, want)
  coarsest = comparing.coarsest_epsilon(arrays)
  difference = comparing.compare(want, got, Tolerance(0.0, 0.0), coarsest)
  return Difference() if difference.kind == "rounding" else difference


def _wide(x: np.ndarray) -> np.ndarray:
  return leaves.wide(x) if leaves.is_inexact(x) else x
