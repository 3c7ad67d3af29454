"""f32[b,max(a, 2)] as text and as a dtype and dimensions."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from jax import export

from jax2tf.converters.bundle.notation import Spec
from jax2tf.converters.saved_model.arguments import tensor_specs


@pytest.mark.parametrize(
  ("text", "dtype", "dims"),
  [
    ("f32[]", np.float32, ()),
    ("i8[b,784]", np.int8, ("b", 784)),
    ("f32[b,max(a, 2)]", np.float32, ("b", "max(a, 2)")),
    (
      "bf16[floordiv(2*b + 1, max(a, 2)),3]",
      ml_dtypes.bfloat16,
      ("floordiv(2*b + 1, max(a, 2))", 3),
    ),
    ("string[?,2]", object, ("?", 2)),
    ("c64[...]", np.complex64, None),
    ("bool[0]", np.bool_, (0,)),
    ("float8_e4m3fn[b]", ml_dtypes.float8_e4m3fn, ("b",)),
  ],
)
def test_read_and_written(text: str, dtype: type, dims: tuple[int | str, ...] | None) -> None:
  spec = Spec.parse(text)
  assert spec == Spec(np.dtype(dtype), dims)
  assert str(spec) == text
  assert Spec.parse(f" {text.replace(',', ' , ')} ").dtype == dtype


@pytest.mark.parametrize("text", ["f32", "f32[", "float[b]", "f32[a,,b]", "f33[b]", ""])
def test_what_is_no_spec_is_refused(text: str) -> None:
  with pytest.raises(
    ValueError, match=r"inputs\['x'\] = .*; write its dtype and shape as in 'f32\[b,784\]'"
  ):
    Spec.parse(text, "x")


def test_of_what_has_a_shape_and_a_dtype() -> None:
  dims = export.symbolic_shape("b, max(a, 2), 2*b + 1")
  spec = Spec.of(jax.ShapeDtypeStruct(dims, jnp.bfloat16))
  assert spec == Spec.parse(str(spec)) and spec.dims == ("b", "max(a, 2)", "2*b + 1")
  assert str(Spec.of(tf.TensorSpec([None, 2], tf.string))) == "string[?,2]"
  assert str(Spec.of(tf.TensorSpec(None, tf.uint8))) == "u8[...]"
  assert str(Spec.of(np.zeros((2, 0), np.complex128))) == "c128[2,0]"


def test_an_expression_with_a_comma_is_one_dimension_to_tensorflow() -> None:
  found = tensor_specs({"x": "f32[b,max(a, 2)]", "y": "string[...]"}, "inputs")
  assert found["x"] == tf.TensorSpec([None, None], tf.float32, "x")
  assert found["y"] == tf.TensorSpec(None, tf.string, "y")
