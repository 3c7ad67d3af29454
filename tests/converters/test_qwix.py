"""Networks that Qwix quantises, in ONNX Runtime and LiteRT: after training, for training, and as it
prepares them for on-device converters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import onnx as onnx_library
import pytest
import qwix

from jax2tf.converters import onnx, tflite
from jax2tf.converters.tflite import flatbuffer
from jax2tf.converters.tflite.parts import Parts
from tests.converters.test_tflite import runners

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Qwix 0.1.8 itself
X = jnp.asarray(np.random.default_rng(0).standard_normal((4, 32)), jnp.float32)
TARGETS = {"onnx": onnx, "tflite": tflite}
INT8 = {"weight_qtype": jnp.int8, "act_qtype": jnp.int8}
# {name: (options of a rule, the dtype of the parameters in an ONNX file)}
AFTER_TRAINING = {
  "int8": ({"weight_qtype": jnp.int8}, "INT8"),
  "int4 in tiles": ({"weight_qtype": jnp.int4, "tile_size": 16}, "INT4"),
  "nf4": ({"weight_qtype": "nf4", "tile_size": 16}, "UINT4"),
  "float8": ({"weight_qtype": jnp.float8_e4m3fn}, "FLOAT8E4M3FN"),
  "int8 activations": (INT8, "INT8"),
}


class Network(nn.Module):
  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    return nn.Dense(8)(nn.relu(nn.Dense(16)(x)))


NETWORK = Network()
PARAMS = NETWORK.init(jax.random.key(0), X)["params"]


def rules(**options: Any) -> list[Any]:
  return [qwix.QuantizationRule(module_path=".*", **options)]


def saved(path: Path, target: str, network: Any, params: Any, **options: Any) -> None:
  """Exports it, which compares it with JAX."""
  TARGETS[target].save(
    lambda params, x: network.apply({"params": params}, x),
    params,
    path,
    inputs={"x": "f32[4,32]"},
    samples=1,
    **options,
  )


@pytest.mark.parametrize("name", AFTER_TRAINING)
def test_weights_stay_quantised(tmp_path: Path, name: str) -> None:
  options, dtype = AFTER_TRAINING[name]
  network = qwix.quantize_model(NETWORK, qwix.PtqProvider(rules(**options)))
  abstract = jax.eval_shape(network.init, jax.random.key(0), X)["params"]
  path = tmp_path / "m.onnx"
  saved(path, "onnx", network, qwix.quantize_params(PARAMS, abstract))
  of = onnx_library.TensorProto.DataType.Name
  stored = [of(t.data_type) for t in onnx_library.load(path).graph.initializer]
  assert stored.count(dtype) == 2  # kernels of both layers


@pytest.mark.parametrize("target", TARGETS)
def test_quantisation_aware_training(tmp_path: Path, target: str) -> None:
  network = qwix.quantize_model(NETWORK, qwix.QtProvider(rules(**INT8)))
  saved(tmp_path / f"m.{target}", target, network, PARAMS)


def prepared(network: Any, x: jax.Array) -> tuple[Any, Any]:
  """(the network as Qwix prepares it for on-device converters, parameters)."""
  params = network.init(jax.random.key(0), x)["params"]
  # a new network has biases of zeros
  params = jax.tree.map(lambda a: a + 0.1 if a.ndim == 1 else a, params)
  of_int8 = rules(**INT8)
  training = qwix.quantize_model(network, qwix.OdmlQatProvider(of_int8))
  state = training.init(jax.random.key(0), x)
  state = {"params": params} | {name: state[name] for name in state if name != "params"}
  _, updated = training.apply(state, x, mutable="quant_stats")
  stats = updated.get("quant_stats", {})
  provider = qwix.OdmlConversionProvider(of_int8, params, stats)
  return qwix.quantize_model(network, provider), params


@pytest.mark.parametrize("target", TARGETS)
def test_networks_for_on_device_converters(tmp_path: Path, target: str) -> None:
  """Without `quantization` its composites, quant.fake_quant, are computed by their ops, and weights
  are int8."""
  network, params = prepared(NETWORK, X)
  path = tmp_path / f"m.{target}"
  saved(path, target, network, params)
  if target == "tflite":
    assert path.read_bytes().count(b"/quantized") >= 2


class Images(nn.Module):
  """The layers of Qwix' own test of MNIST, smaller."""

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    for features in (8, 16):
      x = nn.relu(nn.Conv(features, (3, 3))(x))
      x = nn.avg_pool(x, (2, 2), (2, 2))
    x = nn.relu(nn.Dense(32)(x.reshape(x.shape[0], -1)))
    return nn.Dense(10)(x)


class Block(nn.Module):
  """Attention and a perceptron, each added to its operand."""

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    query, key, value = (nn.Dense(16)(x) for _ in range(3))
    scores = nn.softmax(jnp.einsum("bqd,bkd->bqk", query, key) * 0.25)
    x = x + nn.Dense(16)(jnp.einsum("bqk,bkd->bqd", scores, value))
    return x + nn.Dense(16)(nn.gelu(nn.Dense(32)(x)))


