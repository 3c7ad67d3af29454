"""The networks of Qwix' own tests for devices, written again, as integer models of LiteRT.

Two of them learn a task with integers, as Qwix prescribes: the last steps round weights and
activations. The others have random weights. `quant.fake_quant` of Qwix gives the ranges.
"""

from __future__ import annotations

import functools
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

from jax2tf.converters import tflite
from jax2tf.converters.tflite.flatbuffer import tools
from jax2tf.converters.tflite.parts import Parts
from jax2tf.tools.lab import workers

# {"float32", "int8": the size of the file in bytes, "floats": ops that compute in float32 between
# the ends, "kernels": all other ops, "cosine": of the outputs with JAX's, "top_1": [equal, of] of
# rows with classes, "right": {"float32", "JAX", "LiteRT": share of the labels}}, or {"refused"}
Numbers = dict[str, Any]
Data = tuple[Any, np.ndarray | None]


class Cnn(nn.Module):
  """Two convolutions, and two dense layers."""

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    for features in (32, 64):
      x = nn.avg_pool(nn.relu(nn.Conv(features, (3, 3))(x)), (2, 2), (2, 2))
    x = nn.relu(nn.Dense(256)(x.reshape(x.shape[0], -1)))
    return nn.Dense(10)(x)


class Transformer(nn.Module):
  """Two layers of four heads, without a normalisation, and a class of the mean."""

  @nn.compact
  def __call__(self, tokens: jax.Array) -> jax.Array:
    x = nn.Embed(100, 16)(tokens)
    for _ in range(2):
      x += nn.MultiHeadAttention(4, qkv_features=8)(x)
      x += nn.Dense(16)(nn.relu(nn.Dense(32)(x)))
    return nn.Dense(100)(x.mean(axis=1))


class GroupNormSilu(nn.Module):
  """A normalisation by groups, and an activation."""

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    return nn.silu(nn.GroupNorm(num_groups=2)(x))


class Concatenated(nn.Module):
  """A layer beside its operand, and a sum."""

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    joined = jnp.concatenate([nn.relu(nn.Dense(10)(x)), x], axis=-1)
    return x + nn.Dense(x.shape[-1])(joined)


class UNet(nn.Module):
  """Three levels down and up, joined by concatenations."""

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    kept = []
    for features in (4, 8, 16):
      x = nn.relu(nn.Conv(features, (3, 3))(x))
      kept.append(x)
      x = nn.relu(nn.Conv(features, (3, 3), strides=(2, 2))(x))
    for features in (16, 8, 4):
      x = nn.relu(nn.Conv(features, (3, 3))(x))
      batch, height, width, channels = x.shape
      x = jax.image.resize(x, (batch, 2 * height, 2 * width, channels), "bilinear")
      x = jnp.concatenate([x, kept.pop()], axis=-1)
    return nn.Conv(3, (3, 3))(x)


class ConvBatchNorm(nn.Module):
  """A convolution, a normalisation with known statistics, and an activation."""

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    x = nn.Conv(8, (3, 1))(x)
    return nn.relu6(nn.BatchNorm(use_running_average=True)(x))


class Repeated(nn.Module):
  """Repeated features between two layers, and a sign."""

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    x = nn.Dense(2, use_bias=False)(x).repeat(3, axis=-1)
    return -nn.Dense(5, use_bias=False)(x)


class AutoEncoder(nn.Module):
  """Two convolutions."""

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    return nn.Conv(3, (3, 3))(nn.Conv(1, (3, 3))(x))


def _digits() -> tuple[Data, Data]:
  """Handwritten digits f32[b,28,28,1], to learn and to judge."""
  images, labels = load_digits(return_X_y=True)
  small = jnp.asarray(images / 16, jnp.float32).reshape(-1, 8, 8, 1)
  large = np.asarray(jax.image.resize(small, (len(small), 28, 28, 1), "bilinear"))
  return (large[:1000], labels[:1000]), (large[1000:1500], labels[1000:1500])


def _planted() -> tuple[Data, Data]:
  """Tokens i32[b,100] of which the label is the most frequent."""
  rng = np.random.default_rng(0)
  tokens, labels = rng.integers(0, 100, (6000, 100)), rng.integers(0, 100, 6000)
  tokens = np.where(rng.random(tokens.shape) < 0.12, labels[:, None], tokens).astype(np.int32)
  return (tokens[:5500], labels[:5500]), (tokens[5500:], labels[5500:])


def _uniform(*shape: int, least: float = 0.0) -> tuple[Data, Data]:
  """Numbers without labels."""
  x = np.random.default_rng(0).uniform(least, 1, shape).astype(np.float32)
  return (x, None), (x, None)


@dataclass(frozen=True)
class Case:
  """A network of Qwix' tests.

  Attributes:
    network: its layers.
    data: makes what it learns from, and what it is judged by.
    steps: of training; 0 for random weights.
  """

  network: nn.Module
  data: Callable[[], tuple[Data, Data]]
  steps: int = 0


CASES = {
  "CNN, trained": Case(Cnn(), _digits, 300),
  "Transformer, trained": Case(Transformer(), _planted, 1000),
  "U-Net": Case(UNet(), functools.partial(_uniform, 2, 64, 64, 6)),
  "GroupNorm and SiLU": Case(GroupNormSilu(), functools.partial(_uniform, 8, 128)),
  "concatenation and sum": Case(Concatenated(), functools.partial(_uniform, 8, 5)),
  "convolution and BatchNorm": Case(ConvBatchNorm(), functools.partial(_uniform, 8, 100, 1, 16)),
  "repeated features": Case(Repeated(), functools.partial(_uniform, 16, 10, least=-1)),
  "autoencoder": Case(AutoEncoder(), functools.partial(_uniform, 2, 100, 100, 3)),
}


