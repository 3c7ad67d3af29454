"""The same model gives the same bytes: twice in one process, and in another process."""

from __future__ import annotations

import hashlib
import importlib
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

FILES = {"onnx": "model.onnx", "tflite": "model.tflite", "tfjs": "model_js"}
WEIGHTS = {
  "kernel": np.random.default_rng(0).standard_normal((3, 3, 3, 4)).astype("f"),
  "layer__2": {"bias": np.arange(8, dtype="f"), "scale": np.ones(8, "f")},
}


def model(params: Any, image: jax.Array, x: jax.Array) -> dict[str, jax.Array]:
  """With a branch, a loop, a sort, random bits, and equal constants that tf2onnx merges."""
  layer = params["layer__2"]
  edges = jax.lax.conv_general_dilated(
    image, params["kernel"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
  )
  y = jax.nn.gelu(x * layer["scale"] + layer["bias"])
  _, states = jax.lax.scan(lambda c, row: (jnp.tanh(c + row), c * row), y[0], y)
  chosen = jax.lax.cond(y.sum() > 0, lambda: y * 2, lambda: y - layer["bias"])
  noise = jax.random.normal(jax.random.key(0), (8,))
  return {
    "edges": jax.nn.relu(edges).mean((1, 2)),
    "states": states,
    "order": jnp.argsort(y, axis=-1),
    "probabilities": jax.nn.softmax(chosen),
    "noisy": x + noise,
  }


def digests(folder: Path) -> dict[str, str]:
  """{target/file: hash}, for the model exported into this folder to each target."""
  found = {}
  for target, file in FILES.items():
    place = folder / target
    place.mkdir(parents=True)
    with warnings.catch_warnings():
      warnings.simplefilter("ignore")
      importlib.import_module(f"jax2tf.converters.{target}").save(
        model, WEIGHTS, place / file, inputs={"image": "f32[1,8,8,3]", "x": "f32[4,8]"}, samples=1
      )
    for written in sorted(path for path in place.rglob("*") if path.is_file()):
      name = written.relative_to(folder).as_posix()
      found[name] = hashlib.sha256(written.read_bytes()).hexdigest()
  return found


def test_equal_models_have_equal_bytes(tmp_path: Path) -> None:
  # sets of strings have another order under this seed, sets of objects under other addresses
  environment = os.environ | {"PYTHONHASHSEED": "20261126"}
  other = subprocess.run(
    [sys.executable, "-m", "tests.converters.test_same_bytes", str(tmp_path / "other")],
    env=environment,
    capture_output=True,
    text=True,
    check=False,
  )
  if other.returncode:
    pytest.fail(other.stderr[-2000:])
  first, second = (digests(tmp_path / name) for name in ("first", "second"))
  assert len(first) == 4  # TF.js has two files
  assert second == first
  assert dict(line.split() for line in other.stdout.splitlines()) == first


if __name__ == "__main__":
  for name, digest in digests(Path(sys.argv[1])).items():
    print(name, digest)
