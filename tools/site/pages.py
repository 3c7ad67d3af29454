"""Hooks of MkDocs: pages from outside docs/, and links to files outside docs/."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
# Files of the repository's root that become pages of the site.
PAGES = {
  "README.md": "readme.md",
  "CONTRIBUTING.md": "contributing.md",
  "CHANGELOG.md": "changelog.md",
  "SECURITY.md": "security.md",
}
# Pages that many words are in and few questions: others come first in the search.
RECORDS = ("reports/", "changelog.md")
# Files beside this one, and where the site has them; the plugin awesome-nav reads the last.
ASSETS = {"site.css": "assets/site.css", "worker.js": "assets/worker.js", "nav.yml": ".nav.yml"}
# Material's script for search without a server needs the network; worker.js does not.
_SHIM = re.compile(r"https://unpkg\.com/iframe-worker/shim")

# A public name in the reference, as reference.py has written it.
_ENTRY = re.compile(r"^## (jax2tf\S*)$", re.MULTILINE)
_LINK = re.compile(r"(?<=\]\()(?!\w+:)([^)\s#]+)(?=[#)])")
_CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.DOTALL | re.MULTILINE)
_LANGUAGES = {
  ".py": "python",
  ".md": "markdown",
  ".yaml": "yaml",
  ".yml": "yaml",
  ".sh": "sh",
  ".js": "js",
  ".html": "html",
  ".json": "json",
}


def on_files(files: Files, *, config: Any) -> Files:
  """Adds the pages of the root, the assets, and pages for linked source files and folders."""
  for name, uri in PAGES.items():
    files.append(File.generated(config, uri, abs_src_path=str(ROOT / name)))
  for name, uri in ASSETS.items():
    files.append(File.generated(config, uri, abs_src_path=str(Path(__file__).with_name(name))))
  linked = {path for page in files.documentation_pages() for path in _linked(page) if path.exists()}
  inside = {path: sorted(_files(path)) for path in linked if path.is_dir()}
  for path in sorted(linked.union(*inside.values())):
    if (uri := _uri(path)).startswith("source/"):
      files.append(File.generated(config, uri, content=_page(path, inside.get(path))))
  return files


@event_priority(-200)  # type: ignore[untyped-decorator]  # after the plugin `offline`, which writes the index
def on_post_build(*, config: Any) -> None:
  """Raises PluginError if a public name is not in the index that search reads without a server."""
  index = Path(config.site_dir, "search", "search_index.js").read_text(encoding="utf-8")
  pages = (ROOT / "docs/reference/api").glob("*.md")
  named = {name for page in pages for name in _ENTRY.findall(page.read_text(encoding="utf-8"))}
  if missing := sorted(name for name in named if f'"title":"{name}' not in index):
    raise PluginError(f"search does not find {', '.join(missing)}")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
  """Redirects links to files outside docs/, and links in the root's pages, to pages of the site."""
  if page.file.src_uri.startswith("source/"):
    return markdown
  if page.file.src_uri.startswith(RECORDS):
    page.meta.setdefault("search", {})["boost"] = 0.3
  folder = Path(page.file.abs_src_path).parent
  here = PurePosixPath(page.file.src_uri).parent

  def led(link: re.Match[str]) -> str:
    target = (folder / link[1]).resolve()
    return os.path.relpath(_uri(target), here) if target.exists() else link[1]

  return outside_code(markdown, lambda text: _LINK.sub(led, text))


def on_post_page(output: str, *, page: Any, **_: Any) -> str:
  return _SHIM.sub(os.path.relpath("assets/worker.js", PurePosixPath(page.url).parent), output)


def outside_code(markdown: str, change: Callable[[str], str]) -> str:
  """Applies a function to the parts of a text that are not code."""
  parts, end = [], 0
  for code in _CODE.finditer(markdown):
    parts += [change(markdown[end : code.start()]), code[0]]
    end = code.end()
  return "".join([*parts, change(markdown[end:])])


def _linked(page: File) -> Iterable[Path]:
  """The files that a page links to."""
  if page.src_uri.startswith("source/"):
    return
  file = Path(page.abs_src_path or "")
  for target in _LINK.findall(_CODE.sub("", file.read_text(encoding="utf-8"))):
    yield (file.parent / target).resolve()


def _files(folder: Path) -> Iterable[Path]:
  return (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")


def _page(path: Path, files: Iterable[Path] | None) -> str:
  """The page of a source file, or of a folder the list of its files."""
  if files is None:
    body = f"````{_LANGUAGES.get(path.suffix, 'text')}\n{path.read_text(encoding='utf-8')}\n````"
  else:
    body = "\n".join(
      "- "
      f"[{file.relative_to(path)}]({os.path.relpath(_uri(file), PurePosixPath(_uri(path)).parent)})"
      for file in files
    )
  return f"---\nsearch: {{exclude: true}}\n---\n# {path.relative_to(ROOT).as_posix()}\n\n{body}\n"


def _uri(path: Path) -> str:
  """The path in the site of a file of the repository."""
  name = path.relative_to(ROOT).as_posix()
  if name.startswith("docs/"):
    return name.removeprefix("docs/")
  return PAGES.get(name) or f"source/{name}.md"