class Joined(nn.Module):
  """A constant for each channel, a result with two readers, repeated features, a mean, and a
  sign."""

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    shift = 0.3 * jnp.arange(8, dtype=jnp.float32)
    first = nn.relu6(nn.Conv(8, (3, 3))(x) + shift)
    joined = jnp.concatenate([nn.relu(nn.Conv(4, (3, 3))(first)), first], axis=-1)
    repeated = nn.Dense(3)(joined).repeat(2, axis=-1)
    return -nn.Dense(5, use_bias=False)(repeated.mean(axis=(1, 2)))


def drawn(*shape: int) -> jax.Array:
  return jnp.asarray(np.random.default_rng(1).standard_normal(shape), jnp.float32)


# {name: (network, input, quanta by which outputs may differ)}. Qwix does not round the averages of
# a pool, which LiteRT does.
INTEGER = {
  "mlp": (NETWORK, X, 1),
  "images": (Images(), drawn(4, 16, 16, 1), 8),
  "block": (Block(), drawn(2, 8, 16), 4),
  "joined": (Joined(), drawn(2, 6, 6, 3), 4),
}


def test_quantizing_nodes_of_onnx(tmp_path: Path) -> None:
  network, params = prepared(NETWORK, X)
  path = tmp_path / "m.onnx"
  saved(path, "onnx", network, params, quantization="int8")
  graph = onnx_library.load(path).graph
  nodes = [node.op_type for node in graph.node]
  # the input, the result of each layer and the weights of both
  assert [nodes.count("QuantizeLinear"), nodes.count("DequantizeLinear")] == [3, 5]
  of = onnx_library.TensorProto.DataType.Name
  stored = [of(t.data_type) for t in graph.initializer if len(t.dims) == 2]
  assert stored.count("INT8") == 2
  expected = jax.jit(network.apply)({"params": params}, X)
  (found,) = onnx.run(path, {"x": np.asarray(X)}).values()
  last = [t for t in graph.initializer if t.name == graph.node[-1].input[1]]
  scale = float(onnx_library.numpy_helper.to_array(last[0]))
  assert np.abs(found - np.asarray(expected)).max() <= 1.01 * scale


def test_int8_needs_samples_or_ranges(tmp_path: Path) -> None:
  for target in TARGETS:
    with pytest.raises(ValueError, match=r"has no quant\.fake_quant"):
      saved(tmp_path / f"m.{target}", target, NETWORK, PARAMS, quantization="int8")


@pytest.mark.parametrize("name", INTEGER)
def test_integer_kernels_of_litert(tmp_path: Path, name: str) -> None:
  """quant.fake_quant as quantization parameters. A kernel rounds each result once, to the nearest
  integer or to the next one, and so may what reads it."""
  base, x, quanta = INTEGER[name]
  network, params = prepared(base, x)
  path = tmp_path / "m.tflite"
  made = tflite.save(
    lambda params, x: {"y": network.apply({"params": params}, x)},
    params,
    path,
    inputs={"x": jax.ShapeDtypeStruct(x.shape, x.dtype)},
    quantization="int8",
    examples={"x": np.asarray(x)},
  )
  assert made.report.ok
  ops, last = float_ops(path)
  assert not ops
  expected = np.asarray(jax.jit(network.apply)({"params": params}, x))
  found = runners(path)("serving_default")(x=np.asarray(x))["y"]
  assert np.abs(found - expected).max() <= (quanta + 0.01) * last


def in_quanta(x: jax.Array, scale: float) -> jax.Array:
  """x, rounded as Qwix has it in a network for on-device converters."""

  def rounded(x: jax.Array, **_: Any) -> jax.Array:
    return jnp.clip(jnp.round(x / scale), -128, 127) * scale

  composite = jax.lax.composite(rounded, "quant.fake_quant")
  return composite(x, scale=np.array([scale], np.float32), dtype="i8", narrow_range=False)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int4", "uint4"])
def test_weights_that_are_integers_already(tmp_path: Path, dtype: str) -> None:
  """The kernels take int8 only, in which uint8 has no 200."""
  limits = jnp.iinfo(jnp.dtype(dtype))
  w = np.random.default_rng(2).integers(limits.min, limits.max + 1, (32, 16)).astype(limits.dtype)

  def fun(w: Any, x: jax.Array) -> dict[str, jax.Array]:
    product = in_quanta(x, 0.03) @ (w.astype(jnp.float32) * 0.01)
    return {"y": in_quanta(product, 0.15)}

  path = tmp_path / "m.tflite"
  tflite.save(fun, w, path, inputs={"x": "f32[4,32]"}, quantization="int8", samples=1)
  found = runners(path)("serving_default")(x=np.asarray(X))["y"]
  assert np.abs(found - np.asarray(fun(w, X)["y"])).max() <= 1.01 * 0.15


