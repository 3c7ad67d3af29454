"""The LiteRT file of LiteRT-LM: signatures `prefill_8`, `prefill_128` ... and `decode`, with the
names by which the engine knows their tensors.

Inputs are tokens i32[1,s], input_pos i32[s], mask f32[1,1,s,C], kv_cache_k_0, kv_cache_v_0 ...; the
outputs are the same caches and, of `decode`, logits f32[1,1,V].

Of the last piece of a prompt the engine gives a whole `prefill_8`, and fills it up with token 0 at
position 0 and a mask that hides everything (LiteRT-LM 0.18.1). A step that wrote at these positions
would overwrite row 0, and one that attended to nothing could write NaN. So positions are counted
from the first one, and the mask is made from them: what is filled up lies behind the prompt, where
no token sees it and the next call writes. The input `mask` is there because the engine reads the
cache's length from its last dimension.

Of a decoder with `embed` the input is embeddings f32[1,s,D]. The engine makes them by a second
file, with the signature `embedder`: token_ids i32[1,1] -> embeddings f32[1,1,D]. It also passes
negative ids, for what is filled up, and these have the embedding of token 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import tflite
from ..saved_model.builder import Model
from .decoder import Decoder

DECODE = "decode"
EMBEDDER = "embedder"


def prefill_name(size: int) -> str:
  """That of the signature which reads `size` tokens."""
  return f"prefill_{size}"


def model_of(decoder: Decoder, sizes: Sequence[int]) -> Model:
  """The signatures.

  Args:
    decoder: the model.
    sizes: numbers of tokens that a signature reads.
  """
  model = Model(decoder.params, trainable=False, idioms=tflite.IDIOMS)
  for size in sorted(sizes):
    model.add(
      _call(decoder, decodes=False), inputs=_inputs(decoder, size), signatures=prefill_name(size)
    )
  model.add(_call(decoder, decodes=True), inputs=_inputs(decoder, 1), signatures=DECODE)
  return model


def embedder_of(decoder: Decoder) -> Model:
  """The signature that makes the embeddings.

  Args:
    decoder: the model, with `embed`.
  """
  embed = decoder.embed
  assert embed is not None

  def call(params: Any, token_ids: jax.Array) -> dict[str, jax.Array]:
    return {"embeddings": embed(params, jnp.maximum(token_ids, 0)).astype(jnp.float32)}

  model = Model(decoder.params, trainable=False, idioms=tflite.IDIOMS)
  return model.add(call, inputs={"token_ids": "i32[1,1]"}, signatures=EMBEDDER)


def examples(decoder: Decoder) -> dict[str, Any]:
  """Tokens, embeddings and positions for the comparison of single calls."""

  def positions(rng: np.random.Generator, shape: Sequence[int], dtype: Any) -> np.ndarray:
    first = rng.integers(0, decoder.context_length - shape[0] + 1)
    return (first + np.arange(shape[0])).astype(dtype)

  if decoder.embed is None:
    return {"tokens": tokens_of(decoder), "input_pos": positions}
  return {"input_pos": positions}


def tokens_of(decoder: Decoder) -> Callable[..., np.ndarray]:
  """Draws tokens for a comparison."""

  def tokens(rng: np.random.Generator, shape: Sequence[int], dtype: Any) -> np.ndarray:
    return rng.integers(0, decoder.vocabulary, shape).astype(dtype)

  return tokens


def _cache_names(decoder: Decoder) -> dict[str, str]:
  """{path of a leaf: its key in the signature}."""
  return {
    leaf.path: f"{part}_{layer}"
    for layer, pair in enumerate(decoder.cache.layers)
    for part, leaf in zip("kv", pair, strict=True)
  }


def _inputs(decoder: Decoder, size: int) -> dict[str, Any]:
  length = decoder.context_length
  names = _cache_names(decoder)
  return {
    **_read(decoder, size),
    "input_pos": f"i32[{size}]",
    "mask": f"f32[1,1,{size},{length}]",
    "kv_cache": {
      names[leaf.path]: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
      for leaf in decoder.cache.of_kind("rows")
    },
  }


def _read(decoder: Decoder, size: int) -> dict[str, str]:
  """What a signature reads: tokens or embeddings."""
  if decoder.embed is None:
    return {"tokens": f"i32[1,{size}]"}
  return {"embeddings": f"f32[1,{size},{decoder.embedding.shape[2]}]"}


def _call(decoder: Decoder, *, decodes: bool) -> Callable[..., Any]:
  names = _cache_names(decoder)

  def call(
    params: Any,
    read: jax.Array,
    input_pos: jax.Array,
    mask: jax.Array,
    kv_cache: Mapping[str, jax.Array],
  ) -> dict[str, Any]:
    del mask
    positions = (input_pos[0] + jnp.arange(read.shape[1], dtype=jnp.int32))[None]
    read = read if decoder.embed is None else read.astype(decoder.embedding.dtype)
    rows = {path: kv_cache[name] for path, name in names.items()}
    logits, after = decoder.on_rows(params, read, positions, rows)
    written = {"kv_cache": {names[path]: array for path, array in after.items()}}
    return {"logits": logits.astype(jnp.float32), **written} if decodes else written

  return call
