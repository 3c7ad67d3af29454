"""The beginnings of the messages in the source, by its syntax trees: nothing is imported.

A message is what an error, a warning, a refusal, an assertion in a graph, a bad row or a line on
stderr says to a user.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeGuard

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/reference/troubleshooting.md"
# has the reasons of replacements, which `make targets` writes
TARGETS = ROOT / "docs/reports/targets.md"

# Calls whose first words are a message, beside names that end in Error.
_FIRST = {
  "_Difference",
  "_error",
  "_say",
  "abort",
  "add_note",
  "error",
  "exception",
  "exit",
  "fail",
  "failed",
  "invalid",
  "kill",
  "say",
  "warn",
  "warn_explicit",
  "warn_user",
  "Failure",
  "SystemExit",
}
# Calls of which each argument with words is a message, such as a reason and its advice.
_EACH = {
  "Assert",
  "Gap",
  "_gaps",
  "_refuse_on_several",
  "add_constraint",
  "assert_equal",
  "asserted",
  "differing",
  "refuse",
  "refuse_under_dtensor",
  "refused",
}
# Variables that hold what is wrong with a row, an op or a signature.
_FAULTS = {"fault", "faults", "found", "skipped"}

Found = Iterator[tuple[int, str]]
Made = dict[str, list[ast.expr]]


def in_source() -> dict[str, str]:
  """Each message, with `...` for what is filled in -> a place that makes it."""
  shared: Made = {}  # constants that other modules import
  for path in _files(".py"):
    shared |= {
      name: values
      for name, values in _made(ast.parse(path.read_text(encoding="utf-8"))).items()
      if name.isupper()
    }
  python = _collected(lambda text: of_python(text, shared), ".py")
  return python | _collected(of_javascript, ".js", ".cjs")


def reasons() -> dict[str, str]:
  """The reasons of replacements, likewise."""
  return _collected(of_replacements, ".py")


def in_page() -> list[str]:
  """The beginnings that the page lists: the code of the first column, in a table of reasons that of
  the second too."""
  found: list[str] = []
  columns = 1
  for row in PAGE.read_text(encoding="utf-8").splitlines():
    cells = row.strip("| ").split(" | ")
    if row.startswith("| ") and not row.startswith("| `"):  # the head of a table
      columns = 2 if cells[-1].startswith("Advice") else 1
    elif row.startswith("| `"):
      codes = (
        code
        for cell in cells[:columns]
        for pair in re.findall(r"`` (.+?) ``|`([^`]+)`", cell)
        for code in pair
        if code
      )
      found += [code.replace("\\|", "|") for code in codes]
  return found


def of_python(source: str, shared: Made | None = None) -> Found:
  """(line, message) of a module."""
  tree = ast.parse(source)
  made = (shared or {}) | _made(tree)
  for node in ast.walk(tree):
    for value in _messages(node, made):
      yield from ((value.lineno, text) for text in _sentences(value, made))


def of_javascript(source: str) -> Found:
  """`throw new Error(...)`."""
  for thrown in re.finditer(r"throw new Error\(([`'\"])(.+?)\1\)", source):
    yield source.count("\n", 0, thrown.start()) + 1, re.sub(r"\$\{[^}]*\}", "...", thrown[2])


def of_replacements(source: str) -> Found:
  """The reasons `because=` of replacements of ops."""
  calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
  because = (
    keyword.value for call in calls for keyword in call.keywords if keyword.arg == "because"
  )
  return ((value.lineno, text) for value in because for text in _texts(value, {}))


def _collected(messages: Callable[[str], Found], *suffixes: str) -> dict[str, str]:
  found: dict[str, str] = {}
  for path in _files(*suffixes):
    for line, text in messages(path.read_text(encoding="utf-8")):
      found.setdefault(text, f"{path.relative_to(ROOT)}:{line}")
  return found


def _files(*suffixes: str) -> list[Path]:
  """Those of the wheel."""
  paths = (
    path for folder in ("jax2tf", "converters", "tools") for path in (ROOT / folder).rglob("*.*")
  )
  outside = {"sweeps", "site"}
  return sorted(
    p for p in paths if p.suffix in suffixes and not outside & {*p.relative_to(ROOT).parts}
  )


def _made(tree: ast.AST) -> Made:
  """What the names of a file stand for: the values of variables, and the results of functions."""
  made: Made = {}
  for node in ast.walk(tree):
    match node:
      case ast.FunctionDef(name=name):
        made.setdefault(name, []).extend(
          part.value for part in ast.walk(node) if isinstance(part, ast.Return) and part.value
        )
      case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
        for target, value in zip(names, values, strict=False):
          made.setdefault(_name(target), []).append(value)
      case (
        ast.Assign(targets=[ast.Name(id=name)], value=value)
        | ast.NamedExpr(target=ast.Name(id=name), value=value)
      ):
        made.setdefault(name, []).append(value)
  return made


def _messages(node: ast.AST, made: Made) -> Sequence[ast.expr]:
  """The expressions of a node that are messages."""
  match node:
    case ast.Call(func=func, args=args) if (name := _last(func)) in _EACH:
      return args
    case ast.Call(func=func, args=args) if name.endswith("Error") or name in _FIRST:
      return [value for value in args if any(_sentences(value, made))][:1]
    case ast.Call(func=ast.Name(id="print"), args=args) if any(
      ast.unparse(keyword) == "file=sys.stderr" for keyword in node.keywords
    ):
      return args
    case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="setdefault"), args=args) if (
      name in _FAULTS
    ):
      return args
    case ast.Assign(targets=[target]) | ast.AugAssign(target=target) if (
      _name(getattr(target, "value", target)) in _FAULTS
    ):
      return [node.value]
    case (
      ast.Assign(targets=[ast.Name() | ast.Subscript()], value=ast.Tuple() as pair)
      | ast.Return(value=ast.Tuple() as pair)
    ):
      return pair.elts if _is_reason(pair, made) else []
    case ast.Dict(values=values):
      return [text for value in values if _is_reason(value, made) for text in value.elts]
    case ast.Yield(value=ast.Tuple(elts=values) | ast.IfExp(orelse=ast.Tuple(elts=values))):
      return values  # a bad row
    case ast.FunctionDef(name=name) if (ast.get_docstring(node) or "").startswith("Why "):
      return made[name]
  return []


def _is_reason(node: ast.expr, made: Made) -> TypeGuard[ast.Tuple]:
  """A pair of sentences is a reason and its advice."""
  return (
    isinstance(node, ast.Tuple)
    and len(node.elts) == 2
    and all(any(_sentences(value, made)) for value in node.elts)
  )


def _sentences(value: ast.expr, made: Made) -> Iterator[str]:
  """Others are names, such as a runtime's."""
  for text in (" ".join(words.split()) for words in _texts(value, made)):
    if text.count(" ") > 1 and re.search("[a-z]", text):
      yield text


