"""The docstrings of the public names: their examples run, and their sections name every argument,
result and error."""

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
from tests.documents.test_documents import PUBLIC

# What needs more than a doctest has, or only holds values.
WITHOUT_EXAMPLE = {
  "jax2tf.RuleContext",  # in the example of `lowers`
  "jax2tf.converters.generation.LoopReport",
  "jax2tf.converters.generation.Row",
  "jax2tf.converters.generation.Saved",
  # tests/generation/test_adapters.py shows models of libraries.
  "jax2tf.converters.generation.from_bonsai",
  "jax2tf.converters.generation.from_equinox",
  "jax2tf.converters.generation.from_flax_linen",
  "jax2tf.converters.generation.from_flax_nnx",
  "jax2tf.converters.generation.from_gemma",
  "jax2tf.converters.generation.from_tunix",
  # They need an engine: docs/guide/language-models.md.
  "jax2tf.converters.generation.compare",
  "jax2tf.converters.generation.run",
  "jax2tf.converters.generation.save",
  "jax2tf.converters.onnx.Prepared",  # in the example of `prepared`
  "jax2tf.converters.onnx.QuantizationReport",
  "jax2tf.converters.opened.Opened",  # in the example of `save`
  "jax2tf.converters.saved_model.Added",
  "jax2tf.converters.saved_model.manifest.GenerationRecord",
  "jax2tf.converters.saved_model.manifest.Manifest",
  "jax2tf.converters.saved_model.manifest.SignatureRecord",
  "jax2tf.converters.tflite.QuantizationReport",
  "jax2tf.converters.verify.Latency",
  "jax2tf.converters.verify.Report",
  "jax2tf.converters.verify.Row",
  "jax2tf.devices.Finding",  # in the example of `readiness`
  "jax2tf.devices.Readiness",
  "jax2tf.stablehlo.Function",  # in the example of `load`
  # docs/guide/batch.md shows them.
  "jax2tf.tools.batch.on_beam.handler",
  "jax2tf.tools.batch.on_beam.tables",
  "jax2tf.tools.batch.on_ray.Actor",
  "jax2tf.tools.batch.on_ray.mapped",
}


def public() -> Iterator[tuple[str, Any]]:
  """(name, function or class), methods too."""
  for module, names in [("jax2tf", jax2tf.__all__), *PUBLIC.items()]:
    for name in names:
      value = getattr(importlib.import_module(module), name)
      if inspect.isfunction(value):
        yield f"{module}.{name}", value
      elif inspect.isclass(value) and value.__module__.startswith("jax2tf"):
        yield f"{module}.{name}", value
        methods = {
          method: getattr(f, "__func__", f) for method, f in vars(value).items() if method[0] != "_"
        }
        yield from (
          (f"{module}.{name}.{method}", f) for method, f in methods.items() if inspect.isfunction(f)
        )


DOCUMENTED = dict(public())
EXAMPLES = {
  name: found
  for name, value in DOCUMENTED.items()
  for found in doctest.DocTestFinder(recurse=False).find(value, name)
  if found.examples
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_example(
  name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without_jax: str
) -> None:
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(sys, "executable", without_jax)  # for `verify`
  said: list[str] = []
  example = EXAMPLES[name]
  example.globs = {}
  failed, _ = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(
    example, out=said.append
  )
  assert not failed, "".join(said)


def test_each_name_has_an_example() -> None:
  """Methods and errors may do without."""
  named = {
    name
    for name, value in DOCUMENTED.items()
    if "." not in value.__qualname__ and not name.endswith(("Error", ".Exported"))
  }
  assert named - EXAMPLES.keys() == WITHOUT_EXAMPLE


def sections(value: Any) -> dict[str, str]:
  return dict(re.findall(r"^(\w+):\n((?:  .*\n?|\n)+)", inspect.getdoc(value) or "", re.MULTILINE))


def raised(value: Any, depth: int = 2) -> set[str]:
  """The exceptions that a function raises in its own source, and in functions of the package that
  it calls; of a class, its constructor."""
  if inspect.isclass(value):
    return set().union(
      *(
        raised(vars(value)[name], depth)
        for name in ("__init__", "__post_init__")
        if name in vars(value)
      )
    )
  value = inspect.unwrap(value)
  # the __init__ of a dataclass
  if not inspect.isfunction(value) or value.__code__.co_filename == "<string>":
    return set()
  [tree] = ast.parse(textwrap.dedent(inspect.getsource(value))).body
  errors = (
    node.exc.func
    for node in ast.walk(tree)
    if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call)
  )
  found = {name for error in errors if (name := ast.unparse(error)).endswith("Error")}
  called = (named(call.func, value.__globals__) for call in calls(tree)) if depth else ()
  return found.union(
    *(
      raised(each, depth - 1)
      for each in called
      if getattr(each, "__module__", "").startswith("jax2tf")
    )
  )


def calls(tree: ast.AST) -> Iterator[ast.Call]:
  """Those that a function makes itself; errors of calls inside a `try` may be handled."""
  for node in ast.iter_child_nodes(tree):
    if not isinstance(node, ast.Try | ast.FunctionDef | ast.Lambda):
      yield from [node] if isinstance(node, ast.Call) else ()
      yield from calls(node)


def named(func: ast.AST, scope: dict[str, Any]) -> Any:
  """A function or a class that a name stands for, `name` or `module.name`."""
  match func:
    case ast.Name(id=name):
      found = scope.get(name)
    case ast.Attribute(value=ast.Name(id=module), attr=name) if inspect.ismodule(scope.get(module)):
      found = getattr(scope[module], name, None)
    case _:
      found = None
  return None if inspect.isclass(found) and issubclass(found, BaseException) else found


def undocumented(value: Any) -> list[str]:
  """Arguments, results and errors that the sections of a docstring omit, and arguments that do not
  exist."""
  documented = sections(value)
  described = documented.get(
    "Args", documented.get("Attributes", "") if inspect.isclass(value) else ""
  )
  entries = {
    x.strip("* ")
    for entry in re.findall(r"^  ([\w*][\w*, ]*):", described, re.MULTILINE)
    for x in entry.split(",")
  }
  signature = inspect.signature(value)
  wrong = [f"argument {name}" for name in entries ^ (signature.parameters.keys() - {"self", "cls"})]
  # The summary line of a method without arguments says what it returns.
  returns = (
    inspect.isfunction(value)
    and signature.return_annotation not in ("None", "NoReturn")
    and [*signature.parameters] != ["self"]
  )
  if returns and "Returns" not in documented:
    wrong.append("Returns")
  return wrong + [
    error
    for error in map(caught_as, raised(value))
    if not re.search(rf"\b{error}\b", documented.get("Raises", ""))
  ]


def caught_as(error: str) -> str:
  """The class of Python by which users catch it."""
  return {"ArgumentError": "ValueError", "ArgumentTypeError": "TypeError"}.get(error, error)


def test_what_writes_files_may_be_refused() -> None:
  writers = {
    name: value for name, value in DOCUMENTED.items() if re.search(r"\.(save\w*|write)$", name)
  }
  assert len(writers) > 8
  assert [
    name for name, value in writers.items() if "OSError" not in sections(value).get("Raises", "")
  ] == []


@pytest.mark.parametrize(
  "name",
  [
    name
    for name, value in DOCUMENTED.items()
    if inspect.isfunction(value) or not issubclass(value, Exception)
  ],
)
def test_the_arguments_results_and_errors_are_documented(name: str) -> None:
  assert undocumented(DOCUMENTED[name]) == []
