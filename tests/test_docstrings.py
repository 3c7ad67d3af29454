"""The docstrings of the public names: their examples run, and their sections name every argument, result and error."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import jax2tf
from tests.test_documents import PUBLIC, exported

# What needs more than a doctest has, or only holds values.
WITHOUT_EXAMPLE = {
  "jax2tf.RuleContext",  # in the example of `lowers`
  "jax2tf.converters.saved_model.Added",
  "jax2tf.converters.saved_model.manifest.Manifest",
  "jax2tf.converters.saved_model.manifest.SignatureRecord",
  "jax2tf.converters.tflite.QuantizationReport",
  "jax2tf.converters.verify.Latency",
  "jax2tf.converters.verify.Report",
  "jax2tf.converters.verify.Row",
  # docs/guide/batch.md shows them.
  "jax2tf.tools.batch.on_beam.handler",
  "jax2tf.tools.batch.on_beam.tables",
  "jax2tf.tools.batch.on_ray.Actor",
  "jax2tf.tools.batch.on_ray.mapped",
}


def public() -> Iterator[tuple[str, Any]]:
  """(name, function or class), methods too."""
  for module, names in [("jax2tf", jax2tf.__all__), *((module, exported(file)) for module, file in PUBLIC.items())]:
    for name in names:
      value = getattr(importlib.import_module(module), name)
      if inspect.isfunction(value):
        yield f"{module}.{name}", value
      elif inspect.isclass(value) and value.__module__.startswith("jax2tf"):
        yield f"{module}.{name}", value
        methods = {method: getattr(f, "__func__", f) for method, f in vars(value).items() if method[0] != "_"}
        yield from ((f"{module}.{name}.{method}", f) for method, f in methods.items() if inspect.isfunction(f))


DOCUMENTED = dict(public())
EXAMPLES = {
  name: found for name, value in DOCUMENTED.items() for found in doctest.DocTestFinder(recurse=False).find(value, name) if found.examples
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_example(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without_jax: str) -> None:
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(sys, "executable", without_jax)  # for `verify`
  said: list[str] = []
  example = EXAMPLES[name]
  example.globs = {}
  failed, _ = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(example, out=said.append)
  assert not failed, "".join(said)


def test_each_name_has_an_example() -> None:
  """Methods and errors may do without."""
  named = {name for name, value in DOCUMENTED.items() if "." not in value.__qualname__ and not name.endswith(("Error", ".Exported"))}
  assert named - EXAMPLES.keys() == WITHOUT_EXAMPLE


def sections(value: Any) -> dict[str, str]:
  return dict(re.findall(r"^(\w+):\n((?:  .*\n?|\n)+)", inspect.getdoc(value) or "", re.MULTILINE))


def raised(value: Any) -> set[str]:
  """The exceptions that a function raises in its own source; of a class, its constructor."""
  if inspect.isclass(value):
    return set().union(*(raised(vars(value)[name]) for name in ("__init__", "__post_init__") if inspect.isfunction(vars(value).get(name))))
  if value.__code__.co_filename == "<string>":  # the __init__ of a dataclass
    return set()
  found = (node.exc for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(value)))) if isinstance(node, ast.Raise))
  return {name for error in found if isinstance(error, ast.Call) and (name := ast.unparse(error.func)).endswith("Error")}


def undocumented(value: Any) -> list[str]:
  """Arguments, results and errors that the sections of a docstring omit, and arguments that do not exist."""
  documented = sections(value)
  described = documented.get("Args", documented.get("Attributes", "") if inspect.isclass(value) else "")
  entries = {x.strip("* ") for entry in re.findall(r"^  ([\w*][\w*, ]*):", described, re.MULTILINE) for x in entry.split(",")}
  signature = inspect.signature(value)
  wrong = [f"argument {name}" for name in entries ^ (signature.parameters.keys() - {"self", "cls"})]
  # The summary line of a method without arguments says what it returns.
  returns = inspect.isfunction(value) and signature.return_annotation not in ("None", "NoReturn") and [*signature.parameters] != ["self"]
  if returns and "Returns" not in documented:
    wrong.append("Returns")
  return wrong + [error for error in raised(value) if not re.search(rf"\b{error}\b", documented.get("Raises", ""))]


@pytest.mark.parametrize(
  "name", [name for name, value in DOCUMENTED.items() if inspect.isfunction(value) or not issubclass(value, Exception)]
)
def test_the_arguments_results_and_errors_are_documented(name: str) -> None:
  assert undocumented(DOCUMENTED[name]) == []
