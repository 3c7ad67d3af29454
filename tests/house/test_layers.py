"""The house keeps its shape, as far as ruff, mypy and import-linter do not see it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conftest import ONE_PYTHON

REPOSITORY = Path(__file__).resolve().parents[2]
# ruff bounds the length and the complexity of functions (pyproject.toml). A table of tests may be
# longer than what users run.
MAX_LINES = {"jax2tf": 500, "converters": 500, "tools": 500, "examples": 500, "tests": 750}


@pytest.mark.parametrize("folder", ["converters", "tools", "examples"])
def test_mypy_finds_what_stands_beside_the_package(folder: str) -> None:
  """Where the link is missing, `ignore_missing_imports = false` for jax2tf.* makes `mypy` fail:
  none of our own imports is Any."""
  assert (REPOSITORY / "jax2tf" / folder).samefile(REPOSITORY / folder)


def test_no_long_file() -> None:
  files = [
    (f, most) for folder, most in MAX_LINES.items() for f in (REPOSITORY / folder).rglob("*.py")
  ]
  lengths = {
    str(f.relative_to(REPOSITORY)): (len(f.read_text(encoding="utf-8").splitlines()), most)
    for f, most in files
  }
  assert len(lengths) > 20
  assert {name: n for name, (n, most) in lengths.items() if n > most} == {}


def test_jaxprs_are_closed_at_one_address() -> None:
  """JAX 0.12 means to delete ClosedJaxpr with its constructor and the property `jaxpr` of a
  jaxpr."""
  pattern = re.compile(r"ClosedJaxpr\(|^from jax\..*\bClosedJaxpr|\bjaxpr\.jaxpr\b", re.MULTILINE)
  core = REPOSITORY / "jax2tf"
  others = ("_jax_compat", "converters", "examples", "tools")  # which are below it in an sdist
  files = [f for f in core.rglob("*.py") if f.relative_to(core).parts[0] not in others]
  assert [str(f) for f in files if pattern.search(f.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize("name", ONE_PYTHON)
def test_what_one_python_is_enough_for_is_there(name: str) -> None:
  file, _, test = name.partition("::")
  assert any(test in path.read_text() for path in REPOSITORY.glob(f"{file}*"))