def _texts(node: ast.expr, made: Made) -> list[str]:
  """What an expression may say, with `...` for what is filled in; of lines that are joined the
  first."""
  match node:
    case ast.Constant(value=str(text)):
      return [text]
    case ast.JoinedStr(values=parts):
      return [
        "".join(
          part.value if isinstance(part, ast.Constant) else _filled(part, made) for part in parts
        )
      ]
    case ast.IfExp(body=one, orelse=other):
      return _texts(one, made) + _texts(other, made)
    case ast.BoolOp(values=values):
      return [text for value in values for text in _texts(value, made)]
    case ast.BinOp(left=left, right=right):
      return [one + other for one in _texts(left, made) for other in _texts(right, made) or ["..."]]
    case ast.Call(func=ast.Attribute(attr="join"), args=[ast.List(elts=[first, *_])]):
      return _texts(first, made)
    case ast.List(elts=[first, *_]):
      return _texts(first, made)
    case ast.Dict(values=values) | ast.Call(func=ast.Attribute(attr="fromkeys"), args=[_, *values]):
      return [text for value in values for text in _texts(value, made)]
    case ast.DictComp(value=value) | ast.NamedExpr(value=value) | ast.Starred(value=value):
      return _texts(value, made)
    case ast.Name(id=name) | ast.Call(func=ast.Name(id=name)):
      inner = {key: value for key, value in made.items() if key != name}
      return [text for value in made.get(name, []) for text in _texts(value, inner)]
  return []


def _filled(part: ast.AST, made: Made) -> str:
  """A part of an f-string: the words of a local variable that has one value, and `...` for
  others."""
  match part:
    case ast.FormattedValue(value=ast.Name(id=name)) if name.islower():
      match made.get(name, []):
        case [ast.Constant(value=str(text))]:
          return text
  return "..."


def _last(func: ast.expr) -> str:
  return func.attr if isinstance(func, ast.Attribute) else _name(func)


def _name(node: ast.AST) -> str:
  return node.id if isinstance(node, ast.Name) else ""
