"""Compares values: in a graph, eagerly, compiled by XLA, and with a symbolic size."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import tensorflow as tf
from jax import export

import jax2tf
from jax2tf.tools.lab.jax_tests import comparing, determined, evaluations, leaves, subjects
from jax2tf.tools.lab.jax_tests.comparing import Difference, Tolerance
from jax2tf.tools.lab.jax_tests.outcomes import Outcome, concluded, timed
from jax2tf.tools.lab.jax_tests.subjects import Arguments, Subject

Fun = Callable[..., Any]


def in_graph(converted: Fun, arguments: Arguments, signature: Any = None, xla: bool = False) -> Any:
  """Calls a converted function inside a tf.function whose arguments are the arrays."""
  tensors = [leaves.tensor(x) for x in arguments.arrays]
  at = [i for i, t in enumerate(tensors) if isinstance(t, tf.Tensor)]
  trees = []

  def body(*of_graph: tf.Tensor) -> list[Any]:
    operands = list(tensors)
    for i, t in zip(at, of_graph, strict=True):
      operands[i] = t
    args, kwargs = arguments.rebuilt(operands)
    results, tree = jax.tree.flatten(converted(*args, **kwargs))
    trees.append(tree)
    return results

  function = tf.function(body, autograph=False, jit_compile=xla or None, input_signature=signature)
  results = function(*[tensors[i] for i in at])
  return jax.tree.unflatten(trees[-1], results)


@timed
def check(subject: Subject, want: Any, way: str, tolerance: Tolerance) -> Outcome:
  """Compares one call.

  Args:
    subject: the call.
    want: the result of jax.jit.
    way: graph, eager, xla or symbolic.
    tolerance: of the test.
  """
  coarsest = comparing.coarsest_epsilon(subject.arguments.arrays)
  try:
    got = _COMPUTED[way](subject, want)
  except (jax2tf.LoweringError, subjects.TooLongError, subjects.UntraceableError):
    raise
  except Exception:
    subject.computed_again()
    raise
  difference = comparing.compare(want, got, tolerance, coarsest)
  if difference.kind not in ("rounding", "nan", "value"):
    return concluded(difference)
  try:
    return _explained(subject, want, got, tolerance)
  except subjects.TooLongError:
    return concluded(difference)


def _graph(subject: Subject, _: Any) -> Any:
  return in_graph(jax2tf.convert(subject.fun), subject.arguments)


def _xla(subject: Subject, _: Any) -> Any:
  return in_graph(jax2tf.convert(subject.fun), subject.arguments, xla=True)


def _eager(subject: Subject, _: Any) -> Any:
  args, kwargs = subject.arguments.rebuilt([leaves.tensor(x) for x in subject.arguments.arrays])
  return jax2tf.convert(subject.fun)(*args, **kwargs)


def _symbolic(subject: Subject, want: Any) -> Any:
  """The first axis of the first array, and equal ones, become a dimension variable."""
  arguments = subject.arguments
  first = next((x for x in arguments.arrays if x.ndim and x.shape[0] > 1), None)
  if first is None or not arguments.plain:
    raise subjects.UntraceableError("no axis")
  size = first.shape[:1]
  unknown = [leaves.is_array(x) and x.shape[:1] == size for x in arguments.leaves]
  texts = ["b, ..." if one else "..." for one in unknown]
  specs, by_name = jax.tree.unflatten(arguments.tree, texts)
  if by_name:
    raise subjects.UntraceableError("keyword arguments")
  args, _ = arguments.rebuilt(arguments.arrays)
  shapes = subjects.by_jax(export.symbolic_args_specs, args, specs)
  exported = subjects.by_jax(export.export(subjects.jit(subject.fun)), *shapes)
  if all(isinstance(size, int) for aval in exported.in_avals for size in aval.shape):
    raise subjects.UntraceableError("no axis")
  if exported.out_tree != jax.tree.structure(want):
    raise subjects.UntraceableError("the size is a part of the structure of the results")
  signature = []
  for i, x in zip(arguments.at, map(leaves.tensor, arguments.arrays), strict=True):
    if isinstance(x, tf.Tensor):
      signature.append(tf.TensorSpec([None, *x.shape[1:]] if unknown[i] else x.shape, x.dtype))
  return in_graph(jax2tf.convert(subject.fun, polymorphic_shapes=list(specs)), arguments, signature)


# (a call, JAX's results) -> ours.
_COMPUTED: dict[str, Callable[[Subject, Any], Any]]
_COMPUTED = {"graph": _graph, "eager": _eager, "xla": _xla, "symbolic": _symbolic}
WAYS = tuple(_COMPUTED)


def _explained(subject: Subject, want: Any, got: Any, tolerance: Tolerance) -> Outcome:
  """A difference from jax.jit that another evaluation of JAX has too, or that JAX leaves open."""
  arrays = subject.arguments.arrays
  coarsest = comparing.coarsest_epsilon(arrays)
  difference = comparing.compare(want, got, tolerance, coarsest)
  op_by_op = evaluations.op_by_op(subject.expected, subject.fun)
  if op_by_op is not None and not comparing.compare(op_by_op, got, tolerance, coarsest).kind:
    return concluded(Difference(), "op by op")
  if difference.kind == "rounding":
    return concluded(difference)
  parts = determined.by_parts(subject, tolerance)
  if parts is not None and not parts.kind:
    return concluded(parts, "what is determined")
  shaken = evaluations.or_none(subject.of_others, evaluations.shaken)
  if np.isfinite(difference.size):
    if evaluations.explain(want, got, (op_by_op, shaken)):
      return concluded(dataclasses.replace(difference, kind="rounding"), "other last bits")
    if evaluations.cancel(want, got, arrays):
      return concluded(dataclasses.replace(difference, kind="rounding"), "the arguments")
  return concluded(difference) if parts is None else concluded(parts, "what is determined")
