"""A SavedModel on disk, read without JAX and without TensorFlow."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

from jax2tf.converters import bundle
from jax2tf.converters.bundle import versions

_MODULES = sorted(module.name for module in pkgutil.iter_modules(bundle.__path__))


def test_importing_it_needs_neither_jax_nor_tensorflow() -> None:
  """Servers, batches and the command line read models without waiting for either."""
  imports = "; ".join(f"import jax2tf.converters.bundle.{name}" for name in _MODULES)
  program = (
    f"import sys; {imports}; print(*sorted({{'jax', 'jaxlib', 'tensorflow'}} & {{*sys.modules}}))"
  )
  done = subprocess.run(
    [sys.executable, "-c", program], capture_output=True, text=True, check=False
  )
  assert (done.returncode, done.stdout) == (0, "\n"), done.stderr


@pytest.fixture
def models(tmp_path: Path) -> Path:
  largest = str(2**63 - 1)
  for name in ("1", "9", "10", "010", str(2**63), largest, "\u0661", "-1", "new"):
    (tmp_path / name).mkdir()
    (tmp_path / name / "saved_model.pb").touch()
  (tmp_path / "11").mkdir()  # without a model
  (tmp_path / "12").touch()
  return tmp_path


def test_a_version_has_a_number_and_a_model(models: Path) -> None:
  names = [path.name for path in versions.served(models)]
  assert names == ["1", "9", "10", str(2**63 - 1)]
  assert versions.newest(models) == models / str(2**63 - 1)


def test_what_has_a_number_and_is_no_version_has_a_reason(models: Path) -> None:
  reasons = versions.ignored(models)
  assert {path.name: reason.partition(";")[0] for path, reason in reasons.items()} == {
    "010": "10 is the same version",
    str(2**63): f"a version is at most {2**63 - 1}",
  }


def test_the_next_version_is_after_every_number(models: Path) -> None:
  assert versions.numbered(models)[:4] == [1, 1, 9, 10]
  assert versions.numbered(models / "none") == []
