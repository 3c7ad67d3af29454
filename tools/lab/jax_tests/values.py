"""Compares values: in a graph, eagerly, compiled by XLA, and with a symbolic size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import tensorflow as tf
from jax import export

import jax2tf
from jax2tf.tools.lab.jax_tests import determined, explaining, leaves, subjects
from jax2tf.tools.lab.jax_tests.comparing import Tolerance
from jax2tf.tools.lab.jax_tests.outcomes import Outcome, timed
from jax2tf.tools.lab.jax_tests.subjects import Fun, Subject, UntraceableError


@timed
def check(subject: Subject, want: Any, way: str, tolerance: Tolerance) -> Outcome:
  """Compares one call.

  Args:
    subject: the call.
    want: the result of jax.jit.
    way: graph, eager, xla or symbolic.
    tolerance: of the test.
  """
  try:
    got = _COMPUTED[way](subject, want)
  except (jax2tf.LoweringError, subjects.TooLongError, UntraceableError):
    raise
  except Exception:
    subject.retraced()
    raise
  evaluations = explaining.Evaluations(
    subject.arrays,
    subject.op_by_op,
    subject.shaken,
    lambda: determined.by_parts(subject.fun, subject.arrays, tolerance),
  )
  return explaining.outcome(want, got, tolerance, evaluations)


def _in_graph(converted: Fun, subject: Subject, texts: Any = None, xla: bool = False) -> Any:
  """Calls a converted function inside a tf.function whose arguments are the arrays; those with a
  text of a symbolic first axis have an unknown first size."""
  tensors = [leaves.tensor(x) for x in subject.arrays]
  at = [i for i, t in enumerate(tensors) if isinstance(t, tf.Tensor)]
  trees = []

  def body(*of_graph: tf.Tensor) -> list[Any]:
    operands = list(tensors)
    for i, t in zip(at, of_graph, strict=True):
      operands[i] = t
    results, tree = jax.tree.flatten(converted(*operands))
    trees.append(tree)
    return results

  signature = None
  if texts:
    shapes = [
      [None, *tensors[i].shape[1:]] if texts[i] != _STATIC else tensors[i].shape for i in at
    ]
    signature = [
      tf.TensorSpec(shape, tensors[i].dtype) for i, shape in zip(at, shapes, strict=True)
    ]
  function = tf.function(body, autograph=False, jit_compile=xla or None, input_signature=signature)
  results = function(*[tensors[i] for i in at])
  return jax.tree.unflatten(trees[-1], results)


def _graph(subject: Subject, _: Any) -> Any:
  return _in_graph(jax2tf.convert(subject.fun), subject)


def _xla(subject: Subject, _: Any) -> Any:
  return _in_graph(jax2tf.convert(subject.fun), subject, xla=True)


def _eager(subject: Subject, _: Any) -> Any:
  return jax2tf.convert(subject.fun)(*map(leaves.tensor, subject.arrays))


_STATIC, _SYMBOLIC = "...", "b, ..."


def _symbolic(subject: Subject, want: Any) -> Any:
  """The first axis of the first array, and equal ones, become a dimension variable."""
  first = next((x for x in subject.arrays if x.ndim and x.shape[0] > 1), None)
  if first is None:
    raise UntraceableError("no axis")
  size = first.shape[:1]
  texts = [_SYMBOLIC if x.shape[:1] == size else _STATIC for x in subject.arrays]
  shapes = subjects.by_jax(export.symbolic_args_specs, tuple(subject.arrays), tuple(texts))
  exported = subjects.by_jax(export.export(subjects.jit(subject.fun)), *shapes)
  if exported.out_tree != jax.tree.structure(want):
    raise UntraceableError("the size is a part of the structure of the results")
  return _in_graph(jax2tf.convert(subject.fun, polymorphic_shapes=texts), subject, texts)


# (a call, JAX's results) -> ours.
_COMPUTED: dict[str, Callable[[Subject, Any], Any]]
_COMPUTED = {"graph": _graph, "eager": _eager, "xla": _xla, "symbolic": _symbolic}
WAYS = tuple(_COMPUTED)
