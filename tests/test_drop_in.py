"""Code that imports jax.experimental.jax2tf gets this package, unmodified."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import jax2tf

ROOT = Path(__file__).parent.parent


def run(*arguments, backend=None):
  environment = os.environ | ({"KERAS_BACKEND": backend} if backend else {})
  command = [sys.executable, *map(str, arguments)]
  return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False)


def test_install_for_a_while():
  before = importlib.import_module("jax.experimental.jax2tf")
  assert before.convert is not jax2tf.convert
  with jax2tf.install():
    from jax.experimental import jax2tf as package  # noqa: PLC0415
    from jax.experimental.jax2tf import call_tf  # noqa: PLC0415
    from jax.experimental.jax2tf.jax2tf import TfVal, convert  # noqa: PLC0415

    assert package is sys.modules["jax.experimental.jax2tf"]
    assert package.convert is convert is jax2tf.convert
    assert TfVal is tf.Tensor
    assert {name for name in dir(package) if name in dir(before)} >= {
      *("DisabledSafetyCheck", "PolyShape", "call_tf", "convert", "dtype_of_val", "eval_polymorphic_shape", "split_to_logical_devices")
    }
    np.testing.assert_allclose(call_tf(tf.sin)(jnp.ones(3)), np.sin(np.ones(3)), rtol=1e-6)
    with jax2tf.install():
      pass
    assert sys.modules["jax.experimental.jax2tf"] is package
  assert importlib.import_module("jax.experimental.jax2tf") is before
  assert sys.modules["jax.experimental"].jax2tf is before


def test_as_a_command(tmp_path):
  script = tmp_path / "script.py"
  script.write_text("import sys\nfrom jax.experimental import jax2tf\nprint(jax2tf.convert.__module__, sys.argv[1:], __name__)\n")
  done = run("-m", "jax2tf.install", script, "--flag", "value")
  assert done.stdout.strip() == "jax2tf.api ['--flag', 'value'] __main__", done.stderr
  assert "usage: python -m jax2tf.install" in run("-m", "jax2tf.install", tmp_path / "none.py").stderr


@pytest.fixture(scope="module")
def keras_folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp("keras")
  done = run("-m", "jax2tf.install", "tests/keras_models.py", "export", folder, backend="jax")
  assert done.returncode == 0, done.stderr[-3000:]
  return folder


def test_keras_exports_with_the_jax_backend(keras_folder):
  """Values and gradients of the reloaded models, in a process whose Keras runs on TensorFlow."""
  done = run("tests/keras_models.py", "load", keras_folder, backend="tensorflow")
  assert done.returncode == 0, done.stderr[-3000:]
  assert done.stdout.split("\n")[:-1] == [f"{name}: equal" for name in ("dense", "convolution", "lstm", "attention")]


def test_orbax_export(tmp_path):
  """Pre- and post-processors, several signatures and a polymorphic batch; values and gradients are compared there."""
  done = run("-m", "jax2tf.install", "tests/orbax_models.py", tmp_path / "model")
  assert done.returncode == 0, done.stderr[-3000:]
  assert done.stdout.split()[-1] == "equal"
