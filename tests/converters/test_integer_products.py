"""Products and convolutions of 8-bit integers in ONNX Runtime and LiteRT, which are exact."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jax2tf.converters import onnx, tflite

RNG = np.random.default_rng(0)
TARGETS = {"onnx": onnx, "tflite": tflite}
LONG = 1500  # terms of the largest numbers, whose sum is beyond 2**24


def whole(*shape: int, dtype: str = "int8") -> np.ndarray:
  info = np.iinfo(dtype)
  return RNG.integers(info.min, info.max + 1, shape).astype(dtype)


PARAMS = {
  "w": whole(32, 8),
  "long": np.array([[1, 1]] + [[-128, -128]] * (LONG - 1), np.int8),
  "kernel": whole(3, 3, 2, 4),
  "grouped": whole(3, 3, 1, 4),
}


def fun(params: Any, x: jax.Array, image: jax.Array) -> dict[str, jax.Array]:
  dimensions = {"dimension_numbers": ("NHWC", "HWIO", "NHWC")}
  results = {"preferred_element_type": jnp.int32}
  dot = lambda a, b, axes: lax.dot_general(a, b, ((axes, (0,)), ((), ())), **results)  # noqa: E731
  # the largest products, so that their sum is odd and beyond 2**24
  ends = jnp.where(jnp.arange(LONG) == 0, x[0, 0], -128).astype(jnp.int8)
  return {
    "product": dot(x, params["w"], (1,)),
    "turned": dot(x.T, params["w"][:4], (1,)),
    "long": dot(ends[None], params["long"], (1,)),
    "convolution": lax.conv_general_dilated(
      image, params["kernel"], (2, 2), "SAME", **dimensions, **results
    ),
    # -1 becomes 2**16 - 1, which is no 8-bit integer any more
    "wrapped": dot(x.astype(jnp.uint16).astype(jnp.int32), params["w"].astype(jnp.int32), (1,)),
    "wrapped_twice": dot(x.astype(jnp.uint32).astype(jnp.uint16), params["w"], (1,)),
    "wrapped_parameter": dot(x, params["w"].astype(jnp.uint16), (1,)),
    "unsigned": dot(x.astype(jnp.uint8), params["w"].astype(jnp.uint8), (1,)),
    "groups": lax.conv_general_dilated(
      image, params["grouped"], (1, 1), "VALID", feature_group_count=2, **dimensions, **results
    ),
  }


@pytest.mark.parametrize("target", TARGETS)
def test_they_are_exact(tmp_path: Path, target: str) -> None:
  path = tmp_path / f"m.{target}"
  inputs = {"x": "i8[4,32]", "image": "i8[1,8,8,2]"}
  TARGETS[target].save(fun, PARAMS, path, inputs=inputs, samples=1)
  x, image = whole(4, 32), whole(1, 8, 8, 2)
  results = TARGETS[target].run(path, {"x": x, "image": image})
  for name, y in fun(PARAMS, x, image).items():
    np.testing.assert_array_equal(results[name], y, err_msg=name)
