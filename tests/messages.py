"""The beginnings of the error messages in the source, by its syntax trees: nothing is imported."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/reference/troubleshooting.md"
_RAISING = {"warn", "invalid", "refuse", "Failure", "SystemExit"}  # beside names that end in Error


def in_source() -> dict[str, str]:
  """Each message, with `...` for what is filled in -> a place that makes it."""
  found: dict[str, str] = {}
  for path in itertools.chain.from_iterable(sorted((ROOT / folder).rglob("*.py")) for folder in ("jax2tf", "converters", "tools")):
    for line, text in _of_file(ast.parse(path.read_text(encoding="utf-8"))):
      found.setdefault(text, f"{path.relative_to(ROOT)}:{line}")
  return found


def in_page() -> list[str]:
  """The beginnings that the page lists: the code of the first column."""
  first = (row.split(" | ")[0] for row in PAGE.read_text(encoding="utf-8").splitlines() if row.startswith("| `"))
  return [code.replace("\\|", "|") for cell in first for code in re.findall(r"`` (.+?) ``|`([^`]+)`", cell) for code in code if code]


def _of_file(tree: ast.Module) -> Iterator[tuple[int, str]]:
  nodes = list(ast.walk(tree))
  # A message may be made beside the call: by a function of this file, or in a variable.
  made: dict[str, list[ast.AST | None]] = {
    node.name: [part.value for part in ast.walk(node) if isinstance(part, ast.Return)]
    for node in nodes
    if isinstance(node, ast.FunctionDef)
  }
  for node in nodes:
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
      made.setdefault(node.targets[0].id, []).append(node.value)
  for call in nodes:
    if isinstance(call, ast.Call) and _raises(call):
      texts = (" ".join(_text(arg).split()) for value in call.args for arg in [value, *made.get(_name(value), [])])
      words = (text for text in texts if text.count(" ") > 1 and re.search("[a-z]", text))  # others are names, such as a runtime's
      yield from ((call.lineno, text) for text in itertools.islice(words, 1))


def _raises(call: ast.Call) -> bool:
  name = call.func.attr if isinstance(call.func, ast.Attribute) else _name(call.func)
  return name.endswith("Error") or name in _RAISING


def _name(node: ast.AST) -> str:
  if isinstance(node, ast.Call):
    return _name(node.func)
  return node.id if isinstance(node, ast.Name) else ""


def _text(node: ast.AST | None) -> str:
  """The words of an expression, with `...` for what is filled in; of lines that are joined the first."""
  match node:
    case ast.Constant(value=str(text)):
      return text
    case ast.JoinedStr(values=parts):
      return "".join(_text(part) for part in parts)
    case ast.FormattedValue():
      return "..."
    case ast.BinOp(left=left, right=right):
      return (_text(left) + (_text(right) or "...")) if _text(left) else ""
    case ast.Call(func=ast.Attribute(attr="join"), args=[ast.List(elts=[first, *_])]):
      return _text(first)
  return ""
