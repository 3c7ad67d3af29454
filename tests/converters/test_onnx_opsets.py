"""Files of newer opsets: the answers of opset 18, the nodes that only they have, and what is
refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx as onnx_library
import onnxruntime
import pytest

from jax2tf.converters import onnx
from jax2tf.converters.onnx import model, releases
from tests.support import onnx_files
from tests.support.onnx_files import nodes

RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 8, 8)).astype("f")
W = RNG.standard_normal((8, 8)).astype("f")
WORDS = np.uint32([0, 1, 2**31, 0x7F800000, 0x7FC00001, 0xFFC12345, 0x00000007, 0x80000001])


def layers(w: Any, x: Any) -> Any:
  """Ops whose definitions newer opsets replaced."""
  y = jax.nn.dot_product_attention(*[jnp.reshape(x @ w, (-1, 8, 2, 4))] * 3, is_causal=True)
  y = jax.nn.gelu(jnp.reshape(y, x.shape))
  image = jnp.pad(x, ((0, 0), (1, 1), (0, 0)))[..., None]
  pooled = jax.lax.reduce_window(image, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
  carried = jax.lax.scan(lambda c, v: (jnp.tanh(c @ w + v), c), x[:, 0], x.swapaxes(0, 1))
  found = (jnp.sort(x), jnp.argmax(x, -1), jnp.cumsum(x, 1), jnp.round(x), jnp.mod(x, 0.3))
  return y, pooled, carried, found, jnp.take(w, jnp.argmax(x, -1), axis=0), x.at[:, 0].add(1.0)


def opened(path: Path, fun: Callable[..., Any], params: Any, inputs: Any, opset: int) -> Any:
  onnx.save(fun, params, path, inputs=inputs, samples=1, opset=opset, overwrite=True)
  onnx_library.checker.check_model(str(path), full_check=True)
  return onnx_files.opened(path)


def test_a_newer_number_has_the_answers_of_the_oldest(tmp_path: Path) -> None:
  path, inputs = tmp_path / "m.onnx", {"x": "f32[b,8,8]"}
  expected = opened(path, layers, W, inputs, 18).run(None, {"x": X})
  for opset in (20, 22, 24, 28):
    found = opened(path, layers, W, inputs, opset).run(None, {"x": X})
    assert onnx_library.load(path).opset_import[0].version == opset
    for y, z in zip(found, expected, strict=True):
      # other kernels of GELU
      np.testing.assert_allclose(y, z, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_bits_are_one_node_and_keep_nan(tmp_path: Path, dtype: str) -> None:
  width = np.dtype(dtype).itemsize
  x = WORDS.view(f"u{width}") if width < 8 else np.repeat(WORDS, 2).view("u8")

  def fun(_: Any, x: jax.Array) -> Any:
    floats = jax.lax.bitcast_convert_type(x, dtype)
    return floats, jax.lax.bitcast_convert_type(floats, f"int{8 * width}")

  with jax.enable_x64(True):
    session = opened(tmp_path / "m.onnx", fun, None, {"x": f"u{8 * width}[b]"}, 26)
  floats, words = session.run(None, {"x": x})
  np.testing.assert_array_equal(floats.view(x.dtype), x)
  np.testing.assert_array_equal(words.view(x.dtype), x)
  assert set(nodes(tmp_path / "m.onnx")) <= {"BitCast", "Cast"}


def test_cumulative_products_are_one_node(tmp_path: Path) -> None:
  def fun(_: Any, x: jax.Array) -> Any:
    return jnp.cumprod(x, 1), jax.lax.cumprod(x, 2, reverse=True)

  session = opened(tmp_path / "m.onnx", fun, None, {"x": "f32[b,8,8]"}, 26)
  for found, y in zip(session.run(None, {"x": X}), fun(None, X), strict=True):
    # eight factors
    np.testing.assert_allclose(found, y, rtol=1e-6)
  assert nodes(tmp_path / "m.onnx") == ["CumProd", "CumProd"]


def squares(scale: Any, x: Any) -> Any:
  """Root mean square normalization as Flax writes it, with `scale` among the factors."""
  return (x - 0.0) * (jax.lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + 1e-6) * scale)


def squares_by_hand(scale: Any, x: Any) -> Any:
  return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * scale


def gelu(_: Any, x: Any) -> Any:
  return jax.nn.gelu(x, approximate=False)


def gelu_by_tanh(_: Any, x: Any) -> Any:
  return jax.nn.gelu(x)


SPECIAL = np.float32([np.nan, np.inf, -np.inf, -0.0, 0, 1e15, -1e15, 100, -100])
# with one of these in a row, and with nothing else
ROWS = np.concatenate([np.where(np.arange(8) == 3, v, X[0, :1]) for v in SPECIAL]).astype("f")
ROWS = np.concatenate([ROWS, np.repeat(SPECIAL[:, None], 8, 1), X.reshape(-1, 8)])


@pytest.mark.parametrize("symbolic", [True, False])
@pytest.mark.parametrize(
  ("fun", "opset", "node"),
  [
    (squares, 23, "RMSNormalization"),
    (squares_by_hand, 23, "RMSNormalization"),
    (gelu, 20, "Gelu"),
    (gelu_by_tanh, 20, "Gelu"),
  ],
)
def test_layers_of_newer_opsets_have_jax_values(
  tmp_path: Path, fun: Callable[..., Any], opset: int, node: str, symbolic: bool
) -> None:
  inputs = {"x": f"f32[{'b' if symbolic else len(ROWS)},8]"}
  session = opened(tmp_path / "m.onnx", fun, W[0], inputs, opset)
  (found,) = session.run(None, {"x": ROWS})
  # of eight squares, and of ONNX Runtime's Erf and Tanh; gelu is 0 below -6
  np.testing.assert_allclose(found, jax.jit(fun)(W[0], ROWS), rtol=2e-5, atol=1e-6)
  assert nodes(tmp_path / "m.onnx") == [node]
  opened(tmp_path / "m.onnx", fun, W[0], inputs, opset - 1)
  assert node not in nodes(tmp_path / "m.onnx")


def test_sums_of_other_squares_are_none(tmp_path: Path) -> None:
  def fun(scale: Any, x: Any) -> Any:
    columns = x * jax.lax.rsqrt(jnp.mean(x * x, 0, keepdims=True) + 1e-6)
    sums = x * jax.lax.rsqrt(jnp.sum(x * x, -1, keepdims=True) + 1e-6)
    other = x * jax.lax.rsqrt(jnp.mean(x[::-1] * x, -1, keepdims=True) + 1e-6)
    moved = (x * scale) * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)
    return columns, sums, other, moved, squares(scale, x) + scale

  session = opened(tmp_path / "m.onnx", fun, W[0], {"x": "f32[8,8]"}, 23)
  x = np.abs(X[0])
  for found, y in zip(session.run(None, {"x": x}), fun(W[0], x), strict=True):
    # sums of eight squares
    np.testing.assert_allclose(found, y, rtol=1e-5)
  assert nodes(tmp_path / "m.onnx").count("RMSNormalization") == 1


def test_random_numbers_are_those_of_jax(tmp_path: Path) -> None:
  def fun(_: Any, words: jax.Array) -> Any:
    key = jax.random.wrap_key_data(words)
    return jax.random.uniform(key, (33,)), jnp.nextafter(jax.random.uniform(key, (33,)), 1.0)

  session = opened(tmp_path / "m.onnx", fun, None, {"words": "u32[2]"}, 26)
  for found, y in zip(session.run(None, {"words": WORDS[:2]}), fun(None, WORDS[:2]), strict=True):
    np.testing.assert_array_equal(found, y)


def test_a_node_that_means_something_else_is_refused() -> None:
  helper = onnx_library.helper
  graph = helper.make_graph([helper.make_node("GridSample", ["x", "grid"], ["y"])], "g", [], [])
  proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
  assert model._at_opset(proto, 19).opset_import[0].version == 19
  with pytest.raises(ValueError, match=r"opset = 23: the model has GridSample, .* give 19 or"):
    model._at_opset(proto, 23)


def test_an_opset_that_the_runtime_does_not_open_is_refused(
  tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
  monkeypatch.setattr(onnxruntime, "__version__", "1.31.0")
  assert releases.newest_opset()[0] == 26
  with pytest.raises(ValueError, match=r"opset = 27; give one from 18 to 26, .* 1\.31\.0, which"):
    onnx.save(lambda _, x: x, None, tmp_path / "m.onnx", inputs={"x": "f32[2]"}, opset=27)
