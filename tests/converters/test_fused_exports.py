"""Fused idioms in the files of other runtimes: each has the op that its runtime knows, and only
where they are asked for."""

from __future__ import annotations

import importlib
import itertools
import json
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx as onnx_library
import onnxruntime
import pytest
from ai_edge_litert.interpreter import Interpreter
from flax import linen

from jax2tf.converters import onnx, saved_model, tfjs, tflite
from jax2tf.idioms.fused import NAMES, names_of
from tests.support.onnx_files import nodes, opened

N = 8
RNG = np.random.default_rng(0)
PARAMS = {
  "w": RNG.normal(size=(N, N)).astype("f"),
  "b": RNG.normal(size=N).astype("f"),
  "scale": np.linspace(0.5, 2, N, dtype="f"),
}
X = RNG.normal(size=(3, N)).astype("f")
INPUTS = {"x": f"f32[b,{N}]"}


def conv(p: Any, images: jax.Array) -> jax.Array:
  """f32[b,h,w,N] -> f32[b,h,w,N], by a kernel of one pixel."""
  return jax.lax.conv_general_dilated(
    images, p["w"][None, None], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
  )


def features_first(p: Any, images: jax.Array) -> jax.Array:
  """f32[b,h,w,N] -> f32[b,N,h,w], likewise."""
  return jax.lax.conv_general_dilated(
    images, p["w"][None, None], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NCHW")
  )


def attention(x: jax.Array) -> jax.Array:
  """f32[b,8] -> f32[b,2,2,2]: of two tokens and two heads, where the first token is masked."""
  tokens = jnp.tanh(x.reshape(-1, 2, 2, 2))
  scores = jnp.einsum("bqhd,bkhd->bhqk", tokens, tokens) / 2
  return jax.nn.softmax(jnp.where(np.array([False, True]), scores, -1e30))


def normalized(x: jax.Array, axis: int = -1) -> jax.Array:
  centred = x - jnp.mean(x, axis, keepdims=True)
  return centred * jax.lax.rsqrt(jnp.var(x, axis, keepdims=True) + 1e-5)


def mlp(p: Any, x: jax.Array) -> jax.Array:
  x = jax.nn.gelu(x @ p["w"] + p["b"], approximate=False)
  x = normalized(x) * p["scale"] + p["b"]
  return jax.nn.softmax(jax.nn.hard_swish(jax.nn.relu(x @ p["w"] + p["b"])))


def ops(target: str, path: Path) -> list[str]:
  if target == "onnx":
    return nodes(path)
  if target == "tflite":
    return [op["op_name"] for op in Interpreter(str(path))._get_ops_details()]
  return [
    node["op"] for node in json.loads((path / "model.json").read_text())["modelTopology"]["node"]
  ]


@pytest.mark.usefixtures("tfjs_packages")
@pytest.mark.parametrize(
  ("target", "expected", "most"),
  [
    ("tflite", {"FULLY_CONNECTED", "GELU", "HARD_SWISH", "SOFTMAX"}, 12),
    ("onnx", {"LayerNormalization", "Relu", "HardSwish", "Softmax"}, 19),
    ("tfjs", {"Erf", "Mean", "Relu", "Softmax"}, 60),
  ],
)
def test_the_runtimes_own_ops(target: str, expected: set[str], most: int, tmp_path: Path) -> None:
  exporter: Any = importlib.import_module(f"jax2tf.converters.{target}")
  found = {}
  for idioms in ("exact", "fused"):
    path = tmp_path / f"{idioms}.{target}"
    options: dict[str, Any] = {"backends": ["wasm"]} if target == "tfjs" else {}
    with warnings.catch_warnings():
      warnings.filterwarnings(
        "ignore" if target == "tfjs" else "error",
        message="TF.js .* computes different outputs than JAX for NaN",
      )
      exporter.save(
        mlp,
        PARAMS,
        path,
        inputs=INPUTS,
        outputs=["y"],
        idioms=idioms,
        samples=1,
        examples={"x": X},
        **options,
      )
    found[idioms] = ops(target, path)
  assert expected <= set(found["fused"]) and len(found["fused"]) <= most < len(found["exact"]), (
    found
  )


@pytest.mark.usefixtures("tfjs_packages")
def test_batch_norm_in_tfjs(tmp_path: Path) -> None:
  """TF.js has no FusedBatchNormV3, which the idiom is in TensorFlow."""

  def net(p: Any, x: jax.Array) -> jax.Array:
    return jax.nn.relu(conv(p, x) * p["scale"] + p["b"])

  example = {"x": RNG.normal(size=(1, 2, 2, N)).astype("f")}
  options: dict[str, Any] = {
    "idioms": "fused",
    "samples": 1,
    "backends": ["wasm"],
    "examples": example,
  }
  path = tfjs.save(net, PARAMS, tmp_path / "m", inputs={"x": f"f32[1,2,2,{N}]"}, **options).path
  assert not {"FusedBatchNormV3"} & set(ops("tfjs", path))


def test_onnx_runtime_makes_gelu_of_it(tmp_path: Path) -> None:
  options = onnxruntime.SessionOptions()
  options.optimized_model_filepath = str(tmp_path / "opened.onnx")
  options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
  options.log_severity_level = 4
  path = onnx.save(
    lambda _, x: jax.nn.gelu(x, approximate=False),
    {},
    tmp_path / "m.onnx",
    inputs=INPUTS,
    idioms="fused",
    samples=1,
  ).path
  opened(path, options)
  assert ops("onnx", tmp_path / "opened.onnx") == ["Gelu"]


