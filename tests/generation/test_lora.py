"""Adapters merged into weights: the merged model computes what the model with adapters does."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jax2tf.converters import generation

SCALE = 0.5
# (einsum, shape of x, of the weight, of a, of b), as Qwix makes adapters.
CASES = {
  "kernel": ("bd,df->bf", (2, 5), (5, 7), (5, 3), (3, 7)),
  "heads": ("btd,ndh->btnh", (2, 4, 6), (3, 6, 5), (6, 2), (2, 3, 5)),
  "out of heads": ("btnh,nhd->btd", (2, 4, 3, 5), (3, 5, 6), (3, 5, 2), (2, 6)),
  "flattened": ("btnh,nhd->btd", (2, 4, 3, 5), (3, 5, 6), (15, 2), (2, 6)),
  "transposed": ("bd,fd->bf", (2, 5), (7, 5), (5, 3), (3, 7)),
}


def normal(seed: int, *shape: int) -> np.ndarray:
  return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("case", CASES)
def test_sum_computes_what_the_adapter_adds(case: str) -> None:
  equation, of_x, of_w, of_a, of_b = CASES[case]
  x, w, a, b = (normal(i, *shape) for i, shape in enumerate((of_x, of_w, of_a, of_b)))
  params = {"layer": {"w": w, "w_lora_a": a, "w_lora_b": b, "bias": w[0]}}
  merged = generation.merged_lora(params, SCALE)
  assert list(merged["layer"]) == ["w", "bias"]
  axes = [
    axis
    for axis, letter in enumerate(equation.split(",")[1].split("->")[0])
    if letter not in equation.split("->")[1]
  ]
  shape = [of_w[axis] for axis in axes]
  others = [size for axis, size in enumerate(of_w) if axis not in axes]
  wide = np.tensordot(a.reshape(*shape, -1), b.reshape(-1, *others), 1)  # contracted axes first
  delta = np.moveaxis(wide, range(len(axes)), axes)
  expected = np.einsum(equation, x, w) + SCALE * np.einsum(equation, x, delta)
  # two sums of a few products in float32
  np.testing.assert_allclose(
    np.einsum(equation, x, merged["layer"]["w"]), expected, rtol=1e-4, atol=1e-5
  )


def test_linear_of_nnx() -> None:
  layer = nnx.LoRALinear(4, 3, lora_rank=2, rngs=nnx.Rngs(0))
  layer.lora.lora_b[...] = normal(1, 2, 3)
  params = nnx.to_pure_dict(nnx.state(layer))
  plain = nnx.Linear(4, 3, rngs=nnx.Rngs(1))
  nnx.update(plain, generation.merged_lora({"layer": params}, 1.0)["layer"])
  x = normal(2, 5, 4)
  np.testing.assert_allclose(plain(x), layer(x), rtol=1e-5, atol=1e-6)  # other order of sums


def test_weights_keep_their_dtype() -> None:
  params = {
    "w": jnp.ones((3, 2), jnp.bfloat16),
    "w_lora_a": jnp.ones((3, 1)),
    "w_lora_b": jnp.ones((1, 2)),
  }
  assert generation.merged_lora(params, 2.0)["w"].dtype == jnp.bfloat16


@pytest.mark.parametrize(
  ("params", "options", "message"),
  [
    ({"w": normal(0, 3, 2)}, {}, "params: they have no adapters"),
    ({"w_lora_a": normal(0, 3, 1)}, {}, "no 'w' beside it"),
    (
      {"q": {"w": normal(0, 4, 4), "w_lora_a": normal(1, 4, 2), "w_lora_b": normal(2, 2, 4)}},
      {},
      r"fit for a product over axes \[0\] or \[1\]; say which",
    ),
    (
      {"w": normal(0, 4, 5), "w_lora_a": normal(1, 3, 2), "w_lora_b": normal(2, 2, 5)},
      {},
      r"'w' has shape \[4, 5\].* which do not fit",
    ),
    (
      {"w": normal(0, 4, 5), "w_lora_a": normal(1, 4, 2), "w_lora_b": normal(2, 2, 5)},
      {"contracted": {"v": [0]}},
      "no weight with an adapter is called 'v'",
    ),
    (
      {"w": np.ones((4, 5), np.int8), "w_lora_a": normal(1, 4, 2), "w_lora_b": normal(2, 2, 5)},
      {},
      "'w' of an adapter is no array of floats",
    ),
  ],
)
def test_what_cannot_be_merged_is_refused(
  params: dict[str, Any], options: dict[str, Any], message: str
) -> None:
  with pytest.raises((ValueError, TypeError), match=message):
    generation.merged_lora(params, SCALE, **options)


def test_axes_of_a_square_weight() -> None:
  w, a, b, x = normal(0, 4, 4), normal(1, 4, 2), normal(2, 2, 4), normal(3, 3, 4)
  params = {"q": {"kernel": w, "kernel_lora_a": a, "kernel_lora_b": b}}
  merged = generation.merged_lora(params, SCALE, contracted={"kernel": [0]})
  expected = x @ w + SCALE * (x @ a @ b)
  np.testing.assert_allclose(x @ merged["q"]["kernel"], expected, rtol=1e-4, atol=1e-5)  # as above
  assert jax.tree.structure(merged) == jax.tree.structure({"q": {"kernel": 0}})
