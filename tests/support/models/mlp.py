"""A classifier of 28 x 28 digits: three dense layers."""

from __future__ import annotations

from typing import Any

from flax import nnx

from tests.support.models.entry import Entry
from tests.support.models.libraries import Function, of_nnx


class MLP(nnx.Module):
  """x f32[b,784] -> f32[b,10], probabilities."""

  def __init__(self, rngs: nnx.Rngs):
    self.layers = nnx.Sequential(
      nnx.Linear(784, 128, rngs=rngs),
      nnx.relu,
      nnx.Linear(128, 64, rngs=rngs),
      nnx.gelu,
      nnx.Linear(64, 10, rngs=rngs),
      nnx.softmax,
    )

  def __call__(self, x: Any) -> Any:
    return self.layers(x)


def build() -> tuple[Function, Any]:
  return of_nnx(MLP(nnx.Rngs(0)))


ENTRY = Entry("mlp", "Flax nnx", build, {"x": "f32[b,784]"}, ["probs"], {"b": (1, 5)})
