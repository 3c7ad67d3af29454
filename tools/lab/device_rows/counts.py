"""The numbers of a row: what of a function does not stay on the GPU, or has no kernel of XLA."""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from typing import Any

import jax
import tensorflow as tf

from jax2tf.devices import Finding, reading

# The numbers are those of graphs for GPUs.
PLATFORMS = ("cuda",)

# {"ops": that run, "no kernel": ops that run on the host, "bounces": copies to the host in the
# middle, "in loops": ops and copies of both kinds in loops, "predicates", "int32" and "uploads":
# other copies, "which": what the first two are, "xla": ops without a kernel of XLA}, or
# {"refused": why}
Numbers = dict[str, Any]


def of_function(
  function: Callable[..., Any], of_arguments: Sequence[Any], gradient: bool = False
) -> Numbers:
  """The numbers of a converted function, forward, or with its gradient, for arguments of these
  tf.TensorSpecs."""
  try:
    graph = reading.traced(function, of_arguments, gradient)
    gpu, xla = map(graph.readiness, ("gpu", "tpu"))
  except Exception as error:  # JAX, or the lowering, refuses it
    return {"refused": f"{type(error).__name__}: {error}".splitlines()[0][:120]}
  costly = (*gpu.of("no kernel"), *gpu.of("bounce"))
  return {
    "ops": gpu.ops,
    "no kernel": gpu.missing,
    "bounces": gpu.bounces,
    "in loops": sum(finding.count for finding in costly if finding.loops),
    "predicates": gpu.count("predicate"),
    "int32": gpu.count("int32"),
    "uploads": gpu.count("upload"),
    "which": _which(costly),
    "xla": _which(xla.of("no kernel")),
  }


def specs(tree: Any) -> Any:
  """The tf.TensorSpecs of a tree of arrays."""
  return jax.tree.map(lambda x: tf.TensorSpec(x.shape, tf.as_dtype(x.dtype)), tree)


def _which(findings: Sequence[Finding]) -> dict[str, int]:
  """{op, dtypes and primitive: count}."""
  counts = collections.Counter[str]()
  for finding in findings:
    dtypes = [tf.as_dtype(name).name for name in finding.dtypes.split(", ")]
    what = f"{finding.op} {' '.join(dtypes)}"
    operand = f", {finding.operand}" if finding.operand else ""
    primitive = f" of {finding.primitive}" if finding.primitive else ""
    counts[f"{what}{operand}{primitive}"] += finding.count
  return dict(sorted(counts.items()))
