"""JSON of the REST API as arrays, without a server: each value is exact, rounded as by NumPy, or
refused."""

from __future__ import annotations

import json
import types
from typing import Any

import grpc
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from jax2tf.tools.serving import rest


def _parsed(dtype: tf.DType, values: str, form: str = "inputs") -> np.ndarray:
  """What a signature gets that takes a tensor of any shape."""
  spec = {"x": tf.TensorSpec(None, dtype)}
  signature = rest.Signature(
    "serving_default", None, spec, spec, {}, {}, batched=False, stateful=False
  )
  model = types.SimpleNamespace(signature=lambda _: signature)
  found: np.ndarray = rest.parse_predict(model, f'{{"{form}": {values}}}'.encode()).call.inputs["x"]
  return found


def _refusal(dtype: tf.DType, values: str) -> str:
  with pytest.raises(Exception) as caught:
    _parsed(dtype, values)
  assert type(caught.value).__name__ == "RefusedError"
  assert caught.value.code == grpc.StatusCode.INVALID_ARGUMENT  # type: ignore[attr-defined]
  return str(caught.value)


@pytest.mark.parametrize(
  ("dtype", "values"),
  [
    (tf.uint64, [2**63, 1, 0, 2**64 - 1]),
    (tf.int64, [-(2**63), 2**63 - 1, 2**53 + 1]),
    (tf.int8, [[-128], [127]]),
    (tf.uint32, [2**32 - 1, 0]),
    (tf.as_dtype("int4"), [-8, 7]),
    (tf.bool, [[True, False]]),
    (tf.float64, [1, -0.5, 10**25, -(10**300), 2**63, 2**64]),
    (tf.float64, [2**53 + 1, 1e-320]),
    (tf.float32, [1, 16_777_217, 0.1, 10**25, -(2**70)]),
    (tf.bfloat16, [1, 257, 0.1, 10**25]),
    (tf.half, [65504, 1e-8]),
    (tf.float32, []),
    (tf.int32, [[], []]),
    (tf.float32, 3),
    (tf.float32, [[[[[[1]]]]]]),
  ],
  ids=lambda value: str(value)[:30],
)
def test_values(dtype: tf.DType, values: Any) -> None:
  found = _parsed(dtype, json.dumps(values))
  floating = dtype.is_floating
  expected = (
    np.array(values, np.float64).astype(dtype.as_numpy_dtype)
    if floating
    else np.array(values, dtype.as_numpy_dtype)
  )
  np.testing.assert_array_equal(found, expected)
  assert found.dtype == expected.dtype
  if values and not floating:
    assert found.tolist() == values


def test_infinities_and_nan_are_values() -> None:
  found = _parsed(tf.float16, "[Infinity, -Infinity, NaN, -0.0]")
  np.testing.assert_array_equal(found, np.array([np.inf, -np.inf, np.nan, -0.0], np.float16))
  assert np.signbit(found[3])
  assert found.dtype != ml_dtypes.bfloat16


@pytest.mark.parametrize(
  ("dtype", "values", "words"),
  [
    (tf.float32, "[1, true]", "the JSON holds true or false"),
    (tf.float64, "[[1.5], [false]]", "the JSON holds true or false"),
    (tf.int32, "[1, true]", "the JSON holds true or false"),
    (tf.bool, "[true, 1]", "the JSON holds integers"),
    (tf.bool, "[0]", "the JSON holds integers"),
    (tf.int64, "[1.0]", "the JSON holds numbers with a fraction or exponent"),
    (tf.int64, "[1, 1.5]", "the JSON holds numbers with a fraction or exponent"),
    (tf.uint64, "[9223372036854775808, 1.0]", "the JSON holds numbers with a fraction or exponent"),
    (tf.float32, '["1"]', "the JSON holds strings"),
    (tf.float32, '[1, "1", null]', "the JSON holds null or objects and strings"),
    (tf.float32, '[{"b64": "AAAA"}]', "null or objects"),
    (tf.complex64, "[1]", "complex64; the JSON holds integers"),
    (tf.int64, "[-1, 9223372036854775808]", "-1 to 9223372036854775808 is outside of its range"),
    (tf.uint64, "[-1, 9223372036854775808]", "outside of its range"),
    (tf.uint64, "[18446744073709551616]", "outside of its range"),
    (tf.as_dtype("int4"), "[8]", "outside of its range"),
    (tf.uint8, "[-1]", "outside of its range"),
    (tf.float32, f"[{10**39}]", "a finite value is outside of its range"),
    (tf.float64, f"[{10**309}]", "a finite value is outside of its range"),
    (tf.float16, "[65520]", "a finite value is outside of its range"),
    (tf.as_dtype("float8_e4m3fn"), "[1000]", "a finite value is outside of its range"),
    (tf.float32, "[[1], [2, 3]]", "lists side by side"),
    (tf.float32, "[1, [2]]", "lists side by side"),
    (tf.float32, "[[], [1]]", "lists side by side"),
    (tf.float32, "[" * 65 + "1" + "]" * 65, "lists side by side"),
    (tf.string, "[" * 65 + '"a"' + "]" * 65, "lists side by side"),
    (tf.string, '["a", ["b"]]', "lists side by side"),
    (tf.string, "[1]", "a tensor of strings"),
    (tf.float32, "[" * 5000 + "]" * 5000, ""),
    (tf.float32, "[" * 200_000 + "]" * 200_000, "the body is not JSON"),
    (tf.float32, '{"x": ' * 200_000, "the body is not JSON"),
    (tf.float32, "1" * 5000, "the body is not JSON"),
    (tf.float32, '{"x": [1], "x": [2]}', 'names "x" twice in one object'),
  ],
  ids=lambda value: str(value)[:30],
)
def test_what_is_refused(dtype: tf.DType, values: str, words: str) -> None:
  assert words in _refusal(dtype, values)


def test_names_are_given_once() -> None:
  with pytest.raises(Exception, match='names "inputs" twice'):
    _parsed(tf.float32, '[1], "inputs": [2]')
  many = ", ".join(f'"{i}": 0' for i in range(50_000))
  assert 'names "49999" twice' in _refusal(tf.float32, f'{{{many}, "49999": 1}}')


def test_rows() -> None:
  np.testing.assert_array_equal(
    _parsed(tf.uint64, f"[{2**63}, 1]", "instances"), np.array([2**63, 1], np.uint64)
  )
  with pytest.raises(Exception, match="true or false"):
    _parsed(tf.float32, '[{"x": 1}, {"x": true}]', "instances")
