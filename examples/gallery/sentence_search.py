"""How do I search texts by meaning in a web page, without a search server?

The page finds modules of Python's standard library by their purpose. The sentence encoder
all-MiniLM-L6-v2 encodes the first lines of their documentation and each query, in the browser.
Chromium runs three queries here; --serve serves the page for your own.
"""

from __future__ import annotations

import ast
import json
import shutil
import sysconfig
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jax2tf.examples.browser import export
from jax2tf.examples.gallery import chart

QUERIES = (
  "measure how long my code takes",
  "send a message to somebody's mailbox",
  "read a compressed archive",
)


def modules() -> list[tuple[str, str]]:
  """(name, first paragraph of the documentation) of the standard library's modules that are written
  in Python."""
  place, found = Path(sysconfig.get_path("stdlib")), []
  for path in sorted([*place.glob("[a-z]*.py"), *place.glob("[a-z]*/__init__.py")]):
    words = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8", errors="replace"))) or ""
    paragraph = " ".join(words.split("\n\n")[0].split())
    if len(paragraph) > 20:
      found.append((path.parent.name if path.stem == "__init__" else path.stem, paragraph[:200]))
  return found


def write_texts(folder: Path) -> None:
  """Writes the texts that search.html searches."""
  (folder / "corpus.json").write_text(json.dumps(modules()), encoding="utf-8")


def ask(page: Any, address: str, queries: Sequence[str]) -> dict[str, list[str]]:
  """{query: titles of the results in a page of playwright}, the best first."""
  page.goto(f"{address}search.html")
  page.wait_for_function("!document.getElementById('query').disabled")
  found = {}
  for query in queries:
    page.fill("#query", query)
    page.wait_for_function(
      "query => document.getElementById('results').dataset.query === query", arg=query
    )
    found[query] = page.evaluate(
      "[...document.querySelectorAll('#results b')].map(title => title.textContent)"
    )
  return found


def main(arguments: Sequence[str] | None = None) -> dict[str, list[str]]:
  """{query: names of the modules}, the best first."""
  from playwright import sync_api  # noqa: PLC0415  (only this example needs it)

  parser = chart.parser(__doc__, "sentence_search")
  parser.add_argument(
    "--site", type=Path, default=export.BUILD, help="where the page and the model are, or will be"
  )
  parser.add_argument("--serve", action="store_true", help="leave the page open")
  options = parser.parse_args(arguments)
  if not (options.site / "model").exists():
    export.main(options.site)
  write_texts(options.site)
  options.picture.parent.mkdir(parents=True, exist_ok=True)

  with (
    export.server(options.site, 8000 if options.serve else 0) as server,
    sync_api.sync_playwright() as playwright,
  ):
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    address = f"http://127.0.0.1:{server.server_port}/"
    chromium = playwright.chromium.launch(
      executable_path=shutil.which("chromium") or shutil.which("google-chrome"),
      args=["--no-sandbox"],
    )
    page = chromium.new_page(viewport={"width": 900, "height": 600})
    found = ask(page, address, QUERIES)
    page.screenshot(path=options.picture)
    chromium.close()
    for query, titles in found.items():
      print(f"{query}: {', '.join(titles)}")
    print(f"picture: {options.picture}")
    if options.serve:
      input(f"{address}search.html; Enter ends it")
    server.shutdown()
  return found


if __name__ == "__main__":
  main()
