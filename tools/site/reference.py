"""Writes the reference pages from docstrings and `--help`, as Markdown that a code host shows.

`python tools/site/reference.py` rewrites what stands below a comment `<!-- api: NAME -->` or
`<!-- command: NAME -->` in the pages of docs/reference, up to `<!-- end -->`. `NAME as OTHER` sets
another heading. Docstrings are read without an import, by Griffe.
"""

from __future__ import annotations

import functools
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import click
import griffe

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs" / "reference"
_ENTRY = re.compile(
  r"^<!-- (?P<kind>api|command): (?P<name>\S.*?)(?: as (?P<heading>\S+))? -->\n"
  r"(?P<text>.*?)^<!-- end -->$",
  re.MULTILINE | re.DOTALL,
)
_WIDTH = 88
_PARAMETER = textwrap.TextWrapper(
  100, initial_indent="  ", subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
)
# What Markdown or HTML would take for its own, outside of code.
_MARKUP = re.compile(r"(?P<code>`[^`]+`)|[*<]")
_STARS = {griffe.ParameterKind.var_positional: "*", griffe.ParameterKind.var_keyword: "**"}
_OPTIONS: griffe.GoogleOptions = {
  "warn_unknown_params": False,
  "warn_missing_types": False,
  "warnings": False,
  "returns_named_value": False,
  "returns_multiple_items": False,
}


def pages() -> list[Path]:
  """The pages with generated parts."""
  return sorted(path for path in PAGES.rglob("*.md") if _ENTRY.search(_text(path)))


def _text(path: Path) -> str:
  return path.read_text(encoding="utf-8")


def written(text: str) -> str:
  """The text of a page with its generated parts made anew."""
  return _ENTRY.sub(_entry, text)


def _entry(found: re.Match[str]) -> str:
  name, heading = found["name"], found["heading"]
  command = found["kind"] == "command"
  body = _command(name) if command else _documented(_object(name), heading or name)
  first = found[0].partition("\n")[0]
  return f"{first}\n\n{body}\n\n<!-- end -->"


@functools.cache
def _package() -> griffe.Object:
  loader = griffe.GriffeLoader(
    search_paths=[ROOT], docstring_parser="google", docstring_options=_OPTIONS
  )
  package = loader.load("jax2tf")
  loader.resolve_aliases(implicit=True, external=False)
  assert isinstance(package, griffe.Object)
  return package


def _object(name: str) -> griffe.Object:
  found = _package()[name.removeprefix("jax2tf.")]
  return found.final_target if isinstance(found, griffe.Alias) else found


def _documented(of: griffe.Object, name: str, level: int = 2) -> str:
  """The heading, the signature, the docstring and the public members of an object."""
  parts = [f"{'#' * level} {name}", f"```py\n{_declaration(of)}\n```", *_sections(of)]
  if isinstance(of, griffe.Class):
    parts += [_documented(member, f"{name}.{member.name}", level + 1) for member in _members(of)]
  return "\n\n".join(parts)


def _members(of: griffe.Class) -> Iterator[griffe.Object]:
  """The public methods and properties that have a docstring of their own."""
  listed = {
    item.name
    for section in (of.docstring.parsed if of.docstring else [])
    if section.kind is griffe.DocstringSectionKind.attributes
    for item in section.value
  }
  for name, member in of.members.items():
    public = not name.startswith("_") and name not in listed
    if public and member.docstring and not isinstance(member, griffe.Alias):
      yield member


def _declaration(of: griffe.Object) -> str:
  if isinstance(of, griffe.Class):
    return _call(f"class {of.name}", of, None)
  if isinstance(of, griffe.Function):
    return _call(of.name, of, of.returns)
  assert isinstance(of, griffe.Attribute)
  annotation = f": {of.annotation}" if of.annotation else ""
  value = f" = {of.value}" if of.value and "class-attribute" not in of.labels else ""
  line = f"{of.name}{annotation}{value}"
  return line if len(line) <= _WIDTH else f"{of.name}{annotation}"


def _call(name: str, of: griffe.Class | griffe.Function, returns: str | griffe.Expr | None) -> str:
  shown = list(_parameters(of))
  result = f" -> {returns}" if returns else ""
  arguments = f"({', '.join(shown)})" if shown or isinstance(of, griffe.Function) else ""
  line = f"{name}{arguments}{result}"
  if len(line) <= _WIDTH:
    return line
  lines = "".join(f"{_PARAMETER.fill(f'{parameter},')}\n" for parameter in shown)
  return f"{name}(\n{lines}){result}"


