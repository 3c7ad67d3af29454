"""Parameters of 4 and 8 bits in an ONNX file: their dtype, DequantizeLinear, and JAX's values."""

from __future__ import annotations

import collections
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx as onnx_library
import onnxruntime
import pytest

from jax2tf.converters import onnx
from tests.support import onnx_files
from tests.support.narrow_arrays import BLOCK, RNG, X, quantized, scales, wide

DTYPES = ("int8", "uint8", "int4", "uint4", "float8_e4m3fn", "float8_e5m2")
# one rounding of the sum of 64 products of about 1
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def saved(path: Path, fun: Any, params: Any, x: str = "f32[4,64]", **options: Any) -> Any:
  onnx.save(fun, params, path, inputs={"x": x}, samples=1, **options)
  proto = onnx_library.load(path)
  onnx_library.checker.check_model(str(path), full_check=True)
  return proto


def dtypes(proto: Any) -> dict[str, str]:
  name = onnx_library.TensorProto.DataType.Name
  return {tensor.name: name(tensor.data_type).lower() for tensor in proto.graph.initializer}


PARAMS = {
  dtype: {
    "after": quantized(dtype, 64, 8),
    "of_tensor": quantized(dtype, 64, 8),
    "of_channel": quantized(dtype, 64, 8),
    "of_block": quantized(dtype, 64, 8),
    "tensor": np.float32(0.1),
    "channel": scales(8),
    "block": scales(64 // BLOCK, 1, 8),
  }
  for dtype in DTYPES
}


def products(params: Any, x: Any) -> dict[str, Any]:
  """Scales behind the product, and for the tensor, its channels and its blocks."""
  results = {}
  for dtype, p in params.items():
    blocks = wide(p["of_block"]).reshape(-1, BLOCK, 8) * p["block"]
    results |= {
      f"{dtype}_after": (x @ wide(p["after"])) * p["channel"],
      f"{dtype}_tensor": x @ (wide(p["of_tensor"]) * p["tensor"]),
      f"{dtype}_channel": x @ (p["channel"] * wide(p["of_channel"])),
      f"{dtype}_block": x @ blocks.reshape(64, 8),
    }
  return results


@pytest.mark.parametrize(
  ("names", "threshold"), [(DTYPES, 2**30), (("int4",), 16)], ids=["inside", "beside"]
)
def test_parameters_stay_as_they_are(
  tmp_path: Path, names: tuple[str, ...], threshold: int
) -> None:
  path, params = tmp_path / "m.onnx", {name: PARAMS[name] for name in names}
  proto = saved(path, products, params, external_data_threshold=threshold)
  found = collections.Counter(dtypes(proto).values())
  assert [found[name.replace("_", "")] for name in names] == [4] * len(names)
  assert onnx_files.nodes(path).count("DequantizeLinear") == 3 * len(names)
  # what is float32 is scales: 1 + 8 + 8 * 4 of each dtype, of which one is used twice
  floats = [t for t in proto.graph.initializer if t.data_type == onnx_library.TensorProto.FLOAT]
  assert sum(int(np.prod(t.dims)) for t in floats) <= len(names) * (1 + 8 + 8 + 32)
  results = onnx.run(path, {"x": X})
  for name, y in products(params, X).items():
    np.testing.assert_allclose(results[name], y, **CLOSE, err_msg=name)


def test_zero_points(tmp_path: Path) -> None:
  def fun(params: Any, x: Any) -> Any:
    a, b = params
    first = x @ ((wide(a["w"]) - wide(a["zero"])) * a["scale"])
    integers = b["w"].astype(jnp.int32) - b["zero"].astype(jnp.int32)
    return first, x @ (wide(integers) * b["scale"])

  params = [
    {"w": quantized(dtype, 64, 8), "zero": quantized(dtype, 8), "scale": scales(8)}
    for dtype in ("uint8", "uint4")
  ]
  path = tmp_path / "m.onnx"
  saved(path, fun, params)
  assert onnx_files.nodes(path) == ["DequantizeLinear", "MatMul"] * 2
  for found, y in zip(onnx.run(path, {"x": X}).values(), fun(params, X), strict=True):
    np.testing.assert_allclose(found, y, **CLOSE)


def test_a_zero_point_that_is_no_integer_stays_a_subtraction(tmp_path: Path) -> None:
  path = tmp_path / "m.onnx"
  w, scale = quantized("uint4", 64, 8), scales(8)
  saved(path, lambda w, x: x @ ((wide(w) - 0.5) * scale), w)
  assert "DequantizeLinear" not in onnx_files.nodes(path)


def test_tables_layers_and_casts(tmp_path: Path) -> None:
  """Rows of a 4-bit table, layers of a loop, and casts to narrow dtypes."""
  params = {"table": quantized("int4", 16, 64), "layers": quantized("int4", 3, 64, 64)}

  def fun(params: Any, x: Any) -> Any:
    def step(carry: Any, w: Any) -> tuple[Any, None]:
      return jnp.tanh(carry @ (wide(w) * 0.05)), None

    carried, _ = jax.lax.scan(step, wide(params["table"][x]), params["layers"])
    wrapped = wide((x * 5).astype(jnp.int4))
    return carried, wrapped, wide((carried * 900).astype(jnp.float8_e4m3fn))

  path = tmp_path / "m.onnx"
  proto = saved(path, fun, params, x="i32[16]")
  assert proto.opset_import[0].version == 21
  assert list(dtypes(proto).values()).count("int4") == 2
  x = np.arange(16, dtype=np.int32)
  for found, y in zip(onnx.run(path, {"x": x}).values(), fun(params, x), strict=True):
    # float8 has 3 bits, and three layers of tanh round
    np.testing.assert_allclose(found, y, rtol=0.13, atol=1e-5)


def test_an_older_opset_has_wider_dtypes(tmp_path: Path) -> None:
  path, p = tmp_path / "m.onnx", {"int4": PARAMS["int4"]}
  proto = saved(path, products, p, opset=18)
  found = [dtype for dtype in dtypes(proto).values() if dtype != "int64"]
  assert set(found) == {"int8", "float"}
  results = onnx.run(path, {"x": X})
  for name, y in products(p, X).items():
    np.testing.assert_allclose(results[name], y, **CLOSE, err_msg=name)
  with pytest.raises(ValueError, match=r"opset = 18: .* float8, which are newer; give 19 or"):
    onnx.save(
      lambda _, x: wide(x.astype(jnp.float8_e5m2)),
      None,
      path,
      inputs={"x": "f32[4]"},
      opset=18,
      overwrite=True,
    )


def test_run_keeps_activations_in_float32(tmp_path: Path) -> None:
  """ONNX Runtime 1.32 quantises the activations of DequantizeLinear and MatMul by default."""
  path, x = tmp_path / "m.onnx", RNG.standard_normal((4, 256)).astype("f")
  params = quantized("int8", 256, 512), scales(512)

  def fun(params: Any, x: Any) -> dict[str, Any]:
    w, scale = params
    return {"y": x @ (wide(w) * scale)}

  saved(path, fun, params, x="f32[4,256]")
  expected = fun(params, x)["y"]
  np.testing.assert_allclose(onnx.run(path, {"x": x})["y"], expected, rtol=1e-5, atol=1e-4)
  options = onnxruntime.SessionOptions()
  options.add_session_config_entry("session.disable_quant_qdq", "1")
  (found,) = onnx_files.opened(path, options).run(None, {"x": x})
  np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)


def test_narrow_ends_are_refused(tmp_path: Path) -> None:
  with pytest.raises(onnx.ExportError, match=r"'x' of .* is int4, .*; take and return int8"):
    onnx.save(lambda _, x: wide(x), None, tmp_path / "m.onnx", inputs={"x": "i4[b]"})
