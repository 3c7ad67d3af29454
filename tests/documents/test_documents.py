"""The documents: their links and anchors lead somewhere, the files they name are there, and the
reference has every public name."""

from __future__ import annotations

import ast
import functools
import json
import re
import urllib.parse
from pathlib import Path

import pytest

import jax2tf

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
CODE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")
# `tests/support/case.py`, `converters/onnx/`: in backquotes, below a folder of the repository.
FILE = re.compile(
  r"`((?:jax2tf|converters|tools|tests|examples|docs)/[\w./-]*)(?![\w./<*{-])(?:::(\w+))?[^`\n]*`"
)
# `trace.py`, `lowering/conv.py`: where a document speaks of our own source.
SOURCE = re.compile(r"`(\w[\w/-]*\.(?:py|md|json|cjs|yml))`")


@functools.cache
def text_of(page: Path) -> str:
  """Without its blocks of code."""
  return CODE.sub("", page.read_text(encoding="utf-8"))


@functools.cache
def anchors(page: Path) -> set[str]:
  """Those of the headings, as GitHub and MkDocs make them; both number a repetition, in different
  ways, so it has none here."""
  headings = re.findall(r"^#+ (.*)$", text_of(page), re.MULTILINE)
  plain = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading) for heading in headings]
  return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in plain}


def broken(page: Path, target: str) -> bool:
  url = urllib.parse.urlsplit(target)
  if url.scheme:
    return url.scheme not in ("https", "mailto") or (
      url.scheme == "https" and "." not in url.netloc
    )
  file = page.parent / url.path if url.path else page
  return not file.exists() or (bool(url.fragment) and url.fragment not in anchors(file.resolve()))


def test_links_lead_somewhere() -> None:
  """Into the repository: files and headings. Of others only the form."""
  links = [(page, target) for page in PAGES for target in LINK.findall(text_of(page))]
  assert len(links) > 100
  assert [
    f"{page.relative_to(ROOT)}: {target}" for page, target in links if broken(page, target)
  ] == []


def test_a_page_answers_one_question() -> None:
  """So it is short; all-of-jax2tf is the tour of them all."""
  most = {"guide": 120, "tasks": 80}
  lines = {
    page: len(page.read_text(encoding="utf-8").splitlines())
    for folder in most
    for page in (ROOT / "docs" / folder).glob("*.md")
    if page.stem != "all-of-jax2tf"
  }
  assert len(lines) > 40
  assert [
    f"{page.name}: {count}" for page, count in lines.items() if count > most[page.parent.name]
  ] == []


@pytest.mark.parametrize(
  "target",
  ["no.md", "docs/limitations.md#no", "#no", "http://jax.dev", "https://jax", "htps://jax.dev"],
)
def test_a_broken_link_is_seen(target: str) -> None:
  assert broken(ROOT / "README.md", target)


def test_the_files_that_documents_name_are_there() -> None:
  named = [(page.name, file, test) for page in PAGES for file, test in FILE.findall(text_of(page))]
  assert len(named) > 50
  assert [
    (page, file, test)
    for page, file, test in named
    if not (ROOT / file).exists()
    or (test and f"def {test}" not in (ROOT / file).read_text(encoding="utf-8"))
  ] == []


def test_the_source_files_that_developers_read_of_are_there() -> None:
  pages = [ROOT / "docs" / "architecture.md", *(ROOT / "docs" / "developers").glob("*.md")]
  named = {name for page in pages for name in SOURCE.findall(text_of(page))}
  folders = ("jax2tf", "converters", "tools", "tests", "docs", "examples")
  ours = [
    f"/{file.relative_to(ROOT)}" for folder in folders for file in (ROOT / folder).rglob("*.*")
  ]
  ours += [f"/{file.name}" for file in ROOT.glob("*.*")]
  assert len(named) > 10
  assert [name for name in named if not any(file.endswith(f"/{name}") for file in ours)] == []


def _all(file: Path) -> list[str]:
  """`__all__`, without an import: some need packages that a user may not have."""
  body = ast.parse(file.read_text(encoding="utf-8")).body
  names = [
    node.value
    for node in body
    if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
  ]
  return list(ast.literal_eval(names[0])) if names else []


