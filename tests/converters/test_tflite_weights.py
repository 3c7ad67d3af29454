"""Weights of large models, which are no constants while TensorFlow's converter runs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ai_edge_litert import interpreter
from jax import lax

from jax2tf.converters import saved_model, tflite
from jax2tf.converters.tflite import binding, blocks, flatbuffer, runtime

RNG = np.random.default_rng(0)


def weight(*sizes: int) -> np.ndarray:
  return (RNG.standard_normal(sizes) / np.sqrt(sizes[-2])).astype(np.float32)


@pytest.fixture(autouse=True)
def every_model_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
  monkeypatch.setattr(binding, "LARGE", 0)
  monkeypatch.setattr(binding, "_LEAST", 2048)
  monkeypatch.setattr(runtime, "_LARGE", 0)


def ops_of(path: Path) -> Counter[str]:
  opened = interpreter.Interpreter(model_path=str(path))
  return Counter(op["op_name"] for op in opened._get_ops_details())


PARAMS = {
  "embed": weight(80, 64),
  "w": weight(64, 64),
  "b": weight(1, 64)[0],
  "stacked": weight(3, 64, 64),
  "heads": weight(4, 64, 16),
  "kernel": weight(3, 3, 8, 16),
  "half": weight(64, 64).astype(np.float16),
  "narrow": weight(64, 64).astype(jnp.bfloat16),
}


def hidden(params: Any, x: jax.Array) -> jax.Array:
  """A bias, an activation, a loop, a branch, and parts of a weight."""
  x = jax.nn.relu(x @ params["w"] + params["b"])
  x = lax.fori_loop(0, x.astype(jnp.int32)[0, 0] + 3, lambda i, y: jnp.tanh(y @ params["w"]), x)
  x = lax.cond(
    x[0, 0] > 0, lambda y: y @ params["stacked"][0], lambda y: y @ params["stacked"][1], x
  )
  return jnp.einsum("bd,hdk->bhk", x, params["heads"]).reshape(-1, 64)


def logits(params: Any, tokens: jax.Array) -> jax.Array:
  return hidden(params, params["embed"][tokens]) @ params["embed"].T


def test_values_ops_and_size(tmp_path: Path) -> None:
  model = saved_model.Model(PARAMS, trainable=False, idioms=tflite.exporter.IDIOMS)
  model.add(logits, inputs={"tokens": "i32[b]"}, outputs=["y"], signatures="first")
  model.add(hidden, inputs={"x": "f32[2,64]"}, outputs=["y"], signatures="second")
  made = tflite.save_model(model, tmp_path / "m.tflite", samples=1)
  assert made.report.ok
  read = ("embed", "w", "b", "heads")
  weights = sum(PARAMS[name].nbytes for name in read) + PARAMS["stacked"][:2].nbytes
  assert made.size < weights + 20_000, "a weight is in the file twice"
  stored = tflite.inspect(made.path).weights
  names = {name.split(" ")[0]: array for name, array in stored.items()}
  np.testing.assert_array_equal(names["embed"], PARAMS["embed"])


def test_one_signature_computes_as_in_the_whole_file(tmp_path: Path) -> None:
  """As `runtime.answers` runs large files, whose weights LiteRT packs once for each signature."""
  model = saved_model.Model(PARAMS, trainable=False)
  model.add(logits, inputs={"tokens": "i32[2]"}, outputs=["y"], signatures="first")
  model.add(hidden, inputs={"x": "f32[2,64]"}, outputs=["y"], signatures="second")
  model.add(lambda params, x: x, inputs={"x": "f32[2]"}, outputs=["y"], signatures="third")
  whole = tflite.save_model(model, tmp_path / "m.tflite", samples=1).path
  inputs: dict[str, Any] = {
    "first": {"tokens": np.array([3, 70], np.int32)},
    "second": {"x": np.array([[np.nan] * 64, [1e30] * 64], np.float32)},
    "third": {"x": np.array([np.nan, -0.0], np.float32)},
  }
  for name, named in inputs.items():
    alone = tmp_path / f"{name}.tflite"
    flatbuffer.with_one_signature(whole, name, alone)
    expected, found = (
      interpreter.Interpreter(model_path=str(path)).get_signature_runner(name)(**named)["y"]
      for path in (whole, alone)
    )
    np.testing.assert_array_equal(found.view(np.int32), expected.view(np.int32))
    subgraphs = flatbuffer.unpacked(alone.read_bytes()).subgraphs[:3]
    sizes = dict(zip(inputs, [len(graph.operators or ()) for graph in subgraphs], strict=True))
    assert all(size <= 1 for other, size in sizes.items() if other != name)


def test_scales_and_biases_join_convolutions(tmp_path: Path) -> None:
  def fun(params: Any, x: jax.Array) -> jax.Array:
    y = lax.conv_general_dilated(
      x, params["kernel"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return jax.nn.relu(y * params["b"][:16] + params["b"][16:32])

  made = tflite.save(fun, PARAMS, tmp_path / "m.tflite", inputs={"x": "f32[1,8,8,8]"}, samples=1)
  assert ops_of(made.path) == {"CONV_2D": 1}
  assert made.size < PARAMS["kernel"].nbytes + 4000


def test_narrow_weights_stay_narrow(tmp_path: Path) -> None:
  def fun(params: Any, x: jax.Array) -> dict[str, jax.Array]:
    narrow = x.astype(jnp.bfloat16) @ params["narrow"]
    return {"half": x @ params["half"].astype(jnp.float32), "narrow": narrow.astype(jnp.float32)}

  made = tflite.save(fun, PARAMS, tmp_path / "m.tflite", inputs={"x": "f32[3,64]"}, samples=1)
  assert made.size < PARAMS["half"].nbytes + PARAMS["narrow"].nbytes + 5000
  assert "DEQUANTIZE" in ops_of(made.path)


def test_float16(tmp_path: Path) -> None:
  made = tflite.save(
    logits,
    PARAMS,
    tmp_path / "m.tflite",
    inputs={"tokens": "i32[2]"},
    quantization="float16",
    samples=1,
  )
  read = ("embed", "w", "heads")
  weights = sum(PARAMS[name].nbytes for name in read) + PARAMS["stacked"][:2].nbytes
  assert made.size < weights / 2 + 25_000


def test_a_state_beside_large_weights(tmp_path: Path) -> None:
  def step(params: Any, state: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    state = jnp.tanh(state @ params["w"] + x)
    return state, state.sum()

  model = saved_model.Model(PARAMS, state=np.zeros((1, 64), np.float32), trainable=False)
  model.add(step, inputs={"x": "f32[1,64]"}, outputs=["y"], stateful=True)
  made = tflite.save_model(model, tmp_path / "m.tflite", samples=1)
  assert made.report.ok


def test_narrow_products_are_fully_connected_and_widen_late(tmp_path: Path) -> None:
  """A matrix of bfloat16 is widened right before its product. One that another op reads as it is
  stays."""
  narrow = {f"w{i}": weight(64, 64).astype(jnp.bfloat16) for i in range(4)}

  def fun(params: Any, x: jax.Array) -> jax.Array:
    for i in range(3):
      x = jnp.tanh(x @ params[f"w{i}"])
    return (x @ params["w3"] + params["w3"][0]).astype(jnp.float32)

  made = tflite.save(fun, narrow, tmp_path / "m.tflite", inputs={"x": "bf16[2,64]"}, samples=1)
  assert made.size < sum(x.nbytes for x in narrow.values()) + 10_000
  ops = interpreter.Interpreter(model_path=str(made.path))._get_ops_details()
  kinds = [op["op_name"] for op in ops]
  assert kinds.count("BATCH_MATMUL") == 1
  products = [i for i, kind in enumerate(kinds) if kind == "FULLY_CONNECTED"]
  assert len(products) == 3
  for i in products:
    assert kinds[i - 1] == "CAST"
    assert ops[i - 1]["outputs"][0] == ops[i]["inputs"][1]
  assert b"model_control_dependencies" in made.path.read_bytes()


def test_rows_of_a_narrow_table_are_taken_before_they_are_widened(tmp_path: Path) -> None:
  """A tied embedding of bfloat16 is widened for its product only."""

  def fun(params: Any, tokens: jax.Array) -> jax.Array:
    x = params["narrow"][tokens] @ params["narrow"].T
    return x.astype(jnp.float32)

  made = tflite.save(fun, PARAMS, tmp_path / "m.tflite", inputs={"tokens": "i32[b]"}, samples=1)
  assert made.size < PARAMS["narrow"].nbytes + 10_000
  opened = interpreter.Interpreter(model_path=str(made.path))
  ops = opened._get_ops_details()
  dtypes = {tensor["index"]: tensor["dtype"] for tensor in opened.get_tensor_details()}
  shapes = {tensor["index"]: tuple(tensor["shape"]) for tensor in opened.get_tensor_details()}
  (rows,) = (op for op in ops if op["op_name"] == "GATHER")
  table = rows["inputs"][0]
  assert dtypes[table] == jnp.bfloat16
  widening = [op for op in ops if op["op_name"] == "CAST" and shapes[op["inputs"][0]] == (64, 64)]
  assert len(widening) == 1


def test_large_narrow_products_are_blocks_of_one_matrix(
  tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
  """An embedding that is also the last layer, in blocks of 128, 128 and 44 rows, in two signatures
  of the file."""
  monkeypatch.setattr(blocks, "_LARGE", 2**15)
  params = {"embed": weight(3, 100, 64).astype(jnp.bfloat16)}

  def tied(params: Any, tokens: jax.Array) -> jax.Array:
    table = params["embed"].reshape(300, 64)
    return (jnp.tanh(table[tokens]) @ table.T).astype(jnp.float32)

  model = saved_model.Model(params, trainable=False, idioms=tflite.exporter.IDIOMS)
  model.add(tied, inputs={"tokens": "i32[b]"}, outputs=["y"], signatures="symbolic")
  model.add(tied, inputs={"tokens": "i32[1,3]"}, outputs=["y"], signatures="known")
  made = tflite.save_model(model, tmp_path / "m.tflite", samples=1)
  assert made.report.ok
  assert made.size < params["embed"].nbytes + 10_000
  products = {"FULLY_CONNECTED": 3, "CONCATENATION": 1, "GATHER": 1}
  ops = tflite.inspect(made.path).as_json()["ops"]
  assert {kind: ops[kind]["count"] for kind in products} == {k: 2 * n for k, n in products.items()}
