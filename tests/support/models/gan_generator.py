"""The generator of a DCGAN: from a latent vector up to an image by transposed convolutions."""

from __future__ import annotations

from typing import Any

from flax import nnx

from tests.support.models.entry import Entry
from tests.support.models.libraries import Function, of_nnx


class Generator(nnx.Module):
  """z f32[b,32] -> f32[b,16,16,3], between -1 and 1."""

  def __init__(self, rngs: nnx.Rngs):
    self.dense = nnx.Linear(32, 4 * 4 * 32, rngs=rngs)
    self.norm = nnx.BatchNorm(32, use_running_average=True, rngs=rngs)
    self.ups = nnx.List(
      [
        nnx.ConvTranspose(i, o, (4, 4), strides=(2, 2), padding="SAME", rngs=rngs)
        for i, o in ((32, 16), (16, 3))
      ]
    )

  def __call__(self, z: Any) -> Any:
    x = nnx.relu(self.norm(self.dense(z).reshape(-1, 4, 4, 32)))
    x = nnx.leaky_relu(self.ups[0](x), 0.2)
    return nnx.tanh(self.ups[1](x))


def build() -> tuple[Function, Any]:
  return of_nnx(Generator(nnx.Rngs(0)))


ENTRY = Entry("gan_generator", "Flax nnx", build, {"z": "f32[b,32]"}, ["image"], {"b": (1, 3)})
