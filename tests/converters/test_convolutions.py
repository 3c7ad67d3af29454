"""Dilated and grouped convolutions in ONNX and LiteRT: their gradients, training, and symbolic
sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jax2tf.converters import tflite
from tests.converters.test_onnx import exported

RNG = np.random.default_rng(0)


def test_gradients_of_dilated_and_grouped_convolutions(tmp_path: Path) -> None:
  def loss(kernel: jax.Array, x: jax.Array, groups: int, dilation: int) -> jax.Array:
    return jnp.sum(
      lax.conv_general_dilated(
        x,
        kernel,
        (2, 1),
        "SAME",
        rhs_dilation=(dilation, 1),
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
      )
      ** 2
    )

  kernels = {
    f"{groups} {dilation}": (groups, dilation, RNG.standard_normal(shape).astype("f"))
    for groups, dilation, shape in (
      (1, 2, (3, 2, 4, 2)),
      (2, 1, (3, 2, 2, 4)),
      (4, 2, (3, 2, 1, 8)),
    )
  }

  def gradients(_: Any, x: jax.Array) -> Any:
    return {
      name: jax.grad(loss, (0, 1))(jnp.asarray(kernel), x, groups, dilation)
      for name, (groups, dilation, kernel) in kernels.items()
    }

  exported(tmp_path, gradients, {"x": "f32[b,6,5,4]"}, {}, sizes={"b": [1, 3]})


def test_groups_of_images_of_a_dynamic_size(tmp_path: Path) -> None:
  kernel = RNG.standard_normal((3, 3, 2, 4)).astype("f")

  def fun(x: jax.Array) -> jax.Array:
    dims = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(
      x, kernel, (1, 1), "VALID", dimension_numbers=dims, feature_group_count=2
    )

  exported(tmp_path, fun, {"x": "f32[1,h,w,4]"}, sizes={"h": [5, 8], "w": [6]})


def test_dilated_and_grouped_convolutions_are_trained(tmp_path: Path) -> None:
  def fun(params: Any, x: jax.Array) -> jax.Array:
    dims = ("NHWC", "HWIO", "NHWC")
    for kernel, stride, groups, dilation in (
      ("dilated", 1, 1, (2, 1)),
      ("Grouped", 2, 2, (1, 2)),
      ("depthwise", 1, 4, (1, 2)),
    ):
      x = jax.nn.relu(
        lax.conv_general_dilated(
          x,
          params[kernel],
          (stride, stride),
          "SAME",
          rhs_dilation=dilation,
          dimension_numbers=dims,
          feature_group_count=groups,
        )
      )
    return jnp.mean(x, (1, 2))

  shapes = {"dilated": (3, 3, 2, 4), "Grouped": (3, 3, 2, 4), "depthwise": (3, 3, 1, 8)}
  params = {name: RNG.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
  tflite.save_training(  # raises where LiteRT trains differently from JAX
    lambda p, x: jnp.mean(fun(p, x) ** 2),
    fun,
    params,
    tmp_path / "m.tflite",
    batch={"x": "f32[b,7,8,2]"},
    inputs={"x": "f32[b,7,8,2]"},
    learning_rate=0.1,
  )


@pytest.mark.one_python
def test_convolutions_of_bfloat16_in_litert(tmp_path: Path) -> None:
  def fun(x: jax.Array, kernel: jax.Array, depthwise: jax.Array) -> jax.Array:
    dims = ("NHWC", "HWIO", "NHWC")
    x = lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=dims)
    transposed = lax.conv_transpose(x, kernel, (2, 2), "SAME", dimension_numbers=dims)
    groups = depthwise.shape[-1]
    return lax.conv_general_dilated(
      transposed, depthwise, (1, 1), "SAME", dimension_numbers=dims, feature_group_count=groups
    )

  inputs = {"x": "bf16[2,4,4,3]", "kernel": "bf16[3,3,3,3]", "depthwise": "bf16[3,3,1,3]"}
  path = tmp_path / "model.tflite"
  assert tflite.save(lambda _, *xs: fun(*xs), None, path, inputs=inputs, samples=1).report.ok
