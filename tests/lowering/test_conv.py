"""Rows for `jax2tf/lowering/conv.py`."""

from __future__ import annotations

import functools
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from jax import lax
from jax import numpy as jnp

import jax2tf
from tests.support.case import Case, close, run

QUICK = {"eager": "as in a graph", "saved": "as in a graph"}
NHWC, NCHW = ("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW")
# Sums of some hundred products, added in another order.
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def conv(dimensions: Any, strides: Any, padding: Any, **options: Any) -> Any:
  return functools.partial(_conv, dimensions, strides, padding, tuple(options.items()))


def _conv(dimensions: Any, strides: Any, padding: Any, options: Any, x: Any, k: Any) -> Any:
  return lax.conv_general_dilated(
    x, k, strides, padding, dimension_numbers=dimensions, **dict(options)
  )


def of(*shape: int, dtype: Any = np.float32) -> np.ndarray:
  values = np.random.RandomState(sum(shape)).randn(*shape)
  return (values * 3).astype(dtype) if np.issubdtype(dtype, np.integer) else values.astype(dtype)


IMAGE, KERNEL = of(2, 9, 8, 3), of(3, 3, 3, 4)
B, HW = ("b, _, _, _", None), ("b, h, w, _", None)
CASES = [
  Case("plain_same", conv(NHWC, (1, 1), "SAME"), [IMAGE, KERNEL], poly=HW, **CLOSE),
  Case(
    "plain_valid",
    conv(NHWC, (1, 1), "VALID"),
    [IMAGE, KERNEL],
    poly=("b, h + 3, w + 3, _", None),
    **CLOSE,
  ),
  *[
    Case(
      f"kernel_larger_than_image_{i}",
      conv(NHWC, (1, 2), padding, **options),
      [IMAGE[:, :2], KERNEL],
      poly=HW,
      skip=QUICK,
      **CLOSE,
    )
    for i, (padding, options) in enumerate(
      [("VALID", {}), (((1, 0), (0, 1)), {"rhs_dilation": (2, 1)})]
    )
  ],
  Case("strided_same", conv(NHWC, (2, 2), "SAME"), [IMAGE, KERNEL], poly=HW, **CLOSE),
  Case(
    "strided_valid",
    conv(NHWC, (2, 3), "VALID"),
    [IMAGE, KERNEL],
    poly=("b, h + 3, w + 3, _", None),
    **CLOSE,
  ),
  Case(
    "stem_explicit",
    conv(NHWC, (2, 2), ((3, 3), (3, 3))),
    [of(2, 12, 12, 3), of(7, 7, 3, 4)],
    poly=B,
    **CLOSE,
  ),
  Case(
    "explicit_symbolic", conv(NHWC, (2, 2), ((1, 1), (1, 1))), [IMAGE, KERNEL], poly=HW, **CLOSE
  ),
  Case("pointwise_strided", conv(NHWC, (2, 2), "VALID"), [IMAGE, of(1, 1, 3, 4)], poly=B, **CLOSE),
  # Sizes for which oneDNN's gradient of the kernel crashes in TF 2.21.
  Case(
    "pointwise_strided_features",
    conv(NHWC, (2, 2), "SAME"),
    [of(1, 10, 10, 8), of(1, 1, 8, 16)],
    poly=HW,
    **CLOSE,
  ),
  Case(
    "dilated", conv(NHWC, (1, 1), "SAME", rhs_dilation=(2, 3)), [IMAGE, KERNEL], poly=B, **CLOSE
  ),
  Case(
    "dilated_strided",
    conv(NHWC, (2, 2), "VALID", rhs_dilation=(2, 2)),
    [IMAGE, KERNEL],
    poly=B,
    **CLOSE,
  ),
  Case(
    "asymmetric_negative", conv(NHWC, (1, 2), ((-1, 3), (2, -2))), [IMAGE, KERNEL], poly=B, **CLOSE
  ),
  Case(
    "transposed",
    lambda x, k: lax.conv_transpose(x, k, (2, 2), "SAME"),
    [IMAGE, KERNEL],
    poly=B,
    **CLOSE,
  ),
  Case(
    "transposed_valid",
    lambda x, k: lax.conv_transpose(x, k, (3, 2), "VALID"),
    [IMAGE, KERNEL],
    poly=B,
    **CLOSE,
  ),
  Case(
    "lhs_dilation_any",
    conv(NHWC, (2, 1), ((1, 5), (0, 2)), lhs_dilation=(3, 2), rhs_dilation=(1, 2)),
    [IMAGE, KERNEL],
    **CLOSE,
  ),
  Case(
    "nchw",
    conv(NCHW, (2, 1), "SAME"),
    [of(2, 3, 9, 8), of(4, 3, 3, 3)],
    poly=("b, _, _, _", None),
    **CLOSE,
  ),
  Case(
    "odd_layout",
    conv(("HCWN", "IHOW", "WNCH"), (1, 2), "SAME"),
    [of(9, 3, 8, 2), of(3, 3, 4, 3)],
    **CLOSE,
  ),
  Case(
    "grouped",
    conv(NHWC, (1, 2), "SAME", feature_group_count=3),
    [of(2, 9, 8, 6), of(3, 3, 2, 9)],
    poly=B,
    **CLOSE,
  ),
  Case(
    "depthwise",
    conv(NHWC, (1, 1), "SAME", feature_group_count=6),
    [of(2, 9, 8, 6), of(3, 3, 1, 6)],
    poly=B,
    **CLOSE,
  ),
  Case(
    "depthwise_strided",
    conv(NHWC, (2, 2), "SAME", feature_group_count=3),
    [IMAGE, of(3, 3, 1, 6)],
    poly=B,
    **CLOSE,
  ),
  Case(
    "depthwise_dilated",
    conv(NHWC, (1, 1), "SAME", feature_group_count=3, rhs_dilation=(2, 2)),
    [IMAGE, of(3, 3, 1, 6)],
    **CLOSE,
  ),
  Case(
    "batch_groups",
    conv(NHWC, (1, 1), "SAME", batch_group_count=2),
    [of(4, 5, 5, 3), of(3, 3, 3, 4)],
    **CLOSE,
  ),
  Case(
    "one_dimension",
    conv(("NWC", "WIO", "NWC"), (2,), "SAME"),
    [of(2, 11, 3), of(3, 3, 4)],
    poly=("b, n, _", None),
    **CLOSE,
  ),
  Case(
    "causal",
    conv(("NWC", "WIO", "NWC"), (1,), ((4, 0),), rhs_dilation=(2,)),
    [of(2, 11, 3), of(3, 3, 4)],
    poly=("b, n, _", None),
    **CLOSE,
  ),
  Case(
    "three_dimensions",
    conv(("NDHWC", "DHWIO", "NDHWC"), (1, 2, 1), "SAME"),
    [of(2, 5, 6, 7, 2), of(2, 3, 2, 2, 3)],
    poly=("b, _, _, _, _", None),
    **CLOSE,
  ),
  Case(
    "three_dimensions_any",
    conv(
      ("NCDHW", "OIDHW", "NCDHW"),
      (1, 2, 1),
      ((1, 2), (0, 1), (-1, 2)),
      rhs_dilation=(2, 1, 1),
      feature_group_count=2,
    ),
    [of(2, 4, 5, 6, 7), of(6, 2, 2, 3, 2)],
    **CLOSE,
  ),
  Case(
    "four_dimensions",
    conv(("NWXYZC", "WXYZIO", "NWXYZC"), (1, 2, 1, 1), "SAME"),
    [of(2, 3, 4, 3, 3, 2), of(2, 2, 2, 1, 2, 3)],
    skip=QUICK,
    **CLOSE,
  ),
  Case(
    "no_dimensions",
    conv(("NC", "IO", "NC"), (), ()),
    [of(2, 4), of(4, 3)],
    poly=("b, _", None),
    **CLOSE,
  ),
  Case(
    "empty",
    lambda x, k: (
      _conv(NHWC, (1, 1), "SAME", (), x, k),
      _conv(NHWC, (1, 1), "VALID", (), x[:, :1], k[:, :, :, :0]),
    ),
    [np.zeros((0, 4, 4, 3), np.float32), KERNEL],
    grad=False,
  ),
  *[
    # a last place of the largest partial sum
    Case(
      f"dtype_{dtype.__name__}",
      conv(NHWC, (2, 1), "SAME"),
      [of(2, 9, 8, 3, dtype=dtype), of(3, 3, 3, 4, dtype=dtype)],
      skip=QUICK,
      grad=False,
      rtol=2e-2,
      atol=2e-2,
    )
    for dtype in (np.float16, ml_dtypes.bfloat16)
  ],
  *[
    Case(
      f"dtype_{dtype.__name__}",
      conv(NHWC, (2, 1), "SAME"),
      [of(2, 9, 8, 3, dtype=np.int32).astype(dtype), of(3, 3, 3, 4, dtype=np.int32).astype(dtype)],
      skip=QUICK,
    )
    for dtype in (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32)
  ],
  Case(
    "dtype_complex64",
    conv(NHWC, (1, 1), "SAME"),
    [IMAGE + 1j * IMAGE[::-1], KERNEL - 1j * KERNEL[::-1]],
    **CLOSE,
  ),
  # TF 2.21: Grappler loses the transpose behind a Pad and a Conv3D whose unpadded result would have
  # sizes of 1.
  Case(
    "conv3d_padded_transposed",
    lambda x, k: jnp.transpose(
      conv(("NDHWC", "DHWIO", "NDHWC"), (1, 1, 2), ((0, 1), (1, 1), (2, 2)))(x, k), (1, 2, 3, 0, 4)
    ),
    [of(1, 4, 8, 8, 1), of(4, 8, 8, 1, 6)],
    **CLOSE,
  ),
  Case(
    "dtype_x64",
    lambda x, k, y, z: (
      _conv(NHWC, (2, 1), "SAME", (), x, k),
      _conv(NHWC, (2, 1), "SAME", (("rhs_dilation", (2, 1)),), y, z),
    ),
    [
      IMAGE.astype(np.float64),
      KERNEL.astype(np.float64),
      of(2, 9, 8, 3, dtype=np.int64) << 40,
      of(3, 3, 3, 4, dtype=np.int64),
    ],
    x64=True,
    rtol=1e-12,
    atol=1e-12,
  ),
  Case(
    "preferred_bf16_to_f32",
    conv(NHWC, (1, 1), "SAME", preferred_element_type=jnp.float32),
    [IMAGE.astype(ml_dtypes.bfloat16), KERNEL.astype(ml_dtypes.bfloat16)],
    skip=QUICK,
    grad=False,
    **CLOSE,
  ),
  Case(
    "preferred_i8_to_i32",
    conv(NHWC, (1, 1), "SAME", preferred_element_type=jnp.int32),
    [of(2, 9, 8, 3, dtype=np.int8), of(3, 3, 3, 4, dtype=np.int8)],
    skip=QUICK,
  ),
  Case(
    "preferred_dtypes_that_lose",
    lambda x, k: [
      conv(NHWC, (1, 1), "SAME", preferred_element_type=out)(x.astype(t), k.astype(t))
      for t, out in [
        (jnp.bfloat16, jnp.float16),
        (jnp.float8_e4m3fn, jnp.float8_e5m2),
        (jnp.int8, jnp.float8_e5m2),
        (jnp.int16, jnp.float16),
      ]
    ],
    [
      of(2, 9, 8, 3, dtype=np.int8).astype(np.float32) * 2.5,
      of(3, 3, 3, 4, dtype=np.int8).astype(np.float32) * 0.5,
    ],
    grad=False,
    rtol=1e-6,
  ),
  Case(
    "vmap_kernels",
    jax.vmap(conv(NHWC, (1, 1), "SAME"), (None, 0)),
    [IMAGE, of(2, 3, 3, 3, 4)],
    poly=("b, _, _, _", None),
    **CLOSE,
  ),
]
test_case, saved = run(CASES)


@pytest.mark.parametrize("images", [0, 2])
def test_gradient_of_images_that_may_be_none(images: int) -> None:
  """Their number is known when the graph runs. TensorFlow's Conv2D gives results of another shape
  for none."""
  function, fun = _gradient_of_rest()
  operands = IMAGE[: images + 1, :5], KERNEL
  close(function(*operands), fun(*operands), **CLOSE)


@functools.cache
def _gradient_of_rest() -> Any:
  @functools.partial(jax.value_and_grad, argnums=(0, 1), has_aux=True)
  def fun(x: Any, k: Any) -> Any:
    results = [
      conv(NHWC, (1, 1), "VALID")(x[1:], k),
      conv(NHWC, (2, 2), "SAME", feature_group_count=3)(x[1:], k[:, :, :1, :3]),
    ]
    return sum(map(jnp.sum, results)), results

  specs = [tf.TensorSpec([None, 5, *IMAGE.shape[2:]]), tf.TensorSpec(KERNEL.shape)]
  return tf.function(
    jax2tf.convert(fun, polymorphic_shapes=B, with_gradient=False),
    autograph=False,
    input_signature=specs,
  ), fun
