"""PointNet: a classifier of point clouds of any size, which first turns the cloud by a matrix that
it computes."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import numpy as np

from tests.support.models.entry import Entry
from tests.support.models.libraries import Function, of_linen


class Summary(nn.Module):
  """points f32[b,n,d] -> f32[b,width], the largest of each feature over all points."""

  width: int

  @nn.compact
  def __call__(self, points: Any) -> Any:
    x = nn.relu(nn.LayerNorm()(nn.Dense(32)(points)))
    return nn.relu(nn.Dense(self.width)(x)).max(1)


class PointNet(nn.Module):
  """points f32[b,n,3] -> f32[b,10]."""

  @nn.compact
  def __call__(self, points: Any) -> Any:
    turn = nn.Dense(9)(Summary(32)(points)).reshape(-1, 3, 3) + np.eye(3, dtype=np.float32)
    return nn.log_softmax(nn.Dense(10)(Summary(64)(points @ turn)))


def build() -> tuple[Function, Any]:
  return of_linen(PointNet(), np.zeros((1, 8, 3), np.float32))


ENTRY = Entry(
  "pointnet",
  "Flax linen",
  build,
  {"points": "f32[b,n,3]"},
  ["log_probs"],
  {"b": (1, 3), "n": (16, 25)},
)