def rows() -> list[str]:
  """The networks."""
  return [*CASES]


def measured(names: Sequence[str]) -> Iterator[tuple[str, Numbers]]:
  """Each row in another process."""
  tasks = [(name,) for name in names]
  yield from workers.each(_row, tasks, _lost, renewed_after=1, seconds=900)


def _lost(error: workers.LostError, name: str) -> tuple[str, Numbers]:
  return name, {"refused": str(error)[:400]}


def _row(name: str) -> tuple[str, Numbers]:
  case = CASES[name]
  warnings.simplefilter("ignore", DeprecationWarning)  # of Qwix 0.1.8 itself
  with tempfile.TemporaryDirectory() as folder:
    return name, _numbers(case, Path(folder))


def _numbers(case: Case, folder: Path) -> Numbers:
  learned, (x, labels) = case.data()
  params, variables, network = _prepared(case, learned)
  plain = functools.partial(_applied, case.network, variables)
  integer = functools.partial(_applied, network, variables)
  spec = {"x": jax.ShapeDtypeStruct(x.shape, x.dtype)}
  options: dict[str, Any] = {"inputs": spec, "examples": {"x": x}}
  float32 = tflite.save(plain, params, folder / "float32.tflite", **options)
  int8 = tflite.save(integer, params, folder / "int8.tflite", quantization="int8", **options)
  floats, kernels = _ops(int8.path)
  expected = np.asarray(jax.jit(integer)(params, x)["y"])
  found = tflite.run(int8.path, {"x": x})["y"]
  numbers: Numbers = {
    "float32": float32.size,
    "int8": int8.size,
    "floats": floats,
    "kernels": kernels,
    "cosine": float(np.vdot(found, expected) / (np.linalg.norm(found) * np.linalg.norm(expected))),
  }
  if labels is None:
    return numbers
  in_float = np.asarray(jax.jit(plain)(params, x)["y"])
  chosen = {"float32": in_float, "JAX": expected, "LiteRT": found}
  classes = {name: scores.argmax(-1) for name, scores in chosen.items()}
  equal = int((classes["LiteRT"] == classes["JAX"]).sum())
  right = {name: float((one == labels).mean()) for name, one in classes.items()}
  return numbers | {"top_1": [equal, len(labels)], "right": right}


def _applied(network: nn.Module, variables: Any, params: Any, x: jax.Array) -> dict[str, Any]:
  return {"y": network.apply({"params": params, **variables}, x)}


def _prepared(case: Case, learned: Data) -> tuple[Any, Any, nn.Module]:
  """(parameters, other collections, the network as Qwix prepares it for converters)."""
  import qwix  # noqa: PLC0415

  rules = [qwix.QuantizationRule(module_path=".*", weight_qtype=jnp.int8, act_qtype=jnp.int8)]
  rounding = qwix.quantize_model(case.network, qwix.OdmlQatProvider(rules))
  x, labels = jnp.asarray(learned[0]), learned[1]  # NumPy arrays are weights to Qwix
  state = dict(rounding.init(jax.random.key(0), x[:1]))
  if labels is None:
    noise = np.random.default_rng(1)
    state["params"] = jax.tree.map(
      lambda a: a + noise.uniform(0, 0.1, a.shape).astype(a.dtype), state["params"]
    )
    state |= rounding.apply(state, x, mutable=["quant_stats"])[1]
  else:
    state = _trained(case, rounding, state, x, labels)
  params, stats = state.pop("params"), state.pop("quant_stats")
  provider = qwix.OdmlConversionProvider(rules, params, stats)
  return params, state, qwix.quantize_model(case.network, provider)


def _trained(case: Case, rounding: nn.Module, state: Any, x: Any, labels: Any) -> Any:
  """Learns half of the steps in float32, and the others with integers."""
  optimiser = optax.adam(optax.cosine_decay_schedule(3e-3, case.steps))
  memory = optimiser.init(state["params"])

  def loss(params: Any, state: Any, network: Any, x: Any, labels: Any) -> Any:
    scores, after = network.apply(state | {"params": params}, x, mutable=["quant_stats"])
    return optax.softmax_cross_entropy_with_integer_labels(scores, labels).mean(), after

  @functools.partial(jax.jit, static_argnames="network")
  def step(state: Any, memory: Any, network: Any, x: Any, labels: Any) -> Any:
    slope, after = jax.grad(loss, has_aux=True)(state["params"], state, network, x, labels)
    change, memory = optimiser.update(slope, memory)
    return state | dict(after) | {"params": optax.apply_updates(state["params"], change)}, memory

  rng = np.random.default_rng(0)
  for i in range(case.steps):
    chosen = rng.integers(0, len(x), 64)
    network = case.network if 2 * i < case.steps else rounding
    state, memory = step(state, memory, network, x[chosen], labels[chosen])
  return state


def _ops(path: Path) -> tuple[list[str], int]:
  """(the kinds of ops that compute floats, the number of others), without those at the ends."""
  parts = Parts.of(path.read_bytes())
  (graph,) = parts.model.subgraphs
  float32 = tools().TensorType.FLOAT32
  floats, kernels = set(), 0
  for op in graph.operators:
    if (kind := parts.kind(op)) in ("QUANTIZE", "DEQUANTIZE"):
      continue
    if any(graph.tensors[n].type == float32 for n in (*op.inputs, *op.outputs) if n >= 0):
      floats.add(kind)
    else:
      kernels += 1
  return sorted(floats), kernels