def test_layer_normalizations_that_are_near(tmp_path: Path) -> None:
  """A scale of its own for each row is no scale of the op; a second vector is no offset of it."""

  def fun(p: Any, x: jax.Array, rows: jax.Array) -> dict[str, jax.Array]:
    plain = normalized(x)
    return {
      "twice": (plain * p["scale"] + p["b"]) * p["scale"] + p["b"],
      "by_row": normalized(x) * rows + rows,
      "offset": normalized(x) + p["b"],
      "columns": normalized(x, 0),
      "shared": plain,
    }

  inputs = {"x": f"f32[{N},{N}]", "rows": f"f32[{N},1]"}
  path = onnx.save(fun, PARAMS, tmp_path / "m.onnx", inputs=inputs, idioms="fused", samples=1).path
  found = [
    node.attribute
    for node in onnx_library.load(path).graph.node
    if node.op_type == "LayerNormalization"
  ]
  assert len(found) == 3
  assert all(
    attribute.name == "epsilon" and attribute.f == np.float32(1e-5) for (attribute,) in found
  )


# Rows in which each runtime by default has JAX's values, NaN for NaN: with one of these, all of
# one, and all of two by turns.
_EXTREMES = np.float32([np.nan, np.inf, -np.inf, -0.0, 1e15, -1e15, 100, -100])
HOSTILE = np.concatenate(
  [
    np.where(np.eye(N, dtype=bool), _EXTREMES, X[0]),
    np.repeat(_EXTREMES[:, None], N, 1),
    np.stack([np.where(np.arange(N) % 2, a, b) for a, b in itertools.combinations(_EXTREMES, 2)]),
  ]
).astype("f")
IMAGES = np.concatenate([HOSTILE, HOSTILE[::-1], HOSTILE, HOSTILE[::-1]]).reshape(-1, 4, 4, N)


_ACTIVATIONS: dict[str, Any] = {
  name: getattr(jax.nn, name)
  for name in ("elu", "gelu", "hard_swish", "leaky_relu", "relu", "relu6", "selu", "silu")
}
# {idiom: functions of parameters, rows and images}
FORMS: dict[str, list[Any]] = {
  **{
    name: [
      lambda p, x, images, f=f: f(x),
      lambda p, x, images, f=f: f(x @ p["w"] + p["b"]),
      lambda p, x, images, f=f: f(conv(p, images) + p["b"]),
    ]
    for name, f in _ACTIVATIONS.items()
  },
  "softmax": [lambda p, x, images: jax.nn.softmax(x)],
  "log_softmax": [lambda p, x, images: jax.nn.log_softmax(x)],
  "layer_norm": [
    lambda p, x, images: normalized(x),
    lambda p, x, images: normalized(x) * p["scale"] + p["b"],
  ],
  "attention": [lambda p, x, images: attention(x)],
  "batch_norm": [
    lambda p, x, images: jax.nn.relu6(conv(p, images) * p["scale"] + p["b"]),
    lambda p, x, images: jax.nn.silu(
      features_first(p, images) * p["scale"][:, None, None] + p["b"][:, None, None]
    ),
    lambda p, x, images: jnp.tanh(conv(p, images) * p["scale"] + p["b"]),
  ],
  "max_pool": [lambda p, x, images: linen.max_pool(images, (2, 2), (2, 2))],
  "mean_pool": [lambda p, x, images: linen.avg_pool(images, (2, 2), (2, 2))],
}


@pytest.mark.usefixtures("tfjs_packages")
@pytest.mark.parametrize("target", ["onnx", "tflite", "tfjs"])
def test_default_idioms_have_jax_values(target: str, tmp_path: Path) -> None:
  """Of NaN and infinities, given as examples, a difference is an error."""
  exporter: Any = importlib.import_module(f"jax2tf.converters.{target}")
  chosen = names_of(exporter.exporter.IDIOMS)
  assert FORMS.keys() == NAMES

  def save(names: Any, **idioms: str) -> None:
    def forms(p: Any, x: jax.Array, images: jax.Array) -> dict[str, jax.Array]:
      return {f"{name}{i}": f(p, x, images) for name in names for i, f in enumerate(FORMS[name])}

    options: dict[str, Any] = {"backends": ["wasm"]} if target == "tfjs" else {}
    inputs = {"x": f"f32[{len(HOSTILE)},{N}]", "images": f"f32[{len(IMAGES)},4,4,{N}]"}
    examples = {"x": HOSTILE, "images": IMAGES}
    exporter.save(
      forms,
      PARAMS,
      tmp_path / f"m.{target}",
      inputs=inputs,
      samples=1,
      examples=examples,
      overwrite=True,
      **options,
      **idioms,
    )

  # LiteRT 2.3 and TF.js 4.22: a mean pool has no NaN, with exact idioms neither, which are of the
  # same op.
  save(sorted(chosen - ({"mean_pool"} if target != "onnx" else set())))
  for name in NAMES - chosen:  # the day one has, it may come
    with pytest.raises(exporter.ExportError, match="computes different outputs than the reference"):
      save([name], idioms=name)


@pytest.mark.usefixtures("tfjs_packages")
def test_another_choice_than_the_models_is_an_error(tmp_path: Path) -> None:
  model = saved_model.Model({}, idioms="fused").add(lambda _, x: jax.nn.softmax(x), inputs=INPUTS)
  saved = model.save(tmp_path / "saved")
  for exporter, given in ((onnx, model), (tflite, saved), (tfjs, saved)):
    with pytest.raises(
      ValueError, match=r"idioms = 'exact': .* was made with 'fused'; omit it, or create a Model"
    ):
      exporter.save_model(given, tmp_path / "file", idioms="exact")
