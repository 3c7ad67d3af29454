"""Placement needs several devices, which a process makes once: the tests of tests/four_devices run
in one of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "four_devices"


@pytest.mark.parametrize("file", sorted(p.name for p in FOLDER.glob("test_*.py")))
def test_on_four_devices(file: str) -> None:
  run = subprocess.run(
    [
      sys.executable,
      "-m",
      "pytest",
      str(FOLDER / file),
      "-p",
      "no:cacheprovider",
      "-p",
      "no:xdist",
      "-o",
      "addopts=-q",
    ],
    env=os.environ
    | {
      "JAX2TF_FOUR_DEVICES": "1",
      "XLA_FLAGS": f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=4",
    },
    capture_output=True,
    text=True,
    check=False,
  )
  assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-1000:]