@pytest.mark.parametrize("least", [-127, -128])
def test_a_factor_for_each_channel(tmp_path: Path, least: int) -> None:
  """Its sign goes into the integers, unless they have no other sign of -128."""
  w = np.random.default_rng(2).integers(-127, 128, (32, 8)).astype(np.int8)
  w[3] = least
  factors = np.array([0.5, -2, 1.5, -0.25, 1, -1, 3, -0.1], np.float32)

  def fun(w: Any, x: jax.Array) -> dict[str, jax.Array]:
    product = in_quanta(x, 0.03) @ (w.astype(jnp.float32) * 0.01) * factors
    return {"y": in_quanta(nn.relu(product + factors), 0.15)}

  path = tmp_path / "m.tflite"
  tflite.save(fun, w, path, inputs={"x": "f32[4,32]"}, quantization="int8", samples=1)
  found = runners(path)("serving_default")(x=np.asarray(X))["y"]
  assert np.abs(found - np.asarray(fun(w, X)["y"])).max() <= 1.01 * 0.15
  assert float_ops(path)[0] == (set() if least == -127 else {"FULLY_CONNECTED"})


@pytest.mark.parametrize("mode", ["clip", "fill"])
def test_rows_of_a_table(tmp_path: Path, mode: str) -> None:
  """They are floats where a row may be NaN."""
  table = np.random.default_rng(3).uniform(-1, 1.5, (20, 8)).astype(np.float32)
  tokens = np.random.default_rng(3).integers(0, 20, (3, 5)).astype(np.int32)

  def fun(table: Any, x: jax.Array) -> dict[str, jax.Array]:
    rows = jnp.take(in_quanta(table, 0.01), x, axis=0, mode=mode)
    return {"y": in_quanta(rows + rows, 0.04)}

  path = tmp_path / "m.tflite"
  tflite.save(fun, table, path, inputs={"x": "i32[3,5]"}, quantization="int8", samples=1)
  found = runners(path)("serving_default")(x=tokens)["y"]
  assert np.abs(found - np.asarray(fun(table, tokens)["y"])).max() <= 1.01 * 0.04
  assert ("SELECT_V2" in float_ops(path)[0]) == (mode == "fill")
  assert ("ADD" in float_ops(path)[0]) == (mode == "fill")


def test_operands_that_integers_cannot_have(tmp_path: Path) -> None:
  """LiteRT has no negative scale, and no infinity in integers."""
  table = np.random.default_rng(3).integers(-128, 128, (20, 8)).astype(np.int8)
  tokens = np.random.default_rng(3).integers(0, 20, (3, 5)).astype(np.int32)

  def fun(table: Any, x: jax.Array) -> dict[str, jax.Array]:
    rows = jnp.take(table.astype(jnp.float32) * -0.01, x, axis=0, mode="clip")
    scores = in_quanta(rows, 0.01)
    return {"y": in_quanta(scores + rows, 0.04), "z": in_quanta(scores + np.inf, 0.04)}

  path = tmp_path / "m.tflite"
  tflite.save(fun, table, path, inputs={"x": "i32[3,5]"}, quantization="int8", samples=1)
  found = runners(path)("serving_default")(x=tokens)
  expected = jax.jit(fun)(table, tokens)
  assert np.abs(found["y"] - np.asarray(expected["y"])).max() <= 1.01 * 0.04
  np.testing.assert_allclose(found["z"], np.asarray(expected["z"]), rtol=1e-5)


def test_constants_in_a_range(tmp_path: Path) -> None:
  """What stands for a range while TensorFlow's converter runs must not round them."""
  shift = np.linspace(-0.1, 0.2, 8).astype(np.float32)

  def fun(w: Any, x: jax.Array) -> dict[str, jax.Array]:
    known = in_quanta(2 * shift, 0.004) + in_quanta(w / 3, 0.002)
    return {"y": in_quanta(in_quanta(x, 0.03) + in_quanta(known, 0.01), 0.03)}

  path = tmp_path / "m.tflite"
  inputs = {"x": "f32[4,8]"}
  tflite.save(fun, shift[::-1].copy(), path, inputs=inputs, quantization="int8", samples=1)
  x = np.asarray(X[:, :8])
  found = runners(path)("serving_default")(x=x)["y"]
  assert not float_ops(path)[0]
  assert np.abs(found - np.asarray(fun(shift[::-1], x)["y"])).max() <= 1.01 * 0.03


def float_ops(path: Path) -> tuple[set[str], float]:
  """The ops that compute floats, and the scale of the last tensor."""
  parts = Parts.of(path.read_bytes())
  (graph,) = parts.model.subgraphs
  integers = (flatbuffer.tools().TensorType.INT8, flatbuffer.tools().TensorType.INT32)
  found = {
    parts.kind(op)
    for op in graph.operators
    if not any(graph.tensors[n].type in integers for n in op.outputs)
  }
  last = graph.tensors[graph.operators[-1].inputs[0]]
  return found - {"DEQUANTIZE"}, float(last.quantization.scale[0])
