"""Quiet TensorFlow before anything imports it, and what several tests need."""

import gc
import os
import pathlib

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")


@pytest.fixture(autouse=True, scope="module")
def what_is_left() -> None:
  """Graphs and functions of earlier tests, which TensorFlow and JAX keep: LiteRT's converter would search them for garbage at each call."""
  gc.collect()
  gc.freeze()


@pytest.fixture(scope="session")
def tfjs_packages() -> pathlib.Path:
  """TF.js itself, from npm; a machine that cannot have it says so."""
  from jax2tf.converters import tfjs  # noqa: PLC0415  (TensorFlow, which few sessions without such a test need)

  try:
    return tfjs.packages()
  except ImportError as error:
    pytest.skip(str(error))
