"""MobileNetV3: inverted residuals of depthwise convolutions, squeeze-and-excitation, hard swish."""

from __future__ import annotations

import functools
from typing import Any

import flax.linen as nn
import numpy as np

from tests.support.models.entry import Entry
from tests.support.models.libraries import Function, of_linen

# Keeps activations at their scale, as batch norm does with the statistics of a trained network.
INIT = nn.initializers.variance_scaling(6.0, "fan_in", "truncated_normal")
Conv = functools.partial(nn.Conv, use_bias=False, kernel_init=INIT)


class InvertedResidual(nn.Module):
  """Expands the channels, convolves each one by itself, weighs them, and projects back."""

  features: int
  strides: int = 1

  @nn.compact
  def __call__(self, x: Any) -> Any:
    width = 4 * x.shape[-1]
    y = nn.hard_swish(nn.BatchNorm(use_running_average=True)(Conv(width, (1, 1))(x)))
    y = Conv(width, (3, 3), self.strides, feature_group_count=width)(y)
    y = nn.relu6(nn.BatchNorm(use_running_average=True)(y))
    excitation = nn.relu(nn.Dense(width // 4)(y.mean((1, 2), keepdims=True)))
    y = y * nn.hard_sigmoid(nn.Dense(width)(excitation))
    y = nn.BatchNorm(use_running_average=True)(Conv(self.features, (1, 1))(y))
    return x + y if x.shape == y.shape else y


class MobileNet(nn.Module):
  """image f32[b,32,32,3] -> f32[b,10]."""

  @nn.compact
  def __call__(self, image: Any) -> Any:
    x = nn.hard_swish(Conv(8, (3, 3), strides=2)(image))
    for features, strides in ((8, 1), (16, 2), (16, 1), (24, 2)):
      x = InvertedResidual(features, strides)(x)
    return nn.Dense(10)(x.mean((1, 2)))


def build() -> tuple[Function, Any]:
  return of_linen(MobileNet(), np.zeros((1, 32, 32, 3), np.float32))


ENTRY = Entry(
  "mobilenet", "Flax linen", build, {"image": "f32[b,32,32,3]"}, ["logits"], {"b": (1, 3)}
)
