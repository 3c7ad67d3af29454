"""Parameters of 4 and 8 bits in a .tflite file: constants with quantization parameters behind
DEQUANTIZE, and JAX's values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax2tf.converters import saved_model, tflite
from jax2tf.converters.tflite import binding, flatbuffer
from tests.converters.test_tflite import runners
from tests.support.narrow_arrays import BLOCK, RNG, X, quantized, scales, wide

DTYPES = ("int8", "uint8", "int4", "uint4")
# one rounding of the sum of 64 products of about 1
CLOSE = {"rtol": 1e-5, "atol": 2e-5}


def constants(path: Path) -> list[tuple[str, int, int]]:
  """(dtype, elements, scales) of the constants of a file, where an op needs them."""
  tools = flatbuffer.tools()
  names = {n: name for name, n in vars(tools.TensorType).items() if name.isupper()}
  model = flatbuffer.unpacked(path.read_bytes())
  found = []
  for graph in model.subgraphs:
    for tensor in graph.tensors:
      buffer = model.buffers[tensor.buffer]
      if tensor.buffer and (buffer.data is not None or buffer.size):
        parameters = tensor.quantization and tensor.quantization.scale
        count = 0 if parameters is None else len(parameters)
        found.append((names[tensor.type].lower(), int(np.prod(tensor.shape)), count))
  return found


PARAMS = {
  dtype: {
    "after": quantized(dtype, 64, 96),
    "of_tensor": quantized(dtype, 64, 96),
    "of_channel": quantized(dtype, 64, 96),
    "of_block": quantized(dtype, 64, 96),
    "tensor": np.float32(0.1),
    "channel": scales(96),
    "block": scales(64 // BLOCK, 1, 96),
    "zero": quantized(dtype, 96),
    "zero_of_tensor": np.array(3, jnp.dtype(dtype)),
  }
  for dtype in DTYPES
}


def products(params: Any, x: Any) -> dict[str, Any]:
  """Scales behind the product, and for the tensor, its channels and its blocks."""
  results = {}
  for dtype, p in params.items():
    blocks = wide(p["of_block"]).reshape(-1, BLOCK, 96) * p["block"]
    integers = p["of_channel"].astype(jnp.int32) - p["zero"].astype(jnp.int32)
    results |= {
      f"{dtype}_after": (x @ wide(p["after"])) * p["channel"],
      f"{dtype}_tensor": x @ ((wide(p["of_tensor"]) - wide(p["zero_of_tensor"])) * p["tensor"]),
      f"{dtype}_channel": x @ (p["channel"] * wide(integers)),
      f"{dtype}_block": x @ blocks.reshape(64, 96),
    }
  return results


def compared(path: Path, fun: Any, params: Any, x: np.ndarray, **options: Any) -> Any:
  made = tflite.save(fun, params, path, inputs={"x": f"f32[4,{x.shape[1]}]"}, **options)
  results = runners(path)("serving_default")(x=x)
  for name, y in fun(params, x).items():
    np.testing.assert_allclose(results[name], y, **CLOSE, err_msg=name)
  return made


# LiteRT's products end at the largest float.
@pytest.mark.filterwarnings("ignore:LiteRT computes different outputs than JAX for NaN")
def test_parameters_stay_as_they_are(tmp_path: Path) -> None:
  made = compared(tmp_path / "m.tflite", products, PARAMS, X, samples=1)
  size = 64 * 96
  found = constants(made.path)
  for bits in (4, 8):
    of_channels, of_blocks = (f"int{bits}", size, 96), (f"int{bits}", size, size // BLOCK)
    assert [found.count(of_channels), found.count(of_blocks)] == [4, 2]
    assert sum(one[:2] == (f"int{bits}", size) for one in found) == 8
  assert not [one for one in found if one[0] == "float32" and one[1] > 96]


def test_rows_layers_and_convolutions(tmp_path: Path) -> None:
  """Rows of a table, layers of a loop, a convolution, and a product of integers."""
  params = {
    "table": quantized("int8", 40, 64),
    "layers": quantized("int8", 9, 64, 64),
    "kernel": quantized("int4", 3, 3, 4, 64),
    "scale": scales(64),
    "integers": quantized("int8", 64, 80),
  }

  def fun(params: Any, x: Any) -> Any:
    def step(carry: Any, w: Any) -> tuple[Any, None]:
      return jnp.tanh(carry @ (wide(w) * 0.05)), None

    carried, _ = jax.lax.scan(step, x, params["layers"])
    rows = wide(params["table"][jnp.abs(x[:, 0] * 9).astype(jnp.int32)])
    kernel = wide(params["kernel"]) * params["scale"]
    image = jax.lax.conv_general_dilated(
      x.reshape(4, 4, 4, 4), kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    whole = jnp.clip(jnp.round(x * 9), -127, 127).astype(jnp.int8)
    product = jax.lax.dot(whole, params["integers"], preferred_element_type=jnp.int32)
    return {"carried": carried, "rows": rows, "image": jnp.tanh(image), "product": product}

  made = compared(tmp_path / "m.tflite", fun, params, X)
  found = constants(made.path)
  assert ("int4", 3 * 3 * 4 * 64, 64) in found and ("int8", 64 * 80, 1) in found
  assert sum(n for dtype, n, _ in found if dtype == "int8") == 40 * 64 + 9 * 64 * 64 + 64 * 80
  assert not [one for one in found if one[0] in ("float32", "int32") and one[1] > 64]


@pytest.mark.parametrize("quantization", [None, "float16"])
def test_a_large_model(
  tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quantization: str | None
) -> None:
  """Its signatures share the integers, and float weights are bound too."""
  monkeypatch.setattr(binding, "LARGE", 2**10)
  monkeypatch.setattr(binding, "_LEAST", 2**10)
  params = {
    "w": quantized("int4", 64, 256),
    "scale": scales(2, 1, 256),
    "next": RNG.standard_normal((256, 64)).astype("f"),
  }

  def fun(params: Any, x: Any) -> dict[str, Any]:
    w = wide(params["w"]).reshape(2, 32, 256) * params["scale"]
    return {"y": jnp.tanh(x @ w.reshape(64, 256)) @ params["next"]}

  model = saved_model.Model(params)
  for name, n in (("one", 1), ("four", 4)):
    model.add(fun, inputs={"x": f"f32[{n},64]"}, signatures=name)
  made = tflite.save_model(model, tmp_path / "m.tflite", quantization=quantization)
  found = constants(made.path)
  kept = np.dtype("f2" if quantization else "f4").itemsize * 256 * 64
  assert found.count(("int4", 64 * 256, 512)) == 2  # in each signature
  least = kept + 64 * 256 // 2
  assert least < made.size < least + 2 * 512 * 12 + 8000  # type: ignore[operator]
  expected = fun(params, X)["y"]
  tolerance = {"rtol": 1e-2, "atol": 1e-2} if quantization else CLOSE
  np.testing.assert_allclose(runners(made.path)("four")(x=X)["y"], expected, **tolerance)


@pytest.mark.parametrize(("quantization", "bits"), [("dynamic_int8", 8), ("int4", 4)])
def test_weights_of_a_large_model_become_integers(
  tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quantization: str, bits: int
) -> None:
  """float32, bfloat16, and a tied table, which is in the file once."""
  monkeypatch.setattr(binding, "LARGE", 2**10)
  monkeypatch.setattr(binding, "_LEAST", 2**10)
  params = {
    "table": RNG.standard_normal((200, 64)).astype("f"),
    "w": RNG.standard_normal((64, 256)).astype("f"),
    "next": RNG.standard_normal((256, 64)).astype(jnp.bfloat16),
    "kernel": RNG.standard_normal((3, 3, 4, 64)).astype("f"),
  }

  def fun(params: Any, x: Any) -> dict[str, Any]:
    rows = params["table"][jnp.abs(x[:, 0] * 9).astype(jnp.int32)]
    hidden = jnp.tanh((x + rows) @ params["w"]) @ wide(params["next"])
    image = jax.lax.conv_general_dilated(
      x.reshape(4, 4, 4, 4),
      params["kernel"],
      (1, 1),
      "SAME",
      dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    return {"logits": hidden @ params["table"].T, "image": image}

  made = tflite.save(
    fun, params, tmp_path / "m.tflite", inputs={"x": "f32[4,64]"}, quantization=quantization
  )
  found = constants(made.path)
  for size in (64 * 256, 3 * 3 * 4 * 64):
    assert [one[0] for one in found if one[1] == size and one[2]][:1] == [f"int{bits}"]
  assert not [one for one in found if one[0] in ("float32", "bfloat16") and one[1] > 256]
  weights = 200 * 64 + (2 * 64 * 256 + 36 * 64) * bits // 8
  assert weights < made.size < weights + 2 * (200 + 256 + 64 + 64) * 12 + 8000  # type: ignore[operator]


def test_what_litert_cannot_say_is_float32(tmp_path: Path) -> None:
  """Scales for each element, a zero point that is no integer, and a table of numbers."""
  params = {
    "each": quantized("int4", 64, 32),
    "half": quantized("uint8", 64, 32),
    "codes": quantized("uint4", 64, 32),
  }
  each, table = scales(64, 32), scales(16)

  def fun(params: Any, x: Any) -> dict[str, Any]:
    return {
      "each": x @ (wide(params["each"]) * each),
      "half": x @ (wide(params["half"]) - 0.5),
      "codes": x @ jnp.asarray(table)[params["codes"].astype(jnp.int32)],
    }

  compared(tmp_path / "m.tflite", fun, params, X, samples=1)


def test_hostile_scales(tmp_path: Path) -> None:
  """Zero, negative, subnormal and infinite scales: LiteRT's kernels take them as JAX does."""
  w = quantized("int8", 64, 8)
  w[:, 3] = 1
  scale = np.array([0.0, -0.5, 1e-40, np.inf, 1, 2, 3, 4], "f")
  tflite.save(
    lambda p, x: {"y": x + wide(p) * scale}, w, tmp_path / "m.tflite", inputs={"x": "f32[64,8]"}
  )
  found = runners(tmp_path / "m.tflite")("serving_default")(x=np.ones((64, 8), "f"))["y"]
  np.testing.assert_allclose(found, 1 + w.astype("f") * scale, rtol=1e-6)


def test_narrow_ends_are_refused(tmp_path: Path) -> None:
  with pytest.raises(tflite.ExportError, match=r"'x' of .* is int4, .*; take and return int8"):
    tflite.save(lambda _, x: wide(x), None, tmp_path / "m.tflite", inputs={"x": "i4[b]"})
