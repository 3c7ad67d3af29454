"""The import graph: prints the layers of the project, and fails on a cycle or an import of a higher
layer.

Usage: python tools/import_graph.py [repository]
"""

from __future__ import annotations

import ast
import fnmatch
import graphlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

FOLDERS = {
  "jax2tf": "jax2tf",
  "converters": "jax2tf.converters",
  "tools": "jax2tf.tools",
  "examples": "jax2tf.examples",
}

# A module imports only from its own layer or from one above it in this table. The first pattern
# that matches decides.
LAYERS: tuple[tuple[str, tuple[str, ...]], ...] = (
  ("bundle", ("jax2tf.converters.bundle*",)),  # imports neither JAX nor TensorFlow
  # they import no module of ours that imports JAX
  (
    "servers",
    ("jax2tf.tools.serving*", "jax2tf.tools.batch*", "jax2tf.tools.outside*", "jax2tf.tools.quiet"),
  ),
  (
    "compatibility",
    ("jax2tf.errors", "jax2tf.caches", "jax2tf._jax_compat*", "jax2tf._tf_compat*"),
  ),
  (
    "values",
    (
      "jax2tf.coefficients",
      "jax2tf.dtypes",
      "jax2tf.constraints",
      "jax2tf.specs",
      "jax2tf.pytrees",
      "jax2tf.dims",
      "jax2tf.lines",
      "jax2tf.jaxprs",
      "jax2tf.effects",
      "jax2tf.placement*",
    ),
  ),
  (
    "rule interface",
    (
      "jax2tf.context",
      "jax2tf.nans",
      "jax2tf.registry",
      "jax2tf.shadows",
      "jax2tf.refs",
      "jax2tf.sparse",
      "jax2tf.expansion",
      "jax2tf.key_data",
      "jax2tf.normalise",
    ),
  ),
  ("rule helpers", ("jax2tf.lowering._*",)),
  (
    "rules and stages",
    (
      "jax2tf.lowering.*",
      "jax2tf.idioms*",
      "jax2tf.program",
      "jax2tf.value_numbering",
      "jax2tf.interpreter",
      "jax2tf.trace",
    ),
  ),
  ("derivatives", ("jax2tf.derivative", "jax2tf.gradient", "jax2tf.native", "jax2tf.options")),
  ("conversion", ("jax2tf.conversion", "jax2tf.lowering", "jax2tf.survey")),
  ("functions", ("jax2tf.api", "jax2tf.tf_calls*", "jax2tf.drop_in", "jax2tf.dtensor")),
  ("package", ("jax2tf", "jax2tf.install")),
  (
    "saved models",
    (
      "jax2tf.converters",
      "jax2tf.converters.collector",
      "jax2tf.converters.extras",
      "jax2tf.converters.saved_model*",
      "jax2tf.converters.stages",
    ),
  ),
  ("verification", ("jax2tf.converters.verify*",)),
  ("exporters", ("jax2tf.converters*",)),
  ("Keras", ("jax2tf.keras*",)),
  ("tools", ("jax2tf.tools*", "jax2tf.examples*")),
)

# Private packages, which change without notice, and the modules that may import them.
PRIVATE = {
  "jax._src": "jax2tf._jax_compat*",
  "tensorflow.python": "jax2tf._tf_compat*",
  "tensorflow.compiler": "jax2tf._tf_compat*",
  "ray._private": "jax2tf.tools.serving.ray_settings",
  "ray.serve._private": "jax2tf.tools.serving.ray_settings",
}

# The public names, the coefficients, the gaps and ops with the user's lines (for errors of the
# exporters), and TensorFlow's private parts.
OPEN_TO_CONVERTERS = (
  "jax2tf",
  "jax2tf.coefficients",
  "jax2tf.errors",
  "jax2tf.idioms.fused",  # for its names
  "jax2tf.pytrees",
  "jax2tf.survey",
  "jax2tf._tf_compat",
  "jax2tf._tf_compat.callbacks",
)


def import_graph(repository: Path) -> dict[str, set[str]]:
  """{module: its imports}, of the project's own modules and of those in `PRIVATE`."""
  files = {
    _module(folder, file.relative_to(repository / folder)): file
    for folder in FOLDERS
    for file in sorted((repository / folder).rglob("*.py"))
  }
  return {module: set(_imports(module, file, files)) - {module} for module, file in files.items()}


def violations(graph: dict[str, set[str]]) -> list[str]:
  """One sentence for each forbidden import."""
  found = [
    sentence
    for module, imported in sorted(graph.items())
    for other in sorted(imported)
    if (sentence := _objection(module, other))
  ]
  try:
    graphlib.TopologicalSorter(graph).prepare()
  except graphlib.CycleError as error:
    found.append("cycle: " + " -> ".join(error.args[1]))
  return found


def _objection(module: str, other: str) -> str | None:
  if other in PRIVATE:
    return (
      None
      if fnmatch.fnmatchcase(module, PRIVATE[other])
      else f"{module} imports {other}; only {PRIVATE[other]} may"
    )
  if _layer(other) > _layer(module):
    return (
      f"{module} ({LAYERS[_layer(module)][0]}) imports {other} ({LAYERS[_layer(other)][0]}), "
      "which is below it"
    )
  if _is_rules(module) and (_is_rules(other) or other == "jax2tf.interpreter"):
    return (
      f"{module} imports {other}; a family of rules sees neither another one nor the "
      "interpreter: use the context or a _helper"
    )
  if (
    module.startswith("jax2tf.converters")
    and other not in OPEN_TO_CONVERTERS
    and not other.startswith("jax2tf.converters")
  ):
    return f"{module} imports {other}; converters use the public names of jax2tf only"
  return None


def _is_rules(module: str) -> bool:
  return fnmatch.fnmatch(module, "jax2tf.lowering.[!_]*")


def _layer(module: str) -> int:
  return next(
    i
    for i, (_, patterns) in enumerate(LAYERS)
    if any(fnmatch.fnmatchcase(module, p) for p in patterns)
  )


def _module(folder: str, file: Path) -> str:
  parts = file.with_suffix("").parts
  return ".".join((FOLDERS[folder], *(parts[:-1] if parts[-1] == "__init__" else parts)))


def _imports(module: str, file: Path, modules: dict[str, Path]) -> Iterator[str]:
  package = module if file.name == "__init__.py" else module.rpartition(".")[0]
  for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
    if isinstance(node, ast.Import):
      names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
      # `from package import name` imports the module package.name, if there is one.
      base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
      names = [f"{base}.{alias.name}" for alias in node.names]
    else:
      continue
    for name in names:
      yield from (private for private in PRIVATE if f"{name}.".startswith(f"{private}."))
      known = next((n for n in (name, name.rpartition(".")[0]) if n in modules), None)
      if known:
        yield known


def main(repository: Path) -> int:
  """Prints the graph and returns the number of violations."""
  graph = import_graph(repository)
  for number, (title, _) in enumerate(LAYERS):
    print(f"{number} {title}")
    for module in (m for m in graph if _layer(m) == number):
      imported = ", ".join(sorted(m.removeprefix("jax2tf.") for m in graph[module]))
      print(f"    {module}{' <- ' if imported else ''}{imported}")
  found = violations(graph)
  print(*found, f"{len(graph)} modules, {len(found)} violations", sep="\n")
  return len(found)


if __name__ == "__main__":
  sys.exit(min(1, main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))))
