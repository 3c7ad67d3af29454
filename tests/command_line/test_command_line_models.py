"""What `--params` and `module:function` may name: checkpoints of Orbax, functions, and models
without their library."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from jax2tf.tools.cli import _loading
from jax2tf.tools.cli._verb import Named


def test_folders_of_a_checkpoint_manager(tmp_path: Path) -> None:
  import orbax.checkpoint  # noqa: PLC0415  (seconds)

  save = orbax.checkpoint.args.StandardSave
  with orbax.checkpoint.CheckpointManager(tmp_path / "one") as manager:
    for step in (9, 10):
      manager.save(step, args=save({"w": np.full(2, step, np.float32)}))
  with orbax.checkpoint.CheckpointManager(tmp_path / "two") as manager:
    manager.save(
      1,
      args=orbax.checkpoint.args.Composite(
        params=save({"w": np.ones(2)}), ema=save({"w": np.ones(2)})
      ),
    )
  for source, value in (("one", 10), ("one/9", 9), ("one/9/default", 9), ("two/1/ema", 1)):
    assert _loading.parameters(str(tmp_path / source))["w"].tolist() == [value] * 2
  with pytest.raises(_loading.UsageError, match=r"1 holds ema, params; name one, as in .*1/ema"):
    _loading.parameters(str(tmp_path / "two"))


_WRITES_ON_EIGHT_DEVICES = """
import sys
import jax, numpy, orbax.checkpoint
from jax.sharding import AxisType, NamedSharding, PartitionSpec
mesh = jax.make_mesh((8,), ("i",), axis_types=(AxisType.Auto,))
rows = NamedSharding(mesh, PartitionSpec("i"))
w = jax.device_put(numpy.arange(16.0, dtype="f4"), rows)
with orbax.checkpoint.StandardCheckpointer() as checkpointer:
  checkpointer.save(sys.argv[1], {"w": w, "n": 3})
"""


def test_a_checkpoint_of_devices_that_are_not_here(tmp_path: Path) -> None:
  path = tmp_path / "sharded"
  command = [sys.executable, "-c", _WRITES_ON_EIGHT_DEVICES, str(path)]
  devices = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
  subprocess.run(command, env={**os.environ, **devices}, check=True)
  params = _loading.parameters(str(path))
  assert params["w"].tolist() == list(range(16)) and params["n"] == 3


def test_what_makes_a_model_is_no_function_to_convert() -> None:
  for name, words in (
    ("numpy:ndarray", "is a class; name a model, or a function"),
    ("os:getcwd", "takes no arguments.*--library nnx"),
  ):
    with pytest.raises(_loading.UsageError, match=words):
      _loading.model(Named(name, None, None, None, False, ()), dict)
