"""Four logical CPU devices for TensorFlow and for JAX; tests/devices/test_four_devices.py runs this
folder in a process of its own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

HERE = "JAX2TF_FOUR_DEVICES" in os.environ
if HERE:
  import tensorflow as tf

  tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 4
  )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
  """Devices are made once in a process: the other tests have one."""
  del collection_path, config
  return None if HERE else True
