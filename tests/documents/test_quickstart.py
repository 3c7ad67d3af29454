"""`make quickstart`, without the installation: the main job of the project from end to end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def quickstart(
  tmp_path_factory: pytest.TempPathFactory,
) -> tuple[subprocess.CompletedProcess[str], Path]:
  build = tmp_path_factory.mktemp("build")
  # From another folder, so that the installed package is what runs.
  run = subprocess.run(
    [sys.executable, str(REPOSITORY / "examples" / "quickstart.py"), str(build)],
    cwd=build,
    env={**os.environ, "COLUMNS": "130"},
    capture_output=True,
    text=True,
    timeout=300,
    check=False,
  )
  return run, build


def test_quickstart_runs_to_its_last_line(
  quickstart: tuple[subprocess.CompletedProcess[str], Path],
) -> None:
  run, _ = quickstart
  assert run.returncode == 0, run.stderr[-4000:]
  assert (
    run.stdout.rstrip().splitlines()[-1] == "JAX was not imported; no Xla op; all embeddings agree"
  )
  for words in (
    "22,565,376 parameters",
    "converted in",
    "saved",
    "MB in",
    "cosine similarity",
    "largest difference from JAX",
    "ops of",
  ):
    assert words in run.stdout


def test_quickstart_says_nothing_of_tensorflows_own(
  quickstart: tuple[subprocess.CompletedProcess[str], Path],
) -> None:
  run, _ = quickstart
  lines = [
    line
    for line in run.stderr.replace("\r", "\n").splitlines()
    if line.strip() and "JAX embeddings" not in line
  ]
  assert lines == []


def test_quickstart_leaves_one_version(
  quickstart: tuple[subprocess.CompletedProcess[str], Path],
) -> None:
  _, build = quickstart
  assert sorted(p.name for p in build.iterdir()) == ["1", "jax.npz"]
  assert sorted(p.name for p in (build / "1").iterdir()) == [
    "assets",
    "assets.extra",
    "fingerprint.pb",
    "saved_model.pb",
    "variables",
  ]