def _public() -> dict[str, list[str]]:
  """{module: its names} of what users import besides jax2tf itself: what has `__all__` is public.
  Of `jax2tf.converters` the names are its packages."""
  files = [
    (folder, file)
    for folder in ("jax2tf", "converters", "tools")
    for file in sorted((ROOT / folder).rglob("*.py"))
  ]
  public = {}
  for folder, file in files:
    parts = file.relative_to(ROOT / folder).with_suffix("").parts
    within = parts[:-1] if parts[-1] == "__init__" else parts
    module = ".".join(("jax2tf", *([] if folder == "jax2tf" else [folder]), *within))
    if names := _all(file):
      public[module] = names
  return {
    module: names
    for module, names in public.items()
    if module not in ("jax2tf", "jax2tf.converters")
  }


PUBLIC = _public()


def test_the_packages_of_the_converters_are_public() -> None:
  packages = _all(ROOT / "converters" / "__init__.py")
  assert {f"jax2tf.converters.{name}" for name in packages} == {
    module for module in PUBLIC if re.fullmatch(r"jax2tf\.converters\.\w+", module)
  }


def test_the_code_of_contributing_is_that_of_the_source() -> None:
  blocks = re.findall(
    r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.DOTALL
  )
  shown = {line.strip().rstrip(",") for block in blocks for line in block.splitlines()} - {
    "",
    "...",
  }
  files = (
    path for folder in ("jax2tf", "converters", "tests") for path in (ROOT / folder).rglob("*.py")
  )
  assert len(shown) > 8
  assert (
    shown
    - {
      line.strip().rstrip(",")
      for path in files
      for line in path.read_text(encoding="utf-8").splitlines()
    }
    == set()
  )


def test_the_table_of_the_readme_says_yes_partly_or_no() -> None:
  readme = (ROOT / "README.md").read_text(encoding="utf-8")
  rows = re.findall(r"^\| .+ \|$", readme, re.MULTILINE)[1:]
  cells = [cell for row in rows for cell in row.strip("| ").split(" | ")[1:]]
  assert len(cells) == 6 * len(rows) > 60
  # a page says which part
  assert [
    cell for cell in cells if not re.fullmatch(r"yes|no|\[(yes|partly)\]\([^)]+\)", cell)
  ] == []


def test_the_largest_differences_are_those_of_the_report() -> None:
  versions = [
    entry["groups"]
    for entry in json.loads(
      (ROOT / "docs/reports/data/coverage.json").read_text(encoding="utf-8")
    ).values()
  ]
  table = (
    (ROOT / "docs/guide/numerics.md")
    .read_text(encoding="utf-8")
    .partition("| Family |")[2]
    .partition("\n\n")[0]
  )
  rows = [row.strip("| ").split(" | ") for row in table.splitlines()[2:]]
  named = [re.findall(r"`(\w+)`", row[3]) for row in rows]
  others = {group for groups in versions for group in groups}.difference(*named)
  assert [bool(groups) for groups in named] == [True] * 5 + [False]
  for (family, *shown, _), groups in zip(rows, named, strict=True):
    for cell, way in zip(shown, ("graph", "gradient"), strict=True):
      found = [
        (each[way]["worst"], group)
        for one in versions
        for group in groups or others
        if way in (each := one.get(group, {}))
      ]
      worst, group = max(found)
      assert cell == (
        f"{worst:.0f}" if worst >= 10 or not worst else f"{worst:.1f}"
      ) + f", `{group}`" * bool(worst), family


def test_the_reference_has_every_public_name() -> None:
  pages = sorted((ROOT / "docs" / "reference" / "api").glob("*.md"))
  entries = [
    entry
    for page in pages
    for entry in re.findall(r"^## (jax2tf\S+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
  ]
  names = {f"{module}.{name}" for module, public in PUBLIC.items() for name in public}
  assert sorted(entries) == sorted(names | {f"jax2tf.{name}" for name in jax2tf.__all__})


def test_each_module_that_documents_import_is_public() -> None:
  """`from jax2tf.x import ...` of the guides: what they show, the reference has."""
  code = "\n".join(
    block
    for page in (ROOT / "docs").rglob("*.md")
    for block in CODE.findall(page.read_text(encoding="utf-8"))
  )
  shown = set(re.findall(r"^\s*(?:from|import) (jax2tf\.[\w.]+)", code, re.MULTILINE))
  parents = {
    ".".join(module.split(".")[:n]) for module in PUBLIC for n in range(1, module.count(".") + 2)
  }
  examples = {module for module in shown if module.startswith("jax2tf.examples")}
  assert shown - parents - examples == set()
