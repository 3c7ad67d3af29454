"""The models of the report pipelines, and their files of rows."""

from __future__ import annotations

import itertools
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from jax2tf.converters import saved_model

_FILES = 16
_WIDTH, _LAYERS = 384, 6


def mlp(params: Any, x: jax.Array) -> jax.Array:
  """x f32[b,784] -> f32[b,10]; its speed is limited by the code around it."""
  for w in params[:-1]:
    x = jnp.tanh(x @ w)
  return x @ params[-1]


def encode(params: Any, ids: jax.Array, attention_mask: jax.Array) -> jax.Array:
  """ids i32[b,s], attention_mask i32[b,s] -> f32[b,384]; its speed is limited by its matrix
  products, which have MiniLM's sizes."""
  mask = attention_mask.astype(jnp.float32)
  x = params["embedding"][ids]
  for layer in params["layers"]:
    query, key, value = (x @ w for w in layer["attention"])
    scores = query @ key.swapaxes(1, 2) / _WIDTH**0.5 + jnp.where(mask[:, None] > 0, 0.0, -1e9)
    x = x + jax.nn.softmax(scores) @ value
    x = x + jax.nn.gelu(x @ layer["up"]) @ layer["down"]
    x = x / jnp.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)
  return (x * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)


def parameters(name: str) -> Any:
  """Those of the model `mlp` or `encoder`."""
  random = np.random.default_rng(0)

  def weights(*shape: int) -> np.ndarray:
    return random.normal(0, 0.05, shape).astype(np.float32)

  if name == "encoder":
    layers = [
      {
        "attention": [weights(_WIDTH, _WIDTH) for _ in range(3)],
        "up": weights(_WIDTH, 4 * _WIDTH),
        "down": weights(4 * _WIDTH, _WIDTH),
      }
      for _ in range(_LAYERS)
    ]
    return {"embedding": weights(1000, _WIDTH), "layers": layers}
  return [weights(*pair) for pair in itertools.pairwise((784, 512, 512, 10))]


def save(name: str, folder: pathlib.Path) -> None:
  """Saves a model."""
  params = parameters(name)
  if name == "encoder":
    saved_model.save(
      encode,
      params,
      folder,
      inputs={"ids": "i32[b,s]", "attention_mask": "i32[b,s]"},
      outputs=["y"],
    )
  else:
    saved_model.save(mlp, params, folder, inputs={"x": "f32[b,784]"}, outputs=["y"])


def write(name: str, folder: pathlib.Path, rows: int) -> None:
  """Writes numbered rows for a model, as many into each file."""
  folder.mkdir()
  random, each = np.random.default_rng(1), rows // _FILES
  for k in range(_FILES):
    ids = np.arange(k * each, (k + 1) * each)
    if name == "encoder":
      column: Any = pa.array([random.integers(0, 1000, random.integers(8, 65)) for _ in ids])
      table = pa.table({"id": ids, "ids": column})
    else:
      flat = random.normal(size=each * 784).astype(np.float32)
      table = pa.table({"id": ids, "x": pa.FixedSizeListArray.from_arrays(pa.array(flat), 784)})
    pq.write_table(table, folder / f"part-{k:04}.parquet")


def answers(rows: int, target: pathlib.Path) -> np.ndarray:
  """The outputs of all rows in the order of their ids, f32[rows, n].

  Raises:
    ValueError: a row was lost or occurs twice.
  """
  table = pq.read_table(target, columns=["id", "y"])
  ids, column = table["id"].to_numpy(), table["y"].combine_chunks()
  order = np.argsort(ids)
  if not np.array_equal(ids[order], np.arange(rows)):
    raise ValueError(
      f"{rows:,} rows went in, and {len(ids):,} came out, {len(np.unique(ids)):,} of them different"
    )
  lists = column.storage if isinstance(column, pa.ExtensionArray) else column  # Ray writes tensors
  return lists.flatten().to_numpy().reshape(rows, -1)[order]


def compare(found: np.ndarray, expected: np.ndarray) -> None:
  """Raises ValueError if outputs differ by more than 1e-5 of the largest."""
  apart = (
    float(np.max(np.abs(found - expected), initial=0)) if found.shape == expected.shape else np.inf
  )
  if not apart <= 1e-5 * np.max(np.abs(expected), initial=1):
    raise ValueError(f"its outputs differ by {apart:.2g}")


def of_jax(name: str, source: pathlib.Path, rows: int = 32) -> np.ndarray:
  """What JAX computes for the first rows of the source."""
  table = pq.read_table(sorted(source.glob("*.parquet"))[0]).slice(0, rows)
  params = parameters(name)
  if name != "encoder":
    return np.asarray(jax.jit(mlp)(params, np.stack(table["x"].to_numpy())))
  lists = [np.asarray(ids, np.int32) for ids in table["ids"].to_pylist()]
  masks = np.arange(max(map(len, lists))) < np.array([[len(ids)] for ids in lists])
  ids = np.zeros(masks.shape, np.int32)
  ids[masks] = np.concatenate(lists)
  return np.asarray(jax.jit(encode)(params, ids, masks.astype(np.int32)))
