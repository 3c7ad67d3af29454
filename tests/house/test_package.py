"""`import jax2tf`: what it offers, and what it does not import."""

from __future__ import annotations

import ast
import pickle
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import jax2tf

ROOT = Path(__file__).resolve().parents[2]
WITHOUT_JAX = """
import sys
sys.modules["jax"] = sys.modules["tensorflow"] = None
import jax2tf
from jax2tf import tools
from jax2tf.tools.cli import main
from jax2tf.tools.serving import child, config, proxy, server
assert {*jax2tf.__all__, "__version__"} <= {*dir(jax2tf)}
assert not {"numpy", "ray"} & {*sys.modules}
"""


def test_nothing_is_imported_or_printed_before_a_name_is_asked_for() -> None:
  done = subprocess.run(
    [sys.executable, "-c", WITHOUT_JAX], capture_output=True, text=True, check=False, timeout=60
  )
  assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_packages_of_an_installation_without_jax_are_those_that_are_required() -> None:
  """docs/tasks/install-without-jax.md lists what `jax2tf serve` requires, but for JAX."""
  project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
  required = [*project["dependencies"], *project["optional-dependencies"]["serving"]]
  names = {re.split("[<>=]", each)[0] for each in required}
  guide = (ROOT / "docs/tasks/install-without-jax.md").read_text(encoding="utf-8")
  [command] = re.findall(
    r"^pip install --no-deps jax2tf\npip install (.*?)\n```", guide, re.M | re.S
  )
  assert sorted(shlex.split(command.replace("\\\n", ""))) == sorted(names - {"jax"})


def test_public_names_are_those_that_type_checkers_see() -> None:
  [block] = [
    node
    for node in ast.parse(Path(jax2tf.__file__).read_text()).body
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
  ][:1]
  seen = {
    alias.name: node.module
    for node in block.body
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
  }
  assert sorted(seen) == jax2tf.__all__
  for name, module in seen.items():
    assert getattr(jax2tf, name) is getattr(sys.modules[str(module)], name)
  assert pickle.loads(pickle.dumps(jax2tf.convert)) is jax2tf.convert


def test_modules_are_attributes_and_other_names_are_not() -> None:
  assert jax2tf.errors.LoweringError is jax2tf.LoweringError  # type: ignore[attr-defined]
  with pytest.raises(AttributeError, match="module 'jax2tf' has no attribute 'nothing'"):
    _ = jax2tf.nothing  # type: ignore[attr-defined]
  with pytest.raises(ImportError, match="nothing"):
    from jax2tf import nothing  # type: ignore[attr-defined]  # noqa: F401, PLC0415
