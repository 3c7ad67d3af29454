"""Collectives of one device, which leave their operands as they are.

A mesh of one device has groups of one. Others are refused by name.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from jax2tf.stablehlo.graph import Op
from jax2tf.stablehlo.rules import ACROSS_DEVICES, Evaluation, Refusal, rule


def _check_groups(op: Op) -> Refusal | None:
  groups = op.get("replica_groups")
  is_alone = isinstance(groups, np.ndarray) and groups.size == 1
  return None if is_alone else ACROSS_DEVICES


@rule("all_gather", "all_reduce", "all_to_all", "reduce_scatter", check=_check_groups)
def _collective(evaluation: Evaluation, op: Op, *operands: Any) -> Any:
  return list(operands)


@rule("collective_broadcast", check=_check_groups)
def _collective_broadcast(evaluation: Evaluation, op: Op, operand: Any) -> Any:
  return operand
