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


def saved(path: Path, target: str, network: Any, params: Any) -> None:
  """Exports it, which compares it with JAX."""
  TARGETS[target].save(
    lambda params, x: network.apply({"params": params}, x),
    params,
    path,
    inputs={"x": "f32[4,32]"},
    samples=1,
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


@pytest.mark.parametrize("target", TARGETS)
def test_networks_for_on_device_converters(tmp_path: Path, target: str) -> None:
  """Its composites, quant.fake_quant, are computed by their ops."""
  options = rules(**INT8, act_static_scale=True)
  training = qwix.quantize_model(NETWORK, qwix.OdmlQatProvider(options))
  state = training.init(jax.random.key(0), X)
  state = {"params": PARAMS} | {name: state[name] for name in state if name != "params"}
  _, updated = training.apply(state, X, mutable="quant_stats")
  provider = qwix.OdmlConversionProvider(options, PARAMS, updated["quant_stats"])
  saved(tmp_path / f"m.{target}", target, qwix.quantize_model(NETWORK, provider), PARAMS)
