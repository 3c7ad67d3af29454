"""Quiet TensorFlow before anything imports it, and what several tests need."""

import gc
import importlib.metadata
import os
import pathlib
import zlib

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
# JAX compiles each reference for one run: as JAX's own tests, without the optimisations, which take a third of that time.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
# Equinox reads it when it is imported: its checks are callbacks otherwise, which no graph can hold.
os.environ.setdefault("EQX_ON_ERROR", "nan")


def pytest_addoption(parser: pytest.Parser) -> None:
  parser.addoption("--every-row", action="store_true", help="run both halves of the long tables, as `make every-row` does")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
  """Of the longest tables the tests of one JAX version take one half, those of the other the other; CI has both."""
  if config.getoption("--every-row"):
    return
  half = int(importlib.metadata.version("jax").split(".")[1]) >= 12
  others = {item for item in items if item.get_closest_marker("halved") and zlib.crc32(item.name.encode()) % 2 == half}
  config.hook.pytest_deselected(items=list(others))
  items[:] = [item for item in items if item not in others]


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