def _parameters(of: griffe.Class | griffe.Function) -> Iterator[str]:
  star = False
  for parameter in of.parameters:
    if parameter.name in ("self", "cls"):
      continue
    kind = parameter.kind
    if kind is griffe.ParameterKind.keyword_only and not star:
      star = True
      yield "*"
    star = star or kind is griffe.ParameterKind.var_positional
    prefix = _STARS.get(kind, "")
    annotation = f": {parameter.annotation}" if parameter.annotation else ""
    optional = parameter.default is not None and not prefix
    default = (" = " if annotation else "=") + _default(parameter, of) if optional else ""
    yield f"{prefix}{parameter.name}{annotation}{default}"


def _default(parameter: griffe.Parameter, of: griffe.Object) -> str:
  """The default of a parameter; of a private constant of the module its value."""
  constant = of.module.members.get(str(parameter.default))
  if isinstance(constant, griffe.Attribute) and constant.name.startswith("_"):
    return str(constant.value)
  return str(parameter.default).replace("'", '"')


def _sections(of: griffe.Object) -> Iterator[str]:
  """The sections of the docstring."""
  for section in of.docstring.parsed if of.docstring else []:
    title = (section.title or section.kind.value.capitalize()).removesuffix(":")
    match section.kind:
      case griffe.DocstringSectionKind.text:
        yield _escaped(section.value)
      case griffe.DocstringSectionKind.examples:
        yield f"**{title}**"
        for kind, text in section.value:
          code = kind is griffe.DocstringSectionKind.examples
          yield f"```pycon\n{text}\n```" if code else _escaped(text)
      case griffe.DocstringSectionKind.admonition:
        yield f"**{title}** {_escaped(section.value.description)}"
      case griffe.DocstringSectionKind.returns | griffe.DocstringSectionKind.yields:
        yield f"**{title}**"
        texts = (": ".join(filter(None, _result(item, of))) for item in section.value)
        yield "\n".join(_item("", text) for text in texts)
      case griffe.DocstringSectionKind.raises:
        yield f"**{title}**"
        yield "\n".join(_item(str(item.annotation), item.description) for item in section.value)
      case _:
        yield f"**{title}**"
        yield "\n".join(_item(_names(item), item.description) for item in section.value)


def _result(item: griffe.DocstringReturn, of: griffe.Object) -> tuple[str, str]:
  """What the docstring has before and behind a colon; Griffe takes what is before it for a type."""
  before = str(item.annotation or "")
  return "" if before == str(getattr(of, "returns", "")) else before, item.description.strip()


def _names(item: griffe.DocstringNamedElement) -> str:
  """A name, or several: Griffe takes the second for the type of the first."""
  return f"{item.name} {item.annotation}" if item.name.endswith(",") else item.name


def _item(name: str, description: str) -> str:
  text = textwrap.indent(_escaped(description.strip()), "  ").lstrip()
  return f"- `{name}`: {text}" if name else f"- {text}"


def _escaped(text: str) -> str:
  return _MARKUP.sub(lambda found: found["code"] or {"*": r"\*", "<": "&lt;"}[found[0]], text)


def _command(name: str) -> str:
  """The usage, the text and the options of a command such as "jax2tf generate run"."""
  from jax2tf.tools.cli.main import command  # noqa: PLC0415

  found: click.Command = command
  context = click.Context(found, info_name="jax2tf")
  for word in name.split()[1:]:
    assert isinstance(found, click.Group)
    found = found.commands[word]
    context = click.Context(found, info_name=word, parent=context)
  usage = " ".join(found.collect_usage_pieces(context))
  paragraphs = [_paragraph(text) for text in (found.help or "").split("\n\n")]
  records = (parameter.get_help_record(context) for parameter in found.params)
  # Arguments are in the usage, and described by the text.
  options = [_item(flags, text) for flags, text in filter(None, records) if text]
  return "\n\n".join(
    [f"## {name}", f"```text\n{context.command_path} {usage}\n```", *paragraphs, "\n".join(options)]
  )


def _paragraph(text: str) -> str:
  """A paragraph of a command's help; "\\b" stands before a title and lines that are kept."""
  lines = textwrap.dedent(text).strip("\n").split("\n")
  if lines[0] != "\b":
    return _escaped(" ".join(line.strip() for line in lines))
  code = textwrap.dedent("\n".join(lines[2:]))
  return f"{lines[1]}\n\n```sh\n{code}\n```"


if __name__ == "__main__":
  for page in pages():
    page.write_text(written(_text(page)), encoding="utf-8")
