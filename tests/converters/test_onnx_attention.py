"""onnx.save(attention_nodes=True): Attention with JAX's values, also of masks that mask all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import onnx as onnx_library
import pytest
from flax import nnx

from jax2tf.converters import onnx
from tests.support import onnx_files

BATCH, QUERIES, KEYS, HEADS, WIDTH = 2, 5, 7, 4, 8
RNG = np.random.default_rng(0)
LEAST = float(np.finfo(np.float32).min)
MASK = RNG.random((BATCH, 1, QUERIES, KEYS)) < 0.6
MASK[0, 0, 1], MASK[1, 0, 2], MASK[1, 0, 3] = False, True, False
BIAS = RNG.standard_normal((BATCH, HEADS, QUERIES, KEYS)).astype("f")
BIAS[0, 0, 0], BIAS[0, 1, 1], BIAS[0, 2, 2] = -np.inf, LEAST, -1e38  # of whole rows
BIAS[1, 0, 0, 1:], BIAS[1, 1, 1, 1:], BIAS[1, 2, 2, 0], BIAS[1, 3, 3, 0] = (
  -np.inf,
  LEAST,
  np.nan,
  np.inf,
)
ARRAYS = {
  "q": RNG.standard_normal((BATCH, QUERIES, HEADS, WIDTH)).astype("f"),
  "k": RNG.standard_normal((BATCH, KEYS, HEADS, WIDTH)).astype("f"),
  "v": RNG.standard_normal((BATCH, KEYS, HEADS, WIDTH)).astype("f"),
  "mask": MASK,
  "bias": BIAS,
}


def by_hand(
  q: jax.Array, k: jax.Array, v: jax.Array, mask: Any = None, fill: float = 0.0, cap: float = 0.0
) -> jax.Array:
  scores = jnp.einsum("bthd,bshd->bhts", q, k) / WIDTH**0.5
  scores = jnp.tanh(scores / cap) * cap if cap else scores
  scores = scores if mask is None else jnp.where(mask, scores, fill)
  return jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores, axis=-1), v)


def forms(_: Any, q: jax.Array, k: jax.Array, v: jax.Array, mask: Any, bias: Any) -> Any:
  attention = jax.nn.dot_product_attention
  few_k, few_v = k[:, :, :2], v[:, :, :2]
  padding = mask[:, :, :1]
  plain = [
    attention(q, k, v),
    attention(q, k, v, is_causal=True, scale=0.5),
    attention(q, few_k, few_v, is_causal=True),
    by_hand(q, k, v, cap=2.0),
  ]
  masked = [
    attention(q, k, v, mask=mask),
    attention(q, k, v, mask=padding, is_causal=True),
    attention(q, few_k, few_v, mask=mask),
    by_hand(q, k, v, mask, LEAST),
    by_hand(q, k, v, mask, -np.inf),
    by_hand(q, k, v, ~padding, -1e30),
  ]
  biased = [attention(q, k, v, bias=bias), attention(q, k, v, bias=bias, mask=mask)]
  return [*plain, *masked, *biased]


def saved(
  path: Path, fun: Callable[..., Any], specs: Any, params: Any = None, **options: Any
) -> Path:
  onnx.save(
    fun, params, path, inputs=specs, samples=1, attention_nodes=True, overwrite=True, **options
  )
  onnx_library.checker.check_model(str(path), full_check=True)
  return path


# NaN of q and k at a masked place, which JAX drops
@pytest.mark.filterwarnings("ignore:ONNX Runtime computes different outputs")
@pytest.mark.parametrize("sizes", ["static", "symbolic"])
def test_masks_of_whole_rows_have_the_values_of_jax(tmp_path: Path, sizes: str) -> None:
  t, s = ("t", "s") if sizes == "symbolic" else (QUERIES, KEYS)
  specs = {
    "q": f"f32[b,{t},4,8]",
    "k": f"f32[b,{s},4,8]",
    "v": f"f32[b,{s},4,8]",
    "mask": f"bool[b,1,{t},{s}]",
    "bias": f"f32[b,4,{t},{s}]",
  }
  known = {"b": BATCH} | ({"t": QUERIES, "s": KEYS} if sizes == "symbolic" else {})
  wanted = jax.jit(forms)(None, *ARRAYS.values())
  names = [f"y{i}" for i in range(len(wanted))]
  path = saved(tmp_path / "m.onnx", forms, specs, outputs=names, sizes=known)
  nodes = onnx_files.nodes(path)
  assert nodes.count("Attention") == len(wanted) and "Softmax" not in nodes
  found = onnx.run(path, ARRAYS)
  for i, y in enumerate(wanted):
    # sums of seven products, of softmax
    np.testing.assert_allclose(found[f"y{i}"], y, rtol=1e-5, atol=1e-6, err_msg=f"y{i}")


def linen() -> tuple[Any, Any, dict[str, str]]:
  module = nn.MultiHeadDotProductAttention(num_heads=4, deterministic=True)
  params = module.init(jax.random.key(0), np.zeros((1, 5, 8), "f"))
  return lambda p, x, mask: module.apply(p, x, mask=mask), params, {"mask": "bool[b,1,5,5]"}


def of_nnx() -> tuple[Any, Any, dict[str, str]]:
  module = nnx.MultiHeadAttention(num_heads=4, in_features=8, decode=False, rngs=nnx.Rngs(0))
  graph, params = nnx.split(module)
  return lambda p, x: nnx.merge(graph, p)(x), params, {}


def of_equinox() -> tuple[Any, Any, dict[str, str]]:
  module = equinox.nn.MultiheadAttention(4, 8, key=jax.random.key(0))
  params, rest = equinox.partition(module, equinox.is_array)
  return lambda p, x: jax.vmap(lambda x: equinox.combine(p, rest)(x, x, x))(x), params, {}


@pytest.mark.filterwarnings("ignore:ONNX Runtime computes different outputs")
@pytest.mark.parametrize("library", [linen, of_nnx, of_equinox])
def test_layers_of_libraries_have_one(tmp_path: Path, library: Any) -> None:
  fun, params, others = library()
  path = saved(tmp_path / "m.onnx", fun, {"x": "f32[b,5,8]", **others}, params, sizes={"b": 2})
  assert onnx_files.nodes(path).count("Attention") == 1


def test_what_the_node_computes_otherwise_is_none(tmp_path: Path) -> None:
  def fun(_: Any, q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array) -> list[jax.Array]:
    scores = jnp.einsum("bthd,bshd->bhts", q, k)
    columns = jax.nn.softmax(scores.swapaxes(2, 3), -1).swapaxes(2, 3)
    heads = jax.nn.softmax(scores, 1)
    twice = jax.nn.softmax(jax.nn.softmax(scores, -1), -1)
    return [
      by_hand(q, k, v, mask, -1e9),  # not small enough to absorb scores
      by_hand(q, k, v, mask, LEAST, cap=2.0),  # ONNX Runtime 1.26 takes the mask first
      *(jnp.einsum("bhts,bshd->bthd", w, v) for w in (columns, heads, twice)),
      jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(-scores, -1), v),
    ]

  specs = {name: f"f32[b,{n},4,8]" for name, n in (("q", 5), ("k", 7), ("v", 7))}
  specs["mask"] = "bool[b,1,5,7]"
  message = "attention_nodes = True: the function has no attention that ONNX's Attention"
  with pytest.raises(ValueError, match=message):
    saved(tmp_path / "m.onnx", fun, specs)
  with pytest.raises(ValueError, match="a node of opset 23 and newer; give opset=23"):
    saved(tmp_path / "m.onnx", fun, specs, opset=22)
