"""Tests without optional packages are skipped, and say what is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import optional

ROOT = Path(__file__).resolve().parents[2]


def test_a_missing_package_is_a_reason_behind_our_own_error(
  monkeypatch: pytest.MonkeyPatch,
) -> None:
  monkeypatch.setattr(optional, "_MISSING", {"sklearn"})
  ours = ImportError("the example needs sklearn")
  ours.__cause__ = ModuleNotFoundError("No module named 'sklearn.svm'", name="sklearn.svm")
  assert optional.reason(ours) == "sklearn is not installed: pip install scikit-learn"


@pytest.mark.parametrize("module", ["jax2tf.gone", "onnx"])
def test_a_module_that_is_ours_or_installed_is_no_reason(
  module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
  monkeypatch.setattr(optional, "_MISSING", {"sklearn"})
  assert optional.reason(ModuleNotFoundError("", name=module)) is None


def test_a_file_that_imports_a_missing_package_is_skipped() -> None:
  command = [sys.executable, "-m", "pytest", "-p", "tests.support.optional", "--without-extras"]
  done = subprocess.run(
    [*command, "-p", "no:cacheprovider", "-rs", "tests/batch/test_batch_files.py"],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED, done.stdout
  assert "is not installed: pip install" in done.stdout
