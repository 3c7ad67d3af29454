"""The models and options that the tests of `jax2tf serve` use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf

from jax2tf.converters import saved_model
from jax2tf.tools.serving import child


def encode(params: Any, x: jax.Array, ids: jax.Array) -> dict[str, jax.Array]:
  """x f32[b,8], ids i32[b,s] -> y f32[b,3], total i32[b]."""
  return {"y": jnp.tanh(x @ params["w"]) + ids.shape[1], "total": ids.sum(1)}


def params(seed: int) -> Any:
  return {"w": np.random.default_rng(seed).normal(size=(8, 3)).astype(np.float32)}


def save(folder: Path, seed: int, **kwargs: Any) -> Path:
  inputs = {"x": "f32[b,8]", "ids": "i32[b,s]"}
  constraints = ["b <= 100"]
  return saved_model.save(
    encode,
    params(seed),
    folder,
    inputs=inputs,
    outputs=["total", "y"],
    polymorphic_constraints=constraints,
    **kwargs,
  )


class Strings(tf.Module):
  """A SavedModel of strings that says nothing of its dimensions."""

  @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")])
  def __call__(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
    return {"length": tf.strings.length(text), "same_bytes": text}


def inputs_of(b: int, s: int) -> dict[str, np.ndarray]:
  random = np.random.default_rng(b)
  return {
    "x": random.normal(size=(b, 8)).astype(np.float32),
    "ids": random.integers(0, 99, (b, s), np.int32),
  }


def configure(folder: Path, *others: str) -> None:
  """Writes the file that names the models: the encoder of a fixed label, and others beside it."""
  labels = 'version_labels { key: "first" value: 1 } version_labels { key: "next" value: 3 }'
  models = [f'config {{ name: "{folder.name}" base_path: "{folder.name}" {labels} }}']
  models += [f'config {{ name: "{other}" base_path: "{other}" }}' for other in others]
  (folder.parent / "models.new").write_text(f"model_config_list {{ {' '.join(models)} }}")
  (folder.parent / "models.new").rename(folder.parent / "models.config")


def options(run: Path, **changes: Any) -> child.Options:
  """Those of a server that has its sockets in `run`."""
  limits = {
    "max_batch_size": 1,
    "batch_wait_ms": 0.0,
    "max_request_mb": 1,
    "max_queued_requests": 1000,
    "max_sessions": 16,
    "max_cache_mb": 64,
    "client_seconds": 30.0,
  }
  unset = dict.fromkeys(
    ("folder", "name", "model_config_file", "tls_cert", "tls_key", "tls_client_ca"), ""
  )
  given: dict[str, Any] = {
    **limits,
    **unset,
    "run": str(run),
    "allow_ops": [],
    "device": "auto",
    "gpus": [],
    "replicas": 1,
    "host": "127.0.0.1",
    "grpc_port": 0,
    "http_port": 0,
    **changes,
  }
  return child.Options(**given)
