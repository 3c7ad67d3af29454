"""Custom calls that JAX writes, but those of LAPACK."""

from __future__ import annotations

import re
from typing import Any

import jax.numpy as jnp
from jax import lax

from jax2tf import errors
from jax2tf._jax_compat import exports
from jax2tf.stablehlo.elementwise import of_chlo
from jax2tf.stablehlo.graph import Op
from jax2tf.stablehlo.rules import CUSTOM_CALLS, Evaluation, Refusal, rule
from jax2tf.stablehlo.sizes import array, number, sizes

for _name in ("acos", "acosh", "asin", "asinh", "atan", "atanh", "cosh", "erf", "sinh", "tan"):
  CUSTOM_CALLS[f"mhlo.{_name}"] = of_chlo(_name)


def _check_same_shape(op: Op) -> Refusal | None:
  if [value.type for value in op.operands] == [value.type for value in op.results]:
    return None
  return Refusal(
    "it divides an array among devices",
    "export the function for one device: without shard_map, or with a mesh of one device",
  )


@rule(
  "Sharding",
  "SPMDFullToShardShape",
  "SPMDShardToFullShape",
  "annotate_device_placement",
  "xla.sdy.FuncResultSharding",
  "xla.sdy.GlobalToLocalShape",
  "xla.sdy.LocalToGlobalShape",
  "LayoutConstraint",
  table=CUSTOM_CALLS,
  values=True,
  check=_check_same_shape,
)
def _placement(evaluation: Evaluation, op: Op, *operands: Any) -> list[Any]:
  """It says where the values are; the values are the same."""
  return list(operands)


@rule("shape_assertion", table=CUSTOM_CALLS, values=True)
def _shape_assertion(evaluation: Evaluation, op: Op, condition: Any, *inputs: Any) -> list[Any]:
  """Refuses sizes for which the module was not written, when they are known."""
  message = op.attributes["error_message"]
  known = number(condition)
  if known is None:
    exports.assert_sizes(array(condition), [array(each) for each in inputs], message)
  elif not known:
    entries = [sizes(each) or ("?",) for each in inputs]
    values = [str(entry[0]) for entry in entries]
    raise errors.SizeError(_formatted(message, values))
  return []


def _formatted(message: str, values: list[str]) -> str:
  return re.sub(
    r"\{(\d+)\}",
    lambda match: values[int(match[1])] if int(match[1]) < len(values) else "?",
    message,
  )


@rule("ApproxTopK", "PartialReduce", table=CUSTOM_CALLS)
def _approx_top_k(
  evaluation: Evaluation, op: Op, value: Any, index: Any, *initial: Any
) -> list[Any]:
  """The exact one: an approximation may be better than it must be."""
  options = op.get("mhlo.backend_config") or op.get("backend_config")
  dimension, count = options["reduction_dim"], options["top_k"]
  compared = evaluation.block_of(op.attributes["called_computations"][0]).results[0].owner
  is_largest = compared is not None and compared.get("comparison_direction") == "GT"
  moved = jnp.moveaxis(value, dimension, -1)
  best, places = lax.top_k(moved if is_largest else -moved, count)
  best = best if is_largest else -best
  taken = jnp.take_along_axis(jnp.moveaxis(index, dimension, -1), places, -1)
  return [jnp.moveaxis(best, -1, dimension), jnp.moveaxis(taken, -1, dimension)]
